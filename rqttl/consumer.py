"""The loop behind `queue.consume()`: prefetching, batched acks, and the renewal of leases while handlers work.

`rqttl.consuming` has the parts: `prefetch` does the bookkeeping, `turns` has the flows, and `renewer` carries them out
and has the thread that renews leases. The caller's thread iterates and fetches messages.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter
from types import TracebackType

from redis.exceptions import RedisError

from rqttl import flows
from rqttl.consuming.base import ConsumerBase
from rqttl.consuming.patience import patiently
from rqttl.consuming.renewer import Renewer, Sender
from rqttl.consuming.turns import announce_renewal
from rqttl.delivery import Delivery, Settler
from rqttl.errors import BrokerClosed, InvalidInput, RqttlError
from rqttl.flows.steps import Driver, Flow
from rqttl.runtime.interrupt import Wakeup
from rqttl.units import Duration

logger = logging.getLogger("rqttl.consumer")


class Consumer(ConsumerBase[Delivery, None]):
    """An iterator over deliveries, and a context that renews their leases.

    The consumer leases up to `prefetch` messages at a time. A thread renews the leases of all unsettled deliveries, so
    a handler may take any time. Only code that blocks all other Python threads can prevent a renewal. Acks are
    collected and sent with the next fetch, after a second at the latest. An ack that comes too late even so is logged,
    counted in `lost_count` and listed in `lost`. An ack that got no reply until its lease ended is logged, counted in
    `unknown_count` and listed in `unknown`. Both lists hold the newest 1,000 ids. `nack` and `reject` are sent at once.

    The iteration ends when no message has come for `wait` (never, without `wait`), or after `stop()`. While Redis is
    away it goes on trying, for `wait` at most.

    A consumer ends in two steps. `stop()` ends the fetching: deliveries that the iteration has not handed out go back
    at once, and count as no failed delivery. The leases of all others are renewed, and acks are sent, until the context
    is left. The exit of the context sends the last acks. Deliveries that handlers still hold stay leased, and a handler
    may settle its delivery later; that call is sent at once. If it does not, the lease ends, and the message comes
    again as after any failed delivery. So an exception that leaves the loop only costs the rest of the lease.
    `with delivery:` gives the message back at once.

    Threads that handle deliveries must end before the consumer. So the consumer is the outer context and the pool the
    inner one. The exit of the pool waits for its threads while the consumer still renews leases:

        with queue.consume(prefetch=8) as deliveries, ThreadPoolExecutor(8) as pool:
            for delivery in deliveries:
                pool.submit(handle, delivery)

    One thread iterates; any thread may settle, and call `stop`.
    """

    def __init__(
        self,
        driver: Driver,
        queue: str,
        prefetch: int = 100,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
    ) -> None:
        super().__init__(driver.keyspace, queue, prefetch, lease, wait)
        self._driver = driver
        self._driver.check_open()
        self._settler = Settler(self._settle, driver.events)
        self._settled = Wakeup()
        self._sender = Sender(driver)
        timing = driver.timing
        self._renewer = Renewer(
            timing,
            f"rqttl-renewer-{queue}",
            lambda: self._schedule.next_turn(timing.now()),
            self._take_turn,
            self._stop,
        )
        self._entered = ExitStack()

    def __enter__(self) -> Consumer:
        options = self._driver.perform(flows.reading.options(self._driver.keyspace, self.queue))
        self._schedule.follow([self._lease or options.number("lease") or 0])
        self._schedule.renewed(self._driver.timing.now())
        self._renewer.start()
        self._entered.enter_context(self._driver.closed.ending(self.stop))
        self._entered.enter_context(self._driver.timing.leaps(lambda leap: self._renew(self._turns.prepare(leap))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except (RedisError, RqttlError) as failure:
            if error is None:
                raise
            # the caller must see the exception of the block; leased messages come back when their leases end
            logger.warning("queue %s: acks could not be sent, or messages not given back: %s", self.queue, failure)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Delivery:
        while not self._stop.asked():
            self._driver.check_open()
            delivery = self._prefetch.hand_out()
            if delivery is not None:
                return delivery
            if not patiently(self._fetch, self.queue, self._wait, self._stop, self._driver.timing, logger):
                break
        self._driver.check_open()
        raise StopIteration

    def close(self) -> None:
        """Send all acks, release the deliveries that were not handed out, and leave the queue. Ends renewals.

        Raises `BrokerClosed` if the broker was closed before. Then the messages come again when their leases end.
        """
        self._entered.close()
        self.stop()
        self._renewer.close()
        self._sender.perform(self._turns.leave())

    def release(self, delivery: Delivery) -> None:
        """Give a delivery back, at once. It does not count as a failed delivery.

        Raises `LeaseLost`, `AlreadySettled`.
        """
        self._settle("release", [delivery], None, None)

    # Settling

    def _settle(self, how: str, deliveries: Sequence[Delivery], time: Duration | None, description: str | None) -> None:
        if how == "ack" and not self._renewer.closed.asked():
            self._driver.check_open()
            self._collect(deliveries)
            if self._renewer.closed.asked():
                # the renewer was closed meanwhile, so its last call may have missed these acks
                self._sender.perform(self._turns.report())
        else:
            self._sender.perform(self._turns.settle(how, deliveries, time, description))
        self._settled.notify()

    def _hurry(self) -> None:
        self._renewer.notify()

    # The renewal of leases

    def _take_turn(self) -> None:
        try:
            if self._stop.asked():
                self._sender.perform(self._turns.release_unseen())
            self._renew(self._turns.upkeep())
        except BrokerClosed:
            raise  # the thread that iterates raises it, too
        except Exception as error:  # noqa: BLE001  # without a renewer all leases would end
            self._turns.log_failure(error)

    def _renew(self, flow: Flow[int | None]) -> None:
        renewed = self._sender.perform(flow)
        if renewed is not None:
            self._settled.notify()  # leases may be lost
        announce_renewal(self._driver.events, self.queue, renewed)

    # Fetching

    def _fetch(self) -> bool:
        """Send acks and fetch messages. Returns False if no message came in time."""
        if not self._renewer.has_begun:
            raise InvalidInput("consume: iterate inside `with queue.consume() as deliveries:`, which renews leases")
        while not (room := self._prefetch.room()):
            self._settled.wait(self._stop, lambda: 0.0 if self._prefetch.room() else 1.0)
            if self._stop.asked():
                return False
        since = perf_counter()
        claimed = self._sender.fetch(self._turns.fetch(room, self._lease, self._wait, self._idle()))
        return self._take(Delivery, claimed, since)
