"""Drivers of tests, in process groups of their own: they can be killed with their JVM and their workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.spark.jvm import STARTED_TOO_LATE, end_of, settings
from tests.waiting import until

#: The longest that anything of a driver may take.
PATIENCE = 500


class Drivers:
    """Runs the text of a program, again and again; `end` ends the processes that are left.

    Errors that it and its JVM tell are in the message of a failing test: a rule for reruns looks there.
    """

    def __init__(self, folder: Path, program: str) -> None:
        self._folder = folder
        self._told = folder / "driver.log"
        self._script = folder / "driver.py"
        self._script.write_text(program)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        """Start it, with settings of its own."""
        environment = {**os.environ, **settings(self._folder)}
        words = [str(word) for word in (sys.executable, self._script, *arguments)]
        with self._told.open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    words,
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
            )
        return self._started[-1]

    def wait_until(self, seen: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        """Ask again and again, as long as the driver runs and Spark has not given up one of its queries."""

        def is_there() -> bool:
            if seen():
                return True
            runs, errors = process.poll() is None, self._errors()
            assert runs, f"the driver ended too early:\n{errors}"
            assert STARTED_TOO_LATE not in errors, errors
            return False

        until(is_there, PATIENCE)

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a driver that has nothing left to do."""
        assert process.wait(PATIENCE) == 0, self._errors()

    def end(self) -> None:
        """Kill those that still run."""
        for process in self._started:
            if process.poll() is None:
                kill(process)

    def _errors(self) -> str:
        told = self._told.read_text(errors="replace")
        return end_of(told, told)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver as the kernel does when memory is short: with its JVM, without a word."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
