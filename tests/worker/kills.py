"""A campaign of kills against a worker: `python -m tests.worker.kills --kills 200` prints a table of its results.

A producer sends messages at a steady rate. A victim is killed with SIGKILL at random moments: a child, the worker, or
redis-server (with its append-only file synced always). Each handler notes its beginning and its end in a journal.
At the end every message must have been finished. A message that was finished twice must have been at work during a
kill.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import redis

from rqttl import Broker, Message, RqttlError, connect
from rqttl.testing.fake import ClockedBroker
from tests.proc import is_running
from tests.servers import Server, find_binary
from tests.waiting import until
from tests.worker.processes import WorkerProcess

#: Messages a second, and their number in one call.
RATE, BATCH = 500, 10
#: Seconds between two kills at least and at most.
SOONEST, LATEST = 0.3, 1.2
#: Children of the worker, and handlers of each.
CHILDREN = 2
#: A lease that no slow machine outlasts. The campaign waits for its end only after a claim whose reply was lost.
LEASE = "10s"
#: Messages that wait at most: a slow machine must not spend the campaign on a backlog.
BACKLOG = 5_000
#: Events of the journal within a second at most: the handlers sleep for 2 ms, and note a beginning and an end.
EVENTS_A_SECOND = 2 * CHILDREN * 500
#: The end of the journal that holds the messages of a victim which may be repeated. A child tells each result at once.
#: An ack of the worker waits for the next claim, for a second at most.
RECENT = {"child": 500, "worker": EVENTS_A_SECOND, "redis": EVENTS_A_SECOND}


@dataclass(frozen=True)
class Report:
    """The results of a campaign. `unexplained` are repeated messages that were not at work during a kill."""

    victim: str
    kills: int
    sent: int
    handled: int
    lost: int
    repeated: int
    unexplained: int


class Campaign:
    """Kills of one worker on one server."""

    def __init__(self, server: Server, home: Path, seed: int) -> None:
        self._server = server
        self._home = home
        self._random = random.Random(seed)
        self._sent = 0
        self._over = threading.Event()
        self._journal = home / "journal"
        self._counting = threading.Lock()
        self._read = self._done = 0

    def run(self, victim: str, kills: int) -> Report:
        """Kill `victim` (child, worker, redis) so many times. Returns the results."""
        with connect(self._server.url) as broker:
            broker.declare_queue("q", lease=LEASE, max_deliveries=1000)
            worker = self._start()
            sender = threading.Thread(target=self._send, args=[broker])
            sender.start()
            running: set[str] = set()
            try:
                until(lambda: self._lines() > 0)
                for _ in range(kills):
                    time.sleep(self._random.uniform(SOONEST, LATEST))  # a random moment is the point of this test
                    worker = self._kill(victim, worker, running)
                self._over.set()
                sender.join()
                self._drain(broker)
            finally:
                self._over.set()
                sender.join()
                worker.remove()
        return self._judge(victim, kills, running)

    def _drain(self, broker: Broker) -> None:
        """Wait for the end of the work. Raises `TimeoutError` if the worker makes no progress."""
        while not _is_done(broker):
            count = self._lines()
            until(partial(self._goes_on, broker, count))

    def _goes_on(self, broker: Broker, count: int) -> bool:
        return self._lines() > count or _is_done(broker)

    def _start(self) -> WorkerProcess:
        words = f"q --processes {CHILDREN} --delivery --reaper --retry-delay 0".split()
        return WorkerProcess(self._server.url, self._home, *words, call="tracked")

    def _kill(self, victim: str, worker: WorkerProcess, running: set[str]) -> WorkerProcess:
        """Kill the victim, and note the messages at work then. Returns the worker that goes on."""
        before = self._at_work(RECENT[victim])
        if victim == "child":
            children = children_of(worker.process.pid)
            if children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(children), signal.SIGKILL)
        elif victim == "worker":
            children = children_of(worker.process.pid)
            worker.remove()
            until(lambda: not any(map(is_running, children)))  # they handle no more messages of these leases
            self._end_leases()
            worker = self._start()
        else:
            self._server.kill()
            self._server.start()
        running |= before | self._at_work(RECENT[victim])
        count = self._lines()
        until(lambda: self._lines() > count + 2 * BATCH)
        return worker

    def _end_leases(self) -> None:
        """End all leases, as a sweep does after their time. No worker lives that could renew them."""
        with self._server.client() as client:
            later = ClockedBroker(client)
            later.clock.advance(LEASE)
            later.queue("q").sweep()

    def _send(self, broker: Broker) -> None:
        """Send messages with ids at a steady rate. The window for duplicates makes each call repeatable."""
        queue = broker.queue("q")
        while not self._over.wait(BATCH / RATE):
            if self._sent - self._lines() > BACKLOG:
                continue
            batch = [Message(b"x", id=str(self._sent + n)) for n in range(BATCH)]
            while True:
                try:
                    queue.enqueue_many(batch, duplicate_window="1h")
                    break
                except (redis.RedisError, RqttlError):
                    self._over.wait(0.05)
            self._sent += BATCH

    def _events(self) -> list[list[str]]:
        text = self._journal.read_text() if self._journal.exists() else ""
        return [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]  # a kill may cut off a line

    def _lines(self) -> int:
        """The number of finished messages. It reads only what is new."""
        with self._counting:
            if self._journal.exists():
                with self._journal.open("rb") as file:
                    file.seek(self._read)
                    new = file.read()
                    whole = new[: new.rfind(b"\n") + 1]
                    self._read += len(whole)
                    self._done += whole.count(b"done")
            return self._done

    def _at_work(self, recent: int) -> set[str]:
        """The messages that were begun and not finished, or finished within so many events before the last one."""
        events = self._events()
        done = {event[1] for event in events[:-recent] if event[0] == "done"}
        return {event[1] for event in events if event[0] == "begun"} - done

    def _judge(self, victim: str, kills: int, running: set[str]) -> Report:
        done = Counter(event[1] for event in self._events() if event[0] == "done")
        repeated = {id for id, count in done.items() if count > 1}
        lost = sum(str(n) not in done for n in range(self._sent))
        return Report(victim, kills, self._sent, sum(done.values()), lost, len(repeated), len(repeated - running))


def _is_done(broker: Broker) -> bool:
    try:
        return broker.queue("q").stats().depth == 0
    except (redis.RedisError, RqttlError):
        return False


def children_of(pid: int) -> list[int]:
    """The child processes of a process that run handlers."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += [int(word) for word in task.read_text().split()]
    return children


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run campaigns, print a table, and return 1 if one found a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="kills of each kind of victim")
    parser.add_argument("--victims", default="child,worker,redis")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--server", default="7.0")
    chosen = parser.parse_args()
    binary = find_binary(chosen.server)
    if binary is None:
        sys.exit(f"no redis-server {chosen.server}")
    _print(f"seed {chosen.seed}, {RATE} messages a second\n")
    _print("| victim | kills | sent | finished | lost | repeated | of these not at work |")
    _print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    failed = False
    for victim in chosen.victims.split(","):
        server = Server(binary, appendonly="yes", appendfsync="always")
        try:
            with tempfile.TemporaryDirectory() as home:
                report = Campaign(server, Path(home), chosen.seed).run(victim, chosen.kills)
        finally:
            server.remove()
        failed = failed or bool(report.lost or report.unexplained)
        _print(f"| {' | '.join(map(str, astuple(report)))} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
