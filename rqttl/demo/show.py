"""The output of the demo, for 80 columns: the progress of the day, the table at its end, and some dead letters."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rqttl import Broker, MessageView
from rqttl.demo.accounts import Counts
from rqttl.demo.day import AGENTS, CONSUMERS, DAY, Day, clock
from rqttl.demo.flights import Flight
from rqttl.demo.names import dead_letters
from rqttl.demo.report import Hours
from rqttl.demo.stage import LOOK, Outcome
from rqttl.errors import QueueNotFound
from rqttl.protocol import codec
from rqttl.text import plural

#: Seconds between two lines without a terminal.
LINE_EVERY = 3.0
#: Seconds over which a rate is measured.
RATE_OVER = 2.0
#: Minutes of the day in one bar: the first length with two looks at the queues.
BARS = (30, 60, 120, 240)
#: Carriers whose letters are examples, and the number of their letters that are read.
LOOK_AT, LOOK_INTO = 4, 500


def console(*, stderr: bool) -> Console:
    """The console for people."""
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def print_opening(console: Console, flights: Sequence[Flight], day: Day) -> None:
    """Print the plan of the day."""
    carriers = plural(len({flight.carrier for flight in flights}), "carrier")
    console.print(
        f"[bold]{plural(len(flights), 'real departure')} from New York in 2013[/bold], the flights of "
        f"{plural(day.dates, 'date')} played as one day that begins at {clock(day.first)}. A minute of it takes "
        f"{day.minute_ms:.0f} ms.\n"
    )
    console.print(
        f"Each boarding call is a message in its carrier's queue ({carriers}). Its TTL is the time until "
        f"the same carrier's next departure from the same airport: 15 minutes are {15 * day.minute_ms:.0f} ms.\n"
    )
    console.print(
        f"{CONSUMERS} consumer processes can handle {CONSUMERS * AGENTS * 1000 / day.handling_ms:,.0f} calls a second, "
        f"too {'few for the rush hours' if day.rush else 'many for a rush'}. They reject the calls of cancelled "
        "flights. A reaper process moves what expires into dead-letter queues.\n"
    )


class Progress:
    """The progress of the day: a display on a terminal, else a line from time to time."""

    def __init__(self, console: Console, day: Day) -> None:
        self._console = console
        self._day = day
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._seen: list[tuple[float, Counts]] = [(time.monotonic(), Counts())]
        self._bar = next((bar for bar in BARS if day.seconds(day.first + bar) >= 2 * LOOK), BARS[-1])
        self._periods = [Counts() for _ in range(day.first, DAY, self._bar)]
        self._next_line = 0.0

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, minute: int, counts: Counts) -> None:
        """Show the counts at a minute of the day."""
        now = time.monotonic()
        period = min((minute - self._day.first) // self._bar, len(self._periods) - 1)
        self._periods[period] += counts - self._seen[-1][1]
        self._seen.append((now, counts))
        while now - self._seen[0][0] > RATE_OVER and len(self._seen) > 2:
            self._seen.pop(0)
        if self._live:
            self._live.update(self._picture(minute, counts), refresh=True)
        elif counts.sent and now >= self._next_line:
            self._next_line = now + LINE_EVERY
            self._console.print(self._line(minute, counts), soft_wrap=True)

    def _rate(self, name: str) -> float:
        (start, before), (end, now) = self._seen[0], self._seen[-1]
        return float(getattr(now, name) - getattr(before, name)) / max(0.001, end - start)

    def _line(self, minute: int, counts: Counts) -> str:
        parts = [
            f"{name} {getattr(counts, name):>6,} ({self._rate(name):>5,.0f}/s)"
            for name in ("sent", "handled", "expired")
        ]
        return "  ".join([clock(minute), *parts, f"waiting {counts.waiting:>5,}"])

    def _picture(self, minute: int, counts: Counts) -> Group:
        rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("", "in all", "a second"):
            rows.add_column(title, justify="right" if title else "left", header_style="dim", min_width=9)
        rows.add_column(f"{clock(self._day.first)} to 24:00, {self._bar} minutes a bar", header_style="dim")
        highest = max(period.sent for period in self._periods)
        for name, style in (("sent", "cyan"), ("handled", "green"), ("expired", "red"), ("rejected", "yellow")):
            bars = self._bars([getattr(period, name) for period in self._periods], highest)
            rows.add_row(name, f"{getattr(counts, name):,}", f"{self._rate(name):,.0f}", Text(bars, style))
        rows.add_row("waiting", f"{counts.waiting:,}", "", "")
        phase = "the day is over: calls that wait are handled or expire" if minute >= DAY else "boarding"
        return Group(Text.assemble((clock(minute), "bold"), "  ", phase), rows)

    def _bars(self, values: Sequence[int], highest: int) -> str:
        steps = " ▁▂▃▄▅▆▇█" if self._console.encoding.startswith("utf") else " .:-=+*#@"
        # a call of one period may be handled in the next, so a bar may exceed the highest one of sent calls
        return "".join(steps[min(8, -(-max(0, value) * 8 // max(1, highest)))] for value in values)


def print_result(console: Console, outcome: Outcome, airlines: Mapping[str, str]) -> None:
    """Print the table of carriers, and the sums that do not add up."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, show_footer=True, pad_edge=False, padding=(0, 1, 0, 0))
    total = outcome.total
    table.add_column("carrier", "all", vertical="bottom", no_wrap=True)
    names = ("sent", "handled", "expired", "rejected", "dead-\nlettered", "still\nwaiting")
    for name, value in zip(names, total.values(), strict=True):
        table.add_column(name, f"{value:,}", justify="right", vertical="bottom")
    for carrier, counts in outcome.counts.items():
        table.add_row(f"{carrier}  {airlines.get(carrier, '')}", *(f"{value:,}" for value in counts.values()))
    console.print()
    console.print(table)
    if outcome.problems:
        console.print("\n[bold red]It does not add up:[/bold red]")
        for problem in outcome.problems:
            console.print(f"  {problem}", markup=False)
    else:
        console.print(
            "\n[bold]It adds up[/bold] for every carrier: sent = handled + expired + rejected, dead-lettered = expired "
            "+ rejected, and the tallies of the producer and of the consumers agree with the queues' own counters."
        )
    console.print(
        f"\nThe day took {outcome.seconds:.0f} s. The reaper moved {outcome.reaped:,} of the {total.expired:,} expired "
        f"calls{'; the others were moved by calls on the queues that met them first' if total.expired else ''}.\n"
    )


def print_letters(console: Console, broker: Broker, carriers: Sequence[str], day: Day) -> None:
    """Print three dead letters with their histories: two expired ones of different carriers, and a rejected one."""
    examples: dict[str, list[MessageView]] = {"expired": [], "rejected": []}
    for carrier in carriers[:LOOK_AT]:
        with contextlib.suppress(QueueNotFound):
            letters = broker.queue(dead_letters(carrier)).peek(LOOK_INTO)
            for reason in examples:
                examples[reason] += [letter for letter in letters if letter.deaths[0].reason == reason][-1:]
    printed = examples["expired"][:2] + examples["rejected"][:1]
    if printed:
        console.print("[bold]Some dead letters[/bold], with their history:")
    for letter in printed:
        console.print()
        for line in history(letter, day):
            console.print(line, markup=False)


def history(letter: MessageView, day: Day) -> list[str]:
    """The history of one boarding call, in words."""
    call: dict[str, Any] = codec.unpack(letter.body)
    death = letter.deaths[0]
    lines = [f"{call['flight']}, {call['from']} to {call['to']}, scheduled for {call['scheduled']}"]
    if call["gap_minutes"] is not None:
        ttl = call["gap_minutes"] * day.minute_ms
        lines.append(
            f"  the carrier's next departure: {plural(call['gap_minutes'], 'minute')} later, so TTL {ttl:,.0f} ms"
        )
    lines.append(f"  sent to {death.queue} at {death.enqueued_at:%H:%M:%S.%f}"[:-3] + " UTC")
    age = _ms(death.last_at - death.enqueued_at)
    if death.reason == "rejected":
        lines.append(f"  rejected {age} later, in delivery {death.delivery_count}: {death.description}")
    elif death.expires_at is not None:
        delivered = f"delivered {plural(death.delivery_count, 'time')}" if death.delivery_count else "never delivered"
        lines.append(f"  expired {age} later, {_ms(death.last_at - death.expires_at)} after its deadline, {delivered}")
    lines.append(f"  now in {letter.queue}")
    return lines


def print_hours(console: Console, carriers: Mapping[str, Hours], seconds: float) -> None:
    """Print the dead letters by hour and carrier, the busiest first. Carriers without room share a column."""
    sums = {carrier: sum(counts.values()) for carrier, counts in carriers.items()}
    columns = [[carrier] for carrier in carriers]
    while len(columns) > 1 and _width(columns, sums) > console.width:
        columns[-2:] = [columns[-2] + columns[-1]]
    table = Table(box=SIMPLE_HEAD, show_edge=False, show_footer=True, pad_edge=False, padding=0)
    table.add_column("hour", "all")
    for column in columns:
        table.add_column(_title(column), f"{sum(sums[carrier] for carrier in column):,}", justify="right")
    table.add_column("all", f"{sum(sums.values()):,}", justify="right")
    for hour in sorted({hour for counts in carriers.values() for hour in counts}):
        row = [sum(carriers[carrier].get(hour, 0) for carrier in column) for column in columns]
        table.add_row(f"{hour:02}", *(f"{number:,}" if number else "" for number in row), f"{sum(row):,}")
    console.print(
        f'\n[bold]The dead letters, counted by Spark[/bold] in {seconds:.0f} s, with format("rqttl"): by carrier, and '
        "by the hour of the scheduled departure.\n"
    )
    console.print(table)


def _title(column: Sequence[str]) -> str:
    return column[0] if len(column) == 1 else "other"


def _width(columns: Sequence[Sequence[str]], sums: Mapping[str, int]) -> int:
    """The width of a table with these columns. A footer is the widest number of its column."""
    widths = [max(len(_title(column)), len(f"{sum(sums[carrier] for carrier in column):,}")) for column in columns]
    return len("hour ") + sum(width + 1 for width in widths) + len(f"{sum(sums.values()):,}")


def print_json(value: object) -> None:
    """Print the table as JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_failure(reason: str) -> None:
    """Print the reason of an early end."""
    sys.stderr.write(f"rqttl: the demo ended early: {reason}\n")


def _ms(time: timedelta) -> str:
    return f"{time / timedelta(milliseconds=1):,.0f} ms"
