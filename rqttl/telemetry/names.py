"""The names of the semantic conventions for messaging, version 1.44, and our own. Tests compare them with the package.

The conventions are still in development. These names change only together with a line in the changelog.
"""

from __future__ import annotations

from typing import NamedTuple

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

#: The value of `messaging.system`.
RQTTL = "rqttl"
DELIVERY_COUNT = "messaging.rqttl.delivery_count"
REASON = "messaging.rqttl.reason"
TTL = "messaging.rqttl.ttl_ms"

#: The bounds of the histograms in seconds, as the conventions give them.
BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Operation(NamedTuple):
    """An operation: its name, with which the names of its spans begin, and its type."""

    name: str
    type: str


ENQUEUE = Operation("enqueue", "send")
CREATE = Operation("create", "create")
RECEIVE = Operation("receive", "receive")
PROCESS = Operation("process", "process")
#: The operations that settle, by name.
SETTLE = {name: Operation(name, "settle") for name in ("ack", "nack", "reject", "release", "redrive")}
