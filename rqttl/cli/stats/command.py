"""`rqttl stats`: what queues hold, what has happened in them, and how it goes on."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.settings import Settings, any_queues_argument, connecting, json_flag, read_duration
from rqttl.cli.common.signals import Stop, Stopped, Stopping
from rqttl.cli.queue.each import chosen, damaged_facts, plain, refuse_damaged, running_reapers
from rqttl.cli.stats.frame import SORTS, Setting, frame, ordered
from rqttl.cli.stats.table import TOTALS, glyphs_for, table
from rqttl.cli.stats.totals import milliseconds, stats_facts
from rqttl.cli.stats.trend import Look, Row, Trend
from rqttl.cli.stats.watch import Live, is_live, observe, tell
from rqttl.errors import QueueNotFound
from rqttl.units import as_text

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: The time between two looks: unless said otherwise, and at least.
INTERVAL, SHORTEST = timedelta(seconds=2), timedelta(milliseconds=100)


@click.command(epilog="\b\nExample: rqttl stats 'orders.*' --watch --interval 1s")
@any_queues_argument
@click.option("--watch", "-w", is_flag=True, help="Go on looking until Ctrl-C, and show rates per second.")
@click.option(
    "--interval", "-n", callback=read_duration, metavar="TIME",
    help="Time between two looks of --watch.  [default: 2s]",
)  # fmt: skip
@click.option("--count", "most", type=click.IntRange(min=1), metavar="N", help="End --watch after N looks.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)),
    help="Sort by this, largest first.  [default: name; with --watch depth]",
)  # fmt: skip
@json_flag
@connecting
def stats(
    queues: tuple[str, ...], watch: bool, interval: timedelta | None, most: int | None, sort: str | None, as_json: bool,
    settings: Settings,
) -> None:  # fmt: skip
    """Show what queues hold and what has happened in them.

    All queues, or those named or matched by a QUEUE (with *, ? and [...]).
    Counters are of messages since the queue was made; dead counts all deaths,
    the expired ones too. overdue is how long the oldest due work waits: with
    a reaper, nearly nothing. The command only reads: expired messages count
    until a reaper or a consumer has swept them.
    """
    if not watch and (interval is not None or most is not None):
        raise click.UsageError("--interval and --count are for --watch")
    interval = INTERVAL if interval is None else interval
    if interval < SHORTEST:
        raise click.BadParameter(f"at least {as_text(milliseconds(SHORTEST))}", param_hint="'--interval' / '-n'")
    with settings.using() as broker:
        first = _look(broker, queues)
        for name in plain(queues):
            if name not in first.queues and name not in first.damaged:
                raise QueueNotFound(name)
        if watch:
            _watch(broker, queues, Trend(first), interval, most, sort or "depth", as_json=as_json)
            return
    trend = Trend(first)
    if as_json:
        output.answer_json(_document(trend, sort or "name", rates=False))
    elif first.queues:
        _show(trend, ordered(trend.rows(), sort or "name"))
    elif not first.damaged:
        output.note_no_queue(queues)
    refuse_damaged(first.damaged)


def _look(broker: Broker, patterns: Sequence[str]) -> Look:
    """The matching queues now; names that are not there are left out."""
    at, found = broker.time(), broker.stats(chosen(broker, patterns), sweep=False)
    return Look(at, found, running_reapers(broker), found.damaged)


def _document(trend: Trend, sort: str, *, rates: bool) -> dict[str, Any]:
    """All that is known, for programs."""

    def facts(row: Row) -> dict[str, Any]:
        found = stats_facts(row.stats)
        if rates:
            found["rates"] = {name: round(n, 3) for name, n in row.rates.items()} if row.rates else None
        return found

    elapsed = {"elapsed_ms": None if trend.elapsed is None else round(trend.elapsed * 1000)} if rates else {}
    return {
        "at": trend.look.at,
        **elapsed,
        "reapers": trend.look.reapers,
        "queues": [
            *({"queue": row.name, **facts(row)} for row in ordered(trend.rows(), sort)),
            *damaged_facts(trend.look.damaged),
        ],
        "totals": facts(trend.total("")),
    }


def _show(trend: Trend, rows: list[Row]) -> None:
    """The table, and what is to be said about it."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    glyphs = glyphs_for(sys.stdout.encoding)
    shown = table(TOTALS, rows, trend.total(text.plural(len(rows), "queue")), width, gap=2)
    rule = glyphs.rule * max(map(len, (shown.head, *shown.body, shown.foot)))
    lines = [shown.head, rule, *shown.body, *([rule, shown.foot] if len(rows) > 1 else [])]
    output.answer("\n".join(lines))
    if zeros := [title for title, zero in shown.left_out.items() if zero]:
        output.note(f"0 in all queues: {', '.join(zeros)}")
    if others := [title for title, zero in shown.left_out.items() if not zero]:
        output.note(f"no room for {', '.join(others)}: a wider terminal or --json shows them")
    if warning := trend.warning():
        output.note(warning)


def _watch(
    broker: Broker,
    patterns: Sequence[str],
    trend: Trend,
    interval: timedelta,
    most: int | None,
    sort: str,
    *,
    as_json: bool,
) -> None:
    """Look again and again. Ctrl-C is how it is meant to end, so it is no failure."""

    def take() -> Look:
        return _look(broker, patterns)

    shown, seconds = as_text(milliseconds(interval)), interval.total_seconds()
    setting = Setting(shown, sort, glyphs_for(sys.stdout.encoding), output.columns_of(sys.stdout))
    try:
        with Stopping():
            if is_live() and not as_json:
                Live(trend, setting, seconds, most, plain(patterns)).run(take)
                return

            def show() -> None:
                if as_json:
                    output.answer_json(_document(trend, sort, rates=True))
                else:
                    output.answer("\n".join([*(line.text for line in frame(trend, setting)), ""]))

            tell(trend, observe(take, seconds), most, show)
    except Stop as stop:
        if stop.number != signal.SIGINT:
            raise Stopped(stop) from None
