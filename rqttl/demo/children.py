"""The demo's child processes, as the one that started them sees them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any


class ChildFailed(Exception):
    """A process of the demo ended before it was told to, or with an error; the text says which and why."""


class Child:
    """One process, which runs `module`.

    It ends when it is told to, and also when this process ends, however that happens.
    """

    def __init__(self, name: str, part: dict[str, Any], module: str = "rqttl.demo.worker") -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `__exit__`
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which sees to the rest
        )  # fmt: skip
        with contextlib.suppress(BrokenPipeError):  # `hear` will find that it is gone, and why
            self._stdin.write(json.dumps(part) + "\n")
            self._stdin.flush()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise `ChildFailed` if it has ended."""
        if not self.running:
            raise ChildFailed(f"{self.name} ended with exit code {self._process.returncode}: {self._last_words()}")

    def hear(self) -> Any:
        """The next thing that it says. Raises `ChildFailed` if it has nothing more to say."""
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self.check()
        return json.loads(line)

    def finish(self) -> None:
        """Tell it to finish what is there, and to end."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def result(self) -> Any:
        """What it says at its end. Raises `ChildFailed` if that is no good end."""
        told = self.hear()
        if self._process.wait():
            self.check()
        return told

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)  # with what it has started: its session is its own
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # all of them are there
