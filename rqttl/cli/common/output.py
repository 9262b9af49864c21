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
    from rich.box import SIMPLE_HEAD, Box
    from rich.table import Table

    plain = not terminal.can_encode("─", sys.stdout.encoding)
    box = Box(str(SIMPLE_HEAD).replace("─", "-"), ascii=True) if plain else SIMPLE_HEAD
    table = Table(box=box, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Any = "right" if column[0] == ">" else "left"
        table.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
    for row in (*rows, *([total] if total else [])):
        table.add_row(*row)
    _print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; the further lines of a value stand below its first."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    _print(table)


def _print(table: Any) -> None:
    """Print a table. Without a terminal nothing is folded."""
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100_000
    colours: Any = "auto" if terminal.coloured() else None
    console = Console(markup=False, highlight=False, emoji=False, color_system=colours, width=width, height=100)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().rstrip("\n").split("\n"):
        if line.strip():
            answer(re.sub(r" +((?:\x1b\[0m)?)$", r"\1", line))
