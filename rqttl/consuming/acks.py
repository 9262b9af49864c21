"""The deliveries that a consumer keeps: acks that wait for the next call to Redis, and its buffer. No I/O here."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from rqttl.delivery import LOST, UNKNOWN, Delivery, lease_words, mark
from rqttl.flows import Flow, ReceiveResult, Step, WaitForWakeup
from rqttl.protocol.commands import BATCH, Command, Word

logger = logging.getLogger("rqttl.consumer")

#: Ids that are listed of missed acks at most.
LISTED = 1_000


class Acks:
    """Acks that wait to be sent. Safe to share between threads."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._taking = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, one: Delivery) -> None:
        """Let an ack wait."""
        self._waiting.append(one)

    def take(self) -> list[Delivery]:
        """Remove and return as many as one call may carry, the oldest first."""
        with self._taking:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]

    def put_back(self, part: Sequence[Delivery]) -> None:
        """Let acks wait again that `take` gave."""
        with self._taking:
            self._waiting.extendleft(reversed(part))


class Missed:
    """Acks that were not carried out, or perhaps not: how many, and the newest ids."""

    def __init__(self) -> None:
        self.count = 0
        self.newest: deque[str] = deque(maxlen=LISTED)

    def note(self, one: Delivery, how: str, why: str) -> None:
        """Note how a delivery has ended, and log why."""
        mark(one, how)
        self.count += 1
        self.newest.append(one.id)
        logger.warning("queue %s: the ack of %s %s", one.queue, one.id, why)


def first_of(buffer: deque[Delivery]) -> Delivery | None:
    """Take the first delivery of a buffer that several threads may empty; `None` if there is none."""
    try:
        return buffer.popleft()
    except IndexError:
        return None


class Sending:
    """The acks that one flow carries with its calls. As a context manager: those of a call that failed wait again."""

    def __init__(self, acks: Acks) -> None:
        self._acks = acks
        self._under_way: list[Delivery] = []
        self._sent: list[Delivery] = []

    def __enter__(self) -> Sending:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._under_way:
            self._acks.put_back(self._under_way)

    def carry(
        self,
        flow: Flow[ReceiveResult],
        line: threading.Lock,
        perform: Callable[[Step], Any],
        listen: Callable[[WaitForWakeup], Any],
    ) -> ReceiveResult:
        """Carry out a flow that asks `take` for acks, holding the line to Redis but while the flow listens."""
        answer: Any = None
        with self:
            while True:
                with line:
                    try:
                        step = flow.send(answer)
                    except StopIteration as done:
                        claimed: ReceiveResult = done.value
                        return claimed
                    if type(step) is not WaitForWakeup:
                        answer = perform(step)
                        if type(step) is Command and answer[0] == b"ok":
                            self.confirm()
                        continue
                answer = listen(step)

    def take(self) -> Sequence[Word]:
        """Acks for the next call, as words of a command."""
        self._under_way += self._acks.take() if not self._under_way else ()
        return [word for one in self._under_way for word in lease_words(one)]

    def confirm(self) -> None:
        """The call that carried the acks has succeeded."""
        if self._under_way:
            self._sent += self._under_way
            self._under_way = []

    def among(self, sequences: Sequence[bytes]) -> list[Delivery]:
        """Return the deliveries whose acks were sent and missed: one for each time that a sequence is named.

        Of two deliveries of one message it is the older one, because only the newest lease can hold.
        """
        if not sequences:
            return []
        left, missed = Counter(sequences), []
        for one in sorted(self._sent, key=lambda one: lease_words(one)[1]):
            sequence, _ = lease_words(one)
            if left[sequence] and one.settled not in (LOST, UNKNOWN):
                left[sequence] -= 1
                missed.append(one)
        return missed
