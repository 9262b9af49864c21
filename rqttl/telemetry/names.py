"""The names of the semantic conventions for messaging, version 1.44, our own, and the attributes of queues.

Tests compare them with the package. The conventions are still in development: these names change only together with a
line in the changelog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rqttl.policies import patterns
from rqttl.store.driver import RedisDriver

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
TEMPLATE = "messaging.destination.template"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
MESSAGE_COUNT = "messaging.batch.message_count"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"

SENT_MESSAGES = "messaging.client.sent.messages"
CONSUMED_MESSAGES = "messaging.client.consumed.messages"
OPERATION_DURATION = "messaging.client.operation.duration"
PROCESS_DURATION = "messaging.process.duration"

DELIVERY_COUNT = "messaging.rqttl.delivery_count"
REASON = "messaging.rqttl.reason"
TTL = "messaging.rqttl.ttl_ms"

#: The bounds of the histograms in seconds, as the conventions give them.
BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


#: The type of each operation. The names of its spans begin with its name.
TYPES = {
    "enqueue": "send",
    "create": "create",
    "receive": "receive",
    "process": "process",
    **dict.fromkeys(("ack", "nack", "reject", "release", "redrive"), "settle"),
}

Attributes = dict[str, str | int]


class Common(NamedTuple):
    """The name of a span, and the attributes that all spans and points of one operation on a queue have.

    Only points of the duration of an operation have its type: `labels` are those of all others.
    """

    span: str
    attributes: Attributes
    labels: Attributes
    operation_labels: Attributes


class Place:
    """The names and attributes of the queues of one broker; without a broker, of those of a child.

    A queue that matches one of `templates`, patterns of the syntax `wildcard`, goes by that pattern in names of spans
    and in metrics.
    """

    def __init__(self, broker: object | None, templates: Sequence[str]) -> None:
        self._broker = broker
        self._templates = [patterns.compile_pattern(text, "wildcard") for text in templates]
        self._server: Attributes = {}
        self._common: Callable[[str, str, bool], Common] = lru_cache(4096)(self._read)

    def common(self, queue: str, operation: str) -> Common:
        """Return the name and the attributes of an operation on a queue."""
        if not self._server and self._broker is not None:
            self._server = server_of(self._broker)
        return self._common(queue, operation, bool(self._server))

    def _read(self, queue: str, operation: str, _: bool) -> Common:
        template = next((pattern.text for pattern in self._templates if pattern.matches(queue)), None)
        place: Attributes = {DESTINATION: queue} if template is None else {TEMPLATE: template}
        labels: Attributes = {SYSTEM: "rqttl", OPERATION_NAME: operation, **self._server, **place}
        operation_labels = {**labels, OPERATION_TYPE: TYPES[operation]}
        attributes = {**operation_labels, DESTINATION: queue}
        return Common(f"{operation} {template or queue}", attributes, labels, operation_labels)


def server_of(broker: object) -> Attributes:
    """Return the address of the server of a broker; empty while it is unknown: an embedded server may start later."""
    driver = getattr(broker, "_driver", None)
    if isinstance(driver, RedisDriver):
        pool: Any = driver.store.connections.pool
    else:
        pool = getattr(getattr(broker, "_client", None), "connection_pool", None)
    settings: dict[str, Any] = getattr(pool, "connection_kwargs", {})
    if settings.get("path"):
        return {SERVER_ADDRESS: str(settings["path"])}
    if settings.get("host"):
        return {SERVER_ADDRESS: str(settings["host"]), SERVER_PORT: int(settings.get("port") or 6379)}
    return {}
