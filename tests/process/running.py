"""A worker in a process of its own, for tests that send it signals.

`python -m tests.process.running <url> <threads> <same>` runs on the queue `q`. Its handler tells that it has begun,
waits for a line of input, and tells that it is done. At its end the worker tells what `run` returned. A signal up to
`same` seconds after the first one counts as the same.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

import rqttl
from rqttl.runtime import stop_signals

ROOT = Path(__file__).resolve().parents[2]


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


#: One reader at a time: another thread would wait for input that the first has read ahead.
READING = threading.Lock()


def handle(delivery: rqttl.Delivery) -> None:
    say("begun", delivery.id)
    with READING:
        sys.stdin.readline()
    say("done", delivery.id)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    stop_signals.SAME = float(sys.argv[3])
    with rqttl.connect(sys.argv[1]) as broker:
        broker.events.subscribe(lambda name: say("waiting"), rqttl.WaitEvent)
        counts = broker.queue("q").run(handle, int(sys.argv[2]), prefetch=4)
    say("counts", counts.handled, counts.failed, counts.lost)


class Worker:
    """Such a process, as a test sees it."""

    def __init__(self, url: str, threads: int = 1, same: float = stop_signals.SAME) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.running", url, str(threads), str(same)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
        )

    def hear(self) -> list[str]:
        """Return the words of the next line that it says, but for `waiting`."""
        while True:
            words = self._pipe(self._process.stdout).readline().split()
            if words != ["waiting"]:
                return words

    def hear_waiting(self) -> None:
        """Return when it waits."""
        assert self._pipe(self._process.stdout).readline().split() == ["waiting"]

    def go_on(self) -> None:
        """Let one handler end."""
        self._pipe(self._process.stdin).write("\n")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self._process.pid, number)

    def ends(self, patience: float) -> bool:
        """Wait for so many seconds, and return True if the process has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return self._process.poll() is not None

    def end(self) -> tuple[int, str]:
        """Wait for the end of the process, and return its exit code and its stderr."""
        told = self._pipe(self._process.stderr).read()
        return self._process.wait(), told

    def kill(self) -> None:
        """End it at once, in the middle of its work."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            self._pipe(pipe).close()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


if __name__ == "__main__":
    main()
