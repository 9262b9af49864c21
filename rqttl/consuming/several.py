"""Several queues as one: whose turn it is, when to look again, and one wait for all of them.

Workers, `consume` and `receive` share the turns (`Queues`), and the latter two the flow `take`.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rqttl import checks, units
from rqttl.checks import MOST_WEIGHT, check_queue_name
from rqttl.errors import InvalidInput, OutcomeUnknown, PoolExhausted, QueueForwards, QueueNotFound, RqttlError
from rqttl.flows.receive import PERIOD, Batches, Listen, ReceiveResult, listen, receive_once
from rqttl.flows.steps import ABANDONED, Flow, GetConfig, Now, Read, Sleep, WaitForWakeup
from rqttl.outages import TEMPORARY, is_away
from rqttl.protocol.commands import ABSENT, BATCH, Presence
from rqttl.protocol.keys import WAKEUP, Keyspace
from rqttl.text import format_value
from rqttl.types import Duration
from rqttl.units import MAX_DURATION

logger = logging.getLogger("rqttl.consumer")

#: Queues, and the patterns of a worker, with their weights; without weights in strict order.
Weights = Mapping[str, int | None]
#: Makes a claim of a queue: up to so many messages, the ms to block after it, and a ticket. Or the queue is not there.
Claim = Callable[[str, int, int, bytes], Flow[ReceiveResult | QueueNotFound]]

#: The ms between two looks for a missing queue.
MISSING = 5_000


def read_weights(queues: object, weights: object = None) -> dict[str, int | None]:
    """Check the queues of a call. Returns them with their weights, in strict order without."""
    names = [check_queue_name(name, "queues") for name in checks.items(queues, "queues", "names of queues")]
    if not names:
        raise InvalidInput("queues: expected at least one name")
    if weights is None:
        return dict.fromkeys(names)
    if not isinstance(weights, Mapping) or set(weights) != set(names):
        raise InvalidInput(
            f"weights: expected a weight for each of the queues and no others, got {format_value(weights)}"
        )
    return {name: checks.whole(weights[name], f"weights: {name}", 1, MOST_WEIGHT) for name in names}


@dataclass(slots=True)
class _Queue:
    """A queue: its weight, and the messages that were fetched divided by it.

    It may have messages, unless a claim has met none: then it waits `until` a time; an `is_awaited` one for Redis, too,
    which wakes the consumer. `ticket` is an element of its wake-up list: a ticket, or a hint (empty), or `None`.
    `is_hinted`: a glance has shown a wake-up. `due`: the time of the next due work there, if it waits for that.
    """

    weight: int | None = None
    progress: float = 0.0
    until: float | None = None
    is_awaited: bool = False
    is_missing: bool = False
    forwards: bool = False
    ticket: bytes | None = None
    is_hinted: bool = False
    due: float = math.inf


class Queues(dict[str, _Queue]):
    """The queues of a consumer: which may have messages, and which comes next. No I/O and no clock.

    Without weights the first candidate is next. With weights a queue gets a share of the fetched messages in
    proportion to its weight. A queue without messages costs the others nothing, and saves no turns. Those of a node
    that is away rest, if `driver` fails fast.
    """

    #: The progress of the queue that came last: others begin there, however long they had no messages.
    _least = 0.0
    #: Whether to try again for a while if the nodes of all queues are away. Who has messages at hand does not.
    insists = True

    def __init__(self, driver: Any = None) -> None:
        super().__init__()
        self._outages = driver and driver.outages
        self._node_of = driver and driver.node_of

    @property
    def awaited(self) -> list[str]:
        """The queues in which the consumer waits for a wake-up."""
        return [name for name, queue in self.items() if queue.until is not None and queue.is_awaited]

    @property
    def ticketed(self) -> list[str]:
        """The queues for which a ticket waits to be shown. It waits, too, while the node of a queue rests."""
        return [name for name, queue in self.items() if queue.ticket and queue.until is None]

    def candidates(self, now: float) -> list[str]:
        """Return the queues that may have messages."""
        return [name for name, queue in self.items() if queue.until is None or queue.until <= now]

    def follow(self, weights: Weights) -> None:
        """Take these queues in the place of the former ones. Queues that stay keep their progress."""
        queues = {name: self.get(name) or _Queue() for name in weights}
        self.clear()
        self.update(queues)
        for name, weight in weights.items():
            self[name].weight = weight
        self.rest()

    def next(self, now: float) -> str | None:
        """Return the next queue; `None` without candidates."""
        names = self.candidates(now)
        if not names or self[names[0]].weight is None:
            return names[0] if names else None
        for name in names:
            self[name].progress = max(self[name].progress, self._least)
        chosen = min(names, key=lambda name: self[name].progress)
        self._least = self[chosen].progress
        return chosen

    def woken(self, name: str, element: bytes | None) -> None:
        """Record an element of the wake-up list of a queue: a hint (empty) or a ticket; `None` if it may be lost."""
        if name in self:
            self[name].until, self[name].ticket = None, element

    def suspect(self) -> None:
        """Make the awaited queue a candidate that was asked longest ago."""
        if awaited := self.awaited:
            self[min(awaited, key=lambda name: self[name].until or 0)].until = None

    def wait(self, now: float, longest: float) -> int:
        """Return the ms to wait for a wake-up."""
        ends = [queue.until - now for queue in self.values() if queue.until is not None]
        return max(1, int(min([longest, *ends])))

    # Nodes that are away

    def node_of(self, name: str) -> Any:
        """Return the node of a queue; one for all where one that is away holds up all."""
        return None if self._outages is None else self._node_of(name)

    def is_away(self, name: str) -> bool:
        """Return True if the node of a queue is away, as far as it was asked."""
        return bool(self._outages) and self._node_of(name) in self._outages

    def rests(self, name: str) -> float:
        """Return the ms for which the node of a queue is left alone."""
        return self._outages.rests(self._node_of(name)) if self._outages else 0

    def rest(self) -> None:
        """Leave the queues of nodes that are away alone until the next try. A ticket may still be good then."""
        for name, queue in self.items() if self._outages else ():
            if ms := self.rests(name):
                queue.until, queue.is_awaited = self._outages.clock() + int(ms) + 1, False
                queue.ticket = queue.ticket or None

    @contextmanager
    def sparing(self, name: str) -> Iterator[None]:
        """Let the queues of a node rest if this block, a call for one of them, finds it away."""
        node = self.node_of(name)  # afterwards another one may have the queue
        try:
            yield
        except Exception as error:
            cause = error.__cause__ if isinstance(error, OutcomeUnknown) else error
            if self._outages is None or not is_away(cause):
                raise
            self._outages.failed(node, error)
            self.rest()

    def pause(self, began: float, now: int) -> Flow[None]:
        """Wait for the nodes of all queues. Raises the error of one if they are away for too long."""
        outage = self._outages.get(self._node_of(next(iter(self))))
        if outage and now >= max(began, outage.since) + self._outages.patience * self.insists:
            raise outage.error
        yield Sleep(self.wait(now, MISSING))

    # Claims

    def ask(self, name: str, longest: int = MAX_DURATION) -> tuple[int, bytes]:
        """Begin a claim. Returns the ms to block after it, spread so that consumers do not look together, and a ticket.

        After a glance that has shown a wake-up, the claim does not wait: such a claim takes tickets from the list.
        """
        queue = self[name]
        block = 0 if queue.is_hinted else min(longest, random.randint(PERIOD // 2, PERIOD))
        ticket, queue.ticket, queue.is_hinted = queue.ticket or b"", None, False
        return block, ticket

    def answered(self, name: str, number: int, due: float | None, block: int, now: float) -> None:
        """Record a claim that brought `number` messages. `due` are the ms until the next work if none are left."""
        queue = self[name]
        queue.progress += number / (queue.weight or 1)
        queue.until, queue.due, queue.is_missing = None, math.inf, False
        if self._outages:
            self._outages.answered(self._node_of(name))
        queue.is_awaited = due is not None and block > 0
        if due is not None and block:
            queue.until, queue.due = now + min(block, due), now + due

    def miss(self, error: QueueNotFound, now: float, logger: logging.Logger) -> None:
        """Record that a queue does not exist, or passes its messages on. It is looked for later."""
        queue = self[error.queue]
        if not queue.is_missing:
            what = error if isinstance(error, QueueForwards) else f"queue {error.queue} does not exist"
            logger.warning("%s; looking again every %d s", what, MISSING // 1000)
        queue.is_missing, queue.forwards, queue.is_awaited = True, isinstance(error, QueueForwards), False
        queue.until = queue.due = now + MISSING

    def hint(self, names: Sequence[str]) -> None:
        """Make queues candidates because a glance has shown their wake-ups."""
        for name in names:
            self[name].until, self[name].is_hinted = None, True

    def begin(self) -> None:
        """Make queues candidates of which nobody tells when they get messages."""
        for queue in self.values():
            if queue.until == math.inf:
                queue.until = None

    def look_again(self) -> None:
        """Make the queues candidates in which the consumer waits."""
        for queue in self.values():
            if queue.is_awaited:
                queue.until = None

    def share(self, name: str, count: int, now: float) -> int:
        """Return how many of `count` messages to take of a queue: with weights its part, so that the queues mix."""
        weight = self[name].weight
        if weight is None:
            return count
        return min(count, max(1, count * weight // sum(self[each].weight or 0 for each in self.candidates(now))))


def with_wakeup(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[str]]:
    """Return the queues that have something in their wake-up lists."""
    if not queues:
        return []
    lengths: list[Any] = yield Read([("LLEN", keyspace.key(queue, WAKEUP)) for queue in queues], partial=True)
    return [queue for queue, length in zip(queues, lengths, strict=True) if length]


def take(queues: Queues, claim: Claim, count: int, wait: int, listen: Listen = listen) -> Flow[ReceiveResult | None]:
    """Take up to `count` messages of the queue whose turn it is. Wait up to `wait` ms for messages of any queue.

    Each queue is asked once; the call that finds nothing notes the consumer as waiting there. `None` if no queue has a
    message: then the consumer waits in none.
    """
    now: int = yield Now()
    began, ends, exhausted = now, now + wait, None
    while True:
        if wait > 0 and now >= ends:  # one last look: it ends the waits, and takes what was handed over meanwhile
            wait = 0
            queues.look_again()
        name = queues.next(now)
        if name is not None:
            with queues.sparing(name):
                claimed = yield from _take_turn(queues, name, claim, count, ends - now if wait > 0 else 0, now)
                if isinstance(claimed, QueueNotFound):
                    queues.miss(claimed, now, logger)
                elif claimed.entries:
                    return claimed
        elif not (there := [name for name in queues if not queues.is_away(name)]):
            yield from queues.pause(began, now)
        elif wait <= 0:
            if exhausted:
                raise exhausted
            return None
        else:
            ended = yield from _wait(queues, there, claim, now, ends - now, listen)
            now = yield Now()
            if ended:
                exhausted = ended if isinstance(ended, PoolExhausted) else None
                ends, count = now, 0 if ended == ABANDONED else count
            continue
        now = yield Now()


def _wait(
    queues: Queues, there: list[str], claim: Claim, now: int, left: int, listen: Listen
) -> Flow[bytes | PoolExhausted | None]:
    """Wait for a wake-up of queues `there`. Returns what has ended the waits for good; `None` if it is time to look."""
    ms, due = queues.wait(now, left), min(queue.due for queue in queues.values()) - now
    woken: tuple[str, bytes] | list[tuple[str, bytes | None]] | bytes | PoolExhausted | None
    woken = yield from listen(WaitForWakeup(there, ms, left, None if due == math.inf else max(1, int(due))))
    if isinstance(woken, tuple):
        queues.woken(*woken)
    elif isinstance(woken, list):
        for place, (name, element) in enumerate(woken):
            queues.woken(name, element)
            if place and element == b"":  # this consumer may not come to that queue soon: the next one gets the hint
                with queues.sparing(name):
                    yield from claim(name, 0, 0, b"")
    elif woken is not None:
        return woken
    elif (yield Now()) - now < ms // 2:
        queues.look_again()  # the connection was lost, and Redis may have forgotten who waits
    return None


def _take_turn(
    queues: Queues, name: str, claim: Claim, count: int, longest: int, now: int
) -> Flow[ReceiveResult | QueueNotFound]:
    """Claim messages of one queue. If it has none, the consumer waits there for `longest` ms at most."""
    count = queues.share(name, count, now)
    block, ticket = queues.ask(name, longest)
    try:
        claimed = yield from claim(name, count, block, ticket)
    except BaseException:
        queues.woken(name, ticket)  # it may still be good
        raise
    if isinstance(claimed, QueueNotFound):
        return claimed
    number, due = len(claimed.entries), None
    if not count or (number < count and not claimed.more):
        due = math.inf if claimed.due is None else max(1, claimed.due - claimed.now)
    queues.answered(name, number, None if number else due, block, now)
    if due is not None and (number or not longest):
        queues[name].until = math.inf  # not again in this call
    return claimed


def receive(
    driver: Any, names: Sequence[str], count: int, wait: Duration | None, lease: int | None, *, auto_ack: bool
) -> Flow[Batches]:
    """Take up to `count` messages, of the first queue with messages first. Wait up to `wait` for the first message."""
    count, patience = checks.whole(count, "max"), 0 if wait is None else int(units.duration(wait, "wait"))
    queues, consumer = Queues(driver), secrets.token_hex(8) if patience else ""
    queues.follow(dict.fromkeys(names))
    for name in queues.candidates(0):
        with queues.sparing(name):
            # what cannot be received from is told before a message is taken
            if not queues.rests(name) and (yield GetConfig(name)).passes_on:
                (yield GetConfig(name, fresh=True)).options.check_source()

    batches = Batches()
    failures: list[Exception] = []

    def claim(name: str, count: int, block: int, ticket: bytes) -> Flow[ReceiveResult | QueueNotFound]:
        own = Presence(consumer, block, 0, ticket) if consumer else ABSENT
        flow = receive_once(name, count, lease, auto_ack=auto_ack, presence=own)
        return _taking(driver.keyspace, queues, name, flow, failures) if auto_ack else flow

    def fetch() -> Flow[None]:
        left, longest = count, patience
        while left and (batch := (yield from take(queues, claim, min(left, BATCH), longest))):
            batches.append(batch)
            left, longest, queues.insists = left - len(batch.entries), 0, False
            queues.look_again()

    for part in (fetch(), _end_waits(queues, claim)):
        try:
            yield from part
        except (*TEMPORARY, RqttlError) as error:
            failures.append(error)
    if failures:
        batches.end_with(failures[0])
    return batches


def _taking(
    keyspace: Keyspace, queues: Queues, name: str, flow: Flow[ReceiveResult], failures: list[Exception]
) -> Flow[ReceiveResult]:
    """Make a claim whose messages are lost with its reply. That is told in the end, and other queues go on."""
    if queues.is_away(name):
        yield Read([("LLEN", keyspace.key(name, WAKEUP))])  # does its node reply at all?
    try:
        return (yield from flow)
    except OutcomeUnknown as error:
        failures.append(error)
        raise


def _end_waits(queues: Queues, claim: Claim) -> Flow[None]:
    for name in [name for name, queue in queues.items() if queue.is_awaited]:
        with suppress(QueueNotFound), queues.sparing(name):
            if not queues.rests(name):
                yield from claim(name, 0, 0, queues.ask(name)[1])
