"""What the demo prints: how the day goes, the table at its end, and some dead letters. Made for 80 columns."""

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

from rqttl import Broker, Peeked, codec
from rqttl.demo.accounts import Counts
from rqttl.demo.day import AGENTS, CONSUMERS, DAY, Day, clock
from rqttl.demo.flights import Flight
from rqttl.demo.names import missed
from rqttl.demo.report import Hours
from rqttl.demo.stage import LOOK, Outcome
from rqttl.errors import QueueNotFound

#: Seconds between two lines where there is no terminal.
LINE_EVERY = 3.0
#: Over how many seconds a rate is measured.
RATE_OVER = 2.0
#: How many minutes of the day one bar may stand for: so many that each has been looked at twice.
BARS = (30, 60, 120, 240)
#: From how many carriers, and how far into their dead letters, examples are looked for.
LOOK_AT, LOOK_INTO = 4, 500


def console(*, stderr: bool) -> Console:
    """Where the demo prints for people."""
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def opening(console: Console, flights: Sequence[Flight], day: Day) -> None:
    """What is going to happen."""
    carriers = _plural(len({flight.carrier for flight in flights}), "carrier")
    console.print(
        f"[bold]{_plural(len(flights), 'real departure')} from New York in 2013[/bold], the flights of "
        f"{_plural(day.dates, 'date')} played as one day that begins at {clock(day.first)}. A minute of it takes "
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
    """Shows how it goes: a display that stays in its place on a terminal, and a line now and then elsewhere."""

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
        said = [
            f"{name} {getattr(counts, name):>6,} ({self._rate(name):>5,.0f}/s)"
            for name in ("sent", "handled", "expired")
        ]
        return "  ".join([clock(minute), *said, f"waiting {counts.waiting:>5,}"])

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
        what = "the day is over: the rest is handled or expires" if minute >= DAY else "boarding"
        return Group(Text.assemble((clock(minute), "bold"), "  ", what), rows)

    def _bars(self, values: Sequence[int], highest: int) -> str:
        steps = " ▁▂▃▄▅▆▇█" if self._console.encoding.startswith("utf") else " .:-=+*#@"
        # what was sent in one period may be handled in the next: a bar can be higher than the highest of what was sent
        return "".join(steps[min(8, -(-max(0, value) * 8 // max(1, highest)))] for value in values)


def closing(console: Console, outcome: Outcome, airlines: Mapping[str, str]) -> None:
    """The table per carrier, and whether it adds up."""
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


def dead_letters(console: Console, broker: Broker, carriers: Sequence[str], day: Day) -> None:
    """Some dead letters with their history: two that expired, of different carriers, and one that was rejected."""
    found: dict[str, list[Peeked]] = {"expired": [], "rejected": []}
    for carrier in carriers[:LOOK_AT]:
        with contextlib.suppress(QueueNotFound):
            letters = broker.queue(missed(carrier)).peek(LOOK_INTO)
            for reason in found:
                found[reason] += [letter for letter in letters if letter.deaths[0].reason == reason][-1:]
    chosen = found["expired"][:2] + found["rejected"][:1]
    if chosen:
        console.print("[bold]Some dead letters[/bold], with their history:")
    for letter in chosen:
        console.print()
        for line in history(letter, day):
            console.print(line, markup=False)


def history(letter: Peeked, day: Day) -> list[str]:
    """What happened to one boarding call, in words."""
    call: dict[str, Any] = codec.unpack(letter.body)
    death = letter.deaths[0]
    lines = [f"{call['flight']}, {call['from']} to {call['to']}, scheduled for {call['scheduled']}"]
    if call["gap_minutes"] is not None:
        ttl = call["gap_minutes"] * day.minute_ms
        lines.append(
            f"  the carrier's next departure: {_plural(call['gap_minutes'], 'minute')} later, so TTL {ttl:,.0f} ms"
        )
    lines.append(f"  sent to {death.queue} at {death.enqueued_at:%H:%M:%S.%f}"[:-3] + " UTC")
    lived = _ms(death.last_at - death.enqueued_at)
    if death.reason == "rejected":
        lines.append(f"  rejected {lived} later, in delivery {death.delivery_count}: {death.description}")
    elif death.expires_at is not None:
        delivered = f"delivered {_plural(death.delivery_count, 'time')}" if death.delivery_count else "never delivered"
        lines.append(
            f"  expired {lived} later, {_ms(death.last_at - death.expires_at)} after its deadline, {delivered}"
        )
    lines.append(f"  now in {letter.queue}")
    return lines


def hours(console: Console, carriers: Mapping[str, Hours], seconds: float) -> None:
    """Dead letters by hour and carrier, the busiest first; the carriers for which there is no room are one column."""
    sums = {carrier: sum(counts.values()) for carrier, counts in carriers.items()}
    columns = [[carrier] for carrier in carriers]
    while len(columns) > 1 and _width(columns, sums) > console.width:
        columns[-2:] = [columns[-2] + columns[-1]]
    table = Table(box=SIMPLE_HEAD, show_edge=False, show_footer=True, pad_edge=False, padding=0)
    table.add_column("hour", "all")
    for column in columns:
        table.add_column(_title(column), f"{sum(sums[one] for one in column):,}", justify="right")
    table.add_column("all", f"{sum(sums.values()):,}", justify="right")
    for hour in sorted({hour for counts in carriers.values() for hour in counts}):
        row = [sum(carriers[one].get(hour, 0) for one in column) for column in columns]
        table.add_row(f"{hour:02}", *(f"{number:,}" if number else "" for number in row), f"{sum(row):,}")
    console.print(
        f'\n[bold]The dead letters, counted by Spark[/bold] in {seconds:.0f} s, with format("rqttl"): by carrier, and '
        "by the hour of the scheduled departure.\n"
    )
    console.print(table)


def _title(column: Sequence[str]) -> str:
    return column[0] if len(column) == 1 else "other"


def _width(columns: Sequence[Sequence[str]], sums: Mapping[str, int]) -> int:
    """How wide the table of these columns is: a footer is the widest number of its column."""
    widths = [max(len(_title(column)), len(f"{sum(sums[one] for one in column):,}")) for column in columns]
    return len("hour ") + sum(width + 1 for width in widths) + len(f"{sum(sums.values()):,}")


def document(value: object) -> None:
    """The table as JSON, on stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def failure(reason: str) -> None:
    """Why it ended early."""
    sys.stderr.write(f"rqttl: the demo ended early: {reason}\n")


def _ms(time: timedelta) -> str:
    return f"{time / timedelta(milliseconds=1):,.0f} ms"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
