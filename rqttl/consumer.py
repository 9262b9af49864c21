"""The loop behind `queue.consume()`: prefetching, batched acks, and leases that are renewed while handlers work."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from rqttl import commands, delivery, flows, units
from rqttl._driver import driver_of
from rqttl._interrupt import Interrupt
from rqttl.commands import Presence, Word
from rqttl.delivery import LOST, Delivery, Settler
from rqttl.errors import InvalidInput, LeaseLost, RqttlError
from rqttl.units import MAX_DURATION, Duration

if TYPE_CHECKING:
    from rqttl.queue import Queue

logger = logging.getLogger("rqttl.consumer")

#: For how long a consumer counts as one after it was last heard of, in ms.
STAY = 60_000


class Consumer:
    """An iterator over deliveries, and the context that gives them back at the end.

    Up to `prefetch` messages are fetched at a time and leased; the leases of all that are not settled are renewed from
    a thread of its own, so a handler may take as long as it likes (only code that never lets other Python threads run
    can prevent that). Acks are collected and sent with the next fetch, after a second at the latest; an ack that comes
    too late all the same is logged and listed in `lost`. `nack` and `reject` are sent at once.

    Iteration ends when no message has come for `wait` (never, without it), or after `stop()`. While Redis is away it
    goes on trying, for `wait` at most. On leaving the context what was acked is sent, what was never shown to a handler
    is released without counting as a failed delivery, and what was shown but not settled is given back.
    """

    def __init__(
        self, queue: Queue, prefetch: int = 100, *, lease: Duration | None = None, wait: Duration | None = None
    ) -> None:
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 1 <= prefetch <= commands.BATCH:
            raise InvalidInput(f"prefetch: expected a whole number from 1 to {commands.BATCH}, got {prefetch!r}")
        #: The queue that it consumes.
        self.queue = queue
        #: Ids of messages whose ack came after their lease had ended.
        self.lost: list[str] = []
        self._driver = driver_of(queue)
        self._settler = Settler(self._ack, self._nack, self._reject, self._prolong)
        self._prefetch = prefetch
        self._lease = None if lease is None else int(units.duration(lease, "lease", least=1))
        self._wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        self._name = secrets.token_hex(8)
        self._buffer: deque[Delivery] = deque()
        self._held: list[Delivery] = []
        self._finished: list[Delivery] = []
        self._sent = 0
        self._last_sent: deque[list[Delivery]] = deque(maxlen=4)
        self._stopped = threading.Event()
        self._no_more_fetching = Interrupt()
        # renewing changes tokens, settling presents them: one of them at a time
        self._talking = threading.Lock()
        self._settled = threading.Condition()
        self._crowded = False
        self._keeper = threading.Thread(target=self._keep, name=f"rqttl-keeper-{queue.name}", daemon=True)
        self._last_heard = 0.0
        self._listening = False
        self._rhythm = 1.0

    def __enter__(self) -> Consumer:
        lease = self._lease or self.queue.options().number("lease") or 0
        self._rhythm = lease / 3000
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Delivery:
        while not self._stopped.is_set():
            try:
                one = self._buffer.popleft()
            except IndexError:
                if not self._refill_patiently():
                    break
                continue
            if one.settled is None:
                return one
        raise StopIteration

    def stop(self) -> None:
        """End the iteration after the message at hand. May be called from any thread or a signal handler."""
        self._stopped.set()
        self._no_more_fetching.ask()

    def close(self) -> None:
        """Send what was acked, give back the rest, and leave the queue."""
        self.stop()
        if self._keeper.is_alive():
            self._keeper.join()
        unseen = [one for one in self._buffer if one.settled is None]
        self._buffer.clear()
        unsettled = [one for one in self._held if one.settled is None and one not in unseen]
        self._report(Presence(self._name, 0, 0))
        for back, counted in ((unseen, False), (unsettled, True)):
            if back:
                try:
                    self.queue.nack_many(back, counted=counted)
                except LeaseLost as lost:
                    logger.info("%s", lost)

    def release(self, delivery: Delivery) -> None:
        """Give a delivery back, at once, as if nobody had looked at it: it is no failed delivery.

        Raises `LeaseLost`, `AlreadySettled`.
        """
        with self._talking:
            self.queue.nack_many([delivery], counted=False)
        self._announce()

    # The settler of its deliveries

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        """Collect acks; see the class."""
        for one in deliveries:
            delivery.check_unsettled(one)
            delivery.mark(one, "ack")
            self._finished.append(one)
        if self._stopped.is_set() and not self._keeper.is_alive():
            self._report(Presence(self._name, -1, 0))
        self._announce()

    def _nack(self, deliveries: Sequence[Delivery], delay: Duration | None) -> None:
        """Give deliveries back, at once."""
        with self._talking:
            self.queue.nack_many(deliveries, delay)
        self._announce()

    def _reject(self, deliveries: Sequence[Delivery], description: str | None) -> None:
        """Refuse deliveries, at once."""
        with self._talking:
            self.queue.reject_many(deliveries, description)
        self._announce()

    def _prolong(self, deliveries: Sequence[Delivery], lease: Duration | None) -> None:
        """Extend leases, at once. The consumer goes on renewing them in its own rhythm."""
        with self._talking:
            self.queue.renew_many(deliveries, lease)

    def _announce(self) -> None:
        if self._crowded:
            with self._settled:
                self._settled.notify_all()

    # Fetching

    def _refill_patiently(self) -> bool:
        """`_refill`, as often as it takes while Redis is away; for no longer than `wait`."""
        started, pause = time.monotonic(), 0.5
        while True:
            try:
                return self._refill()
            except (ConnectionError, TimeoutError) as error:
                if (time.monotonic() - started) * 1000 >= self._wait:
                    raise
                logger.warning("queue %s: Redis is away (%s), trying again", self.queue.name, type(error).__name__)
            if self._stopped.wait(pause):
                return False
            pause = min(2 * pause, 5.0)

    def _refill(self) -> bool:
        """Finish what was acked and fetch more. False when no message came in time."""
        if self._keeper.ident is None:
            raise InvalidInput(
                "consume: iterate inside `with queue.consume() as deliveries:`, which renews and gives back"
            )
        self._held = [one for one in self._held if one.settled is None]
        while len(self._held) >= self._prefetch:
            self._crowded = True
            with self._settled:
                self._settled.wait(1.0)
            if self._stopped.is_set():
                return False
            self._held = [one for one in self._held if one.settled is None]
        self._crowded = False
        flow = flows.receive(
            self.queue.name, self._prefetch - len(self._held), self._lease, self._wait, auto_ack=False,
            consumer=self._name, stay=STAY, finished=self._take_finished,
        )  # fmt: skip
        claimed = self._perform(flow)
        if claimed is None:
            return False
        found = delivery.deliveries(self._settler, claimed, self._lease)
        self._held += found
        self._buffer.extend(found)
        self._note_lost(claimed.lost)
        return bool(found)

    def _perform(self, flow: flows.Flow[flows.Claimed]) -> flows.Claimed | None:
        """Carry out a flow, leaving the line to the keeper while it only listens. None when stopped meanwhile."""
        answer: Any = None
        try:
            while True:
                with self._talking:
                    step = flow.send(answer)
                    if type(step) is not flows.Listen:
                        answer = self._step(step)
                        continue
                if self._stopped.is_set():
                    return None
                answer = self._listen(step)
        except StopIteration as done:
            self._drop_sent()
            self._last_heard = time.monotonic()
            claimed: flows.Claimed = done.value
            return claimed

    def _listen(self, step: flows.Listen) -> Any:
        """Wait. The look before has noted this consumer for longer than that."""
        self._listening = True
        try:
            return self._driver.step(replace(step, interrupt=self._no_more_fetching))
        finally:
            self._listening = False

    def _step(self, step: flows.Step) -> Any:
        try:
            return self._driver.step(step)
        except BaseException:
            self._sent = 0  # so that nobody takes for done what goes with the next call
            raise

    def _take_finished(self) -> Sequence[Word]:
        """The deliveries to finish with the next call; kept until that call has succeeded."""
        self._drop_sent()
        part = self._finished[: commands.BATCH]
        self._sent = len(part)
        if part:
            self._last_sent.append(part)
        return [word for one in part for word in delivery.lease_words(one)]

    def _drop_sent(self) -> None:
        del self._finished[: self._sent]
        self._sent = 0

    def _note_lost(self, sequences: Sequence[bytes]) -> None:
        if not sequences:
            return
        for one in [one for part in list(self._last_sent) for one in part]:
            if delivery.lease_words(one)[0] in sequences and one.settled != LOST:
                delivery.mark(one, LOST)
                self.lost.append(one.id)
                logger.warning("queue %s: the ack of %s came after its lease had ended", self.queue.name, one.id)

    # Keeping

    def _report(self, presence: Presence) -> None:
        """Send what was acked and show that this consumer lives, without fetching anything."""
        while True:
            flow = flows.receive_nothing(self.queue.name, presence, self._take_finished)
            claimed = self._perform(flow)
            if claimed is not None:
                self._note_lost(claimed.lost)
            if not self._finished:
                return

    def _keep(self) -> None:
        """The keeper's life: send acks that wait, renew leases at a third of their time, show that somebody is here."""
        renewed = time.monotonic()
        while not self._stopped.wait(min(1.0, self._rhythm)):
            try:
                silent = not self._listening and time.monotonic() - self._last_heard > STAY / 3000
                if self._finished or silent:
                    self._report(Presence(self._name, -1, STAY))
                if time.monotonic() - renewed >= self._rhythm:
                    self._renew()
                    renewed = time.monotonic()
            except (RedisError, RqttlError) as error:
                # tried again at the next turn, whatever it was: a queue may come back, as a server does; leases that
                # end meanwhile are told when they are settled
                logger.warning("queue %s: could not renew leases: %s", self.queue.name, type(error).__name__)

    def _renew(self, longer: int = 0) -> None:
        """Renew all leases, for `longer` ms more than they were given for."""
        with self._talking:
            held = [one for one in list(self._held) if one.settled is None]
            if not held:
                return
            lease = min((self._lease or delivery.lease_of(held[0])) + longer, MAX_DURATION)
            try:
                self.queue.renew_many(held, units.as_timedelta(lease))
            except LeaseLost as lost:
                logger.warning("%s", lost)
        for listener in self._driver.events.on_renewed:
            listener(self.queue.name, sum(one.settled != LOST for one in held))
