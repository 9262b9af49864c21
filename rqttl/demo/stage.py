"""The play: send the calls of the day by the clock, watch the queues, and account for all calls at the end.

One thread does all this. Between two minutes of the day it looks at the queues and at the other processes.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rqttl import Broker, flows
from rqttl.demo import accounts
from rqttl.demo.accounts import Counts
from rqttl.demo.children import Child, ChildFailed
from rqttl.demo.day import AGENTS, CONSUMERS, DAY, Day, boarding_call, by_minute
from rqttl.demo.flights import DemoUnavailable, Flight
from rqttl.demo.names import DEAD_LETTER, NAMESPACE, boarding
from rqttl.errors import QueueNotFound
from rqttl.protocol import replies
from rqttl.protocol.keys import TOMBSTONE
from rqttl.store.driver import driver_of

#: Seconds between two looks at the queues.
LOOK = 0.5
#: Seconds without progress that count as a failure.
PATIENCE = 60.0

#: Called after every look, with the minute of the day and the counts so far.
Watcher = Callable[[int, Counts], None]


@dataclass(frozen=True)
class Outcome:
    """The results of the day."""

    counts: dict[str, Counts]
    problems: list[str]
    reaped: int
    seconds: float
    total: Counts = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.counts.values(), Counts()))


@contextlib.contextmanager
def clean(broker: Broker) -> Iterator[None]:
    """Empty the namespace before the play and after it. Raises `DemoUnavailable` if another demo is playing."""
    for name in broker.queues():
        with contextlib.suppress(QueueNotFound):
            if broker.queue(name).stats().consumers:
                raise DemoUnavailable("another demo is running on this server: wait for its end, or use another --url")
    _delete_queues(broker)
    try:
        yield
    finally:
        _delete_queues(broker)


def _delete_queues(broker: Broker) -> None:
    """Delete all queues, then the dead-letter queues.

    The deletion of a queue may create its dead-letter queue: expired messages die then. A process that was killed may
    have left a target unregistered. Nobody follows these queues, so their traces are deleted, too.
    """
    names = broker.queues()
    targets = [DEAD_LETTER.replace("{queue}", name) for name in names]
    deleted = list(dict.fromkeys([*sorted(set(names) - set(targets)), *targets]))
    for name in deleted:
        with contextlib.suppress(QueueNotFound):
            broker.queue(name).delete()
    driver = driver_of(broker)
    traces = [
        driver.keyspace.workers,
        driver.keyspace.birth,
        *(driver.keyspace.key(name, TOMBSTONE) for name in deleted),
    ]
    driver.perform(flows.steps.execute(replies.number, "UNLINK", *traces))


class Stage:
    """A play. `url` is the server of `broker`, for the other processes."""

    def __init__(self, broker: Broker, url: str | None, flights: Sequence[Flight], day: Day, watch: Watcher) -> None:
        self._broker = broker
        self._url = url
        self._flights = flights
        self._day = day
        self._watch = watch
        self._children: list[Child] = []
        self._sent: Counter[str] = Counter()
        #: All carriers, the busiest first.
        self.carriers = [carrier for carrier, _ in Counter(flight.carrier for flight in flights).most_common()]
        self._started = 0.0
        self._next_look = 0.0
        self._last = Counts()
        self._progress = 0.0

    def run(self) -> Outcome:
        """Play the whole day. Raises `ChildFailed` if one of the other processes fails."""
        for carrier in self.carriers:
            self._broker.declare_queue(boarding(carrier), dead_letter=DEAD_LETTER)
        with contextlib.ExitStack() as exits:
            for n in range(1, CONSUMERS + 1):
                task = {"carriers": self.carriers, "agents": AGENTS, "handling_ms": self._day.handling_ms}
                self._children.append(exits.enter_context(self._start(f"consumer {n}", role="consumer", **task)))
            self._children.append(exits.enter_context(self._start("the reaper", role="reaper")))
            for child in self._children:
                child.read()
            self._await_consumers()
            self._started = self._progress = time.monotonic()
            self._send()
            return self._finish()

    def _start(self, name: str, **task: Any) -> Child:
        return Child(name, {"url": self._url, "namespace": NAMESPACE, **task})

    def _await_consumers(self) -> None:
        """Wait until each consumer waits for calls of each carrier, so that no call expires before the day begins."""
        began = time.monotonic()
        queues = [self._broker.queue(boarding(carrier)) for carrier in self.carriers]
        while any(queue.stats().consumers < CONSUMERS for queue in queues):
            for child in self._children:
                child.check()
            if time.monotonic() - began > PATIENCE:
                raise ChildFailed(f"the consumers have not begun within {PATIENCE:.0f} s")
            time.sleep(LOOK / 10)

    def _send(self) -> None:
        for minute, calls in by_minute(self._flights):
            self._wait_until(self._started + self._day.seconds(minute))
            for carrier, flights in calls.items():
                messages = [boarding_call(flight, self._day) for flight in flights]
                receipts = self._broker.queue(boarding(carrier)).enqueue_many(messages)
                self._sent[carrier] += len(receipts)  # no queue here has a limit that could refuse any
        self._wait_until(self._started + self._day.seconds(DAY))

    def _wait_until(self, moment: float) -> None:
        while True:
            now = time.monotonic()
            if now >= self._next_look:
                self._look(now)
            if now >= moment:
                return
            time.sleep(max(0.0, min(moment, self._next_look) - now))

    def _look(self, now: float) -> None:
        for child in self._children:
            child.check()
        counts = sum((accounts.count_calls(self._broker, carrier) for carrier in self.carriers), Counts())
        if counts != self._last:
            self._last, self._progress = counts, now
        elif now - self._progress > PATIENCE:
            raise ChildFailed(f"nothing has happened for {PATIENCE:.0f} s, with {counts.waiting:,} calls waiting")
        self._watch(self._day.minute(now - self._started), counts)
        self._next_look = now + LOOK

    def _finish(self) -> Outcome:
        *consumers, reaper = self._children
        while self._last.waiting or self._last.sent < sum(self._sent.values()):
            self._wait_until(time.monotonic() + LOOK / 10)
        for consumer in consumers:
            consumer.finish()
        self._children = [reaper]
        while any(consumer.running for consumer in consumers):
            self._wait_until(time.monotonic() + LOOK / 10)
        tallies = [consumer.result() for consumer in consumers]
        seconds = time.monotonic() - self._started
        reaper.finish()
        reaped = reaper.result()["expired"]
        counts = accounts.final_counts(self._broker, self.carriers)
        self._watch(DAY, sum(counts.values(), Counts()))
        problems = [
            problem
            for carrier, row in counts.items()
            for problem in accounts.disagreements(carrier, row, self._sent[carrier], [t[carrier] for t in tallies])
        ]
        return Outcome(counts, problems, reaped, seconds)
