"""Where answers and notes go, and tables that fit a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from rqttl.cli import text

#: Rows from which on a table that needs no folding is laid out without rich.
LONG = 200


def answer(line: str) -> None:
    """A line of what was asked for."""
    click.echo(line)


def answer_json(value: Any) -> None:
    """A JSON document, or one line of many."""
    click.echo(text.as_json(value))


def note(line: str) -> None:
    """A line that is not what was asked for."""
    click.echo(f"rqttl: {line}", err=True)


def note_no_queue(patterns: Sequence[str]) -> None:
    """Say that there is no queue, or none that matches."""
    if patterns:
        note(f"no queue matches {' or '.join(map(text.visible, patterns))}")
    else:
        note("no queue yet: `rqttl queue declare QUEUE` makes one")


def coloured() -> bool:
    """Whether stdout is a terminal whose user wants colours and bold text."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str] | None = None) -> None:
    """Rows of text. A column whose name begins with `>` holds numbers, aligned to the right."""
    rows = list(rows)
    if len(rows) > LONG:
        lines = _laid_out(columns, rows, total)
        if not sys.stdout.isatty() or len(lines[1]) <= shutil.get_terminal_size().columns:
            click.echo("\n".join(lines))
            return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, show_edge=False, show_footer=total is not None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        shown.add_column(
            column.removeprefix(">"), total[i] if total else "", justify="right" if column[0] == ">" else "left",
            overflow="fold", no_wrap=False,
        )  # fmt: skip
    for row in rows:
        shown.add_row(*row)
    _print(shown)


def _laid_out(columns: Sequence[str], rows: Sequence[Sequence[str]], total: Sequence[str] | None) -> list[str]:
    """The lines of the same table where nothing is folded: rich takes 0.4 ms for each row."""
    from rich.cells import cell_len

    every = [[column.removeprefix(">") for column in columns], *rows, *([total] if total else [])]
    widths = [max(map(cell_len, cells)) for cells in zip(*every, strict=True)]
    lines = []
    for row in every:
        cells = []
        for cell, column, width in zip(row, columns, widths, strict=True):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if column[0] == ">" else cell + gap)
        lines.append("   ".join(cells).rstrip())
    lines.insert(1, "─" * (sum(widths) + 3 * (len(widths) - 1)))
    return lines


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair a line."""
    from rich.table import Table

    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold", overflow="fold")
    shown.add_column(overflow="fold")
    for name, value in pairs:
        shown.add_row(name, value)
    _print(shown)


def _print(shown: Any) -> None:
    from rich.console import Console

    # what is not read by a person is neither cut nor folded
    width = None if sys.stdout.isatty() else 10_000
    colours: Any = "auto" if coloured() else None
    console = Console(markup=False, highlight=False, emoji=False, width=width, color_system=colours)
    with console.capture() as captured:
        console.print(shown)
    for line in captured.get().rstrip("\n").split("\n"):
        if line.strip():
            click.echo(re.sub(r" +((?:\x1b\[0m)?)$", r"\1", line))
