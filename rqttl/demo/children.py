"""The child processes of the demo, for their parent."""

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

#: Wait for the end of a process, and leave it as it is.
_PEEK = os.WEXITED | os.WNOWAIT


class ChildFailed(Exception):
    """A process of the demo ended too early, or with an error. The text names the process and the reason."""


class Child:
    """A process that runs `module`, with `task` as its first line of input.

    It ends after `finish`, and also when this process ends for any reason.
    """

    def __init__(self, name: str, task: dict[str, Any], module: str = "rqttl.demo.worker") -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `__exit__`
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children
        )
        with contextlib.suppress(BrokenPipeError):  # `read` will raise the error of the process
            self._stdin.write(json.dumps(task) + "\n")
            self._stdin.flush()

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    @property
    def running(self) -> bool:
        """True if it has not ended yet."""
        return self._process.returncode is None and os.waitid(os.P_PID, self._process.pid, _PEEK | os.WNOHANG) is None

    def check(self) -> None:
        """Raise `ChildFailed` if it has ended."""
        if not self.running:
            raise ChildFailed(f"{self.name} ended with exit code {self._reap()}: {self._last_error()}")

    def read(self) -> Any:
        """The next line of its output. Raises `ChildFailed` if there is none."""
        assert self._process.stdout is not None  # noqa: S101  # for the type checker
        line = self._process.stdout.readline()
        if not line:
            self._wait()
            self.check()
        return json.loads(line)

    def finish(self) -> None:
        """Ask it to finish its work and to end."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def result(self) -> Any:
        """The last line of its output. Raises `ChildFailed` if its exit code is not 0."""
        line = self.read()
        self._wait()
        if self._reap():
            self.check()
        return line

    def _wait(self) -> None:
        if self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, _PEEK)

    def _reap(self) -> int:
        """End it and all processes that it has started. Returns its exit code.

        Its session is its own. Until it is reaped, no other process can have its number.
        """
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no error was printed"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reap()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # all of them are there
