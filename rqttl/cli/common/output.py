"""Answers on stdout, notes on stderr, and tables that fit a terminal."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import click

from rqttl import json_text, text
from rqttl.cli.common import terminal


def answer(line: str) -> None:
    """Print a line of the answer."""
    click.echo(line)


def answer_sentence(line: str) -> None:
    """Print a line of the answer, on a terminal folded at words."""
    columns = terminal.columns_of(sys.stdout)
    answer(line if columns is None else terminal.wrap_words(line, columns))


def answer_json(value: Any) -> None:
    """Print a JSON document on one line."""
    click.echo(json_text.dump(value))


def note(line: str) -> None:
    """Print a line to stderr, on a terminal folded at words. A stderr that cannot be written is no failure."""
    columns = terminal.columns_of(sys.stderr)
    message = f"rqttl: {line}"
    with suppress(OSError):
        click.echo(message if columns is None else terminal.wrap_words(message, columns), err=True)


def note_no_queue(patterns: Sequence[str]) -> None:
    """Print a note: there is no queue, or none matches."""
    if patterns:
        note(f"no queue matches {' or '.join(map(text.escape, patterns))}")
    else:
        note("no queue yet: `rqttl queue declare QUEUE` creates one")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str] | None = None) -> None:
    """Print rows of text. A column whose name begins with `>` holds numbers, aligned to the right."""
    lines = [[column.removeprefix(">") for column in columns], *rows, *([total] if total else [])]
    head, rule, *body = _aligned(lines, [column[0] == ">" for column in columns])
    if _fits(["-" * len(rule)]):
        answer("\n".join([_bold(head), rule, *body]))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "right" if column[0] == ">" else "left"
        table.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
    for row in lines[1:]:
        table.add_row(*row)
    _print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; the further lines of a value stand below its first."""
    pairs = list(pairs)
    longest = max(terminal.width(name) for name, _ in pairs)
    lines = []
    for name, value in pairs:
        gap = " " * (longest - terminal.width(name) + 2)
        first, *others = value.split("\n")
        lines += [(name, gap, first), *(("", " " * (longest + 2), line) for line in others)]
    if _fits("".join(line) for line in lines):
        for name, gap, value in lines:
            answer(f"{_bold(name) if name else ''}{gap}{value}".rstrip())
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    _print(table)


def _aligned(rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> list[str]:
    """The lines of a table without folds, with a rule below the first. To load rich takes 60 ms, its row 0.4 ms."""
    widths = [max(map(terminal.width, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for cell, number, width in zip(row, numbers, widths, strict=True):
            gap = " " * (width - terminal.width(cell))
            cells.append(gap + cell if number else cell + gap)
        lines.append("   ".join(cells).rstrip())
    rule = "─" if terminal.can_encode("─", sys.stdout.encoding) else "-"
    lines.insert(1, rule * (sum(widths) + 3 * (len(widths) - 1)))
    return lines


def _fits(lines: Iterable[str]) -> bool:
    """Return whether lines need no folding. Only a terminal folds."""
    if not sys.stdout.isatty():
        return True
    columns = shutil.get_terminal_size().columns
    return all(terminal.width(line) <= columns for line in lines)


def _bold(words: str) -> str:
    return click.style(words, bold=True) if terminal.coloured() else words


def _print(table: Any) -> None:
    from rich.console import Console

    colours: Any = "auto" if terminal.coloured() else None
    # on a terminal without colours it would take 80 columns for granted
    size: Any = shutil.get_terminal_size() if sys.stdout.isatty() else None
    sized: Any = {"width": size.columns, "height": size.lines} if size else {}
    console = Console(markup=False, highlight=False, emoji=False, color_system=colours, **sized)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().rstrip("\n").split("\n"):
        if line.strip():
            click.echo(re.sub(r" +((?:\x1b\[0m)?)$", r"\1", line))
