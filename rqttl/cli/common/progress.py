"""Progress of a long command, on stderr if that is a terminal. The display is gone when the command ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rqttl.inspector.dead_letters import pages
from rqttl.types import MessageView

if TYPE_CHECKING:
    from rqttl.queue import Queue

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


def read_messages(queue: Queue) -> Iterator[MessageView]:
    """All messages of a queue in order, with the progress of the reading."""
    with Progress() as progress:
        for page in pages(queue):
            progress.advance(0, len(page))
            yield from page
