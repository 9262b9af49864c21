"""The worker: its options, its threads, and its life from the start to the last ack."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rqttl import checks
from rqttl.checks import is_pattern
from rqttl.consuming.heartbeat import Heartbeat
from rqttl.errors import InvalidInput
from rqttl.flows import reading
from rqttl.outages import TEMPORARY, is_away
from rqttl.runtime.memory import resident_bytes
from rqttl.runtime.stop_signals import SAME
from rqttl.store.driver import driver_of
from rqttl.text import plural
from rqttl.types import RunCounts
from rqttl.worker import health, settings
from rqttl.worker.child import ChildProcess, ChildThread
from rqttl.worker.fetcher import Fetcher
from rqttl.worker.in_flight import InFlight
from rqttl.worker.queue_source import Sources
from rqttl.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rqttl.broker import Broker
    from rqttl.worker.settings import WorkerOptions

logger = logging.getLogger("rqttl.worker")


class Worker:
    """Consumes queues, and runs a handler for each message, mostly in child processes.

    The process of the worker holds the leases and talks to Redis. Its children run handlers, so that no handler can
    keep the worker from renewing a lease, and the death of a child costs only the messages at hand.

    `queues` are names and patterns, in strict order, or a mapping with weights. `call` names a function, as
    `package.module:name`; it gets the decoded value, or with `delivery` the `Delivery`. `exec` is a command instead.
    A handler that returns acks its message. `rqttl.Reject`, `rqttl.Retry` and `rqttl.Release` decide otherwise; any
    other exception is a failed delivery, with a delay that doubles. With `processes=0` the handlers run in threads.
    A class is made once in each process of handlers. At the end its `close` is called, in the loop of its coroutines.
    `rqttl worker --help` explains all options. Raises `InvalidInput`.
    """

    _health: health.HealthServer | None = None

    def __init__(
        self, broker: Broker, queues: str | Sequence[str] | Mapping[str, int | None], **options: Unpack[WorkerOptions]
    ) -> None:
        self._given = given = settings.read(options)
        self._broker, self._driver = broker, driver_of(broker).failing_fast()
        self._weights = settings.queues(queues)
        names = ("exec", "delivery", "threads", "asyncio", "max_messages")
        self._setup = {
            "call": settings.handler(given["call"], given["exec"], given["processes"]),
            "path": list(sys.path),
            **{name: given[name] for name in names},
        }
        #: The counters, for collectors of metrics.
        self.counters = health.Counters()
        self._quiet = self._has_run = False
        #: What the first, the second and the third call of `stop` ask for.
        self._stops = self._now = self._kill = False
        #: The functions of the threads that have ended.
        self._ended = set[Callable[[], object]]()
        self._error: BaseException | None = None
        self._heartbeat = Heartbeat(self._driver.keyspace, "worker", self._details)
        self._sources = Sources(self._driver, given["lease"], self.counters, self._heartbeat)
        retries = settings.retries(given["retry_delay"], given["retry_max"], given["retry_jitter"])
        self._in_flight = InFlight(self.counters, retries, given["timeout"])
        self._fetcher = Fetcher(self._sources, self._in_flight, self._weights, given["burst"], given["idle_exit"])
        number, most = given["processes"] or 1, given["max_memory"]
        self._supervisor = Supervisor(self._in_flight, number, most, self._begin_child)
        self._systemd = health.Systemd(os.environ)
        self._turned_at = time.monotonic()

    @property
    def health_port(self) -> int | None:
        """The port of the health server; `None` without one."""
        return None if self._health is None else self._health.port

    def _begin_child(self) -> ChildProcess:
        if self._given["processes"]:
            return ChildProcess(self._in_flight.lock, self._setup, self._supervisor.wake)
        function = None if self._setup["call"] else self._given["call"]
        return ChildThread(self._in_flight.lock, self._setup, self._supervisor.wake, function, self._broker.observer)

    # Control, from any thread and any signal handler

    def stop(self) -> None:
        """Fetch no more, give back the messages that no handler has begun, and end when the handlers have ended.

        After `grace` the worker ends them, and gives their messages back. A second call does that at once. Commands get
        SIGTERM then, and SIGKILL after 5 s (`TERM_GRACE`) or at a third call.
        """
        self._stops, self._now, self._kill = True, self._stops, self._now
        self._fetcher.stop.ask()
        self._supervisor.wake()

    def quiet(self) -> None:
        """Fetch no more, and stay until `stop`."""
        self._quiet = True
        self._fetcher.stop.ask()
        self._supervisor.wake()

    def _take_signals(self, stack: ExitStack) -> None:
        """Let signals stop the worker, in the main thread: Python allows no other one.

        A signal that the process ignores stays ignored (`nohup`).
        """
        if threading.current_thread() is not threading.main_thread():
            return
        last = -math.inf

        def handle(number: int, _: object) -> None:
            nonlocal last
            if number == signal.SIGTSTP:
                self.quiet()
            elif time.monotonic() - last > SAME:
                last = time.monotonic()
                self.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                stack.callback(signal.signal, number, signal.signal(number, handle))
        descriptor = signal.set_wakeup_fd(self._supervisor.waker.fileno(), warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, descriptor)

    # The life of a worker

    def run(self) -> RunCounts:
        """Work until `stop`, a signal (in the main thread only), or the end of `burst` or `idle_exit`.

        SIGTERM, SIGINT and SIGHUP stop the worker, a second one, a second later or more, at once. SIGTSTP is `quiet`.
        While Redis is away it waits, also at the start. Raises `QueueNotFound` if Redis says at the start that a named
        queue does not exist, and `InvalidInput` if the handler cannot be loaded, or at a second call.
        """
        if self._has_run:
            raise InvalidInput("worker: it has run already; make another one")
        checks.unpatched("worker")
        self._has_run = True
        with ExitStack() as stack:
            stack.callback(self._supervisor.close)
            names = [name for name in self._weights if not is_pattern(name)]
            self._check(names)
            self._take_signals(stack)
            stack.enter_context(self._driver.closed.ending(self.stop))
            self._begin(stack)
            self._supervise()
            self._finish()
        if self._supervisor.broken:
            raise InvalidInput(self._supervisor.broken)
        if self._error is not None:
            raise self._error
        return self.counters.totals()

    def _check(self, names: Sequence[str]) -> None:
        """Check that queues exist. The fetcher waits for a node that is away."""
        try:
            self._fetcher.miss(self._driver.perform(reading.check_existing(self._driver.keyspace, names)))
        except TEMPORARY as error:
            if not is_away(error):
                raise

    def _begin(self, stack: ExitStack) -> None:
        families = [self.counters.families]
        if self._given["reaper"]:
            from rqttl.reaper import Reaper  # for workers that run one

            reaper = Reaper(self._broker)
            families.append(reaper.report.families)
            stack.callback(self._thread("rqttl-reaper", reaper.run).join)
            stack.callback(reaper.stop)
        if self._given["health"] is not None:
            host, port = self._given["health"]
            routes: dict[str, health.Route] = {
                "/livez": lambda _: health.judgement(self.trouble()),
                "/readyz": lambda _: health.judgement(self.obstacle(), self.away()),
                "/metrics": lambda headers: health.metrics_answer(headers, *families),
            }
            try:
                self._health = health.HealthServer(host, port, routes)
            except OSError as error:
                raise InvalidInput(f"health: cannot listen on {host}:{port}: {error}") from error
            logger.info("serving /livez, /readyz and /metrics on %s", self._health.place)
            stack.callback(self._health.close)
        self._sources.renewer.start()
        self._fetching = self._thread("rqttl-fetcher", self._fetcher.run)

    def _thread(self, name: str, run: Callable[[], object]) -> threading.Thread:
        """Start a thread. The thread that called `Worker.run` raises its error."""

        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001  # as above
                self._error = self._error or error
                self.stop()
            self._ended.add(run)  # `run` looks at once, when this thread still lives
            self._supervisor.wake()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def _supervise(self) -> None:
        """Watch the children until the end of the work."""
        announced = quiet = recalled = False
        next_sign, ends_at = time.monotonic() + self._systemd.every, 0.0
        while not self._supervisor.broken:
            now = self._turned_at = time.monotonic()
            if now >= next_sign:
                next_sign = now + self._systemd.every
                if not self.trouble():
                    self._systemd.notify("WATCHDOG=1")
            if not announced and self._supervisor.ready == self._supervisor.number:
                announced = True
                self._systemd.notify("READY=1")
                self._heartbeat.hurry()
                self._sources.renewer.notify()
                logger.info("handling messages of %s, %d at a time", ", ".join(self._weights), self.counters.slots)
            if self._quiet and not quiet:
                quiet = True
                logger.info("fetching no more messages; SIGTERM ends the worker")
            if self._stops and not recalled:
                recalled, ends_at = True, now + self._given["grace"] / 1000
                logger.info("stopping: %s in progress", plural(len(self._in_flight.running()), "message"))
                self._in_flight.stop()
                self._supervisor.end()
            ended = self._fetcher.run in self._ended and self._in_flight.is_idle
            if ended and (not self._quiet or self._stops):
                return
            if recalled and (self._now or now >= ends_at):
                logger.warning("ending %s: the grace is over", plural(len(self._in_flight.running()), "handler"))
                return
            self._supervisor.turn()

    def _finish(self) -> None:
        """End the children, and settle what is left."""
        self._systemd.notify("STOPPING=1")  # from now on it expects no signs of life
        self._fetcher.stop.ask()
        self._in_flight.stop()
        self._supervisor.end()
        if self._setup["exec"] is not None:
            self._supervisor.end_commands(lambda: self._kill)
        if not self._in_flight.is_idle:
            self._supervisor.kill("the worker stopped before the handler ended")
        while self._supervisor.children:
            self._supervisor.turn()
        self._fetching.join()
        self._in_flight.stop()  # a last look may have taken a message
        self._sources.close()
        self._driver.perform(self._heartbeat.leave())
        if not self._supervisor.broken:
            totals = self.counters.totals()
            logger.info("the worker has ended: handled %d, failed %d", totals.handled, totals.failed)

    # What others see

    def _details(self, beat: int) -> dict[str, Any]:
        now, wall, totals, last = time.monotonic(), time.time(), self.counters.totals(), self.counters.last_claim
        running = self._in_flight.running()[:100]
        pids: list[int | str] = ["self", *(child.pid for child in self._supervisor.children if child.pid)]
        return {
            "queues": [name if weight is None else f"{name}={weight}" for name, weight in self._weights.items()],
            "slots": self.counters.slots,
            "prefetch": self.counters.slots,
            "held": {name: held for name, one in list(self._sources.items()) if (held := one.in_flight(beat))},
            "running": [
                (task.source.queue, task.delivery.id, int((wall - now + (task.begun_at or now)) * 1000))
                for task in running
            ],
            "handled": totals.handled,
            "failed": totals.failed,
            "rss": sum(resident_bytes(pid) for pid in pids),
            "last_claim": None if last is None else int(last * 1000),
        }

    def trouble(self) -> str:
        """Return the reason for which the worker is not alive; empty if it is. Redis has no part in it.

        Each loop has to turn, the supervision also while the others may wait for Redis.
        """
        clock = self._driver.timing.now()
        waits = any(lock.locked() for lock in list(self._sources.locks.values()))
        limit, renewers = health.TURNS_WHILE_AWAY if waits else health.TURNS, list(self._sources.renewers.values())
        for name, seconds, most in (
            ("supervision", time.monotonic() - self._turned_at, health.TURNS),
            ("fetcher", 0.0 if self._fetcher.stop.asked() else (clock - self._fetcher.turned_at) / 1000, limit),
            ("renewer", (clock - min((renewer.turned_at for renewer in renewers), default=clock)) / 1000, limit),
        ):
            if seconds > most:
                return f"the loop of the {name} has not turned for {seconds:.0f} s"
        return ""

    def away(self) -> list[str]:
        """Return the addresses of the nodes of a cluster that are away."""
        return self._sources.outages.away()

    def obstacle(self) -> str:
        """Return the reason for which the worker cannot handle messages now; empty if it can."""
        answered_at, ready, number = self._fetcher.answered_at, self._supervisor.ready, self._supervisor.number
        if self._fetcher.stop.asked():
            return "the worker fetches no more messages"
        if ready < number:
            return f"{ready} of {number} child processes are ready"
        if self._sources.is_away:
            return "Redis does not answer"
        if answered_at is None:
            return "Redis has not answered a claim yet"
        answered = (self._driver.timing.now() - answered_at) / 1000
        if answered > health.ANSWERS and self._in_flight.room():
            return f"Redis has answered no claim for {answered:.0f} s"
        return self.trouble()
