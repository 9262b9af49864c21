"""The loop behind `queue.consume()`: prefetching, batched acks, and leases that are renewed while handlers work.

`rqttl.consuming` has the parts: `prefetch` keeps the books, `sending` makes the calls to Redis, `renewer` is the thread
that keeps leases. The caller's thread iterates, and fetches what it needs.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from redis.exceptions import RedisError

from rqttl import checks, delivery, flows, units
from rqttl.consuming.patience import patiently
from rqttl.consuming.prefetch import Prefetch, RenewalSchedule
from rqttl.consuming.renewer import Renewer
from rqttl.consuming.sending import Sender
from rqttl.consuming.settling import Settling
from rqttl.delivery import Delivery, Settler
from rqttl.errors import InvalidInput, RqttlError
from rqttl.flows import Driver
from rqttl.options import QueueOptions
from rqttl.protocol.commands import BATCH
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.store.refusals import TEMPORARY, is_away
from rqttl.units import MAX_DURATION, Duration

logger = logging.getLogger("rqttl.consumer")


class Consumer:
    """An iterator over deliveries, and the context that ends them.

    Up to `prefetch` messages are fetched at a time and leased. A thread of its own renews the leases of all that are
    not settled, so a handler may take as long as it likes (only code that never lets other Python threads run can
    prevent that). Acks are collected and sent with the next fetch, after a second at the latest. An ack that comes too
    late all the same is logged, counted in `lost_count` and listed in `lost`. An ack whose reply was lost, and whose
    lease ended before it could be sent again, is logged, counted in `unknown_count` and listed in `unknown`. Both lists
    hold the newest 1,000 ids. `nack` and `reject` are sent at once.

    Iteration ends when no message has come for `wait` (never, without it), or after `stop()`. While Redis is away it
    goes on trying, for `wait` at most.

    Two things end one after the other. `stop()` ends fetching: deliveries that iteration has not handed out go back at
    once, and count as no failed delivery. Leases of all others are renewed, and acks are sent, until the context is
    left. Then what was acked is sent, and nothing is taken from a handler: a delivery that was handed out and not
    settled stays leased, and whoever has it may settle it, which is sent at once from then on. If nobody does, its
    lease ends, and the message comes again as after any failed delivery. So an exception that leaves the loop costs
    nothing but that time; `with delivery:` gives the message back without it.

    Threads that handle deliveries have to end before the consumer does. So the consumer is the outer context and the
    pool the inner one, whose exit waits for its threads while the consumer still renews:

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
        prefetch = checks.whole(prefetch, "prefetch", 1, BATCH)
        #: The name of the queue that it consumes.
        self.queue = queue
        self._driver = driver
        self._driver.check_open()
        self._settling = Settling(driver, queue)
        self._settler = Settler(self._ack, self._nack, self._reject, self._prolong)
        self._lease = None if lease is None else int(units.duration(lease, "lease", least=1))
        self._wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        self._idle: Callable[[], int] = lambda: 1
        self._prefetch, self._schedule = Prefetch(prefetch), RenewalSchedule()
        self._stop, self._settled = Interrupt(), Wakeup()
        name = secrets.token_hex(8)
        self._sender = Sender(driver, queue, name, self._prefetch, self._schedule, self._stop)
        self._renewer = Renewer(
            driver, self._settling, self._prefetch, self._schedule, self._sender, self._stop, self._settled
        )
        self._entered = ExitStack()

    @property
    def lost(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack came after their lease had ended."""
        return list(self._prefetch.late.newest)

    @property
    def lost_count(self) -> int:
        """The number of messages whose ack came after their lease had ended."""
        return self._prefetch.late.count

    @property
    def unknown(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack may or may not have been carried out."""
        return list(self._prefetch.unknown.newest)

    @property
    def unknown_count(self) -> int:
        """The number of messages whose ack may or may not have been carried out."""
        return self._prefetch.unknown.count

    def __enter__(self) -> Consumer:
        self._schedule.follow([self._lease or self._options().number("lease") or 0])
        self._renewer.start()
        self._entered.enter_context(self._driver.closed.ending(self.stop))
        self._entered.enter_context(self._driver.timing.leaps(self._renewer.prepare))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except (RedisError, RqttlError) as failure:
            if error is None:
                raise
            # the exception that leaves the block is the news; what is still leased comes back when its lease ends
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

    def stop(self) -> None:
        """End the iteration after the message at hand, and a wait for the next one at once.

        Leases are renewed until the context is left. May be called from any thread or a signal handler.
        """
        self._stop.ask()

    def close(self) -> None:
        """Send what was acked, release what was never handed out, and leave the queue. Leases are renewed no more.

        Raises `BrokerClosed` if the broker was closed before: the messages come again when their leases end.
        """
        self._entered.close()
        self.stop()
        self._renewer.close()
        try:
            self._sender.report(leaves=True)
        except TEMPORARY as error:
            if self._prefetch.has_acks or self._prefetch.has_unseen or not is_away(error):
                raise
            logger.info("queue %s: the consumer left while Redis was away", self.queue)
        self._renewer.release_unseen()
        unsettled = len(self._prefetch.unsettled())
        if unsettled:
            logger.warning(
                "queue %s: the consumer ended before %d of its deliveries were settled; "
                "those that nobody settles come again when their leases end", self.queue, unsettled,
            )  # fmt: skip

    def release(self, delivery: Delivery) -> None:
        """Give a delivery back, at once, as if nobody had looked at it: it is no failed delivery.

        Raises `LeaseLost`, `AlreadySettled`.
        """
        with self._sender.lock:
            self._settling.nack([delivery], counted=False)
        self._settled.notify()

    # The settler of its deliveries

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        """Collect acks; see the class."""
        self._driver.check_open()
        if self._renewer.closed.asked():
            self._settling.ack(deliveries)
            return
        for item in deliveries:
            delivery.check_unsettled(item)
            self._prefetch.finish(item)
        if self._renewer.closed.asked():
            # closed in between: its last call may have missed these
            self._sender.report()
        self._settled.notify()

    def _nack(self, deliveries: Sequence[Delivery], delay: Duration | None, description: str | None) -> None:
        """Give deliveries back, at once."""
        with self._sender.lock:
            self._settling.nack(deliveries, delay, description=description)
        self._settled.notify()

    def _reject(self, deliveries: Sequence[Delivery], description: str | None) -> None:
        """Refuse deliveries, at once."""
        with self._sender.lock:
            self._settling.reject(deliveries, description)
        self._settled.notify()

    def _prolong(self, deliveries: Sequence[Delivery], lease: Duration | None) -> None:
        """Extend leases, at once. With a `lease` the consumer goes on renewing them for so long."""
        with self._sender.lock:
            self._settling.renew(deliveries, lease)
            if lease is not None:
                for item in deliveries:
                    delivery.lend(item, int(units.duration(lease, "lease", least=1)))
        self._renewer.follow_leases()

    # Fetching

    def _options(self) -> QueueOptions:
        return self._driver.perform(flows.options(self._driver.keyspace, self.queue))

    def _fetch(self) -> bool:
        """Send acks and fetch messages. Returns False if no message came in time."""
        if not self._renewer.has_begun:
            raise InvalidInput("consume: iterate inside `with queue.consume() as deliveries:`, which renews leases")
        count = self._wait_for_room()
        if not count:
            return False
        claimed = self._sender.fetch(count, self._lease, self._wait, self._idle())
        fetched = delivery.deliveries(self._settler, claimed, self._lease)
        self._prefetch.add(fetched)
        self._renewer.follow_leases()  # the queue's `lease` may have changed
        return bool(fetched)

    def _wait_for_room(self) -> int:
        """Wait until one more message may be fetched. Returns how many may; 0 after `stop`."""
        while not (room := self._prefetch.room()):
            self._settled.wait(self._stop, lambda: 0.0 if self._prefetch.room() else 1.0)
            if self._stop.asked():
                return 0
        return room


# For `Queue.run`. A user has no need of it, so it is no method.


def serve(consumer: Consumer, idle: Callable[[], int]) -> None:
    """Tell a consumer how many messages can be begun now: one that finds fewer comes back at once."""
    consumer._idle = idle  # noqa: SLF001  # of this module
