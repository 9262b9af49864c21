"""What a worker shows: its counters, a server for `/livez`, `/readyz` and `/metrics`, and messages to systemd."""

from __future__ import annotations

import gzip
import logging
import math
import os
import socket
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message as Headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

from rqttl import metrics
from rqttl.types import RunCounts

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger("rqttl.worker")

#: The outcomes of a message.
OUTCOMES = ("ack", "nack", "reject", "release", "lost", "timeout", "crashed")
#: The causes for which a child is replaced. Each has a series from the start, so that the first one is an increase.
CAUSES = ("crashed", "timeout", "max_messages", "max_memory")
#: Seconds within which each loop of a worker turns, and one that waits for Redis: its time-outs end each call.
TURNS, TURNS_WHILE_AWAY = 30.0, 300.0
#: Seconds within which Redis has to answer a claim: two periods of proof.
ANSWERS = 40.0
#: Seconds between two signs of life at most, and their number in one interval of systemd's watchdog. Two would do, if
#: no turn of the worker ever took longer.
SIGN_EVERY, SIGNS = 5.0, 3


@dataclass(slots=True)
class QueueCounters:
    """The counters of one queue. Outcomes: `OUTCOMES`; `lost` is that of a message whose lease had ended."""

    outcomes: Counter[str] = field(default_factory=Counter)
    handling: metrics.Histogram = field(default_factory=metrics.Histogram)
    waiting: metrics.Histogram = field(default_factory=metrics.Histogram)
    running: int = 0


class Counters:
    """The counters of a worker. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.queues: defaultdict[str, QueueCounters] = defaultdict(QueueCounters)
        #: The outcomes of all queues.
        self.outcomes: Counter[str] = Counter()
        #: The children that were replaced, by cause.
        self.restarts: Counter[str] = Counter()
        #: The number of messages that handlers can work on at a time.
        self.slots = 0
        #: The number of outages of Redis that have ended.
        self.reconnects = 0
        #: The time of the last claim that Redis answered, in seconds since 1970.
        self.last_claim: float | None = None

    def begun(self, queue: str, waited: float) -> None:
        """A handler has begun a message that was ready for `waited` seconds by the clock of Redis."""
        with self._lock:
            counters = self.queues[queue]
            counters.running += 1
            counters.waiting.add(max(0.0, waited))

    def ended(self, queue: str, seconds: float) -> None:
        """A handler has ended after so many seconds."""
        with self._lock:
            counters = self.queues[queue]
            counters.running -= 1
            counters.handling.add(seconds)

    def settled(self, queue: str, outcome: str, number: int = 1) -> None:
        """Messages have an outcome."""
        with self._lock:
            self.queues[queue].outcomes[outcome] += number
            self.outcomes[outcome] += number

    def keep(self, queues: Container[str]) -> None:
        """Drop the counters of all other queues, unless handlers work on their messages. Sums of all queues stay."""
        with self._lock:
            for queue in [name for name, its in self.queues.items() if name not in queues and not its.running]:
                del self.queues[queue]

    def totals(self) -> RunCounts:
        """All messages: acked, failed or refused, and those whose lease had ended before their outcome was stored."""
        failed = sum(self.outcomes[outcome] for outcome in ("nack", "reject", "timeout", "crashed"))
        return RunCounts(self.outcomes["ack"], failed, self.outcomes["lost"])

    def families(self) -> Iterable[Family]:
        """The metrics of a worker. At most `LIMIT` queues have metrics of their own: those that it met first."""
        from rqttl.metrics.collecting import Families

        result = Families(metrics.WORKER)
        with self._lock:
            for queue, counters in list(self.queues.items())[: metrics.LIMIT]:
                for outcome in OUTCOMES:
                    result.add("rqttl_worker_messages_total", counters.outcomes[outcome], queue, outcome)
                result.add_histogram("rqttl_worker_handling_seconds", counters.handling, queue)
                result.add_histogram("rqttl_worker_waiting_seconds", counters.waiting, queue)
                result.add("rqttl_worker_running", counters.running, queue)
                result.add("rqttl_worker_leases_lost_total", counters.outcomes["lost"], queue)
        for cause in CAUSES:
            result.add("rqttl_worker_restarts_total", self.restarts[cause], cause)
        result.add("rqttl_worker_slots", self.slots)
        result.add("rqttl_worker_reconnects_total", self.reconnects)
        if self.last_claim is not None:
            result.add("rqttl_worker_last_claim_timestamp_seconds", self.last_claim)
        return result


class Answer(NamedTuple):
    """The answer to a request: the status, the text as bytes, its type, and its encoding (empty: none)."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    encoding: str = ""


def judgement(reason: str, away: Sequence[str] = ()) -> Answer:
    """The answer of a path of health: 200, or 503 with the reason for which something is wrong.

    Nodes of a cluster that are `away` are named: it goes on with the others.
    """
    line = reason or "; away: ".join(["ok", *[", ".join(away)] * bool(away)])
    return Answer(503 if reason else 200, f"{line}\n".encode())


#: The answer of a path to a request with these headers.
Route = Callable[[Headers], Answer]


def metrics_answer(headers: Headers, *sources: Callable[[], Iterable[Family]]) -> Answer:
    """The answer of `/metrics` with the families of all sources. Without prometheus-client it names the remedy."""
    try:
        metrics.require_client()
    except metrics.MetricsUnavailable as error:
        return Answer(501, f"{error}\n".encode())
    from prometheus_client.exposition import choose_encoder, gzip_accepted

    from rqttl.metrics.collecting import Sources

    encode, content_type = choose_encoder(headers.get("Accept", ""))
    body = encode(Sources(*sources))
    if gzip_accepted(headers.get("Accept-Encoding", "")):
        # each line resembles the one before it, so the quickest level makes a fifteenth of a text
        return Answer(200, gzip.compress(body, 1), content_type, "gzip")
    return Answer(200, body, content_type)


class HealthServer:
    """A HTTP server in a thread of its own, with an answer for each path."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        routes = {"/": lambda _: Answer(200, "".join(f"{path}\n" for path in routes).encode()), **routes}

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a request: a client that sends nothing holds no thread for ever

            def do_GET(self) -> None:
                route = routes.get(self.path.partition("?")[0])
                answer = Answer(404, b"not found\n") if route is None else route(self.headers)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                if answer.encoding:
                    self.send_header("Content-Encoding", answer.encoding)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_HEAD = do_GET  # noqa: N815  # the name that http.server calls

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the parameter of http.server
                logger.debug(format, *args)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # as in socketserver
                """Log an error of a request. A client may leave at any time."""
                level = logging.DEBUG if isinstance(sys.exc_info()[1], OSError) else logging.ERROR
                logger.log(level, "health: a request from %s failed", client_address, exc_info=True)

        self._server = Server((host, port), Handler)
        #: The port in use, which differs from the wish if that was 0; and with the host, as in a URL.
        self.port: int = self._server.server_address[1]
        self.place = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, name="rqttl-health", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class Systemd:
    """Messages to systemd (`$NOTIFY_SOCKET`). Without systemd nothing happens.

    When it wants signs of life follows the rules of sd_watchdog_enabled(3).
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        interval, pid = environment.get("WATCHDOG_USEC", ""), str(os.getpid())
        is_number = interval.isascii() and interval.isdigit() and int(interval) > 0
        #: The seconds between two signs of life.
        self.every = math.inf
        if is_number and environment.get("WATCHDOG_PID", pid) == pid:
            self.every = min(SIGN_EVERY, int(interval) / 1e6 / SIGNS)

    def notify(self, state: str) -> None:
        """Tell a state, such as `READY=1`, or `WATCHDOG=1` as a sign of life."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):  # systemd restarts itself
            sock.connect(address)
            sock.send(state.encode())
