"""Consumers in processes of their own, for tests that kill them or send them signals.

`python -m tests.process.consuming <url> <role> <lease> <threads> <same>` works on the queue `q`, tells what it does
line by line, and goes on at each line of input where the role says so. A signal to the role `run` up to `same` seconds
after the first one counts as the same.
"""

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
#: One reader at a time: another thread would wait for input that the first has read ahead.
READING = threading.Lock()


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def consume(queue: rqttl.Queue, lease: str) -> None:
    """Ack each message after the next line of input."""
    with queue.consume(prefetch=10, lease=lease) as deliveries:
        for delivery in deliveries:
            say("handling", delivery.id)
            sys.stdin.readline()
            delivery.ack()


def wait(queue: rqttl.Queue, lease: str) -> None:
    """Wait for one message."""
    delivery = queue.receive(wait="1h", lease=lease)
    assert delivery is not None
    say("received", delivery.id)
    delivery.ack()


def run(queue: rqttl.Queue, _: str) -> None:
    """Run handlers that each wait for a line of input; tell at the end what `run` returned."""
    logging.basicConfig(level=logging.INFO)
    stop_signals.SAME = float(sys.argv[5])

    def handle(delivery: rqttl.Delivery) -> None:
        say("begun", delivery.id)
        with READING:
            sys.stdin.readline()
        say("done", delivery.id)

    counts = queue.run(handle, int(sys.argv[4]), prefetch=4)
    say("counts", counts.handled, counts.failed, counts.lost)


class Process:
    """Such a process, as a test sees it."""

    def __init__(
        self, url: str, role: str, lease: str = "30s", threads: int = 1, same: float = stop_signals.SAME
    ) -> None:
        command = [sys.executable, "-m", "tests.process.consuming", url, role, lease, str(threads), str(same)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe if role == "run" else None, text=True, bufsize=1, cwd=ROOT
        )

    def hear(self) -> list[str]:
        """Return the words of the next line that it says, but for `waiting`."""
        while (words := self._pipe(self._process.stdout).readline().split()) == ["waiting"]:
            pass
        return words

    def hear_waiting(self) -> None:
        """Return when it waits."""
        assert self._pipe(self._process.stdout).readline().split() == ["waiting"]

    def go_on(self) -> None:
        self._pipe(self._process.stdin).write("\n")

    def send(self, number: signal.Signals) -> None:
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
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


if __name__ == "__main__":
    roles = {"consume": consume, "wait": wait, "run": run}
    with rqttl.connect(sys.argv[1]) as broker:
        broker.events.subscribe(lambda _: say("waiting"), rqttl.WaitEvent)
        roles[sys.argv[2]](broker.queue("q"), sys.argv[3])
