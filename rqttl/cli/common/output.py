"""Where answers and notes go, and tables that fit a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click

from rqttl.cli.common import text


def answer(line: str) -> None:
    """A line of what was asked for."""
    click.echo(line)


def answer_json(value: Any) -> None:
    """A JSON document, or one line of many."""
    click.echo(text.as_json(value))


def note(line: str) -> None:
    """Print a line to stderr, on a terminal folded at words. A stderr that nobody can read is no failure."""
    columns = columns_of(sys.stderr)
    said = f"rqttl: {line}"
    with suppress(OSError):
        click.echo(said if columns is None else text.folded_at_words(said, columns), err=True)


def columns_of(stream: TextIO) -> int | None:
    """The width of the terminal that a stream is, or that `$COLUMNS` says; `None` if it is no terminal."""
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:  # it says that it is one, and is no file
        return 80


def note_no_queue(patterns: Sequence[str]) -> None:
    """Say that there is no queue, or none that matches."""
    if patterns:
        note(f"no queue matches {' or '.join(map(text.visible, patterns))}")
    else:
        note("no queue yet: `rqttl queue declare QUEUE` makes one")


def coloured() -> bool:
    """Whether stdout is a terminal that can do colours and bold text, and whose user wants them."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str] | None = None) -> None:
    """Rows of text. A column whose name begins with `>` holds numbers, aligned to the right."""
    every = [[column.removeprefix(">") for column in columns], *rows, *([total] if total else [])]
    head, rule, *lines = _laid_out(every, [column[0] == ">" for column in columns])
    if _fits(["-" * len(rule)]):
        answer("\n".join([_bold(head), rule, *lines]))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "right" if column[0] == ">" else "left"
        shown.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
    for row in every[1:]:
        shown.add_row(*row)
    _print(shown)


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair a line; the further lines of a value stand below its first."""
    pairs = list(pairs)
    longest = max(text.width(name) for name, _ in pairs)
    lines = []
    for name, value in pairs:
        gap = " " * (longest - text.width(name) + 2)
        lines += [(name, gap, line) if i == 0 else ("", " " * (longest + 2), line)
                  for i, line in enumerate(value.split("\n"))]  # fmt: skip
    if _fits("".join(line) for line in lines):
        for name, gap, value in lines:
            answer(f"{_bold(name) if name else ''}{gap}{value}".rstrip())
        return
    from rich.table import Table

    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold", overflow="fold")
    shown.add_column(overflow="fold")
    for name, value in pairs:
        shown.add_row(name, value)
    _print(shown)


def _laid_out(rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> list[str]:
    """The lines of a table in which nothing is folded, a rule below the first. Loading rich takes 60 ms, a row 0.4."""
    widths = [max(map(text.width, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for cell, number, width in zip(row, numbers, widths, strict=True):
            gap = " " * (width - text.width(cell))
            cells.append(gap + cell if number else cell + gap)
        lines.append("   ".join(cells).rstrip())
    lines.insert(1, _rule() * (sum(widths) + 3 * (len(widths) - 1)))
    return lines


def _rule() -> str:
    try:
        "─".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "-"
    return "─"


def _fits(lines: Iterable[str]) -> bool:
    """Whether lines need no folding; what is not read by a person needs none."""
    if not sys.stdout.isatty():
        return True
    columns = shutil.get_terminal_size().columns
    return all(text.width(line) <= columns for line in lines)


def _bold(words: str) -> str:
    return click.style(words, bold=True) if coloured() else words


def _print(shown: Any) -> None:
    from rich.console import Console

    colours: Any = "auto" if coloured() else None
    # on a terminal without colours it would take 80 columns for granted
    size: Any = shutil.get_terminal_size() if sys.stdout.isatty() else None
    sized: Any = {"width": size.columns, "height": size.lines} if size else {}
    console = Console(markup=False, highlight=False, emoji=False, color_system=colours, **sized)
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().rstrip("\n").split("\n"):
        if line.strip():
            click.echo(re.sub(r" +((?:\x1b\[0m)?)$", r"\1", line))
