"""Real reaper processes, whose log is read as it is written, and queues whose messages are due already."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rqttl import Broker
from rqttl.flows.steps import GetConfig
from rqttl.protocol import commands
from rqttl.protocol.codec import Envelope
from rqttl.store.driver import driver_of
from tests.waiting import PATIENCE

#: An instant long ago, for messages whose time is over.
PAST = 1_700_000_000_000


class ReaperProcess:
    """`rqttl reaper` with a JSON log. `events` are the lines of its log so far."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rqttl.cli", "reaper", "--url", url, "--log-format", "json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()

    def await_event(self, event: str, times: int = 1) -> dict[str, Any]:
        """Wait until the log has the event, for the so-manieth time."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self.named(event)) >= times, PATIENCE)
            assert found, f"no {event} in {self.events}"
            return self.named(event)[times - 1]

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.events if line["event"] == event]

    def end(self, number: int) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join()
        return code


@contextmanager
def reaping(url: str, *arguments: str, watching: bool = True) -> Iterator[ReaperProcess]:
    """A running reaper; with `watching`, one from which on no hint goes unheard."""
    reaper = ReaperProcess(url, *arguments)
    try:
        if watching:
            reaper.await_event("pass_completed")
        yield reaper
    finally:
        reaper.process.kill()
        reaper.wait()
        assert reaper.process.stderr is not None
        reaper.process.stderr.close()


def enqueue_dead(broker: Broker, queue: str, count: int) -> list[bytes]:
    """Put messages into a queue whose time was over long ago, and that nobody has swept. Returns their bodies."""
    known = driver_of(broker).step(GetConfig(queue))
    bodies = [b"%s %d" % (queue.encode(), i) for i in range(count)]
    for start in range(0, count, commands.BATCH):
        packed = [(Envelope(b"+1000"), body) for body in bodies[start : start + commands.BATCH]]  # a TTL of a second
        reply = driver_of(broker).store.run(commands.enqueue(known, packed, now=PAST))
        assert reply[0] == b"ok"
    return bodies


def drain(broker: Broker, queue: str, count: int) -> list[bytes]:
    """Take `count` messages out of a queue, waiting for each. Receiving does not sweep any other queue."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        batch = broker.queue(queue).receive_many(min(1000, count - len(bodies)), wait="60s", auto_ack=True)
        assert batch, f"only {len(bodies)} of {count} came"
        bodies += [delivery.body for delivery in batch]
    return bodies
