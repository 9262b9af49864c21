"""The output of the demo, for 80 columns: a line for each hour, tables, some dead letters, and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rqttl.demo.flights import AGENTS, CONSUMERS, DAY, Day, Flight
from rqttl.demo.stage import Counts, total, unequal
from rqttl.text import install, plural

#: The dead letters of each carrier, by the hour of the day for which the flights were scheduled.
Hours = Mapping[str, Mapping[int, int]]
#: Characters of the longest bar.
_BAR = 30
#: Carriers with a column of their own in the report of Spark.
_COLUMNS = 7


def print_opening(console: Console, flights: Sequence[Flight], day: Day) -> None:
    """Print the plan of the day."""
    carriers = plural(len({flight.carrier for flight in flights}), "carrier")
    console.print(
        f"[bold]{plural(len(flights), 'real departure')} from New York in 2013[/bold], played as one day; a minute of "
        f"it takes {day.minute_ms:.0f} ms. Each boarding call is a message in its carrier's queue ({carriers}). Its "
        f"TTL is the time until the same carrier's next departure from the same airport: 15 minutes are "
        f"{15 * day.minute_ms:.0f} ms.\n\n{CONSUMERS} workers can handle "
        f"{CONSUMERS * AGENTS * 1000 / day.handling_ms:,.0f} calls a second, less than the rush hours bring. They "
        "reject the calls of cancelled flights. A reaper moves what expires into dead-letter queues.\n"
    )


class Progress:
    """The progress of the day: a line for each hour, with a bar of what was handled and what expired in it."""

    def __init__(self, console: Console, flights: Sequence[Flight]) -> None:
        self._console = console
        self._before = Counts()
        self._most = max(Counter(flight.at % DAY // 60 for flight in flights).values())
        self._handled, self._expired = "█░" if console.encoding.startswith("utf") else "#."
        console.print("hour    sent  handled  expired  rejected  waiting", style="dim")

    def show(self, hour: int, counts: Counts) -> None:
        """Show an hour at its end. `counts` are those of the whole day so far."""
        new = Counts(*(now - before for now, before in zip(counts, self._before, strict=True)))
        self._before = counts
        line = Text(f"  {hour:02}  {new.sent:>6,}  {new.handled:>7,}  {new.expired:>7,}  {new.rejected:>8,}")
        line.append(f"  {counts.waiting:>7,}  ")
        line.append(self._handled * round(new.handled * _BAR / self._most), "green")
        line.append(self._expired * round(new.expired * _BAR / self._most), "red")
        self._console.print(line, soft_wrap=True)


def print_result(console: Console, counts: Mapping[str, Counts], problems: Sequence[str]) -> None:
    """Print the table of carriers, and the sums that do not add up."""
    table = _table("carrier")
    names = ("sent", "handled", "expired", "rejected", "dead-\nlettered", "still\nwaiting")
    for name, value in zip(names, total(counts.values()), strict=True):
        table.add_column(name, f"{value:,}", justify="right", vertical="bottom")
    for carrier, row in counts.items():
        table.add_row(carrier, *(f"{value:,}" for value in row))
    console.print()
    console.print(table)
    print_problems(console, problems)
    if not problems:
        console.print(
            "\n[bold]It adds up[/bold] for every carrier: sent = handled + expired + rejected, dead-lettered = expired "
            "+ rejected, and the count of the producer agrees with the queues' own counters."
        )
    console.print()


def print_report(console: Console, counts: Mapping[str, Counts], answer: Mapping[str, Any]) -> tuple[Hours, list[str]]:
    """Print the answer of Spark. Returns its counts, the busiest carrier first, and a line for each wrong sum."""
    if "missing" in answer:
        print_plain(console, f"\nThe report of Spark is left out: {answer['missing']}")
        return {}, []
    found = {carrier: {int(hour): n for hour, n in hours.items()} for carrier, hours in answer["counts"].items()}
    hours = {one: found[one] for one in sorted(found, key=lambda one: (-sum(found[one].values()), one))}
    print_hours(console, hours)
    problems = []
    for carrier, row in counts.items():
        by_spark = sum(found.get(carrier, {}).values())
        problems += unequal(carrier, ("dead letters, by the queue and by Spark", row.dead_lettered, by_spark))
    print_problems(console, problems)
    return hours, problems


def print_hours(console: Console, carriers: Hours) -> None:
    """Print the dead letters by hour, of the busiest carriers and of all."""
    together = Counter[int]()
    for counts in carriers.values():
        together.update(counts)
    columns = {name: carriers[name] for name in list(carriers)[:_COLUMNS]} | {"all": together}
    table = _table("hour")
    for name, counts in columns.items():
        table.add_column(name, f"{sum(counts.values()):,}", justify="right")
    for hour in sorted(together):
        table.add_row(f"{hour:02}", *(f"{counts[hour]:,}" if hour in counts else "" for counts in columns.values()))
    console.print(
        '\n[bold]The dead letters, counted by Spark[/bold], with format("rqttl"): by carrier, and by the hour of the '
        "scheduled departure.\n"
    )
    console.print(table)


def _table(first: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, show_footer=True, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, "all", vertical="bottom")
    return table


def print_problems(console: Console, problems: Sequence[str]) -> None:
    """Print the sums that do not add up."""
    for problem in problems:
        print_plain(console, f"It does not add up: {problem}")


def print_plain(console: Console, text: str) -> None:
    """Print a text that may hold paths, neither folded nor read as markup."""
    console.print(text, markup=False, soft_wrap=True)


def print_picture(console: Console, path: Path, carriers: Hours) -> None:
    """Draw the counts, and print the path of the picture, or why there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(path, carriers)
        print_plain(console, f"\nThe same as a picture: {path}")
    except (ImportError, OSError) as error:
        print_plain(console, f"\nThere is no picture: {error}; it needs matplotlib: {install('demo')}")


def draw(path: Path, carriers: Hours) -> None:
    """Draw the counts as a PNG: the more dead letters the darker. Raises `ImportError` or `OSError`."""
    from matplotlib.figure import Figure

    all_hours = sorted({hour for hours in carriers.values() for hour in hours})
    hours = range(all_hours[0], all_hours[-1] + 1)
    rows = [[counts.get(hour, 0) for hour in hours] for counts in carriers.values()]
    figure = Figure(figsize=(2.6 + 0.52 * len(hours), 1.2 + 0.34 * len(rows)), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.imshow(rows, cmap="YlOrRd", vmax=1.5 * max(map(max, rows)), aspect="auto")  # no cell hides its number
    for y, row in enumerate(rows):
        for x, number in enumerate(row):
            if number:
                axes.text(x, y, f"{number:,}", ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), list(carriers))
    axes.set_xticks(range(len(hours)), [f"{hour:02}" for hour in hours])
    axes.set_xlabel("hour of the scheduled departure")
    axes.set_title(f"Boarding calls that died, by carrier and hour: {sum(map(sum, rows)):,}")
    figure.savefig(path, format="png")
