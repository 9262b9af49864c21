"""The output of the demo, for 80 columns: a line for each hour, the table at the end, and some dead letters."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rqttl import Broker, MessageView
from rqttl.demo.flights import AGENTS, CONSUMERS, DAY, Day, Flight
from rqttl.demo.stage import Counts, dead_letters, total
from rqttl.errors import QueueNotFound
from rqttl.protocol import codec
from rqttl.text import plural

#: Characters of the longest bar.
_BAR = 30
#: Dead letters in which examples are looked for.
_LOOK_INTO = 500
#: Carriers with a column of their own in the report of Spark; the others share one.
_COLUMNS = 7


def print_opening(console: Console, flights: Sequence[Flight], day: Day) -> None:
    """Print the plan of the day."""
    carriers = plural(len({flight.carrier for flight in flights}), "carrier")
    console.print(
        f"[bold]{plural(len(flights), 'real departure')} from New York in 2013[/bold], the flights of "
        f"{plural(day.dates, 'date')} played as one day; a minute of it takes {day.minute_ms:.0f} ms. Each boarding "
        f"call is a message in its carrier's queue ({carriers}). Its TTL is the time until the same carrier's next "
        f"departure from the same airport: 15 minutes are {15 * day.minute_ms:.0f} ms.\n\n{CONSUMERS} workers can "
        f"handle {CONSUMERS * AGENTS * 1000 / day.handling_ms:,.0f} calls a second, less than the rush hours bring. "
        "They reject the calls of cancelled flights. A reaper moves what expires into dead-letter queues.\n"
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


def print_result(
    console: Console, counts: Mapping[str, Counts], problems: Sequence[str], airlines: Mapping[str, str]
) -> None:
    """Print the table of carriers, and the sums that do not add up."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, show_footer=True, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("carrier", "all", vertical="bottom", no_wrap=True)
    names = ("sent", "handled", "expired", "rejected", "dead-\nlettered", "still\nwaiting")
    for name, value in zip(names, total(counts.values()), strict=True):
        table.add_column(name, f"{value:,}", justify="right", vertical="bottom")
    for carrier, row in counts.items():
        table.add_row(f"{carrier}  {airlines.get(carrier, '')}", *(f"{value:,}" for value in row))
    console.print()
    console.print(table)
    for problem in problems:
        print_plain(console, f"It does not add up: {problem}")
    if not problems:
        console.print(
            "\n[bold]It adds up[/bold] for every carrier: sent = handled + expired + rejected, dead-lettered = expired "
            "+ rejected, and the count of the producer agrees with the queues' own counters."
        )
    console.print()


def print_dead_letters(console: Console, broker: Broker, carrier: str, day: Day) -> None:
    """Print an expired and a rejected call of a carrier, with their histories."""
    with contextlib.suppress(QueueNotFound):  # nothing has died
        found = {one.deaths[0].reason: one for one in broker.queue(dead_letters(carrier)).peek(_LOOK_INTO)}
        console.print("[bold]Some dead letters[/bold], with their history:")
        for one in found.values():
            print_plain(console, "\n" + "\n  ".join(history(one, day)))


def history(message: MessageView, day: Day) -> Iterator[str]:
    """The history of one boarding call, in words."""
    call: dict[str, Any] = codec.unpack(message.body)
    death, gap = message.deaths[0], call["gap_minutes"]
    yield f"{call['flight']}, {call['from']} to {call['to']}, scheduled for {call['scheduled']}"
    if gap is not None:
        ttl = gap * day.minute_ms
        yield f"the carrier's next departure: {plural(gap, 'minute')} later, so TTL {ttl:,.0f} ms"
    yield f"sent to {death.queue} at {death.enqueued_at:%H:%M:%S} UTC"
    age = (death.last_at - death.enqueued_at) / timedelta(milliseconds=1)
    why = f": {death.description}" if death.description else ""
    yield f"{death.reason} {age:,.0f} ms later, delivered {plural(death.delivery_count, 'time')}{why}"
    yield f"now in {message.queue}"


def print_hours(console: Console, carriers: Mapping[str, Mapping[int, int]], seconds: float) -> None:
    """Print the dead letters by hour and carrier, the busiest first."""
    names = list(carriers)
    columns = {name: [name] for name in names[:_COLUMNS]}
    if names[_COLUMNS:]:
        columns["other"] = names[_COLUMNS:]
    rows = {
        f"{hour:02}": [sum(carriers[one].get(hour, 0) for one in column) for column in columns.values()]
        for hour in sorted({hour for counts in carriers.values() for hour in counts})
    }
    sums = [sum(column) for column in zip(*rows.values(), strict=True)]
    table = Table(box=SIMPLE_HEAD, show_edge=False, show_footer=True, pad_edge=False, padding=0)
    table.add_column("hour", "all")
    for name, number in zip((*columns, "all"), (*sums, sum(sums)), strict=True):
        table.add_column(name, f"{number:,}", justify="right")
    for hour, row in rows.items():
        table.add_row(hour, *(f"{number:,}" if number else "" for number in (*row, sum(row))))
    console.print(
        f'\n[bold]The dead letters, counted by Spark[/bold] in {seconds:.0f} s, with format("rqttl"): by carrier, and '
        "by the hour of the scheduled departure.\n"
    )
    console.print(table)


def print_plain(console: Console, text: str) -> None:
    """Print a text that may hold paths, neither folded nor read as markup."""
    console.print(text, markup=False, soft_wrap=True)
