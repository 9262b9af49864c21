"""Leases on real servers that are renewed many times, or end, in no time: a test waits for none of them.

A lease as short as a test's patience is over too early where a busy machine stops a test, or Redis, for a moment.
"""

import time
from collections.abc import Callable

import redis

from rqttl import Broker
from rqttl.flows import receive
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.store.driver import RedisDriver, Waiter, driver_of
from rqttl.testing.fake import ClockedBroker
from tests.drivers import broker_on

#: Much longer than a test may take.
LONG = "10m"
#: The speed of the clock of a hasty broker.
RATE = 100


def end_leases(client: redis.Redis, queue: str = "q") -> None:
    """End the leases of a queue, which may be `LONG`: sweep it as one does eleven minutes later.

    No consumer may wait: its note of that is over then, too, and the sweep does not wake it up.
    """
    ClockedBroker(client, start=int(time.time() * 1000) + 660_000).queue(queue).sweep()


class Hasty(Waiter):
    """A clock that runs `RATE` times too fast for a consumer: it renews a lease long before Redis ends it."""

    def now(self) -> int:
        """See `Timing`."""
        return int(time.monotonic() * 1000 * RATE)

    def pause(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        """See `Timing`."""
        super().pause(end, lambda: ms() / RATE, sooner)


def hasty_broker(client: redis.Redis) -> Broker:
    """A broker whose consumers renew their leases `RATE` times too often."""
    return broker_on(RedisDriver(client, "rqttl", Hasty()))


class Rival:
    """Another consumer of a queue, which comes right after the end that its leases had when it came before."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self._driver, self._queue = driver_of(broker), broker.queue(queue)
        self._end = 0

    def steals(self) -> bool:
        """Ask for a message. It gets none if all leases were extended in the meantime."""
        now = self._end + 1 if self._end else ""
        stolen = self._driver.perform(receive.receive_once(self._queue.name, 1, 60_000, now=now)).entries
        ends = [one.until for one in self._queue.peek(100) if one.until is not None]
        self._end = max(round(end.timestamp() * 1000) for end in ends)
        return bool(stolen)
