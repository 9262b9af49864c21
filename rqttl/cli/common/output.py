"""Answers on stdout, notes and progress on stderr, and tables that fit a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO

import click

from rqttl import text
from rqttl.cli.common.errors import Refused

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rqttl.queue import Queue
    from rqttl.types import MessageView, State

#: What stands in backticks or in quotes. It is never broken, so it can be copied.
_QUOTED = re.compile(r"`[^`]*`|(?<!\w)'[^']*'")
#: A command in backticks that works on a namespace.
_COMMAND = re.compile(r"`rqttl (?!server|--|[^`]*--(help|namespace))")
#: What stands behind `rqttl` in such a command.
NAMESPACE: ContextVar[str] = ContextVar("namespace", default="")
#: True if stderr is a log of JSON.
LOGS_JSON: ContextVar[bool] = ContextVar("logs_json", default=False)


def answer(line: str) -> None:
    """Print a line of the answer."""
    click.echo(line)


def answer_sentence(line: str) -> None:
    """Print a line of the answer, on a terminal folded at words."""
    answer(fold(line, sys.stdout))


def answer_cut(line: str) -> None:
    """Print a line of the answer, on a terminal cut to its width."""
    from rich.text import Text

    cut = Text(line)
    if sys.stdout.isatty():
        cut.truncate(shutil.get_terminal_size().columns, overflow="ellipsis")
    answer(cut.plain)


def answer_indented(line: str) -> None:
    """Print a line of a body, which may hold any words, so that no part of it looks like a line of ours."""
    from rich.padding import Padding
    from rich.text import Text

    if line and sys.stdout.isatty():
        print_rich(Padding(Text(line, overflow="fold"), (0, 0, 0, 2)))
    else:
        answer(f"  {line}".rstrip())


def answer_json(value: Any) -> None:
    """Print a JSON document on one line."""
    click.echo(text.dump_json(value))


def answer_either(document: Any, line: str, *, as_json: bool) -> None:
    """Print the answer as JSON, or as a line for people."""
    answer(text.dump_json(document) if as_json else line)


def note(line: str, level: str = "info", prefix: str = "rqttl: ") -> None:
    """Print a line to stderr, on a terminal folded at words; in a log of JSON as JSON.

    A stderr that cannot be written is no failure.
    """
    with suppress(OSError):
        entry = {"time": instant(time.time()), "level": level, "event": "log", "message": line}
        click.echo(text.dump_json(entry) if LOGS_JSON.get() else fold(prefix + line, sys.stderr), err=True)


def instant(seconds: float) -> str:
    """A time as logs have it: `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def note_no_queue(patterns: Sequence[str]) -> None:
    """Print a note: there is no queue, or none matches."""
    if patterns:
        note(f"no queue matches {' or '.join(map(text.escape, patterns))}")
    else:
        note("no queue yet: `rqttl queue declare QUEUE` creates one")


def fold(line: str, stream: TextIO) -> str:
    """A sentence folded at words, if the stream is a terminal. Words, and what is quoted, stay whole.

    A command in it names the namespace of this process.
    """
    line = _COMMAND.sub(lambda command: command[0] + NAMESPACE.get(), line)
    if not stream.isatty():
        return line
    whole = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", "\0"), line)
    columns = shutil.get_terminal_size().columns
    folded = textwrap.fill(
        whole, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return folded.replace("\0", " ")


def can_encode(characters: str) -> bool:
    """Return whether the encoding of stdout has these characters."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def console() -> Console:
    """A console for tables on stdout. Without a terminal nothing is folded."""
    from rich.console import Console  # slow to load

    terminal, dumb = sys.stdout.isatty(), os.environ.get("TERM") in ("dumb", "unknown")
    size: dict[str, Any] = {}
    if not terminal or dumb:
        size = {"width": shutil.get_terminal_size().columns if terminal else 100_000, "height": 100}
    colours: Any = "auto" if terminal and not dumb and not os.environ.get("NO_COLOR") else None
    return Console(markup=False, highlight=False, emoji=False, color_system=colours, **size)


def new_table(columns: Sequence[str] = (), **options: Any) -> Table:
    """A table with these columns. One whose name begins with `>` holds numbers, aligned to the right."""
    from rich.box import SIMPLE_HEAD, Box
    from rich.table import Table

    box = SIMPLE_HEAD if can_encode("─") else Box(str(SIMPLE_HEAD).replace("─", "-"), ascii=True)
    table = Table(box=box, show_edge=False, pad_edge=False, header_style="bold", **options)
    for column in columns:
        justify: Any = "right" if column[0] == ">" else "left"
        table.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
    return table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], total: Sequence[str] | None = None) -> None:
    """Print rows of text. A column whose name begins with `>` holds numbers."""
    table = new_table(columns)
    for row in (*rows, *([total] if total else [])):
        table.add_row(*row)
    print_rich(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; the further lines of a value stand below its first."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", overflow="fold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    print_rich(table)


def print_rich(renderable: Any) -> None:
    """Print a table without empty lines, and without spaces at the ends of lines."""
    to = console()
    with to.capture() as captured:
        to.print(renderable)
    for line in captured.get().rstrip("\n").split("\n"):
        if line.strip():
            answer(re.sub(r" +((?:\x1b\[0m)?)$", r"\1", line))


def confirm_losses(question: str, losses: Sequence[str]) -> None:
    """Print what a change would end, and ask; without losses there is no question. Raises as `confirm` does."""
    for line in losses:
        note(line)
    if losses:
        confirm(question)


def confirm(question: str) -> None:
    """Ask. Raises `Refused` if the answer is no, `UsageError` if there is no terminal to ask."""
    if not sys.stdin.isatty():
        raise click.UsageError("no terminal for the question: use --yes to go on, or --dry-run to see the changes")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as aborted:
        click.echo(err=True)  # ends the line of the question
        if not isinstance(aborted.__context__, EOFError):
            raise
        agreed = False
    if not agreed:
        raise Refused("nothing was done")


# Progress of a long command, on stderr if that is a terminal. The display is gone when the command ends.

#: Seconds before the display appears.
MOMENT = 0.5


class Progress:
    """A context manager with a display that `advance` moves. Without `visible` nothing appears.

    With a `total` it is a bar with percentage and remaining time, else a spinner with the elapsed time.
    """

    def __init__(self, total: int | None = None, *, visible: bool = True) -> None:
        self._total = total
        self._visible = visible and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._display: Any = None
        self._done = self._messages = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()

    def advance(self, size: int, messages: int) -> None:
        """Add a finished piece of the total, with this number of messages."""
        self._done += size
        self._messages += messages
        if self._visible and self._display is None and time.monotonic() - self._began >= MOMENT:
            from rich import progress  # seldom needed, and slow to load
            from rich.console import Console

            words = progress.TextColumn("{task.fields[messages]:,} messages", markup=False)
            of_total = (progress.BarColumn(12), progress.TaskProgressColumn(), words, progress.TimeRemainingColumn())
            columns = of_total if self._total else (progress.SpinnerColumn("line"), words, progress.TimeElapsedColumn())
            self._display = progress.Progress(
                *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._display.add_task("", total=self._total, completed=self._done, messages=self._messages)
            self._display.start()
        if self._display is not None:
            self._display.update(0, completed=self._done, messages=self._messages)


def read_messages(queue: Queue, state: State | None = None) -> Iterator[MessageView]:
    """All messages of a queue in order, of one state or of all but `scheduled`, with the progress of the reading."""
    from rqttl.inspector.dead_letters import pages  # slow to load

    with Progress() as progress:
        for page in pages(queue, state=state):
            progress.advance(0, len(page))
            yield from page
