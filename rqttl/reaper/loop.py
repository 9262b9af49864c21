"""The loop of the reaper: sleep until a queue is due, sweep it in bounded steps, scan all queues now and then."""

from __future__ import annotations

import logging
import time
from copy import deepcopy
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, cast

from rqttl import units
from rqttl.errors import BrokerClosed, QueueNotFound
from rqttl.events import SweepEvent
from rqttl.flows import queues as queue_flows
from rqttl.flows import steps, sweeping
from rqttl.reaper.heartbeat import Heartbeat, reaper_details
from rqttl.reaper.hints import FIRST_DELAY, HINTS, LONGEST_DELAY, HintSubscriber, Wake
from rqttl.reaper.registry import Registry
from rqttl.reaper.report import ReaperSnapshot, Report, Totals, log_event
from rqttl.reaper.timetable import Timetable
from rqttl.store.driver import driver_of
from rqttl.store.exchanges import TEMPORARY, is_away, refuses_for_now
from rqttl.text import plain_text, plain_whole, plural
from rqttl.types import SweepResult
from rqttl.units import Duration

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: The ms for which a queue is left alone that has more to do and has done nothing.
IDLE_BACKOFF_MS = 1_000
#: The longest period of a scan while the reaper is not subscribed to hints, in seconds.
UNSUBSCRIBED_PERIOD = 30.0
#: The largest number of passes of `run_once`: dead letters may be due at once in their target.
PASSES = 10


class Reaper:
    """Does the due work of all queues of a namespace: expire, reclaim, promote, trim, compact.

    It sleeps until the next queue is due. A hint wakes it when a queue becomes due earlier. A hint may be lost, so the
    reaper also looks at every queue once in each `scan_period`, evenly spread over it. Without a subscription to hints
    that period is 30 s at most. `scan_period=None` (or -1) means no reaper: `run` returns at once.

    Each bounded sweep is a `SweepEvent` of the broker, in the thread that called `run`.
    """

    def __init__(self, broker: Broker, *, scan_period: Duration | Literal[-1] | None = "5m") -> None:
        self._driver = driver_of(broker)
        none = scan_period is None or plain_whole(scan_period) == -1 or plain_text(scan_period) == "-1"
        self.scan_period = None if none else units.duration(cast("Duration", scan_period), "scan_period", least=1)
        self._inbox: SimpleQueue[Wake | tuple[str, int]] = SimpleQueue()
        self._stopped = False
        self._heartbeat = Heartbeat(self._driver, "reaper", lambda: reaper_details(self._report.totals))
        self._reset()

    def _reset(self) -> None:
        self._registry = Registry(self._driver.keyspace)
        self._timetable = Timetable()
        self._report = Report()
        self._failed: set[str] = set()  # left alone until the next pass
        self._strange: dict[str, int] = {}  # due times of queues that no pass has found
        self._next_look = time.monotonic()
        self._urgent = False  # a thorough pass must begin now
        self._passing = self._thorough = False  # a pass goes on; it is a thorough one
        self._away = False  # Redis did not answer the last call
        self._hearing = False
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
        try:
            self._begin_pass(thorough=True)
        except TEMPORARY as error:
            if not refuses_for_now(error):
                raise
            self._urgent = True  # Redis has answered
        hints = HintSubscriber(self._driver.store.client, self._driver.keyspace.due_channel, self._inbox)
        try:
            with self._driver.closed.ending(lambda: self._inbox.put(Wake.LOST)):  # closing the broker ends its sleep
                self._work(hints)
        finally:
            hints.close()
            self._report.tell(at_once=True)
            self._heartbeat.leave()
        log_event(logging.INFO, "stopped", "stopped")
        return self._report.totals

    def run_once(self) -> Totals:
        """Do all due work of all queues now. Returns the totals. Ends early after `stop`."""
        self._reset()
        totals = self._report.totals
        for _ in range(PASSES):
            before, totals.failed = totals.messages + totals.retired, 0
            self._begin_pass(thorough=True)
            while self._timetable.busy and not self._stopped:
                self._sweep_next()
            self._end_pass()
            if totals.messages + totals.retired == before or self._stopped:
                break
        self._report.tell(at_once=True)
        return totals

    def snapshot(self) -> ReaperSnapshot:
        """Return the numbers of this run, for metrics and health. May be called from any thread."""
        return ReaperSnapshot(
            replace(self._report.totals),
            deepcopy(self._report.lags),
            self._watched,
            self._last_pass,
            time.monotonic() - self._turned_at,
            self._away,
        )

    def stop(self) -> None:
        """End `run` after the sweep at hand. May be called from any thread, and from a signal handler."""
        self._stopped = True
        self._inbox.put(Wake.STOP)

    def _read_inbox(self, patience: float) -> None:
        """Take what has arrived, up to a bound. Waits `patience` seconds for the first one."""
        for _ in range(HINTS):
            try:
                event = self._inbox.get(timeout=patience) if patience > 0 else self._inbox.get_nowait()
            except Empty:
                break
            patience = 0.0
            if isinstance(event, tuple):
                self._take_hint(*event)
            elif event is not Wake.STOP:
                # hints from before a subscription are lost; and a pass shows whether Redis is reachable
                self._urgent, self._hearing = True, event is Wake.LISTENING

    def _take_hint(self, queue: str, due: int) -> None:
        if queue in self._registry and queue not in self._failed:
            self._timetable.hint(queue, due)
        elif queue not in self._failed:
            # a queue that is newer than the last scan, or no queue: any program can publish
            self._strange[queue] = min(due, self._strange.get(queue, due))

    def _work(self, hints: HintSubscriber) -> None:
        delay = 0.0
        while not self._stopped:
            self._turned_at = time.monotonic()
            if hints.missed or len(self._strange) > HINTS:
                self._urgent, hints.missed = True, False
                self._strange.clear()
            try:
                self._turn()
            except TEMPORARY as error:
                if not is_away(error):
                    raise
                self._note_outage(error)
                delay = min(max(FIRST_DELAY, delay * 2), LONGEST_DELAY)
                self._read_inbox(delay)
                self._urgent = True  # so the next turn asks Redis
            else:
                delay = 0.0
                if self._away:
                    self._away = False
                    log_event(logging.INFO, "redis_recovered", "Redis answers again")

    def _note_outage(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            state = "Redis refuses for now" if refuses_for_now(error) else "Redis does not answer"
            text = f"{state}: {error}; trying again until it does"
            log_event(logging.WARNING, "redis_unavailable", text, error=type(error).__name__, message=str(error))

    def _turn(self) -> None:
        self._heartbeat.write_if_due()
        self._read_inbox(self._patience())
        if self._stopped:
            return
        if self._urgent and not self._timetable.passing:
            self._begin_pass(thorough=True)
        elif time.monotonic() >= self._next_look:
            if not self._registry.running:
                self._begin_pass(thorough=False)
            self._look()
            self._next_look = time.monotonic() + self._registry.gap(self._period())
        if self._strange:  # hints of queues that do not exist are ignored
            for queue in self._driver.perform(self._registry.ask(list(self._strange))):
                self._timetable.hint(queue, self._strange[queue])
            self._strange = {}
        self._sweep_next()
        if self._passing and not self._registry.running and not self._timetable.passing:
            self._end_pass()
        self._report.tell()

    def _patience(self) -> float:
        """Return the seconds until the next work."""
        if self._timetable.busy or self._urgent:
            return 0.0
        look, heartbeat = self._next_look - time.monotonic(), self._heartbeat.ms_left() / 1000
        due = self._timetable.earliest()
        sweep = look if due is None else (due - self._server_now()) / 1000
        return max(0.0, min(look, heartbeat, sweep, self._report.seconds_left()))

    def _server_now(self) -> float:
        return time.monotonic() * 1000 + self._server_ahead

    def _begin_pass(self, *, thorough: bool) -> None:
        """Begin a scan of all queues. A `thorough` one reads all records at once, and sweeps all queues."""
        self._server_ahead = self._driver.perform(steps.server_time()) - time.monotonic() * 1000
        self._driver.perform(self._registry.begin(thorough=thorough))
        # a scan may begin before all queues of a thorough pass are swept: its end is the end of both
        self._passing, self._thorough = True, thorough or (self._passing and self._thorough)
        self._failed.clear()
        if thorough:
            self._urgent = False
            while self._registry.running:
                self._look()
            self._next_look = time.monotonic() + self._period()

    def _look(self) -> None:
        dues, sweep = self._driver.perform(self._registry.look())
        for queue, due in dues.items():
            if due is not None:
                self._timetable.hint(queue, due)
        self._timetable.begin_pass(sweep)

    def _period(self) -> float:
        """Return the seconds of one scan of all queues."""
        period = (self.scan_period or 0) / 1000
        return period if self._hearing else min(period, UNSUBSCRIBED_PERIOD)

    def _end_pass(self) -> None:
        """End a pass: forget the queues that the scan has not seen."""
        self._passing = False
        queues = self._registry.queues
        self._last_pass, self._watched = time.time(), len(queues)
        self._timetable.keep(queues)
        self._driver.configs.make_room(max(queue_flows.KNOWN, 3 * len(queues)))
        entered = self._driver.perform(self._registry.register_targets(queues - self._failed))
        self._timetable.begin_pass(entered)
        if self._thorough and self._hearing and not self._urgent:  # from now on it misses no hint
            count = len(queues) + len(entered)
            log_event(logging.INFO, "pass_completed", f"watching {plural(count, 'queue')}", queues=count)

    def _sweep_next(self) -> None:
        turn = self._timetable.next(int(self._server_now()))
        if turn is None:
            return
        queue, due = turn
        try:
            swept = self._driver.perform(sweeping.sweep(queue, rounds=1))[0]
        except BrokerClosed:
            raise
        except QueueNotFound:
            self._timetable.schedule(queue, None)
        except Exception as error:
            if is_away(error):
                raise
            # one bad queue must not keep the others waiting
            self._timetable.schedule(queue, None)
            self._failed.add(queue)
            self._report.failed(queue, error)
        else:
            self._note(queue, swept, due)

    def _note(self, queue: str, swept: SweepResult, due: int | None) -> None:
        self._server_ahead = swept.now - time.monotonic() * 1000
        if not (swept.more or (swept.due is not None and swept.due <= swept.now)):
            self._timetable.schedule(queue, swept.due)
        elif swept.reclaimed or swept.promoted or swept.expired or swept.trimmed or swept.compacted:
            self._timetable.enqueue(queue, swept.due if swept.due is not None else swept.now)
        else:
            self._timetable.schedule(queue, swept.now + IDLE_BACKOFF_MS)
        self._report.swept(queue, swept, due)
        notify = self._driver.events.notify
        if notify is not None:
            notify(SweepEvent(queue, swept))
