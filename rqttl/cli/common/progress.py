"""How far a long sending is, on stderr if that is a terminal. Nothing of it stays when it ends."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

from rqttl.cli.common import text

#: Seconds that pass before anything is shown.
MOMENT = 0.5


class Progress:
    """A context manager that shows what `advance` tells it.

    With a `total` it is a bar with percentage and remaining time, else a spinner with the time since it began.
    `in_bytes` says whether the total is a size.
    """

    def __init__(self, total: int | None, *, in_bytes: bool, wanted: bool = True) -> None:
        self._total, self._in_bytes = total, in_bytes
        self._wanted = wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._shown: Any = None
        self._done = self._messages = self._expired = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.stop()

    def advance(self, size: int, messages: int, expired: int = 0) -> None:
        """So much of the input is done. `expired` is how many messages so far were dead on arrival."""
        self._done += size
        self._messages += messages
        self._expired = expired
        if not self._wanted:
            return
        passed = time.monotonic() - self._began
        if self._shown is not None:
            self._shown.update(0, completed=self._done, said=self._said(passed))
        elif passed >= MOMENT:
            self._show(self._said(passed))

    def _said(self, passed: float) -> str:
        expired = f", {text.count(self._expired)} already expired" if self._expired else ""
        rate = text.count(int(self._messages / max(passed, 0.001)))
        said = f"{text.plural(self._messages, 'message')}{expired}  {rate}/s"
        if self._in_bytes and self._total:
            said = f"{text.size(self._done)} of {text.size(self._total)}  {said}"
        return said

    def _show(self, said: str) -> None:
        # seldom needed, and slow to load
        from rich import progress
        from rich.console import Console

        columns: tuple[progress.ProgressColumn, ...]
        facts = progress.TextColumn("{task.fields[said]}", markup=False)
        if self._total:
            left = progress.TimeRemainingColumn(compact=True)
            columns = (progress.BarColumn(12), progress.TaskProgressColumn(), facts, left)
        else:
            columns = (progress.SpinnerColumn("line"), facts, progress.TimeElapsedColumn())
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._shown = progress.Progress(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._shown.add_task("", total=self._total, completed=self._done, said=said)
        self._shown.start()
