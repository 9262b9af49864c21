"""A consumer in a process of its own, for tests that kill it.

`python -m tests.process.consuming <url> <role> <lease ms>` works on the queue `q`, tells what it does line by line, and
goes on at each line of input where the role says so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO

import rqttl
from tests.drivers import broker_of

ROOT = Path(__file__).resolve().parents[2]


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


def receive(queue: rqttl.Queue, lease: str) -> None:
    """Take all there is and keep it."""
    say("holding", *[delivery.id for delivery in queue.receive_many(100, lease=lease)])
    sys.stdin.readline()


def wait(queue: rqttl.Queue, lease: str) -> None:
    """Wait for one message."""
    broker_of(queue).events.subscribe(lambda name: say("waiting"), rqttl.WaitEvent)
    delivery = queue.receive(wait="1h", lease=lease)
    assert delivery is not None
    say("received", delivery.id)
    delivery.ack()


class Process:
    """Such a process, as a test sees it."""

    def __init__(self, url: str, role: str, lease: str = "30s") -> None:
        command = [sys.executable, "-m", "tests.process.consuming", url, role, lease]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT
        )

    def hear(self) -> list[str]:
        """The words of the next line that it says."""
        return self._pipe(self._process.stdout).readline().split()

    def go_on(self) -> None:
        self._pipe(self._process.stdin).write("\n")

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            self._pipe(pipe).close()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


if __name__ == "__main__":
    roles = {"consume": consume, "receive": receive, "wait": wait}
    with rqttl.connect(sys.argv[1]) as broker:
        roles[sys.argv[2]](broker.queue("q"), sys.argv[3])
