"""Progress of a long command, on stderr if that is a terminal. The display is gone when the command ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rqttl import text
from rqttl.inspector.letters import pages
from rqttl.types import MessageView
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.queue import Queue

#: Seconds before the display appears.
MOMENT = 0.5


class Progress:
    """A context manager with a display that `advance` moves.

    With a `total` it is a bar with percentage and remaining time, else a spinner with the elapsed time. With `in_bytes`
    the total is a size. Without `visible` nothing appears.
    """

    def __init__(self, total: int | None, *, in_bytes: bool, visible: bool = True) -> None:
        self._total, self._in_bytes = total, in_bytes
        self._visible = visible and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._display: Any = None
        self._done = self._messages = self._expired = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def advance(self, size: int, messages: int, expired: int = 0) -> None:
        """Add a finished piece of the input. `expired` is the number of all messages that were dead on arrival."""
        self._done += size
        self._messages += messages
        self._expired = expired
        if not self._visible:
            return
        elapsed = time.monotonic() - self._began
        if self._display is not None:
            self._display.update(0, completed=self._done, line=self._line(elapsed))
        elif elapsed >= MOMENT:
            self._start(self._line(elapsed))

    def _line(self, elapsed: float) -> str:
        expired = f", {text.format_count(self._expired)} already expired" if self._expired else ""
        rate = text.format_count(int(self._messages / max(elapsed, 0.001)))
        line = f"{text.plural(self._messages, 'message')}{expired}  {rate}/s"
        if self._in_bytes and self._total:
            line = f"{as_size(self._done)} of {as_size(self._total)}  {line}"
        return line

    def _start(self, line: str) -> None:
        # seldom needed, and slow to load
        from rich import progress
        from rich.console import Console

        columns: tuple[progress.ProgressColumn, ...]
        numbers = progress.TextColumn("{task.fields[line]}", markup=False)
        if self._total:
            remaining = progress.TimeRemainingColumn(compact=True)
            columns = (progress.BarColumn(12), progress.TaskProgressColumn(), numbers, remaining)
        else:
            columns = (progress.SpinnerColumn("line"), numbers, progress.TimeElapsedColumn())
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._display = progress.Progress(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._display.add_task("", total=self._total, completed=self._done, line=line)
        self._display.start()


def read_messages(queue: Queue) -> Iterator[MessageView]:
    """All messages of a queue in order, with the progress of the reading."""
    with Progress(None, in_bytes=False) as progress:
        for page in pages(queue):
            progress.advance(0, len(page))
            yield from page
