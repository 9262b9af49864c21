"""The loop of the reaper: sleep until a queue is due, sweep it in bounded steps, scan all queues now and then.

Hints wake it when a queue becomes due earlier than it knows. A hint may be lost; full passes make up for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, cast

from redis.exceptions import ConnectionError, RedisError, ResponseError

from rqttl import units
from rqttl.checks import check_queue_name
from rqttl.consuming.heartbeat import Heartbeat
from rqttl.errors import BrokerClosed, InvalidName, QueueNotFound
from rqttl.events import SweepEvent
from rqttl.flows import queues as queue_flows
from rqttl.flows import sweeping
from rqttl.flows.steps import Read, ReadEachNode
from rqttl.outages import TEMPORARY, Outages, doubled, is_away
from rqttl.protocol.replies import milliseconds, shaped
from rqttl.reaper.queues import Registry, Timetable
from rqttl.reaper.report import DUTIES, Report, Totals, log_event, logger, reaper_details
from rqttl.store.driver import driver_of
from rqttl.text import plain_text, plain_whole, plural
from rqttl.types import Duration, SweepResult

if TYPE_CHECKING:
    from redis.client import PubSub

    from rqttl.broker import Broker

#: The ms for which a queue is left alone that has more to do and has done nothing.
IDLE_BACKOFF_MS = 1_000
#: Clocks that differ by less drift; by more, one of them was set.
STEP_MS = 1_000
#: The longest period of a scan while the reaper is not subscribed to hints, in seconds.
UNSUBSCRIBED_PERIOD = 30.0
#: The largest number of passes of `run_once`: dead letters may be due at once in their target.
PASSES = 10
#: Seconds of silence before a ping checks the connection.
SILENCE = 15.0
#: The number of hints that may wait to be read. A pass over all queues makes up for more.
MOST_WAITING = 10_000


class _Node:
    """A node: its queues, and its clock minus ours in ms."""

    def __init__(self) -> None:
        self.timetable = Timetable()
        self.ahead = self.swept_at = 0.0

    def now(self) -> float:
        return time.monotonic() * 1000 + self.ahead

    def set_clock(self, now: int) -> bool:
        """Follow the clock of the node. Returns True if it has gone back: some due times from before are too late."""
        ahead, before = now - time.monotonic() * 1000, self.ahead
        self.ahead = ahead
        return ahead < before - STEP_MS


class Reaper:
    """Does the due work of all queues of a namespace: expire, reclaim, promote, activate, trim, compact.

    It sleeps until the next queue is due. A hint wakes it when a queue becomes due earlier. A hint may be lost, so the
    reaper also looks at every queue once in each `scan_period`, evenly spread over it. Without a subscription to hints
    that period is 30 s at most. `scan_period=None` (or -1) means no reaper: `run` returns at once.

    Each bounded sweep is a `SweepEvent` of the broker, in the thread that called `run`.
    """

    def __init__(self, broker: Broker, *, scan_period: Duration | Literal[-1] | None = "5m") -> None:
        self._driver = driver_of(broker).failing_fast()
        none = scan_period is None or plain_whole(scan_period) == -1 or plain_text(scan_period) == "-1"
        self.scan_period = None if none else units.duration(cast("Duration", scan_period), "scan_period", least=1)
        self._stopped = False
        self._heartbeat = Heartbeat(self._driver.keyspace, "reaper", lambda _: reaper_details(self.report.totals))
        self._reset()

    def _reset(self) -> None:
        #: The numbers of this run, for metrics and health.
        self.report = Report()
        self._hints = Hints(self._driver.store.subscription, self._driver.keyspace.due_channel)
        self._nodes: defaultdict[Hashable, _Node] = defaultdict(_Node)
        self._outages = Outages(self._driver.store.topology, lambda: time.monotonic() * 1000, logger)
        self._registry = Registry(
            self._driver.keyspace,
            rests=lambda queue: self._outages.rests(self._driver.node_of(queue)) > 0,
            note_outage=lambda queue, error: self._note_outage(self._driver.node_of(queue), error),
        )
        self._asked = self._driver.shared_node  # the node of the present call
        self._failed: set[str] = set()  # left alone until the next pass
        self._hinted: set[str] = set()  # since the last pass, which does not find a queue that is newer
        self._next_look = time.monotonic()
        self._urgent = False  # a thorough pass must begin now
        self._passing = self._thorough = False  # a pass goes on; it is a thorough one

    def _node(self, queue: str) -> _Node:
        return self._nodes[self._driver.node_of(queue)]

    def _awake(self) -> dict[Hashable, _Node]:
        return {key: node for key, node in self._nodes.items() if not self._outages.rests(key)}

    def _is_passing(self) -> bool:
        return any(node.timetable.passing for node in self._awake().values())

    def run(self) -> Totals:
        """Work until `stop`. Returns the totals.

        While Redis is away it waits, also at the start. Raises `BrokerClosed` when the broker is closed.
        """
        if self.scan_period is None:
            log_event(logging.INFO, "disabled", "the reaper is disabled (scan period -1)")
            return Totals()
        self._reset()
        self._urgent = True
        try:
            with self._hints.listening(), self._driver.closed.ending(self._look_again):
                self._work()
        finally:
            self.report.tell(at_once=True)
            self._driver.perform(self._heartbeat.leave())
        log_event(logging.INFO, "stopped", "stopped")
        return self.report.totals

    def run_once(self) -> Totals:
        """Do all due work of all queues now. Returns the totals. Ends early after `stop`."""
        self._reset()
        totals = self.report.totals
        for _ in range(PASSES):
            before, totals.failed = totals.messages + totals.retired, 0
            self._begin_pass(thorough=True)
            while any(node.timetable.busy for node in self._awake().values()) and not self._stopped:
                self._sweep_next()
            self._end_pass()
            if totals.messages + totals.retired == before or self._stopped:
                break
        self.report.tell(at_once=True)
        for outage in self._outages.values():
            raise outage.error
        return totals

    def stop(self) -> None:
        """End `run` after the sweep at hand. May be called from any thread, and from a signal handler."""
        self._stopped = True
        self._hints.inbox.put(None)

    def _look_again(self) -> None:
        """End the sleep of the loop: the broker is closed, and the next call says so."""
        self._urgent = True
        self._hints.inbox.put(None)

    def _read_inbox(self, patience: float) -> None:
        """Take what has arrived, up to a bound. Waits `patience` seconds for the first one."""
        for _ in range(MOST_WAITING):
            try:
                hint = self._hints.inbox.get(timeout=patience) if patience > 0 else self._hints.inbox.get_nowait()
            except Empty:
                break
            patience = 0.0
            if hint is not None and hint[0] not in self._failed:
                self._hinted.add(hint[0])
                self._node(hint[0]).timetable.hint(*hint)

    def _work(self) -> None:
        while not self._stopped:
            self.report.turned()
            self.report.is_away = bool(self._outages) and self._outages.keys() >= self._nodes.keys()
            self._asked = self._driver.shared_node
            try:
                self._turn()
            except TEMPORARY as error:
                if not is_away(error):
                    raise
                self._note_outage(self._asked, error)

    def away(self) -> list[str]:
        """Return the addresses of the nodes of a cluster that are away. May be called from any thread."""
        return self._outages.away()

    def _note_outage(self, node: Hashable, error: Exception) -> None:
        self._outages.failed(node, error)
        self._urgent = self._urgent or node == self._driver.shared_node  # so the next try is a pass

    def _try_again(self) -> None:
        """Ask the nodes that were away, when it is time to."""
        for node, outage in self._outages.items():
            if outage.next_try and not self._outages.rests(node) and node != self._driver.shared_node:
                self._asked = node
                self._driver.step(Read([("TIME",)], node=node))
                self._asked, outage.next_try, self._urgent = self._driver.shared_node, 0.0, True

    def _turn(self) -> None:
        shared, rests = self._driver.shared_node, self._outages.rests
        if not rests(shared):
            self._driver.perform(self._heartbeat.beat())
        self._read_inbox(self._patience())
        if self._stopped:
            return
        self._driver.check_open()
        if self._hints.missed:
            self._urgent, self._hints.missed = True, False
            for queue in self._registry.queues if shared in self._outages else ():  # no pass can begin now
                self._node(queue).timetable.begin_pass([queue])
        self._try_again()
        if self._urgent and not rests(shared) and not self._is_passing():
            self._begin_pass(thorough=True)
        elif time.monotonic() >= self._next_look and not rests(shared):
            if not self._registry.running:
                self._begin_pass(thorough=False)
            self._look()
            self._next_look = time.monotonic() + self._registry.gap(self._period())
        self._sweep_next()
        if self._passing and not self._registry.running and not self._is_passing() and not rests(shared):
            self._end_pass()
        self.report.tell()

    def _patience(self) -> float:
        """Return the seconds until the next work."""
        awake, rests, shared = self._awake().values(), self._outages.rests, self._driver.shared_node
        if any(node.timetable.busy for node in awake) or (self._urgent and not rests(shared)):
            return 0.0
        ends = [rests(node) / 1000 for node, outage in self._outages.items() if outage.next_try]
        ends.append(self.report.seconds_left())
        if not rests(shared):
            ends += [self._next_look - time.monotonic(), self._heartbeat.ms_left(self._driver.timing.now()) / 1000]
        ends += [(due - node.now()) / 1000 for node in awake if (due := node.timetable.earliest()) is not None]
        return max(0.0, min(ends))

    def _begin_pass(self, *, thorough: bool) -> None:
        """Begin a scan of all queues. A `thorough` one reads all records at once, and sweeps all queues."""
        for key, (reply,) in self._driver.step(ReadEachNode([("TIME",)], keep_errors=True)).items():
            if isinstance(reply, Exception):
                if not is_away(reply):
                    raise reply
                self._note_outage(key, reply)
            else:
                thorough |= self._nodes[key].set_clock(shaped("TIME", milliseconds, reply))
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
                self._node(queue).timetable.hint(queue, due)
        for queue in sweep:
            self._node(queue).timetable.begin_pass([queue])

    def _period(self) -> float:
        """Return the seconds of one scan of all queues."""
        period = (self.scan_period or 0) / 1000
        return period if self._hints.hearing else min(period, UNSUBSCRIBED_PERIOD)

    def _end_pass(self) -> None:
        """End a pass: forget the queues that the scan has not seen."""
        self._passing = False
        queues = self._registry.queues
        self.report.last_pass, self.report.queues = time.time(), len(queues)
        for node in self._nodes.values():
            node.timetable.keep(queues | self._hinted)
        self._hinted.clear()
        self._driver.configs.make_room(max(queue_flows.REMEMBERED, 3 * len(queues)))
        readable = {queue for queue in queues - self._failed if not self._outages.rests(self._driver.node_of(queue))}
        entered = self._driver.perform(self._registry.register_targets(readable))
        for queue in entered:
            self._node(queue).timetable.begin_pass([queue])
        if self._thorough and self._hints.hearing and not self._hints.missed and not self._urgent:
            # from now on the reaper misses no hint
            count = len(queues) + len(entered)
            log_event(logging.INFO, "pass_completed", f"watching {plural(count, 'queue')}", queues=count)
        for key, outage in list(self._outages.items()):
            if not outage.next_try or key == self._driver.shared_node:  # the others have not been asked again
                self._outages.answered(key)

    def _sweep_next(self) -> None:
        """Sweep the next queue: of a node that may be back, else of the nodes in turn."""
        awake = self._awake()
        for key in sorted(awake, key=lambda key: (key not in self._outages, awake[key].swept_at)):
            node = awake[key]
            if turn := node.timetable.next(int(node.now())):
                break
        else:
            return
        node.swept_at = time.monotonic()
        queue, due = turn
        try:
            swept = self._driver.perform(sweeping.sweep(queue, rounds=1))[0]
        except BrokerClosed:
            raise
        except QueueNotFound:
            node.timetable.schedule(queue, None)
        except Exception as error:
            if is_away(error):
                self._asked = key
                raise
            # one bad queue must not keep the others waiting
            node.timetable.schedule(queue, None)
            self._failed.add(queue)
            self.report.failed(queue, error)
        else:
            self._outages.answered(key)
            self._note(node, queue, swept, due)

    def _note(self, node: _Node, queue: str, swept: SweepResult, due: int | None) -> None:
        self._urgent |= node.set_clock(swept.now)
        if not (swept.more or (swept.due is not None and swept.due <= swept.now)):
            node.timetable.schedule(queue, swept.due)
        elif any(getattr(swept, duty) for duty in DUTIES):
            node.timetable.enqueue(queue, swept.due if swept.due is not None else swept.now)
        else:
            node.timetable.schedule(queue, swept.now + IDLE_BACKOFF_MS)
        self.report.swept(queue, swept, due)
        notify = self._driver.events.notify
        if notify is not None:
            notify(SweepEvent(queue, swept))


class Hints:
    """A subscription to one channel, in a thread, which connects again whenever the connection is lost.

    `inbox` gets queue and due time of each hint, and `None` after other news. `missed` is True after a time in which
    hints may have been lost, and `hearing` while none is.
    """

    def __init__(self, subscription: Callable[[], PubSub], channel: str) -> None:
        self.inbox: SimpleQueue[tuple[str, int] | None] = SimpleQueue()
        self.missed = self.hearing = False
        self._new_subscription, self._channel = subscription, channel
        self._closed = threading.Event()
        self._subscription: PubSub | None = None
        self._delay = doubled(0)  # in ms

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen within this block. Raises at once on a fake broker, which has no subscriptions."""
        self._new_subscription()  # it connects nowhere
        thread = threading.Thread(target=self._run, name="rqttl-reaper-hints", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            subscription = self._subscription
            if subscription is not None:
                with suppress(RedisError, OSError, AttributeError):  # the thread may be closing it at this moment
                    subscription.unsubscribe(self._channel)  # its confirmation ends the wait of the thread
            thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  # a connection that is closed meanwhile gives all kinds of errors
                if not self._closed.is_set():
                    self._complain(error)
            self._closed.wait(self._delay / 1000)
            self._delay = doubled(self._delay)

    def _complain(self, error: Exception) -> None:
        # the reaper reports a server that is away; a refused subscription is reported here, once
        refused, again = isinstance(error, ResponseError), self._delay > doubled(0)
        self.hearing = False
        if not again:
            self._tell_of_loss()
        log_event(
            logging.WARNING if refused and not again else logging.DEBUG,
            "subscribe_failed",
            f"cannot listen on {self._channel}: {error}; trying again, and until then only full passes find new work",
            error=type(error).__name__,
            message=str(error),
        )

    def _listen(self) -> None:
        subscription = self._new_subscription()
        try:
            subscription.subscribe(self._channel)
            self._subscription = subscription
            asked = False
            while not self._closed.is_set():
                message = subscription.get_message(timeout=SILENCE)
                if message is None:
                    if asked:
                        raise ConnectionError("no answer to a ping")
                    subscription.ping()
                elif message["type"] == "subscribe":
                    self._delay = doubled(0)
                    self._tell_of_loss()  # of hints from before the subscription
                    self.hearing = True
                elif message["type"] == "message" and (hint := read_hint(message["data"])):
                    if self.inbox.qsize() < MOST_WAITING:
                        self.inbox.put(hint)
                    else:
                        self.missed = True
                asked = message is None
        finally:
            self._subscription = None
            with suppress(RedisError, OSError):
                subscription.close()

    def _tell_of_loss(self) -> None:
        self.missed = True
        self.inbox.put(None)


def read_hint(data: bytes) -> tuple[str, int] | None:
    """Return queue and due time of a hint `<ms> <queue>`. Any program can publish: returns `None` for another text."""
    due, _, name = data.partition(b" ")
    try:
        return check_queue_name(name.decode("ascii")), int(due[:15])
    except (InvalidName, ValueError):
        return None
