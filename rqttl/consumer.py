"""The loop behind `queue.consume()`: prefetching, batched acks, and leases that are renewed while handlers work."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from rqttl import checks, delivery, flows, units
from rqttl.consuming.acks import Acks, Missed, Sending, first_of
from rqttl.consuming.held import Held
from rqttl.consuming.pace import Pace
from rqttl.consuming.patience import patiently
from rqttl.delivery import LOST, UNKNOWN, Delivery, Settler
from rqttl.errors import BrokerClosed, InvalidInput, LeaseLost, RqttlError
from rqttl.flows.messages import ENDED
from rqttl.protocol.commands import BATCH, Presence
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.driver import driver_of
from rqttl.store.refusals import is_away
from rqttl.units import MAX_DURATION, Duration

if TYPE_CHECKING:
    from rqttl.queue import Queue

logger = logging.getLogger("rqttl.consumer")

#: For how long a consumer counts as one after it was last heard of, in ms.
STAY = 60_000


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
        self, queue: Queue, prefetch: int = 100, *, lease: Duration | None = None, wait: Duration | None = None
    ) -> None:
        prefetch = checks.whole(prefetch, "prefetch", 1, BATCH)
        #: The queue that it consumes.
        self.queue = queue
        self._late, self._unsure = Missed(), Missed()
        self._driver = driver_of(queue)
        self._driver.check_open()
        self._settler = Settler(self._ack, self._nack, self._reject, self._prolong)
        self._lease = None if lease is None else int(units.duration(lease, "lease", least=1))
        self._wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        self._name = secrets.token_hex(8)
        self._idle: Callable[[], int] = lambda: 1
        self._buffer: deque[Delivery] = deque()
        self._held = Held(prefetch)
        self._acks = Acks()
        self._no_more_fetching = Interrupt()
        self._no_more_renewing = Interrupt()
        self._entered = ExitStack()
        # renewing changes tokens, settling presents them: one of them at a time
        self._talking = threading.Lock()
        self._keeper = threading.Thread(target=self._keep, name=f"rqttl-keeper-{queue.name}", daemon=True)
        self._last_heard, self._pace = 0.0, Pace()

    @property
    def lost(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack came after their lease had ended."""
        return list(self._late.newest)

    @property
    def lost_count(self) -> int:
        """The number of messages whose ack came after their lease had ended."""
        return self._late.count

    @property
    def unknown(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack may or may not have been carried out."""
        return list(self._unsure.newest)

    @property
    def unknown_count(self) -> int:
        """The number of messages whose ack may or may not have been carried out."""
        return self._unsure.count

    def __enter__(self) -> Consumer:
        self._pace.follow([self._lease or self.queue.options().number("lease") or 0])
        self._keeper.start()
        self._entered.enter_context(self._driver.closed.ending(self.stop))
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
            logger.warning("queue %s: acks could not be sent, or messages not given back: %s", self.queue.name, failure)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Delivery:
        while not self._no_more_fetching.asked():
            self._driver.check_open()
            one = first_of(self._buffer)
            if one is None:
                if not patiently(self._refill, self.queue.name, self._wait, self._no_more_fetching, logger):
                    break
            elif one.settled is None:
                return one
        self._driver.check_open()
        raise StopIteration

    def stop(self) -> None:
        """End the iteration after the message at hand, and a wait for the next one at once.

        Leases are renewed until the context is left. May be called from any thread or a signal handler.
        """
        self._no_more_fetching.ask()

    def close(self) -> None:
        """Send what was acked, release what was never handed out, and leave the queue. Leases are renewed no more.

        Raises `BrokerClosed` if the broker was closed before: the messages come again when their leases end.
        """
        self._entered.close()
        self.stop()
        self._no_more_renewing.ask()
        if self._keeper.is_alive():
            self._keeper.join()
        try:
            self._report(Presence(self._name, 0, 0))
        except RedisError as error:
            if self._acks or self._buffer or not is_away(error):
                raise
            logger.info("queue %s: the consumer left while Redis was away", self.queue.name)
        self._release_unseen()
        unsettled = len(self._held.unsettled())
        if unsettled:
            logger.warning(
                "queue %s: the consumer ended before %d of its deliveries were settled; "
                "those that nobody settles come again when their leases end", self.queue.name, unsettled,
            )  # fmt: skip

    def release(self, delivery: Delivery) -> None:
        """Give a delivery back, at once, as if nobody had looked at it: it is no failed delivery.

        Raises `LeaseLost`, `AlreadySettled`.
        """
        with self._talking:
            self.queue.nack_many([delivery], counted=False)
        self._held.announce()

    # The settler of its deliveries

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        """Collect acks; see the class."""
        self._driver.check_open()
        if self._no_more_renewing.asked():
            self.queue.ack_many(deliveries)
            return
        for one in deliveries:
            delivery.check_unsettled(one)
            delivery.mark(one, "ack")
            self._acks.add(one)
        if self._no_more_renewing.asked():
            # closed in between: its last call may have missed these
            self._report(Presence(self._name, -1, 0))
        self._held.announce()

    def _nack(self, deliveries: Sequence[Delivery], delay: Duration | None, description: str | None) -> None:
        """Give deliveries back, at once."""
        with self._talking:
            self.queue.nack_many(deliveries, delay, description=description)
        self._held.announce()

    def _reject(self, deliveries: Sequence[Delivery], description: str | None) -> None:
        """Refuse deliveries, at once."""
        with self._talking:
            self.queue.reject_many(deliveries, description)
        self._held.announce()

    def _prolong(self, deliveries: Sequence[Delivery], lease: Duration | None) -> None:
        """Extend leases, at once. With a `lease` the consumer goes on renewing them for so long."""
        with self._talking:
            self.queue.renew_many(deliveries, lease)
            if lease is not None:
                for one in deliveries:
                    delivery.lend(one, int(units.duration(lease, "lease", least=1)))
        self._pace.follow(delivery.by_lease(self._held.unsettled()))

    # Fetching

    def _refill(self) -> bool:
        """Finish what was acked and fetch more. False when no message came in time."""
        if self._keeper.ident is None:
            raise InvalidInput("consume: iterate inside `with queue.consume() as deliveries:`, which renews leases")
        count = self._held.wait_for_room(self._no_more_fetching)
        if not count:
            return False
        sending = Sending(self._acks)
        flow = flows.receive(
            self.queue.name, count, self._lease, self._wait, auto_ack=False,
            consumer=self._name, stay=STAY, room=self._idle(), finished=sending.take,
        )  # fmt: skip
        claimed = self._perform(flow, sending)
        found = delivery.deliveries(self._settler, claimed, self._lease)
        self._held.add(found)
        self._pace.follow(delivery.by_lease(self._held.unsettled()))  # the queue's `lease` may have changed
        self._buffer.extend(found)
        return bool(found)

    def _perform(self, flow: flows.Flow[flows.ReceiveResult], sending: Sending) -> flows.ReceiveResult:
        """Carry out a flow, and tell of acks that came too late."""
        claimed = sending.carry(flow, self._talking, self._driver.step, self._listen)
        self._last_heard = max(self._last_heard, time.monotonic())
        for one in sending.among(claimed.lost):
            self._late.note(one, LOST, "came after its lease had ended")
        for one in sending.among(claimed.unknown):
            self._unsure.note(one, UNKNOWN, "got no reply until its lease had ended: it may have been carried out")
        return claimed

    def _listen(self, step: flows.WaitForWakeup) -> Any:
        """Wait. The look before has noted this consumer for longer than that, so its keeper need not."""
        stop = self._no_more_fetching
        self._last_heard = math.inf
        try:
            return ENDED if stop.asked() else self._driver.step(replace(step, interrupt=stop))
        finally:
            self._last_heard = time.monotonic()

    # Keeping

    def _report(self, presence: Presence) -> None:
        """Send what was acked and show that this consumer lives, without fetching anything."""
        while True:
            sending = Sending(self._acks)
            self._perform(flows.heartbeat(self.queue.name, presence, sending.take), sending)
            if not self._acks:
                return

    def _release_unseen(self) -> None:
        """Give back, uncounted, what iteration has not handed out."""
        unseen = []
        while (one := first_of(self._buffer)) is not None:
            if one.settled is None:
                unseen.append(one)
        if not unseen:
            return
        try:
            with self._talking:
                self.queue.nack_many(unseen, counted=False)
        except LeaseLost as lost:
            logger.info("%s", lost)
        except BaseException:
            self._buffer.extend(unseen)  # for the next attempt
            raise

    def _keep(self) -> None:
        """Be the keeper: send acks that wait, renew leases at a third of their time, show that somebody is here.

        After `stop` it releases what was not handed out, and keeps the rest until the consumer is closed.
        """
        renewed = time.monotonic()
        while not self._no_more_renewing.asked():
            stopped = self._no_more_fetching.asked()
            self._pace.rest(self._no_more_renewing if stopped else self._no_more_fetching)
            if self._no_more_renewing.asked():
                return
            try:
                if self._no_more_fetching.asked():
                    self._release_unseen()
                if self._acks or time.monotonic() - self._last_heard > STAY / 3000:
                    self._report(Presence(self._name, -1, STAY))
                if time.monotonic() - renewed >= self._pace.rhythm:
                    self._renew()
                    renewed = time.monotonic()
            except BrokerClosed:
                return  # nothing can be sent any more; the thread that iterates raises it
            except (RedisError, RqttlError) as error:
                # tried again at the next turn: a queue may come back, as a server does; settling tells lost leases
                logger.warning("queue %s: could not renew leases: %s", self.queue.name, type(error).__name__)
            except Exception:
                # a listener of events failed: without a keeper all leases would end
                logger.exception("queue %s: the keeper of leases goes on after an error", self.queue.name)

    def _renew(self, longer: int = 0) -> None:
        """Renew all leases, for `longer` ms more than they were given for."""
        with self._talking:
            held = self._held.unsettled()
            for lease, group in delivery.by_lease(held).items():
                try:
                    self.queue.renew_many(group, units.as_timedelta(min(lease + longer, MAX_DURATION)))
                except LeaseLost as lost:
                    logger.warning("%s", lost)
        if not held:
            return
        self._held.announce()
        for listener in self._driver.events.on_renewed:
            listener(self.queue.name, sum(one.settled != LOST for one in held))


# For `Queue.run`. A user has no need of it, so it is no method.


def serve(consumer: Consumer, idle: Callable[[], int]) -> None:
    """Tell a consumer how many messages can be begun now: one that finds fewer comes back at once."""
    consumer._idle = idle  # noqa: SLF001  # of this module
