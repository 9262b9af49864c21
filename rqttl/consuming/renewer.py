"""The renewer: the thread of a consumer that renews leases, sends waiting acks, and shows the consumer's presence."""

from __future__ import annotations

import logging
import threading

from redis.exceptions import RedisError

from rqttl import units
from rqttl.consuming import prefetch
from rqttl.consuming.prefetch import Prefetch, RenewalSchedule
from rqttl.consuming.sending import Sender
from rqttl.consuming.settling import Settling
from rqttl.delivery import LOST
from rqttl.errors import BrokerClosed, LeaseLost, RqttlError
from rqttl.events import RenewalEvent
from rqttl.flows import Driver
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.units import MAX_DURATION

logger = logging.getLogger("rqttl.consumer")


class Renewer:
    """Takes a turn at a third of the shortest lease, and once in a second at least, until `close`.

    After `stop` a turn releases the deliveries that were not handed out. Leases are renewed until `close`. Each renewal
    notifies `settled`, because it may show lost leases.
    """

    def __init__(
        self, driver: Driver, settling: Settling, books: Prefetch, schedule: RenewalSchedule, sender: Sender,
        stop: Interrupt, settled: Wakeup,
    ) -> None:  # fmt: skip
        self._driver = driver
        self._settling = settling
        self._books = books
        self._schedule = schedule
        self._sender = sender
        self._stop = stop
        self._settled = settled
        self._sooner = Wakeup()
        #: The interrupt that ends the renewal of leases.
        self.closed = Interrupt()
        self._thread = threading.Thread(target=self._run, name=f"rqttl-renewer-{settling.queue}", daemon=True)

    @property
    def has_begun(self) -> bool:
        """True if `start` was called."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Begin to take turns."""
        self._thread.start()

    def follow_leases(self) -> None:
        """Take the next turn early enough for the present leases."""
        if self._schedule.follow(self._books.leases().keys()):
            self._sooner.notify()

    def close(self) -> None:
        """Take no further turn."""
        self.closed.ask()
        if self._thread.is_alive():
            self._thread.join()

    def prepare(self, leap: int) -> None:
        """Keep the presence and all leases throughout a leap of the clock by `leap` ms. See `Timing.leaps`."""
        try:
            self._sender.report(prefetch.CONSUMER_TTL_MS + leap)
            self._renew(leap)
        except (RedisError, RqttlError) as error:  # the loop tells it when it goes on
            self._log_failure(error)

    def release_unseen(self) -> None:
        """Give back, uncounted, the deliveries that the iteration has not handed out."""
        unseen = self._books.take_unseen()
        if not unseen:
            return
        try:
            with self._sender.lock:
                self._settling.nack(unseen, counted=False)
        except LeaseLost as lost:
            logger.info("%s", lost)
        except BaseException:
            self._books.put_back_unseen(unseen)  # for the next attempt
            raise

    def _run(self) -> None:
        timing = self._driver.timing
        self._schedule.renewed(timing.now())
        while not self.closed.asked():
            end = self.closed if self._stop.asked() else self._stop
            timing.pause(end, lambda: self._schedule.next_turn(timing.now()), self._sooner)
            if self.closed.asked():
                return
            try:
                self._take_turn()
            except BrokerClosed:
                return  # no call can be sent any more; the thread that iterates raises the error
            except (RedisError, RqttlError) as error:
                # the next turn tries again: queue and server may come back; a later settle reports lost leases
                self._log_failure(error)
            except Exception:
                # a listener of events failed: without a renewer all leases would end
                logger.exception("queue %s: the renewer of leases goes on after an error", self._settling.queue)

    def _log_failure(self, error: Exception) -> None:
        logger.warning("queue %s: could not renew leases: %s", self._settling.queue, type(error).__name__)

    def _take_turn(self) -> None:
        if self._stop.asked():
            self.release_unseen()
        now = self._driver.timing.now
        if self._books.has_acks or self._schedule.is_report_due(now()):
            self._sender.report(prefetch.CONSUMER_TTL_MS)
        if self._schedule.is_renewal_due(now()):
            self._renew(0)
            self._schedule.renewed(now())

    def _renew(self, leap: int) -> None:
        """Renew all leases for their own lengths plus `leap` ms."""
        with self._sender.lock:
            leases = self._books.leases()
            for lease, group in leases.items():
                try:
                    self._settling.renew(group, units.as_timedelta(min(lease + leap, MAX_DURATION)))
                except LeaseLost as lost:
                    logger.warning("%s", lost)
        if not leases:
            return
        self._settled.notify()
        renewed = sum(item.settled != LOST for group in leases.values() for item in group)
        notify = self._driver.events.notify
        if notify is not None:
            notify(RenewalEvent(self._settling.queue, renewed))
