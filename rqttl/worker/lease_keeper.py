"""The keeper: the thread of a worker that renews all leases, settles, and shows that the worker lives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from redis.exceptions import RedisError

from rqttl.consuming.prefetch import LONGEST_REST
from rqttl.errors import BrokerClosed, QueueNotFound, RqttlError
from rqttl.reaper.roster import RosterBeat
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.runtime.timing import Timing
from rqttl.store.refusals import is_away
from rqttl.worker.queue_source import QueueSource

logger = logging.getLogger("rqttl.worker")

#: The ms between two tries while Redis is away.
AWAY = 500


class LeaseKeeper:
    """Takes turns for all sources, at a third of the shortest lease and once in a second at least, until `close`.

    `sends_acks` returns True while acks wait for no claim: then the keeper sends them at once.
    """

    def __init__(
        self,
        timing: Timing,
        sources: Mapping[str, QueueSource],
        lock: threading.Lock,
        beat: RosterBeat,
        sends_acks: Callable[[], bool] = lambda: False,
    ) -> None:
        self._timing = timing
        self._sources = sources
        self._lock = lock
        self._beat = beat
        self._sends_acks = sends_acks
        self._closed = Interrupt()
        self._sooner = Wakeup()
        self._failed: set[str] = set()  # the queues whose last turn failed: they are tried again with all others
        #: True while Redis does not answer.
        self.is_away = False
        #: The time of the last turn, in ms of the clock of this process.
        self.turned_at = timing.now()
        self._thread = threading.Thread(target=self._run, name="rqttl-keeper", daemon=True)

    def start(self) -> None:
        """Begin to take turns."""
        self._thread.start()

    def notify(self) -> None:
        """Take the next turn at once: a settlement or an ack waits, or a lease is shorter than all others."""
        self._sooner.notify()

    def prepare(self, leap: int) -> None:
        """Keep all leases throughout a leap of the clock. See `Timing.leaps`."""
        for source in list(self._sources.values()):
            source.prepare(leap)

    def close(self) -> None:
        """Take no further turn."""
        self._closed.ask()
        if self._thread.is_alive():
            self._thread.join()

    def _pause(self) -> float:
        if self.is_away:
            return AWAY
        now = self._timing.now()
        pause, sends_acks = float(LONGEST_REST), self._sends_acks()
        for source in list(self._sources.values()):
            is_urgent = source.is_urgent or (sends_acks and source.has_acks)
            is_next = is_urgent and source.queue not in self._failed
            pause = min(pause, 0.0 if is_next else source.schedule.next_turn(now))
        return max(0.0, min(pause, self._beat.next_turn()))

    def _run(self) -> None:
        while not self._closed.asked():
            self._timing.pause(self._closed, self._pause, self._sooner)
            self.turned_at = self._timing.now()
            if self._closed.asked():
                return
            try:
                self._take_turns()
            except BrokerClosed:
                return  # no call can be sent any more; the worker ends by the same error
            except Exception:
                # a listener of events failed: without a keeper all leases would end
                logger.exception("the keeper of leases goes on after an error")

    def _take_turns(self) -> None:
        away = False
        self._failed.clear()
        for source in list(self._sources.values()):
            try:
                source.take_turn()
            except BrokerClosed:
                raise
            except (RedisError, RqttlError) as error:
                # the next turn tries again: queue and server may come back; a later settle reports lost leases
                self._log(source.queue, error)
                self._failed.add(source.queue)
                if is_away(error):
                    away = True
                    break  # all queues are on this server
        self.is_away = away
        if not away:
            try:
                with self._lock:  # so a second connection is not needed
                    self._beat.take_turn()
            except (RedisError, RqttlError) as error:
                logger.info("worker heartbeat is late: %s", error)

    def _log(self, queue: str, error: Exception) -> None:
        if not isinstance(error, QueueNotFound) and not self.is_away:
            logger.warning("queue %s: could not renew leases or settle: %s", queue, type(error).__name__)
