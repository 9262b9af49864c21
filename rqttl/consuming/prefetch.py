"""The bookkeeping of a consumer: the deliveries that it holds, the acks to send, and the times of renewals.

No threads, no locks, no clock and no I/O: the renewer passes each time, in ms. The threads of a consumer may share
these objects, because each change is one operation on an attribute, a list or a deque. Only acks need the lock of the
consumer.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from rqttl import events as hook
from rqttl.consuming.handling import name_of
from rqttl.delivery import LOST, UNKNOWN, Delivered, by_lease
from rqttl.protocol.commands import BATCH, Word

D = TypeVar("D", bound=Delivered)

#: The ms after its last call for which a consumer counts as present.
CONSUMER_TTL_MS = 60_000
#: The longest pause between two turns of the renewer, in ms. Acks wait no longer than that.
LONGEST_REST = 1_000
#: The largest number of ids in a list of missed acks.
LISTED = 1_000


class Prefetch(Generic[D]):
    """The deliveries of one consumer, from the fetch to the ack. `limit` bounds the number of unsettled ones."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: The deliveries that were not handed out.
        self.fetched: deque[D] = deque()
        self._held: list[D] = []
        self._acks: deque[Delivered] = deque()
        self._under_way: list[Delivered] = []  # the acks of the present call
        self._tried: set[tuple[bytes, bytes]] = set()  # leases of acks whose call failed
        self._seen: dict[D, int] = {}  # the deliveries of the last heartbeat, and the ms of the first one of each
        #: Acks that came after their lease had ended.
        self.late = Missed(LOST)
        #: Acks whose outcome is unknown.
        self.unknown = Missed(UNKNOWN)

    def room(self) -> int:
        """Return the number of messages that may be fetched now. Only the thread that fetches may call this."""
        self._held = [item for item in self._held if item.settled is None]
        return max(0, self.limit - len(self._held))

    def add(self, deliveries: Sequence[D]) -> None:
        """Add fetched deliveries. Only the thread that fetches may call this."""
        self._held += deliveries
        self.fetched.extend(deliveries)

    def hand_out(self) -> D | None:
        """Remove and return the next delivery that was not handed out; `None` if there is none."""
        while self.fetched:
            try:
                delivery = self.fetched.popleft()
            except IndexError:  # another thread has taken the last one
                break
            if delivery.settled is None:
                return delivery
        return None

    def take_unseen(self) -> list[D]:
        """Remove and return all deliveries that were not handed out."""
        unseen = []
        while (delivery := self.hand_out()) is not None:
            unseen.append(delivery)
        return unseen

    def leases(self) -> dict[int, list[D]]:
        """Return the deliveries whose leases are to be renewed, by the length of their leases in ms."""
        return by_lease([item for item in list(self._held) if item.settled is None])

    def is_empty(self) -> bool:
        """Return True if no delivery is unsettled."""
        return all(item.settled is not None for item in list(self._held))

    def in_flight(self, now: int) -> tuple[int, str, int, dict[int, list[str]]] | None:
        """Return what the roster says of the unsettled deliveries at `now`; `None` without any.

        That is their number, the id of the oldest and the ms of the first heartbeat with it, and the sequences of the
        oldest ones by the ends of their leases.
        """
        items = [item for item in list(self._held) if item.settled is None]
        self._seen = {item: self._seen.get(item, now) for item in items}
        leases: dict[int, list[str]] = {}
        for item in items[:BATCH]:
            leases.setdefault(int(item.token) // 1000, []).append(item.sequence)
        return (len(items), name_of(items[0]), self._seen[items[0]], leases) if items else None

    def finish(self, delivery: D) -> None:
        """Mark a delivery as acked. The next call sends its ack."""
        events = delivery.settler.events
        if events is None or events.observer is None:
            delivery.settled = "ack"
        else:
            with hook.watching(events.observer, hook.Operation("ack", delivery.queue, [delivery])):
                delivery.settled = "ack"
        self._acks.append(delivery)

    @property
    def has_acks(self) -> bool:
        """True if there are acks to send."""
        return bool(self._acks)

    # The acks of one call. The lock of the consumer guards these methods, and a flow that waits has no acks under way.

    def next_acks(self) -> list[Word]:
        """Return the acks of the next call as words of a command: the oldest ones, at most `BATCH`.

        A repeated call sends the same acks.
        """
        if not self._under_way:
            number = min(len(self._acks), BATCH)
            self._under_way = [self._acks.popleft() for _ in range(number)]
        return [word for item in self._under_way for word in (item.entry_id, item.token)]

    @property
    def is_in_doubt(self) -> bool:
        """True if an earlier call may have carried out an ack of the present one: perhaps only its reply was lost."""
        return bool(self._tried) and any(item.words in self._tried for item in self._under_way)

    def confirm(self) -> list[Delivered]:
        """Record the success of the call, or the end of the queue. Returns its acks."""
        sent, self._under_way = self._under_way, []
        if self._tried:
            self._tried.difference_update(item.words for item in sent)
        return sent

    def put_back(self) -> None:
        """Put the acks of a failed call back in front of the waiting ones, in their old order."""
        self._tried.update(item.words for item in self._under_way)
        self._acks.extendleft(reversed(self._under_way))
        self._under_way = []


class SharedPrefetch(Prefetch[D]):
    """The deliveries of a consumer of several queues. `parts` has those of each queue; one limit is for all."""

    def __init__(self, limit: int, parts: Mapping[str, Prefetch[D]]) -> None:
        super().__init__(limit)
        self._parts = parts
        for part in parts.values():
            part.late, part.unknown = self.late, self.unknown

    def room(self) -> int:
        """See `Prefetch`."""
        return max(0, self.limit - sum(part.limit - part.room() for part in self._parts.values()))

    def add(self, deliveries: Sequence[D]) -> None:
        """See `Prefetch`. All deliveries are of one queue."""
        if deliveries:
            self._parts[deliveries[0].queue].add(deliveries)

    def hand_out(self) -> D | None:
        """See `Prefetch`. Only the queue that was fetched last has any."""
        return next(filter(None, (part.hand_out() for part in self._parts.values() if part.fetched)), None)

    def is_empty(self) -> bool:
        """See `Prefetch`."""
        return all(part.is_empty() for part in self._parts.values())

    @property
    def has_acks(self) -> bool:
        """See `Prefetch`."""
        return any(part.has_acks for part in self._parts.values())

    def finish(self, delivery: D) -> None:
        """See `Prefetch`."""
        self._parts[delivery.queue].finish(delivery)


class Missed:
    """Acks that failed in one way: their number, and the newest ids."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.count = 0
        self.newest: deque[str] = deque(maxlen=LISTED)

    def add(self, delivery: Delivered) -> None:
        """Mark a delivery with this outcome, and count it."""
        delivery.settled = self._how
        self.count += 1
        self.newest.append(delivery.id)


def missed(sent: Sequence[Delivered], sequences: Sequence[bytes]) -> list[Delivered]:
    """Return the acks that a reply names as missed: one for each time that it names a sequence.

    Of two deliveries of one message it is the older one, because only the newest lease can hold.
    """
    if not sequences:
        return []
    named, missed = Counter(sequences), []
    for item in sorted(sent, key=lambda item: item.token):
        if named[item.entry_id] and item.settled not in (LOST, UNKNOWN):
            named[item.entry_id] -= 1
            missed.append(item)
    return missed


class RenewalSchedule:
    """The times at which a consumer renews its leases and shows that it is present.

    Only the renewer passes times, so all times are of one thread. It notices at its next turn that Redis has heard of
    the consumer, so `LONGEST_REST` later at most.
    """

    def __init__(self) -> None:
        #: Ms between two renewals: a third of the shortest lease at hand.
        self.renew_every: float = LONGEST_REST
        self._renewed_at = 0.0
        self._contact_at = -math.inf
        self._contacted = False
        self._waits = False

    def follow(self, leases: Collection[int]) -> bool:
        """Set the period by the lengths of leases, in ms. Without leases it stays. Returns True if it got shorter."""
        if not leases:
            return False
        before, self.renew_every = self.renew_every, min(leases) / 3
        return self.renew_every < before

    def is_for(self, lease: int) -> bool:
        """Return True if the period is that of leases of this length, in ms. One more of them does not change it."""
        return self.renew_every == lease / 3

    def next_turn(self, now: float) -> float:
        """Return the ms until the renewer's next turn.

        After a turn that came a little too early, the next turn comes when the renewal is due, not a period later.
        After a failed renewal it comes a period later.
        """
        left = self._renewed_at + self.renew_every - now
        return min(LONGEST_REST, left if left > 0 else self.renew_every)

    def renewed(self, now: float) -> None:
        """Record a renewal of the leases, or the start of the consumer."""
        self._renewed_at = now

    def contacted(self) -> None:
        """Record a call that showed the consumer to Redis since the last turn."""
        self._contacted = True

    def begin_wait(self) -> None:
        """Record the start of a wait. Redis counts the consumer as present for longer than the wait."""
        self._waits = True

    def end_wait(self) -> None:
        """Record the end of a wait."""
        self.contacted()
        self._waits = False

    def is_report_due(self, now: float) -> bool:
        """Return True if the consumer must show its presence."""
        waits = self._waits  # first: `end_wait` clears it last
        if self._contacted:
            self._contacted, self._contact_at = False, now
        return not waits and now - self._contact_at > CONSUMER_TTL_MS / 3

    def is_renewal_due(self, now: float) -> bool:
        """Return True if the leases must be renewed."""
        return now - self._renewed_at >= self.renew_every
