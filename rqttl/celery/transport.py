"""The transport of kombu: its broker, and the sockets by which threads that fetch wake the one that hands out."""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from kombu.transport import virtual
from kombu.utils.url import as_url

from rqttl.broker import Broker, connect
from rqttl.celery.channel import Channel
from rqttl.errors import BrokerClosed, OutcomeUnknown, PoolExhausted
from rqttl.flows.steps import Recent
from rqttl.outages import TEMPORARY
from rqttl.store.driver import driver_of

#: The most messages of a channel that one turn of an event loop hands out.
AT_ONCE = 100


class Transport(virtual.Transport):
    """The transport `rqttl.celery:Transport` of kombu.

    Its `transport_options` are `namespace`; `lease`, a duration such as `"10m"` (or `visibility_timeout` in seconds);
    `queue_options`, the options of all queues that are not temporary, such as `{"max_deliveries": 5}`; `on_mismatch`,
    for a queue that has other options than its declaration: `"keep"` them and warn, `"update"` them, or `"raise"`.
    """

    Channel, can_parse_url, driver_type, driver_name = Channel, True, "rqttl", "rqttl"
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type={"direct", "topic", "fanout"})
    connection_errors = (*virtual.Transport.connection_errors, *TEMPORARY, OutcomeUnknown, BrokerClosed, PoolExhausted)

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        url = client.hostname or ""
        if (shown := _hidden(url)) != url:  # kombu hides no host, and Celery the password: that becomes the whole URL
            client.hostname, client.password = shown, url
        monkey, patcher = (sys.modules.get(name) for name in ("gevent.monkey", "eventlet.patcher"))
        if (monkey and monkey.is_module_patched("threading")) or (patcher and patcher.is_monkey_patched("thread")):
            warnings.warn("rqttl.celery: gevent and eventlet are untried: use prefork, threads or solo", stacklevel=4)
        self.forget()
        _transports.add(self)

    def forget(self) -> None:
        """Have no broker, no event loop and no messages: after a fork, these are the parent's."""
        self._broker: Broker | None = None
        self._loop: Any = None
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        #: The queues in rqttl of each queue; the options of those that were declared here; the queues of direct
        #: exchanges and keys, until a time.
        self.parts: dict[str, list[str]] = {}
        self.declared: dict[str, dict[str, Any]] = {}
        self.matches: Recent[tuple[list[str], float]] = Recent(1_000)
        for channel in self.channels:
            channel.forget()

    @property
    def broker(self) -> Broker:
        """The broker of this connection."""
        if self._broker is None:
            self._broker = connect(_url(self.client), namespace=self.client.transport_options.get("namespace", "rqttl"))
        return self._broker

    def perform(self, flow: Callable[..., Any], *arguments: Any) -> Any:
        """Carry out a flow."""
        driver = driver_of(self.broker)
        return driver.perform(flow(driver.keyspace, *arguments))

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        del uri  # it may be the name of a host alone
        url = (f"{self.client.uri_prefix}+" if self.client.uri_prefix else "") + _url(self.client)
        return url if include_password else _hidden(url, mask)

    def establish_connection(self) -> Any:
        self.broker.server_time()  # raises if Redis does not answer
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        if self._loop is not None:
            self._loop.on_tick.discard(self._tick)
            self._loop.remove_reader(self._woken())
        super().close_connection(connection)
        if self._broker is not None:
            self._broker.close()
        for end in self._sockets or ():
            end.close()
        self._broker = self._loop = self._sockets = None

    # Events

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._loop = loop
        loop.add_reader(self._woken(), self.on_readable, connection, loop)
        loop.on_tick.add(self._tick)

    def on_readable(self, connection: Any, loop: Any) -> None:
        self._clear()
        for _ in range(AT_ONCE):
            if not self._hand_out():
                break

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        ends, poll = time.monotonic() + (float("inf") if timeout is None else timeout), select.poll()
        poll.register(self._woken(), select.POLLIN)
        while True:
            self._clear()
            self._tick()
            if self._hand_out():
                return
            if (left := ends - time.monotonic()) <= 0:
                raise TimeoutError
            poll.poll(min(left, 1.0) * 1000)

    def wake(self) -> None:
        """Wake the thread that hands out messages. Any thread may call this."""
        if sockets := self._sockets:
            with suppress(OSError):  # it has enough to read, or it is closed
                sockets[1].send(b"x")

    def _tick(self) -> None:
        for channel in list(self.channels):
            channel.tick()

    def _hand_out(self) -> bool:
        return max([channel.deliver() for channel in list(self.channels)], default=False)

    def _woken(self) -> socket.socket:
        if self._sockets is None:
            self._sockets = socket.socketpair()
            for end in self._sockets:
                end.setblocking(False)
        return self._sockets[0]

    def _clear(self) -> None:
        with suppress(BlockingIOError):
            self._woken().recv(4096)


def _hidden(url: str, mask: str = "**") -> str:
    """A URL without its passwords."""
    url = re.sub(r"^([^/]*//[^:@/?]*:).*@", rf"\g<1>{mask}@", url)
    return re.sub(r"(?i)([?&][^=&]*password=)[^&]*", rf"\g<1>{mask}", url)


def _url(client: Any) -> str:
    """The URL of a connection of kombu, which has it in parts after a failover."""
    url: str = client.hostname or "localhost"
    if "://" not in url:
        password = client.password() if callable(client.password) else client.password
        url = as_url("redis", url, client.port, client.userid, password, (client.virtual_host or "").strip("/"))
    elif _hidden(str(client.password)) == url:
        url = client.password
    # kombu takes what is before a + for the name of a transport
    url = re.sub("^(rediss?)-", r"\1+", re.sub("^rqttl://", "redis://", url))
    if client.ssl:
        url = re.sub("^redis(?=[:+])", "rediss", url)
    if isinstance(client.ssl, dict):  # as of redis-py
        words = {k: v.name[5:].lower() if isinstance(v, ssl.VerifyMode) else v for k, v in client.ssl.items()}
        url += f"{'&' if '?' in url else '?'}{urlencode(words)}"
    return url


_transports = weakref.WeakSet[Transport]()
_of_parents: list[object] = []


def _forget_in_child() -> None:
    for transport in list(_transports):
        # kept from the collector, which would close what is the parent's
        _of_parents.append((transport._broker, [vars(channel).copy() for channel in transport.channels]))  # noqa: SLF001
        transport.forget()


os.register_at_fork(after_in_child=_forget_in_child)
