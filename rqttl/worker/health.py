"""Health of a worker: `/livez` and `/readyz` by HTTP, and messages to systemd."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.message import Message as Headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

logger = logging.getLogger("rqttl.worker")


#: Seconds within which each loop of a worker turns.
TURNS = 30.0
#: Seconds within which a loop turns that waits for Redis: its time-outs end each call.
TURNS_WHILE_AWAY = 300.0
#: Seconds within which Redis has to answer a claim: two periods of proof.
ANSWERS = 40.0
#: Seconds between two signs of life, if systemd does not want them more often.
SIGN_EVERY = 5.0
#: The signs in one interval of systemd's watchdog. Two would do, if no turn of the worker ever took longer.
SIGNS = 3


class Answer(NamedTuple):
    """The answer to a request: the status, the text as bytes, its type, and its encoding (empty: none)."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    encoding: str = ""


def judgement(reason: str) -> Answer:
    """The answer of a path of health: 200, or 503 with the reason for which something is wrong."""
    return Answer(503, f"{reason}\n".encode()) if reason else Answer(200, b"ok\n")


#: The answer of a path to a request with these headers.
Route = Callable[[Headers], Answer]


class HealthServer:
    """A HTTP server in a thread of its own. `routes` may get further paths until `start`."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds for a request: a client that sends nothing holds no thread for ever

            def do_GET(self) -> None:
                route = routes.get(self.path.partition("?")[0])
                self._send(Answer(404, b"not found\n") if route is None else route(self.headers))

            do_HEAD = do_GET  # noqa: N815  # the name that http.server calls

            def _send(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                if answer.encoding:
                    self.send_header("Content-Encoding", answer.encoding)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the parameter of http.server
                logger.debug(format, *args)

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # as in socketserver
                """Log an error of a request. A client may leave at any time."""
                gone = isinstance(sys.exc_info()[1], OSError)
                logger.log(
                    logging.DEBUG if gone else logging.ERROR,
                    "health: a request of %s failed",
                    client_address,
                    exc_info=not gone,
                )

        self._host = host
        self._server = Server((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="rqttl-health", daemon=True)

    @property
    def port(self) -> int:
        """The port in use. It differs from the wish if that was 0."""
        port: int = self._server.server_address[1]
        return port

    @property
    def place(self) -> str:
        """The host and the port in use as text, as in a URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def watchdog_interval(environment: Mapping[str, str], pid: int) -> float | None:
    """Return the seconds within which systemd wants a sign of life of a process; `None` if it wants none.

    The rules are those of sd_watchdog_enabled(3).
    """
    interval, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(pid))
    is_number = interval.isascii() and interval.isdigit() and int(interval) > 0
    return int(interval) / 1e6 if is_number and owner == str(pid) else None


class Systemd:
    """Messages to systemd (`$NOTIFY_SOCKET`). Without systemd nothing happens."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._is_stopping = False
        interval = watchdog_interval(environment, os.getpid())
        self._is_watched = interval is not None
        #: The seconds between two signs of life.
        self.every = SIGN_EVERY if interval is None else min(SIGN_EVERY, interval / SIGNS)

    def alive(self) -> None:
        """Tell that the loops of the worker turn."""
        if self._is_watched:
            self.notify("WATCHDOG=1")

    def notify(self, state: str) -> None:
        """Tell a state, such as `READY=1`."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):  # systemd restarts itself
            sock.connect(address)
            sock.send(state.encode())

    def stopping(self) -> None:
        """Tell, once, that the worker ends. From then on systemd expects no signs of life."""
        if not self._is_stopping:
            self._is_stopping = True
            self.notify("STOPPING=1")
