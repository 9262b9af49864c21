"""The worker: its settings, its threads, and its life from the start to the last ack."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from email.message import Message as Headers
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from rqttl import flows
from rqttl.errors import InvalidInput, QueueNotFound, RqttlError
from rqttl.names import is_pattern
from rqttl.protocol.keys import queue_names
from rqttl.reaper import report as reaper_metrics
from rqttl.reaper.roster import RosterBeat
from rqttl.runtime.memory import resident_bytes
from rqttl.runtime.stop_signals import SAME
from rqttl.store.driver import driver_of
from rqttl.text import plural
from rqttl.types import RunCounts
from rqttl.worker import metrics, settings
from rqttl.worker.fetcher import SCAN, Fetcher, matches, selected
from rqttl.worker.handlers import HandlerNotLoaded
from rqttl.worker.health import SIGN_EVERY, Answer, HealthServer, Route, Signs, Vitals, judgement
from rqttl.worker.in_flight import InFlight
from rqttl.worker.lease_keeper import LeaseKeeper
from rqttl.worker.metrics import Counters
from rqttl.worker.process import ThisProcess
from rqttl.worker.queue_source import QueueSource, forget
from rqttl.worker.supervisor import Supervisor, Waker, log_unloaded

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rqttl.broker import Broker
    from rqttl.reaper import Reaper
    from rqttl.worker.settings import WorkerOptions

logger = logging.getLogger("rqttl.worker")

#: The text of a failure whose handler the worker has ended at its own end.
STOPPED = "the worker stopped before the handler ended"


class Worker:
    """Consumes queues, and runs a handler for each message, mostly in child processes.

    The process of the worker holds the leases and talks to Redis. Its children run handlers, so that no handler can
    keep the worker from renewing a lease, and the death of a child costs only the messages at hand.

    `queues` are names and patterns, in strict order, or a mapping with weights. `call` names a function, as
    `package.module:name`; it gets the decoded value, or with `delivery` the `Delivery`. `exec` is a command instead.
    A handler that returns acks its message. `rqttl.Reject`, `rqttl.Retry` and `rqttl.Release` decide otherwise; any
    other exception is a failed delivery, with a pause that doubles. With `processes=0` the handlers run in threads.
    A class is made once in each process of handlers. At the end its `close` is called, in the loop of its coroutines.
    `rqttl worker --help` explains all options. Raises `InvalidInput`.
    """

    _reaper: Reaper | None = None

    def __init__(
        self,
        broker: Broker,
        queues: str | Sequence[str] | Mapping[str, int | None],
        **options: Unpack[WorkerOptions],
    ) -> None:
        self._settings = picked = settings.read(queues, options)
        self._broker, self._driver = broker, driver_of(broker)
        #: The counters, for collectors of metrics.
        self.counters = Counters()
        #: The answers of the health server by path. Further ones may be added before `run`.
        self.routes: dict[str, Route] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
        }
        self._lock = threading.Lock()
        self._sources: dict[str, QueueSource] = {}
        self._warned = set[str]()
        self._waker = Waker()
        self._stop_asked_at: float | None = None
        self._quiet = self._now = self._kill = self._has_fetched = self._has_run = False
        self._error: BaseException | None = None
        self._beat = RosterBeat(self._driver, "worker", self._details)
        self._keeper = LeaseKeeper(
            self._driver.timing, self._sources, self._lock, self._beat, lambda: not self._fetcher.takes_acks
        )
        self._in_flight = InFlight(
            self.counters, picked.retries, picked.timeout, self._keeper.notify, on_change=self._on_change
        )
        self._name = secrets.token_hex(8)
        self._fetcher = Fetcher(
            self._driver, self._name, picked, self._scan, self._source, self._in_flight, self.counters, self._lock
        )
        self._supervisor = Supervisor(self._in_flight, self.counters, picked, self._waker)
        self._this_process: ThisProcess | None = None
        self._health: HealthServer | None = None
        self._signs = Signs(picked.health_file, os.environ)
        self._turned_at = time.monotonic()

    @property
    def health_port(self) -> int | None:
        """The port of the health server; `None` without one."""
        return None if self._health is None else self._health.port

    def _on_change(self) -> None:
        """Let the keeper send acks that no claim takes along, and `run` look for the end."""
        if not self._fetcher.takes_acks:
            self._keeper.notify()
        if self._fetcher.stop.asked():
            self._waker()

    # Control, from any thread and any signal handler

    def stop(self) -> None:
        """Fetch no more, give back the messages that no handler has begun, and end when the handlers have ended.

        After `grace` the worker ends them, and gives their messages back. A second call does that at once. Commands get
        SIGTERM then, and SIGKILL after 5 s (`TERM_GRACE`) or at a third call.
        """
        self._kill = self._now
        if self._stop_asked_at is None:
            self._stop_asked_at = time.monotonic()
        else:
            self._now = True
        self._fetcher.stop.ask()
        self._waker()

    def quiet(self) -> None:
        """Fetch no more, and stay until `stop`."""
        self._quiet = True
        self._fetcher.stop.ask()
        self._waker()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Let signals stop the worker, in the main thread: Python allows no other one.

        A signal that the process ignores stays ignored (`nohup`).
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        last = -math.inf

        def handle(number: int, _: object) -> None:
            nonlocal last
            if number == signal.SIGTSTP:
                self.quiet()
            elif time.monotonic() - last > SAME:
                last = time.monotonic()
                self.stop()

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
        ignored = (signal.SIG_IGN, None)
        before = {n: signal.signal(n, handle) for n in numbers if signal.getsignal(n) not in ignored}
        descriptor = signal.set_wakeup_fd(self._waker.writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)

    # The life of a worker

    def run(self) -> RunCounts:
        """Work until `stop`, a signal (in the main thread only), or the end of `burst` or `idle_exit`.

        SIGTERM, SIGINT and SIGHUP stop the worker, a second one, a second later or more, at once. SIGTSTP is `quiet`.
        Raises `QueueNotFound` if a named queue does not exist at the start, and `InvalidInput` if the handler cannot be
        loaded, or at a second call.
        """
        if self._has_run:
            raise InvalidInput("worker: it has run already; make another one")
        self._has_run = True
        with ExitStack() as stack:
            stack.callback(self._waker.close)
            stack.callback(self._supervisor.close)
            self._check_queues()
            stack.enter_context(self._signals())
            stack.enter_context(self._driver.closed.ending(self.stop))
            stack.enter_context(self._driver.timing.leaps(self._keeper.prepare))
            stack.callback(self._signs.close)
            self._begin(stack)
            self._supervise()
            self._finish()
        if self._supervisor.broken:
            raise InvalidInput(self._supervisor.broken)
        if self._error is not None:
            raise self._error
        return RunCounts(self.counters.handled, self.counters.failed, self.counters.lost, 0)

    def _begin(self, stack: ExitStack) -> None:
        picked = self._settings
        if picked.health is not None:
            try:
                self._health = HealthServer(*picked.health, self.routes)
            except OSError as error:
                raise InvalidInput(f"health: cannot listen on {':'.join(map(str, picked.health))}: {error}") from error
            self._health.start()
            logger.info("serving /livez, /readyz and /metrics on %s", self._health.place)
            stack.callback(self._health.close)
        if picked.processes == 0:
            try:
                self._this_process = ThisProcess(self._in_flight, picked, self._broker)
            except HandlerNotLoaded as error:
                log_unloaded(error.trace)
                raise InvalidInput(str(error)) from error
            self._in_flight.hosts.append(self._this_process)
            self.counters.has_slots(self._this_process.slots)
            self._this_process.start()
        if picked.reaper:
            from rqttl.reaper import Reaper  # for workers that run one

            self._reaper = Reaper(self._broker)
            stack.callback(self._thread("rqttl-reaper", self._reaper.run).join)
            stack.callback(self._reaper.stop)
        self._keeper.start()
        self._fetching = self._thread("rqttl-fetcher", self._fetch)

    def _thread(self, name: str, run: Callable[[], object]) -> threading.Thread:
        """Start a thread. The thread that called `Worker.run` raises its error."""

        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001  # as above
                self._error = self._error or error
                self.stop()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def _fetch(self) -> None:
        try:
            self._fetcher.run()
        finally:
            self._has_fetched = True  # `run` looks at once, when this thread still lives
            self._waker()

    def _supervise(self) -> None:
        """Watch the children until the end of the work."""
        next_sign, ends_at, announced, quiet, recalled = 0.0, 0.0, False, False, False
        while not self._supervisor.broken:
            now = self._turned_at = time.monotonic()
            if now >= next_sign:
                next_sign = now + self._signs.every
                if not self.vitals().trouble():
                    self._signs.alive()
            if not announced and self._supervisor.ready == self._supervisor.number:
                announced = True
                self._signs.notify("READY=1")
                self._beat.hurry()
                self._keeper.notify()
                names, slots = ", ".join(self._settings.queues), self._in_flight.slots
                logger.info("handling messages of %s, %d at a time", names, slots)
            if self._quiet and not quiet:
                quiet = True
                logger.info("fetching no more messages; SIGTERM ends the worker")
            if self._stop_asked_at is not None and not recalled:
                recalled, ends_at = True, now + self._settings.grace
                logger.info("stopping: %s at work", plural(len(self._in_flight.running()), "message"))
                self._signs.stopping()
                self._in_flight.stop()
            ended = self._has_fetched and self._in_flight.is_idle
            if ended and (not self._quiet or self._stop_asked_at is not None):
                return
            if recalled and (self._now or now >= ends_at):
                logger.warning("the worker ends %s", plural(len(self._in_flight.running()), "handler"))
                return
            self._supervisor.turn(now, max(0.0, min(next_sign, ends_at if recalled else next_sign) - now))

    def _finish(self) -> None:
        """End the children, and settle what is left."""
        self._signs.stopping()
        self._fetcher.stop.ask()
        self._in_flight.stop()
        self._supervisor.end()
        if self._settings.exec is not None:
            self._supervisor.end_commands(lambda: self._kill)
        if not self._in_flight.is_idle:
            self._supervisor.kill(STOPPED)
            if self._this_process is not None:
                self._this_process.kill()
        while not self._supervisor.is_empty:
            self._supervisor.turn(time.monotonic(), SIGN_EVERY)
        self._in_flight.give_up(STOPPED)
        if self._this_process is not None:
            self._this_process.close()
        self._fetching.join()
        self._in_flight.give_up(STOPPED)  # a last look may have taken a message
        self._keeper.close()
        for source in list(self._sources.values()):
            try:
                source.close()
            except QueueNotFound:
                logger.debug("queue %s does not exist any more", source.queue)
            except (RedisError, RqttlError) as error:
                logger.warning("queue %s: acks could not be sent, or messages not given back: %s", source.queue, error)
        self._beat.leave()
        if not self._supervisor.broken:
            logger.info("the worker has ended: handled %d, failed %d", self.counters.handled, self.counters.failed)

    # Parts

    def _source(self, queue: str) -> QueueSource:
        if queue not in self._sources:
            lease = self._settings.lease
            self._sources[queue] = QueueSource(
                self._driver, queue, self._name, lease, self._lock, self.counters, self._keeper.notify
            )
        return self._sources[queue]

    def _scan(self) -> Mapping[str, int | None]:
        """Return the queues of this moment with their weights."""
        if not self._settings.patterns:
            return self._settings.queues
        existing = queue_names(self._driver.perform(flows.registry.members(self._driver.keyspace)))
        for name in self._settings.patterns:
            if name not in self._warned and not any(matches(name, queue) for queue in existing):
                self._warned.add(name)
                logger.warning("no queue matches %s; the worker looks again every %d s", name, SCAN // 1000)
        forget(self._sources, {*existing, *self._settings.queues}, self.counters)
        return selected(self._settings.queues, existing)

    def _check_queues(self) -> None:
        names = [name for name in self._settings.queues if not is_pattern(name)]
        existing = self._driver.perform(flows.reading.read_options(self._driver.keyspace, names))
        for name in names:
            if name not in existing:
                raise QueueNotFound(name)

    def _details(self) -> dict[str, Any]:
        now, wall = time.monotonic(), time.time()
        weights = self._settings.queues
        return {
            "queues": [name if weight is None else f"{name}={weight}" for name, weight in weights.items()],
            "slots": self._in_flight.slots,
            "running": [
                (task.source.queue, task.delivery.id, int((wall - now + (task.begun_at or now)) * 1000))
                for task in self._in_flight.running()[:100]
            ],
            "handled": self.counters.handled,
            "failed": self.counters.failed,
            "rss": resident_bytes() + sum(map(resident_bytes, self._supervisor.pids)),
            "last_claim": None if self.counters.last_claim is None else int(self.counters.last_claim * 1000),
        }

    # Health

    def vitals(self) -> Vitals:
        """Return the facts from which `/livez` and `/readyz` follow."""
        now, clock, fetcher = time.monotonic(), self._driver.timing.now(), self._fetcher
        stopping = self._stop_asked_at is not None or self._quiet
        answered = None if fetcher.answered_at is None else (clock - fetcher.answered_at) / 1000
        return Vitals(
            supervised=now - self._turned_at,
            fetched=0.0 if stopping else (clock - fetcher.turned_at) / 1000,
            kept=(clock - self._keeper.turned_at) / 1000,
            answered=answered,
            calls_redis=self._lock.locked(),
            is_away=fetcher.is_away or self._keeper.is_away,
            is_full=self._in_flight.is_full,
            is_stopping=stopping,
            children=self._supervisor.number or 1,
            ready_children=self._supervisor.ready if self._supervisor.number else int(self._this_process is not None),
        )

    def _livez(self, _: Headers) -> Answer:
        return judgement(self.vitals().trouble())

    def _readyz(self, _: Headers) -> Answer:
        return judgement(self.vitals().obstacle())

    def _metrics(self, headers: Headers) -> Answer:
        sources = [lambda: metrics.families(self.counters.snapshot())]
        if (reaper := self._reaper) is not None:
            sources.append(lambda: reaper_metrics.families(reaper.snapshot()))
        return metrics.answer(headers, *sources)
