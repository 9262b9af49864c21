"""The server and the queues as attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rqttl.policies import patterns
from rqttl.store.driver import RedisDriver
from rqttl.telemetry import names
from rqttl.telemetry.names import Operation

Attributes = dict[str, str | int]


class Common(NamedTuple):
    """A queue, the name of a span, and the attributes that all spans and points of one operation on the queue have.

    Only points of the duration of an operation have its type: `labels` are those of all others.
    """

    queue: str
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
        self._common: Callable[[str, Operation, bool], Common] = lru_cache(4096)(self._read)

    def common(self, queue: str, operation: Operation) -> Common:
        """Return the name and the attributes of an operation on a queue."""
        if not self._server and self._broker is not None:
            self._server = server_of(self._broker)
        return self._common(queue, operation, bool(self._server))

    def _read(self, queue: str, operation: Operation, _: bool) -> Common:
        template = next((pattern.text for pattern in self._templates if pattern.matches(queue)), None)
        place: Attributes = {names.DESTINATION: queue} if template is None else {names.TEMPLATE: template}
        labels: Attributes = {
            names.SYSTEM: names.RQTTL,
            names.OPERATION_NAME: operation.name,
            **self._server,
            **place,
        }
        operation_labels = {**labels, names.OPERATION_TYPE: operation.type}
        attributes = {**operation_labels, names.DESTINATION: queue}
        return Common(queue, f"{operation.name} {template or queue}", attributes, labels, operation_labels)


def server_of(broker: object) -> Attributes:
    """Return the address of the server of a broker; empty while it is unknown: an embedded server may start later."""
    driver = getattr(broker, "_driver", None)
    if isinstance(driver, RedisDriver):
        pool: Any = driver.store.connections.pool
    else:
        pool = getattr(getattr(broker, "_client", None), "connection_pool", None)
    settings: dict[str, Any] = getattr(pool, "connection_kwargs", {})
    if settings.get("path"):
        return {names.SERVER_ADDRESS: str(settings["path"])}
    if settings.get("host"):
        return {names.SERVER_ADDRESS: str(settings["host"]), names.SERVER_PORT: int(settings.get("port") or 6379)}
    return {}
