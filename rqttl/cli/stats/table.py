"""Tables of queues that fit a width: which columns there are, which of them are left out, how numbers are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rqttl.cli.common import text
from rqttl.cli.stats.trend import Row, counters
from rqttl.types import QueueStats

#: A name that is longer is shortened or folded before columns are left out.
NAME = 20


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What lines and bars are drawn with."""

    bars: str
    rule: str
    cut: str
    dot: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "─", "…", "·")
ASCII = Glyphs("_.-~=+*#", "-", "~", "-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Those that an encoding has."""
    try:
        f"{UNICODE.bars}{UNICODE.rule}{UNICODE.cut}{UNICODE.dot}".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def sparkline(values: Sequence[int], width: int, bars: str) -> str:
    """The last `width` values as bars, the newest at the right. Only 0 has the lowest bar, the largest the highest."""
    shown = values[-width:] if width > 0 else ()
    top, steps = max(shown, default=0), len(bars) - 1
    return "".join(bars[-(-value * steps // top) if top else 0] for value in shown).rjust(width)


def compact(n: float, longest: float = 100_000) -> str:
    """A number in at most six places: 12,345, 123k, 1.2M. From `longest` on it is shortened."""
    if round(n) < longest:
        return f"{n:,.0f}"
    for unit in ("k", "M", "G", "T"):
        n /= 1000
        if n < 999.5 or unit == "T":
            break
    return f"{n:.1f}{unit}" if n < 99.95 else f"{n:,.0f}{unit}"


def rate(n: float | None) -> str:
    """So many per second, in at most five places; `-` where it is unknown."""
    if n is None:
        return "-"
    if 0 < n < 9.95:
        return f"{n:.1f}" if n >= 0.05 else "<0.1"
    return compact(n, 10_000)


def _overdue(stats: QueueStats) -> str:
    return text.age(stats.overdue) if stats.overdue else "0s"


@dataclass(frozen=True, slots=True)
class Column:
    """`rank` says which columns are left out first where there is no room: those with the highest."""

    title: str
    rank: int
    show: Callable[[Row], str]
    least: int = 0


def _counter(name: str) -> Callable[[Row], str]:
    return lambda row: text.count(counters(row.stats)[name])


def _rate(name: str) -> Callable[[Row], str]:
    return lambda row: rate(row.rates[name] if row.rates else None)


def _oldest(row: Row) -> str:
    return text.age(row.stats.oldest_ready_age)


#: What `stats` shows: numbers as they are, and counters since the queue was made.
TOTALS = (
    Column("ready", 1, lambda row: text.count(row.stats.ready)),
    Column("leased", 8, lambda row: text.count(row.stats.leased)),
    Column("delayed", 10, lambda row: text.count(row.stats.delayed)),
    Column("oldest", 4, _oldest),
    Column("in", 2, _counter("in")),
    Column("out", 3, _counter("out")),
    Column("acked", 9, _counter("acked")),
    Column("expired", 7, _counter("expired")),
    Column("dead", 5, _counter("dead")),
    Column("refused", 12, _counter("refused")),
    Column("cons", 11, lambda row: text.count(row.stats.consumers)),
    Column("overdue", 6, lambda row: _overdue(row.stats)),
)
#: What `stats --watch` shows: short numbers in columns that do not move, and rates.
RATES = (
    Column("ready", 1, lambda row: compact(row.stats.ready), 6),
    Column("leased", 9, lambda row: compact(row.stats.leased), 6),
    Column("delayed", 10, lambda row: compact(row.stats.delayed), 7),
    Column("oldest", 4, _oldest, 6),
    Column("in/s", 2, _rate("in"), 5),
    Column("out/s", 3, _rate("out"), 5),
    Column("ack/s", 8, _rate("acked"), 5),
    Column("exp/s", 7, _rate("expired"), 5),
    Column("dead/s", 6, _rate("dead"), 5),
    Column("ref/s", 12, _rate("refused"), 5),
    Column("cons", 11, lambda row: compact(row.stats.consumers)),
    Column("overdue", 5, lambda row: _overdue(row.stats), 7),
)


@dataclass(frozen=True, slots=True)
class Table:
    """Lines of a table. `left_out` are the columns for which there was no room, and whether they hold only zeros."""

    head: str
    body: list[str]
    foot: str
    left_out: dict[str, bool]


def table(
    columns: Sequence[Column], rows: Sequence[Row], total: Row, room: int | None, *, gap: int, cut: str | None = None
) -> Table:
    """Queues in a table of at most `room` columns of text. A name that is too long is cut with `cut`, else folded."""
    titles = [one.title for one in columns]
    cells = [[one.show(row) for one in columns] for row in (*rows, total)]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    widths = [max(width, one.least) for width, one in zip(widths, columns, strict=True)]
    longest = max(len(row.name) for row in (*rows, total, Row("queue", total.stats)))
    zeros = [not one.least and all(row[i] in ("0", "0s", "-") for row in cells) for i, one in enumerate(columns)]
    ranks = [(zero, one.rank) for zero, one in zip(zeros, columns, strict=True)]
    kept = _kept(ranks, widths, None if room is None else room - min(longest, NAME), gap)
    name = longest if room is None else max(1, min(longest, room - sum(gap + widths[i] for i in kept)))

    def lines(first: str, others: Sequence[str]) -> list[str]:
        folded = [_cut(first, name, cut)] if cut else [first[i : i + name] for i in range(0, len(first), name)]
        numbers = "".join(" " * gap + others[i].rjust(widths[i]) for i in kept)
        return [(folded[0].ljust(name) + numbers).rstrip(), *folded[1:]]

    body = [line for row, numbers in zip(rows, cells[:-1], strict=True) for line in lines(row.name, numbers)]
    left_out = {title: zeros[i] for i, title in enumerate(titles) if i not in kept}
    return Table("\n".join(lines("queue", titles)), body, "\n".join(lines(total.name, cells[-1])), left_out)


def _kept(ranks: Sequence[tuple[bool, int]], widths: Sequence[int], room: int | None, gap: int) -> list[int]:
    """Which columns fit: those that say nothing go first, then those that matter least."""
    kept = list(range(len(widths)))
    while room is not None and len(kept) > 1 and sum(gap + widths[i] for i in kept) > room:
        kept.remove(max(kept, key=lambda i: ranks[i]))
    return kept


def _cut(name: str, width: int, mark: str) -> str:
    """A name with its middle left out, because beginnings and ends tell queues apart."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return name[: width - 1 - tail] + mark + (name[-tail:] if tail else "")
