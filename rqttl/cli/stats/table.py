"""Tables of queues that fit a width: their columns, the choice of columns, and the form of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rqttl import text
from rqttl.cli.common import terminal
from rqttl.inspector.queues import Row, counters
from rqttl.types import QueueStats

#: A name that is longer is shortened or folded before columns are left out.
NAME = 20


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of lines and bars."""

    bars: str
    rule: str
    cut: str
    dot: str


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "─", "…", "·")
ASCII = Glyphs("_.-~=+*#", "-", "~", "-")


def glyphs_for(encoding: str | None) -> Glyphs:
    """The characters that an encoding has."""
    characters = f"{UNICODE.bars}{UNICODE.rule}{UNICODE.cut}{UNICODE.dot}"
    return UNICODE if terminal.can_encode(characters, encoding) else ASCII


def sparkline(values: Sequence[int], width: int, bars: str) -> str:
    """The last `width` values as bars, the newest at the right. Only 0 has the lowest bar, the largest the highest."""
    newest = values[-width:] if width > 0 else ()
    top, steps = max(newest, default=0), len(bars) - 1
    return "".join(bars[-(-value * steps // top) if top else 0] for value in newest).rjust(width)


def compact(n: float, longest: float = 100_000) -> str:
    """A number in at most six characters: 12,345, 123k, 1.2M. From `longest` on it is rounded."""
    if round(n) < longest:
        return f"{n:,.0f}"
    for unit in ("k", "M", "G", "T"):
        n /= 1000
        if n < 999.5 or unit == "T":
            break
    return f"{n:.1f}{unit}" if n < 99.95 else f"{n:,.0f}{unit}"


def rate(n: float | None) -> str:
    """A rate per second, in at most five characters; `-` if it is unknown."""
    if n is None:
        return "-"
    if 0 < n < 9.95:
        return f"{n:.1f}" if n >= 0.05 else "<0.1"
    return compact(n, 10_000)


def _overdue(stats: QueueStats) -> str:
    return text.format_age(stats.overdue) if stats.overdue else "0s"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Without room the columns with the highest `rank` are left out first.

    `name` stands in notes, if the title is an abbreviation. `least` is the narrowest width.
    """

    title: str
    rank: int
    show: Callable[[Row], str]
    least: int = 0
    name: str = ""


def _counter(name: str) -> Callable[[Row], str]:
    return lambda row: text.format_count(counters(row.stats)[name])


def _rate(name: str) -> Callable[[Row], str]:
    return lambda row: rate(row.rates[name] if row.rates else None)


def _oldest(row: Row) -> str:
    return text.format_age(row.stats.oldest_ready_age)


#: The columns of `stats`: exact numbers, and counters since the queue was created.
TOTALS = (
    Column("ready", 1, lambda row: text.format_count(row.stats.ready)),
    Column("leased", 8, lambda row: text.format_count(row.stats.leased)),
    Column("delayed", 10, lambda row: text.format_count(row.stats.delayed)),
    Column("oldest", 4, _oldest),
    Column("in", 2, _counter("in")),
    Column("out", 3, _counter("out")),
    Column("acked", 9, _counter("acked")),
    Column("expired", 7, _counter("expired")),
    Column("dead", 5, _counter("dead")),
    Column("refused", 12, _counter("refused")),
    Column("cons", 11, lambda row: text.format_count(row.stats.consumers), name="consumers"),
    Column("overdue", 6, lambda row: _overdue(row.stats)),
)
#: The columns of `stats --watch`: short numbers in columns that do not move, and rates.
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
    """The lines of a table. `left_out` has the names of columns without room; True if a column holds only zeros."""

    head: str
    body: list[str]
    foot: str
    left_out: dict[str, bool]


def table(
    columns: Sequence[Column], rows: Sequence[Row], total: Row, room: int | None, *, gap: int, cut: str | None = None
) -> Table:
    """Queues in a table of at most `room` cells. A name that is too long is cut with `cut`, else folded."""
    titles = [column.title for column in columns]
    cells = [[column.show(row) for column in columns] for row in (*rows, total)]
    widths = [max(map(len, texts)) for texts in zip(titles, *cells, strict=True)]
    widths = [max(width, column.least) for width, column in zip(widths, columns, strict=True)]
    longest = max(len(row.name) for row in (*rows, total, Row("queue", total.stats)))
    zeros = [not column.least and all(row[i] in ("0", "0s", "-") for row in cells) for i, column in enumerate(columns)]
    ranks = [(zero, column.rank) for zero, column in zip(zeros, columns, strict=True)]
    fitting = _fitting(ranks, widths, None if room is None else room - min(longest, NAME), gap)
    name = longest if room is None else max(1, min(longest, room - sum(gap + widths[i] for i in fitting)))

    def lines(first: str, others: Sequence[str]) -> list[str]:
        folded = [_cut(first, name, cut)] if cut else [first[i : i + name] for i in range(0, len(first), name)]
        numbers = "".join(" " * gap + others[i].rjust(widths[i]) for i in fitting)
        return [(folded[0].ljust(name) + numbers).rstrip(), *folded[1:]]

    body = [line for row, numbers in zip(rows, cells[:-1], strict=True) for line in lines(row.name, numbers)]
    left_out = {column.name or column.title: zeros[i] for i, column in enumerate(columns) if i not in fitting}
    return Table("\n".join(lines("queue", titles)), body, "\n".join(lines(total.name, cells[-1])), left_out)


def _fitting(ranks: Sequence[tuple[bool, int]], widths: Sequence[int], room: int | None, gap: int) -> list[int]:
    """The columns that fit. Columns of zeros are dropped first, then those with the highest rank."""
    fitting = list(range(len(widths)))
    while room is not None and len(fitting) > 1 and sum(gap + widths[i] for i in fitting) > room:
        fitting.remove(max(fitting, key=lambda i: ranks[i]))
    return fitting


def _cut(name: str, width: int, mark: str) -> str:
    """A name without its middle: names of queues differ at the beginning and at the end."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return name[: width - 1 - tail] + mark + (name[-tail:] if tail else "")
