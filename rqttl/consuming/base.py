"""The part of a consumer that both interfaces share: its settings, its books, and its settles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rqttl import checks, delivery, flows, units
from rqttl import events as hook
from rqttl.consuming.turns import Turns
from rqttl.delivery import Delivered, Settler, check_unsettled
from rqttl.flows.receive import ReceiveResult
from rqttl.protocol.commands import BATCH
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.units import MAX_DURATION, Duration

D = TypeVar("D", bound=Delivered)
R = TypeVar("R")


class ConsumerBase(ABC, Generic[D, R]):
    """A consumer without its calls. `R` is the answer of a settle: `None`, or an awaitable of it."""

    #: Settles the deliveries of this consumer.
    _settler: Settler[R]

    def __init__(
        self, keyspace: Keyspace, queue: str, prefetch: int, lease: Duration | None, wait: Duration | None
    ) -> None:
        prefetch = checks.whole(prefetch, "prefetch", 1, BATCH)
        #: The name of the consumed queue.
        self.queue = queue
        self._keyspace = keyspace
        self._lease = flows.receive.lease_ms(lease)
        self._wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        self._idle: Callable[[], int] = lambda: 1
        self._stop = Interrupt()
        self._turns = Turns[D](keyspace, queue, prefetch, self._stop, self._hurry)
        self._prefetch, self._schedule = self._turns.books, self._turns.schedule

    @property
    def lost(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack came after their lease, or their queue, had ended."""
        return list(self._prefetch.late.newest)

    @property
    def lost_count(self) -> int:
        """The number of messages whose ack came after their lease, or their queue, had ended."""
        return self._prefetch.late.count

    @property
    def unknown(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack may or may not have been carried out."""
        return list(self._prefetch.unknown.newest)

    @property
    def unknown_count(self) -> int:
        """The number of messages whose ack may or may not have been carried out."""
        return self._prefetch.unknown.count

    def stop(self) -> None:
        """End the iteration after the present message, and a wait for the next one at once.

        Leases are renewed until the context is left. Any thread and any signal handler may call this.
        """
        self._stop.ask()

    # Settling

    @abstractmethod
    def _settle(self, how: str, deliveries: Sequence[D], time: Duration | None, description: str | None) -> R:
        """Settle deliveries; see `settling.settle`. An ack is collected for the next fetch."""

    @abstractmethod
    def _hurry(self) -> None:
        """Renew leases early enough: they have got shorter."""

    def _collect(self, deliveries: Sequence[D]) -> None:
        for item in deliveries:
            if item._settled is not None:
                check_unsettled(item)
            self._prefetch.finish(item)

    # Fetching

    def _take(self, kind: type[D], claimed: ReceiveResult, since: float) -> bool:
        """Take over the messages of a fetch, which began at `since`. Returns False if there are none."""
        fetched = delivery.delivered(kind, self._settler, claimed, self._lease)
        events = self._settler.events
        if events is not None:
            hook.received(events.observer, self.queue, fetched, since)
        self._prefetch.add(fetched)
        if fetched and not self._schedule.is_for(self._lease or claimed.config.lease):
            self._turns.follow_leases()  # these are the first messages, or the queue's `lease` has changed
        return bool(fetched)


# For the runs of handlers. Users do not need it, so it is no method.


def serve(consumer: ConsumerBase[D, R], idle: Callable[[], int]) -> None:
    """Set the function that returns the number of messages that handlers can begin now. Fewer count as a wait."""
    consumer._idle = idle  # of this module
