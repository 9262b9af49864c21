"""The loop of the reaper: sleep until a queue is due, sweep it in bounded steps, scan all queues now and then."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, cast

from rqttl import flows, units
from rqttl.errors import BrokerClosed, QueueNotFound
from rqttl.events import SweepEvent
from rqttl.reaper.hints import FIRST_PAUSE, LONGEST_PAUSE, HintSubscriber
from rqttl.reaper.registry import Registry, Scan
from rqttl.reaper.report import ReaperSnapshot, Report, Totals, log_event
from rqttl.reaper.roster import RosterBeat, reaper_details
from rqttl.reaper.timetable import Timetable
from rqttl.store.driver import driver_of
from rqttl.store.refusals import TEMPORARY, is_away, refuses_for_now
from rqttl.text import plain_text, plain_whole, plural
from rqttl.types import SweepResult
from rqttl.units import Duration

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: The ms for which a queue is left alone that has more to do and has done nothing.
IDLE_BACKOFF_MS = 1_000
#: The longest period of a scan while the reaper is not subscribed to hints, in seconds.
UNSUBSCRIBED_PERIOD = 30.0
#: The number of hints that may wait to be read. A pass over all queues makes up for more.
HINTS = 10_000
#: The largest number of passes of `run_once`: dead letters may be due at once in their target.
PASSES = 10


class _Event(Enum):
    STOP = "stop"
    LISTENING = "listening"
    LOST = "lost"


class Reaper:
    """Does the due work of all queues of a namespace: expire, reclaim, promote, trim, compact.

    It sleeps until the next queue is due. A hint wakes it when a queue becomes due earlier. A hint may be lost, so the
    reaper also looks at every queue once in each `scan_period`, evenly spread over it. Without a subscription to hints
    that period is 30 s at most. `scan_period=None` (or -1) means no reaper: `run` returns at once.

    Each bounded sweep is a `SweepEvent` of the broker, in the thread that called `run`.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        scan_period: Duration | Literal[-1] | None = "5m",
    ) -> None:
        self._driver = driver_of(broker)
        none = scan_period is None or plain_whole(scan_period) == -1 or plain_text(scan_period) == "-1"
        self.scan_period = None if none else units.duration(cast("Duration", scan_period), "scan_period", least=1)
        self._inbox: SimpleQueue[_Event | tuple[str, int]] = SimpleQueue()
        self._stopped = False
        self._beat = RosterBeat(self._driver, "reaper", lambda: reaper_details(self._report.totals))
        self._reset()

    def _reset(self) -> None:
        self._registry = Registry(self._driver.keyspace)
        self._scan = Scan(self._registry)
        self._timetable = Timetable()
        self._report = Report()
        self._failed: set[str] = set()  # left alone until the next pass
        self._strange: dict[str, int] = {}  # due times of queues that no pass has found
        self._missed = False  # hints came faster than they were read
        self._next_look = time.monotonic()
        self._urgent = False  # a thorough pass must begin now
        self._passing = False
        self._away = self._away_in_pass = False  # Redis was away since the last pass; since this pass began
        self._hearing = False
        self._resubscribed = False  # a subscription has begun since the start of the last thorough pass
        self._announces_pass = False  # a subscription began before this pass, so no hint is missed after its end
        self._turned_at = time.monotonic()
        self._last_pass: float | None = None
        self._watched = 0  # queues of the last pass
        self._server_ahead = 0.0  # the server's clock minus ours, in ms

    def run(self) -> Totals:
        """Work until `stop`. Returns the totals.

        Before the first answer of Redis its errors are raised; after it the reaper waits for the end of an outage.
        Raises `BrokerClosed` when the broker is closed.
        """
        if self.scan_period is None:
            log_event(logging.INFO, "disabled", "the reaper is disabled (scan period -1)")
            return Totals()
        self._reset()
        hints = HintSubscriber(
            self._driver.store.client, self._driver.keyspace.due_channel, self._hear, self._listening, self._lost
        )
        try:
            self._begin_pass(thorough=True)
        except TEMPORARY as error:
            if not refuses_for_now(error):
                raise
            self._urgent = True  # Redis has answered
        hints.start()
        try:
            with self._driver.closed.ending(self._lost):  # closing the broker ends its sleep
                self._work()
        finally:
            hints.close()
            self._report.close()
            self._beat.leave()
        log_event(logging.INFO, "stopped", "stopped")
        return self._report.totals

    def run_once(self) -> Totals:
        """Do all due work of all queues now. Returns the totals. Ends early after `stop`."""
        totals = Totals()
        for _ in range(PASSES):
            self._reset()
            self._begin_pass(thorough=True)
            while self._timetable.busy and not self._stopped:
                self._sweep_next()
            self._end_pass()
            self._report.close()
            totals.merge(self._report.totals)
            totals.failed = self._report.totals.failed
            if not (self._report.totals.messages or self._report.totals.retired) or self._stopped:
                break
        return totals

    def snapshot(self) -> ReaperSnapshot:
        """Return the numbers of this run, for metrics and health. May be called from any thread."""
        return ReaperSnapshot(
            replace(self._report.totals),
            self._report.lags.copy(),
            self._watched,
            self._last_pass,
            time.monotonic() - self._turned_at,
            self._away,
        )

    def stop(self) -> None:
        """End `run` after the sweep at hand. May be called from any thread, and from a signal handler."""
        self._stopped = True
        self._inbox.put(_Event.STOP)

    # Events that wake the loop

    def _hear(self, queue: str, due: int) -> None:
        if self._inbox.qsize() < HINTS:
            self._inbox.put((queue, due))
        else:
            self._missed = True

    def _listening(self) -> None:
        self._inbox.put(_Event.LISTENING)

    def _lost(self) -> None:
        self._inbox.put(_Event.LOST)

    def _read_inbox(self, patience: float) -> None:
        """Handle the events that have arrived, up to a bound. Waits `patience` seconds for the first one."""
        for _ in range(HINTS):
            try:
                event = self._inbox.get(timeout=patience) if patience > 0 else self._inbox.get_nowait()
            except Empty:
                break
            patience = 0.0
            if isinstance(event, tuple):
                self._take_hint(*event)
            elif event is _Event.LISTENING:
                # hints from before the subscription are lost, so a thorough pass must follow
                self._urgent = self._hearing = self._resubscribed = True
            elif event is _Event.LOST:
                self._urgent, self._hearing = True, False  # a pass shows whether Redis is reachable
        if self._missed or len(self._strange) > HINTS:
            self._missed, self._urgent = False, True
            self._strange.clear()

    def _take_hint(self, queue: str, due: int) -> None:
        if queue in self._failed:
            return
        if queue in self._scan:
            self._timetable.hint(queue, due)
        else:  # a queue that is newer than the last scan, or no queue: any program can publish
            self._strange[queue] = min(due, self._strange.get(queue, due))

    def _meet_strangers(self) -> None:
        """Look at the queues that a hint names and no pass has found. Ignore hints of queues that do not exist."""
        if self._strange:
            for queue in self._driver.perform(self._scan.ask(list(self._strange))):
                self._timetable.hint(queue, self._strange[queue])
            self._strange = {}

    # The loop

    def _work(self) -> None:
        pause = 0.0
        while not self._stopped:
            self._turned_at = time.monotonic()
            try:
                self._turn()
            except TEMPORARY as error:
                if not is_away(error):
                    raise
                self._meet_outage(error)
                pause = min(max(FIRST_PAUSE, pause * 2), LONGEST_PAUSE)
                self._read_inbox(pause)
                self._urgent = True
            else:
                pause = 0.0

    def _meet_outage(self, error: Exception) -> None:
        if not self._away:
            state = "Redis refuses for now" if refuses_for_now(error) else "Redis does not answer"
            log_event(
                logging.WARNING,
                "redis_unavailable",
                f"{state}: {error}; trying again until it does",
                error=type(error).__name__,
                message=str(error),
            )
        self._away = self._away_in_pass = True

    def _turn(self) -> None:
        self._beat.take_turn()
        self._report.tell_late()
        self._read_inbox(self._patience())
        if self._stopped:
            return
        if self._urgent and not self._timetable.passing:
            self._begin_pass(thorough=True)
        elif time.monotonic() >= self._next_look:
            self._look_on()
        self._meet_strangers()
        self._sweep_next()
        if self._passing and not self._scan.running and not self._timetable.passing:
            self._end_pass()

    def _patience(self) -> float:
        """Return the seconds until the next work."""
        if self._timetable.busy or self._urgent:
            return 0.0
        patience = min(self._next_look - time.monotonic(), self._beat.next_turn() / 1000)
        due = self._timetable.earliest()
        if due is not None:
            patience = min(patience, (due - self._server_now()) / 1000)
        return max(0.0, patience)

    def _server_now(self) -> float:
        return time.monotonic() * 1000 + self._server_ahead

    def _begin_pass(self, *, thorough: bool) -> None:
        """Begin a scan of all queues. A `thorough` one reads all records at once, and sweeps all queues."""
        self._server_ahead = self._driver.perform(flows.steps.server_time()) - time.monotonic() * 1000
        self._driver.perform(self._scan.begin(thorough=thorough))
        self._passing = True
        self._failed.clear()
        self._away_in_pass = False
        if thorough:
            self._announces_pass, self._resubscribed, self._urgent = self._resubscribed, False, False
            while self._scan.running:
                self._look()
            self._next_look = time.monotonic() + self._period()

    def _look_on(self) -> None:
        """Scan the next part of all queues."""
        if not self._scan.running:
            self._begin_pass(thorough=False)
        self._look()
        self._next_look = time.monotonic() + self._scan.gap(self._period())

    def _look(self) -> None:
        part = self._driver.perform(self._scan.look())
        for queue, due in part.dues.items():
            if due is not None:
                self._timetable.hint(queue, due)
        self._timetable.begin_pass(part.sweep)

    def _period(self) -> float:
        """Return the seconds of one scan of all queues."""
        period = (self.scan_period or 0) / 1000
        return period if self._hearing else min(period, UNSUBSCRIBED_PERIOD)

    def _end_pass(self) -> None:
        """End a pass: forget the queues that the scan has not seen."""
        self._passing = False
        self._last_pass, self._watched = time.time(), len(self._scan.queues)
        self._timetable.keep(self._scan.queues)
        self._driver.configs.make_room(max(flows.queues.KNOWN, 3 * len(self._scan.queues)))
        if self._away and not self._away_in_pass:
            self._away = False
            log_event(logging.INFO, "redis_recovered", "Redis answers again")
        entered = self._driver.perform(self._registry.register_targets(self._scan.queues - self._failed))
        self._timetable.begin_pass(entered)
        if self._announces_pass:
            self._announces_pass = False
            count = len(self._scan.queues) + len(entered)
            log_event(logging.INFO, "pass_completed", f"watching {plural(count, 'queue')}", queues=count)

    def _sweep_next(self) -> None:
        turn = self._timetable.next(int(self._server_now()))
        if turn is None:
            return
        queue, due = turn
        try:
            swept = self._driver.perform(flows.sweeping.sweep(queue, rounds=1))[0]
        except BrokerClosed:
            raise
        except QueueNotFound:
            self._timetable.remove(queue)
            self._report.gone(queue)
        except Exception as error:
            if is_away(error):
                raise
            # one bad queue must not keep the others waiting
            self._timetable.remove(queue)
            self._failed.add(queue)
            self._report.failed(queue, error)
        else:
            self._note(queue, swept, due)

    def _note(self, queue: str, swept: SweepResult, due: int | None) -> None:
        self._server_ahead = swept.now - time.monotonic() * 1000
        done = swept.reclaimed + swept.promoted + swept.expired + swept.trimmed + swept.compacted
        more = swept.more or (swept.due is not None and swept.due <= swept.now)
        if more and done:
            self._timetable.enqueue(queue, swept.due if swept.due is not None else swept.now)
        elif more:
            self._timetable.schedule(queue, swept.now + IDLE_BACKOFF_MS)
        else:
            self._timetable.schedule(queue, swept.due)
        self._report.swept(queue, swept, due, more=more and bool(done))
        notify = self._driver.events.notify
        if notify is not None:
            notify(SweepEvent(queue, swept))
