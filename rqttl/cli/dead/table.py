"""Tables of counts with bars. The columns of several tables stand below each other."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from typing import NamedTuple

from rqttl import text
from rqttl.cli.common import output, terminal

#: Cells of all columns without a terminal, and cells of a bar at least.
WIDTH, BAR = 80, 20
#: The last characters of bars, by their lengths; the whole block is the last.
BLOCKS = "▏▎▍▌▋▊▉█"

Row = tuple[str, int]


class Layout(NamedTuple):
    """Cells of the columns. Names are folded to `fold` cells unless it is None. Without bars there are no shares."""

    name: int
    fold: int | None
    number: int
    bar: int


def layout_for(tables: Iterable[tuple[str, list[Row]]]) -> Layout:
    """A layout for tables with titles that fits the terminal."""
    every = [(title, 0) for title, _ in tables] + [row for _, rows in tables for row in rows]
    name = max(terminal.width(label) for label, _ in every)
    count = max(len("count"), *(len(text.format_count(n)) for _, n in every))
    taken = count + len("100.0%") + 3 * 3
    if not sys.stdout.isatty():
        return Layout(name, None, count, max(BAR, WIDTH - name - taken))
    columns = shutil.get_terminal_size().columns
    room = columns - taken
    if room < BAR:
        name = min(name, max(columns - count - 3, 1))
        return Layout(name, name, count, 0)
    name = min(name, room * 3 // 5)
    return Layout(name, name, count, room - name)


def print_counts(title: str, rows: Iterable[Row], total: int, layout: Layout) -> None:
    """Print names and counts, with their shares of `total` and with bars."""
    most, blocks = max(n for _, n in rows), blocks_for(sys.stdout.encoding)
    cells = []
    for name, n in rows:
        first, *others = terminal.chunk(name, layout.fold)
        cells.append([first, text.format_count(n), share(n, total), bar(n, most, layout.bar, blocks)])
        cells += [[other, "", "", ""] for other in others]
    head = [title.ljust(layout.name), f">{'count':>{layout.number}}", "> share", " "]
    columns = len(head) if layout.bar else 2
    output.print_table(head[:columns], [row[:columns] for row in cells])


def first_rows(rows: list[Row], limit: int) -> list[Row]:
    """The first `limit` rows, and one row for all others together."""
    others = rows[limit:]
    first = [(text.escape(name), n) for name, n in rows[:limit]]
    return [*first, (f"({text.plural(len(others), 'other')})", sum(n for _, n in others))] if others else first


def share(n: int, total: int) -> str:
    """`n` in percent of `total`; empty for 0."""
    return "" if not n else f"{n / total:.1%}" if n * 2000 >= total else "<0.1%"


def bar(n: int, most: int, cells: int, blocks: str) -> str:
    """A bar for `n` where `most` has all `cells`. A count above 0 has a bar that people can see."""
    whole, part = divmod(-(-n * cells * len(blocks) // most), len(blocks))
    return blocks[-1] * whole + (blocks[part - 1] if part else "")


def blocks_for(encoding: str | None) -> str:
    """The characters of bars that an encoding has."""
    return BLOCKS if terminal.can_encode(BLOCKS, encoding) else "#"
