"""`rqttl stats`: the contents and counters of queues, once or again and again."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta, timezone
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rqttl import text
from rqttl.cli.common import errors, output, params, running
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import QueueNotFound
from rqttl.inspector import queues as views
from rqttl.units import as_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

#: The default time between two looks, and the shortest one.
INTERVAL, SHORTEST = timedelta(seconds=2), timedelta(milliseconds=100)
#: A name that is longer is shortened or folded before columns are left out.
NAME = 20
#: The characters of depths over time, from the lowest to the highest.
BARS = "▁▂▃▄▅▆▇█"


#: Sort keys, the largest first; equal queues stay in the order of their names.
SORTS: dict[str, Callable[[views.Row], float]] = {
    "name": lambda _: 0,
    "depth": lambda row: row.stats.depth,
    "age": lambda row: -1.0 if row.stats.oldest_ready_age is None else row.stats.oldest_ready_age.total_seconds(),
    "rate": lambda row: row.rates["in"] + row.rates["out"] if row.rates else 0.0,
    "dead": lambda row: row.rates["dead"] if row.rates else views.deaths(row.stats),
    "overdue": lambda row: row.stats.overdue.total_seconds(),
}


@click.command(epilog="\b\nExample: rqttl stats 'orders.*' --watch --interval 1s")
@params.any_queues_argument
@click.option("--watch", "-w", is_flag=True, help="Go on until Ctrl-C or q, with rates per second.")
@click.option(
    "--interval", "-n", type=params.DURATION, metavar="TIME", help="Time between two looks of --watch.  [default: 2s]"
)
@click.option("--count", "limit", type=click.IntRange(min=1), metavar="N", help="End --watch after N looks.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), help="Sort by this, largest first.  [default: name; with --watch depth]"
)
@params.json_flag
@connecting
def stats(
    queues: tuple[str, ...],
    watch: bool,
    interval: timedelta | None,
    limit: int | None,
    sort: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show the messages and the counters of queues.

    The table has all queues, or those named or matched by a QUEUE (with *, ?
    and [...]). Counters are of messages since the queue was created; dead
    counts all deaths, also the expired ones. overdue is the age of the oldest
    due work: with a reaper, nearly nothing. The command only reads: expired
    messages count until a reaper or a consumer has swept them.
    """
    if not watch and (interval is not None or limit is not None):
        raise click.UsageError("--interval and --count are for --watch")
    interval = INTERVAL if interval is None else interval
    sort = sort or ("depth" if watch else "name")
    if interval < SHORTEST:
        raise click.BadParameter(f"at least {as_text(views.milliseconds(SHORTEST))}", param_hint="'--interval' / '-n'")
    with settings.looking() as broker:
        snapshot = views.take_snapshot(broker, queues)
        away = snapshot.away.queues if snapshot.away else ()
        for name in sorted({*views.plain_names(queues)} - {*snapshot.queues, *away}):
            raise QueueNotFound(name)
        trend = views.Trend(snapshot)
        if watch:
            live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not as_json
            with _until_interrupted(), keys(sleep, read=live and sys.stdin.isatty()) as wait:
                seconds, names = interval.total_seconds(), views.plain_names(queues)
                troubles = looks(lambda: views.take_snapshot(broker, queues), trend, seconds, limit, wait)
                show = partial(_show_live, names=names) if live else partial(_print_frames, as_json=as_json)
                show(trend, sort, f"every {as_text(views.milliseconds(interval))}", troubles)
            return
    if as_json:
        output.answer_json(_to_json(trend, sort, rates=False))
    elif not snapshot.queues:
        output.note_no_queue(queues)
    else:
        table, left_out = queue_table(sort_rows(trend, sort), _total(trend), output.console().width)
        output.print_rich(table)
        if left_out:
            output.note(f"no room for {', '.join(left_out)}: a wider terminal or --json shows them")
        if late := trend.late_work():
            output.note(late.advice)
    if snapshot.away:
        raise snapshot.away


def sort_rows(trend: views.Trend, sort: str) -> list[views.Row]:
    """The queues, the largest first."""
    return sorted(trend.rows(), key=lambda row: -SORTS[sort](row))


def _total(trend: views.Trend) -> views.Row:
    return trend.total(text.plural(len(trend.snapshot.queues), "queue"))


def _to_json(trend: views.Trend, sort: str, *, rates: bool) -> dict[str, Any]:
    """A trend, for `text.dump_json`."""

    def row_to_json(row: views.Row) -> dict[str, Any]:
        document = views.to_json(row.stats)
        if rates:
            document["rates"] = {name: round(n, 3) for name, n in row.rates.items()} if row.rates else None
        return document

    elapsed = {"elapsed_ms": None if trend.elapsed is None else round(trend.elapsed * 1000)} if rates else {}
    return {
        "at": trend.snapshot.at,
        **elapsed,
        "reapers": trend.snapshot.reapers,
        "queues": [{"queue": row.name, **row_to_json(row)} for row in sort_rows(trend, sort)],
        "totals": row_to_json(trend.total("")),
    }


class Column(NamedTuple):
    """A column of a table. Without room those of the highest `rank` are left out first."""

    title: str
    rank: int
    show: Callable[[views.Row], str]


def _counter(name: str, rank: int) -> Column:
    return Column(name, rank, lambda row: text.format_count(views.counters(row.stats)[name]))


def _rate(name: str, rank: int) -> Column:
    return Column(f"{name}/s", rank, lambda row: text.format_rate(row.rates[name] if row.rates else None))


def sparkline(depths: Sequence[int], cells: int) -> str:
    """The last depths as bars, the newest at the right. Only 0 has the lowest bar, the largest the highest."""
    newest = depths[-cells:]
    top, steps = max(newest, default=0), len(BARS) - 1
    return "".join(BARS[-(-depth * steps // top) if top else 0] for depth in newest)


#: Titles of columns that are left out where they have nothing to say.
RARE = ("scheduled", "outgoing", "copies", "unrouted", "copies/s", "unrouted/s")
_CONTENTS = (
    Column("ready", 1, lambda row: text.format_count(row.stats.ready)),
    Column("leased", 9, lambda row: text.format_count(row.stats.leased)),
    Column("delayed", 10, lambda row: text.format_count(row.stats.delayed)),
    Column("scheduled", 9, lambda row: text.format_count(row.stats.scheduled)),
    Column("outgoing", 5, lambda row: text.format_count(views.outgoing(row.stats))),
    Column("oldest", 4, lambda row: text.format_age(row.stats.oldest_ready_age)),
)
_USERS = (
    Column("cons", 11, lambda row: text.format_count(row.stats.consumers)),
    Column("overdue", 5, lambda row: text.format_age(row.stats.overdue) if row.stats.overdue else "0s"),
)
_RANKS = {"in": 2, "out": 3, "acked": 8, "expired": 7, "dead": 6, "refused": 12, "copies": 4, "unrouted": 5}
#: The columns of `stats`, with counters since the queue was created, and those of `stats --watch`.
TOTALS = (*_CONTENTS, *(_counter(name, rank) for name, rank in _RANKS.items()), *_USERS)
RATES = (*_CONTENTS, *(_rate(name, rank) for name, rank in _RANKS.items()), *_USERS)


def queue_table(
    rows: Sequence[views.Row], total: views.Row, width: int, columns: Sequence[Column] = TOTALS, *, cut: bool = False
) -> tuple[Table, list[str]]:
    """A table of queues for a terminal of this width, and the titles of the columns that it has no room for.

    Columns of zeros are left out first. A name that is too long is folded, or cut if `cut`.
    """
    columns = [column for column in columns if column.title not in RARE or column.show(total) not in ("0", "-")]
    cells = [[column.show(row) for column in columns] for row in (*rows, total)]
    widths = [max(map(len, texts)) for texts in zip((column.title for column in columns), *cells, strict=True)]
    zeros = [all(row[i] in ("0", "0s", "-") for row in cells) for i in range(len(columns))]
    room = width - min(max(len(row.name) for row in (*rows, total)), NAME)
    fitting = list(range(len(columns)))
    while len(fitting) > 1 and sum(2 + widths[i] for i in fitting) > room:
        fitting.remove(max(fitting, key=lambda i: (zeros[i], columns[i].rank)))
    table = output.new_table(collapse_padding=True, show_footer=len(rows) > 1, footer_style="bold")
    table.add_column("queue", total.name, overflow="ellipsis" if cut else "fold")
    for i in fitting:
        style = {"no_wrap": True, "min_width": min(widths[i], room)}
        table.add_column(columns[i].title, cells[-1][i], justify="right", **style)  # type: ignore[arg-type]  # as named
    for row, texts in zip(rows, cells, strict=False):
        table.add_row(views.marked(row.name, row.stats, row.kind), *(texts[i] for i in fitting))
    return table, [column.title for i, column in enumerate(columns) if i not in fitting]


def frame(
    trend: views.Trend, sort: str, title: str, console: Console, height: int | None = None, troubles: Sequence[str] = ()
) -> RenderableType:
    """A look at queues: a title, what is wrong, and the queues; at most so many that all of it has this height."""
    from rich.console import Group
    from rich.text import Text

    snapshot, late, rows = trend.snapshot, trend.late_work(), sort_rows(trend, sort)
    reapers = {None: "", 0: "no reaper"}.get(snapshot.reapers, text.plural(snapshot.reapers or 0, "reaper"))
    titles = (
        f"{snapshot.at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}Z",
        text.plural(len(rows), "queue") if rows else "no queue",
        title,
        *([reapers] if reapers else []),
    )
    alarms = [*troubles, *([late.advice] if late else [])]
    head = Group(Text(", ".join(titles), "bold"), *(Text(text.escape(alarm), "bold red") for alarm in alarms))
    if not rows:
        return head
    shown = rows
    if height is not None:
        room = height - len(console.render_lines(head, pad=False)) - 2  # without the titles of columns and their rule
        if len(rows) > 1 and len(rows) + 2 > room:  # a rule and the total
            shown = rows[: max(1, room - 3)]
    bars = Column("depth", 4, lambda row: sparkline(row.depths, 8 if console.width < 120 else 24))
    columns = (*RATES, bars) if output.can_encode(BARS) else RATES
    table, _ = queue_table(shown, _total(trend), console.width, columns, cut=True)
    if len(shown) == len(rows):
        return Group(head, table)
    messages = text.plural(sum(row.stats.depth for row in rows[len(shown) :]), "message")
    hidden = text.plural(len(rows) - len(shown), "queue")
    return Group(head, table, Text(f"({hidden} not shown, {messages}; sorted by {sort})", no_wrap=True))


def looks(
    take: Callable[[], views.Snapshot],
    trend: views.Trend,
    seconds: float,
    limit: int | None,
    sleep: Callable[[float], object],
) -> Iterator[str]:
    """Add a snapshot to a trend after each interval, up to `limit` with the first one.

    Yields an empty line for each; that of the error where Redis cannot be reached or refuses.
    """
    yield ""
    done, following = 1, time.monotonic()
    while done != limit:
        following = max(following + seconds, time.monotonic())
        sleep(max(0.0, following - time.monotonic()))
        trouble = ""
        try:
            trend.add(take())
            done += 1
        except Exception as error:  # explained as at the end of a command; bugs are raised
            code, trouble = errors.explain(error)
            if code not in (errors.REFUSED, errors.UNREACHABLE):
                raise
        yield trouble


@contextmanager
def keys(sleep: Callable[[float], object], *, read: bool) -> Iterator[Callable[[float], object]]:
    """A `sleep` that reads keys, if it is to: `q` acts as Ctrl-C does."""
    if not read:
        yield sleep
        return
    before = termios.tcgetattr(sys.stdin)

    def wait(seconds: float) -> None:
        end = time.monotonic() + seconds
        while select.select([sys.stdin], [], [], max(0.0, end - time.monotonic()))[0]:
            if os.read(sys.stdin.fileno(), 1) in b"qQ":  # or nothing: the terminal has gone
                raise running.SignalReceived(signal.SIGINT)

    try:
        tty.setcbreak(sys.stdin, termios.TCSANOW)
        yield wait
    finally:
        with suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """A context that Ctrl-C may end: this is the usual end, so it is no failure."""
    try:
        with running.SignalGuard():
            yield
    except running.SignalReceived as received:
        if received.number != signal.SIGINT:
            raise


def _show_live(trend: views.Trend, sort: str, title: str, troubles: Iterator[str], names: Sequence[str]) -> None:
    """Draw each look over the last one."""
    from rich.live import Live

    console = output.console()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as screen:
        for trouble in troubles:
            missing = [name for name in names if name not in trend.snapshot.queues]
            alarms = [f"{trouble}; trying again"] if trouble else []
            alarms += [f"not there: {', '.join(missing)}"] if missing else []
            screen.update(frame(trend, sort, title, console, console.height, alarms), refresh=True)


def _print_frames(trend: views.Trend, sort: str, title: str, troubles: Iterator[str], *, as_json: bool) -> None:
    """Print each look. Notes tell that Redis went away and came back."""
    away = False
    for trouble in troubles:
        if trouble and not away:
            output.note(f"{trouble}; trying again until it does")
        if away and not trouble:
            output.note("Redis answers again")
        away = bool(trouble)
        if as_json and not trouble:
            output.answer_json(_to_json(trend, sort, rates=True))
        elif not trouble:
            output.print_rich(frame(trend, sort, title, output.console()))
            output.answer("")
