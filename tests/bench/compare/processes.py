"""A program of a candidate with all its children: signals, processor time and memory by `/proc`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.proc import process_fields

PATIENCE = 60.0  # seconds
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Program:
    """A started program."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pid in self.tree():
            self._signal(pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def tree(self) -> list[int]:
        """The process and all its descendants."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (stat := process_fields(int(entry.name))):
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
        found = [self._process.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def send(self, number: int) -> None:
        """Send a signal to the whole tree."""
        for pid in self.tree():
            self._signal(pid, number)

    def processor_us(self) -> float:
        """Processor time of the tree, also of its ended children."""
        stats = [stat for pid in self.tree() if (stat := process_fields(pid))]
        return sum(int(field) for stat in stats for field in stat[11:15]) / _TICK * 1e6

    def megabytes(self) -> float:
        """Resident memory of the tree."""
        return sum(int(stat[21]) for pid in self.tree() if (stat := process_fields(pid))) * _PAGE / 1e6

    def expect(self, word: str) -> None:
        """Wait for a line of the program."""
        assert self._process.stdout is not None  # a pipe
        if self._process.stdout.readline().strip() != word:
            raise RuntimeError(self.problem())

    def line(self) -> None:
        """Send the program an empty line."""
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ended(self) -> bool:
        """True if the program has ended."""
        return self._process.poll() is not None

    def problem(self) -> str:
        """The last line about an error that the program wrote to stderr, or the last line of all."""
        self._log.seek(0)
        lines = self._log.read().strip().splitlines() or ["without a message"]
        errors = [line for line in lines if "Error" in line]
        return f"failed: {[*lines[-1:], *errors][-1][:200]}"


class Deadline:
    """A limit for one wait. `check` raises when it has passed, or when the program has ended."""

    def __init__(self, program: Program, seconds: float = PATIENCE) -> None:
        self._program, self._end = program, time.monotonic() + seconds

    def check(self, doing: str) -> None:
        if self._program.ended():
            raise RuntimeError(self._program.problem())
        if time.monotonic() > self._end:
            raise RuntimeError(f"failed: {doing} takes too long")
