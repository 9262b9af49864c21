"""Names, arguments and messages of kombu as those of rqttl, and back. No I/O.

The body of a message is stored as it is, with its content type, and the id and the name of a task in clear, so that
`rqttl dead show` prints them. All else is in one header, without what Celery sends with nearly every task.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import msgpack
from kombu.utils.json import dumps, loads

from rqttl.checks import is_queue_name
from rqttl.delivery import Delivery
from rqttl.errors import InvalidInput
from rqttl.types import Message

logger = logging.getLogger("rqttl.celery")


def escape(name: str) -> str:
    """The name of a queue in rqttl: characters that it may not have become `-x` and their codes in hex."""
    if is_queue_name(name):
        return name
    escaped = re.sub(r"[^A-Za-z0-9._:/-]", lambda found: f"-x{ord(found[0]):x}", name)
    return escaped if escaped[:1].isalnum() else f"q{escaped}"


#: The least priorities of the queues `<name>/p<priority>`, which are consumed before `<name>`.
LEVELS = (9, 6, 3)
#: The options of arguments, and their values.
_TAKEN: dict[str, tuple[str, Any]] = {
    "x-message-ttl": ("message_ttl", "{}ms".format),
    "x-expires": ("expires", "{}ms".format),
    "x-max-length": ("max_length", int),
    "x-max-length-bytes": ("max_length_bytes", int),
    "x-overflow": ("overflow", str),
    "x-dead-letter-routing-key": ("dead_letter", escape),
    "x-delivery-limit": ("max_deliveries", lambda number: number + 1),  # RabbitMQ counts redeliveries
}
_REFUSED = {
    "x-single-active-consumer": "all consumers share a queue: run one worker with --concurrency 1",
    "x-dead-letter-exchange": "dead letters go to a queue: name it in x-dead-letter-routing-key alone",
}
_NEEDLESS = {"x-max-priority", "x-queue-type", "x-queue-mode", "x-queue-version", *_TAKEN, *_REFUSED}

#: The header with the packed rest, and the code in it of values that only kombu's JSON can hold, such as a `datetime`.
HEADER, JSON = "kombu", 1
#: The usual values of the headers of a task, and the types of those that Celery's workers take for granted.
_USUAL: dict[str, Any] = {
    **dict.fromkeys(("eta", "expires", "group", "group_index", "parent_id", "shadow", "stamped_headers")),
    "argsrepr": "()",
    "kwargsrepr": "{}",
    "lang": "py",
    "ignore_result": False,
    "replaced_task_nesting": 0,
    "retries": 0,
}
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("eta", "expires", "group", "parent_id", "root_id"), str | None),
    "id": str,
    "retries": int | None,
    "stamps": dict | None,
    "timelimit": list | None,
}


class Broken(Exception):
    """An envelope that cannot be read: its message becomes a dead letter with this reason."""


def parts_of(name: str, *, prioritized: object) -> list[str]:
    """The queues in rqttl of a queue, in the order in which they are consumed."""
    return [*(f"{escape(name)}/p{level}" for level in LEVELS if prioritized), escape(name)]


def rank(part: str) -> int:
    """The place of the priority of a queue in rqttl."""
    return next((place for place, level in enumerate(LEVELS) if part.endswith(f"/p{level}")), len(LEVELS))


def options_of(queue: str, arguments: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a queue with these arguments. Raises `InvalidInput` for a promise that rqttl does not keep."""
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    for name in [name for name in _REFUSED if given.get(name)]:
        raise InvalidInput(f"queue {queue!r}: {name}: {_REFUSED[name]}")
    for name in sorted(given.keys() - _NEEDLESS):
        logger.warning("queue %s: rqttl does nothing for the argument %s", queue, name)
    taken = {name: _TAKEN[name] for name in given if name in _TAKEN}
    return {**usual, **{option: read(given[name]) for name, (option, read) in taken.items()}}


def encode(message: Mapping[str, Any]) -> Message:
    """A message of kombu as one of rqttl. The `eta` of a task is its arrival, and `expires` its deadline."""
    headers, properties, body, clear = {**message["headers"]}, {**message["properties"]}, message["body"], {}
    info, sent = properties.pop("delivery_info", {}), Message(b"", content_type=message.get("content-type"))
    properties = {name: value for name, value in properties.items() if name not in ("delivery_tag", "body_encoding")}
    sent.body, id = body.encode() if isinstance(body, str) else body, headers.get("id")
    if isinstance(headers.get("task"), str) and isinstance(id, str) and 0 < len(id) < 64:
        sent.id, clear["task"] = id, headers.pop("task")
        sent.deliver_at, sent.expires_at = _time(headers.get("eta")), _time(headers.get("expires"))
    if sent.expires_at is None and properties.get("expiration") is not None:
        sent.ttl = timedelta(milliseconds=int(properties["expiration"]))
    usual = _usual(id)
    if is_short := bool(clear) and usual[0].keys() <= headers.keys() and usual[1].keys() <= properties.keys():
        headers, properties = _without(headers, usual[0]), _without(properties, usual[1])
    rest = [is_short, message.get("content-encoding"), info.get("exchange"), info.get("routing_key")]
    sent.headers = {HEADER: msgpack.packb([*rest, headers, properties], default=_as_json), **clear}
    return sent


def decode(delivery: Delivery) -> dict[str, Any]:
    """The message of kombu in a delivery. Raises `Broken`: anybody may have sent it."""
    packed, task = delivery.headers.get(HEADER), delivery.headers.get("task")
    if not isinstance(packed, bytes):
        raise Broken(f"no message of kombu: expected a header {HEADER!r} of bytes")
    try:
        unpacked = msgpack.unpackb(packed, strict_map_key=False, ext_hook=_from_json)
        is_short, encoding, exchange, key, headers, properties = unpacked
        usual = _usual(delivery.id) if is_short else ({}, {})
        headers, properties = {**usual[0], **headers}, {**usual[1], **properties}
    except Exception as error:  # noqa: BLE001  # whatever a sender has made up
        raise Broken(f"header {HEADER!r}: {type(error).__name__}: {str(error)[:200]}") from None
    for name, value in (("content encoding", encoding), ("exchange", exchange), ("routing key", key), ("task", task)):
        if not isinstance(value, str | None):
            raise Broken(f"{name}: expected text, got {type(value).__name__}")
    if task is not None:
        headers["task"] = task
        _check(headers)
    is_again = delivery.delivery_count > 1
    properties["delivery_info"] = {"exchange": exchange, "routing_key": key, "redelivered": is_again}
    about = {"content-type": delivery.content_type, "content-encoding": encoding}
    return {"body": delivery.body, **about, "headers": headers, "properties": properties}


def _check(headers: dict[str, Any]) -> None:
    for name, types in _TYPES.items():
        if not isinstance(headers.get(name), types):
            raise Broken(f"header {name!r} of a task: got {type(headers.get(name)).__name__}")
    if (limits := headers.get("timelimit")) is not None and len(limits) != 2:
        raise Broken("header 'timelimit' of a task: expected two")
    try:
        eta, _ = _time(headers.get("eta")), _time(headers.get("expires"))
    except ValueError as error:
        raise Broken(f"headers 'eta' and 'expires' of a task: {error}") from None
    if eta and eta > datetime.now(timezone.utc):  # it is due by the clock of Redis, or it was rescheduled
        headers["eta"] = None


def _usual(id: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The usual headers and properties of a task."""
    headers = {**_USUAL, "id": id, "root_id": id, "stamps": {}, "timelimit": [None, None]}
    return headers, {"correlation_id": id, "delivery_mode": 2, "priority": 0}


def _without(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in usual or value != usual[name]}


def _time(text: str | None) -> datetime | None:
    """A time of Celery's headers. One without a zone is UTC, as for Celery's workers."""
    time = datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
    return time.replace(tzinfo=time.tzinfo or timezone.utc) if time else None


def _as_json(value: object) -> msgpack.ExtType:
    return msgpack.ExtType(JSON, dumps(value).encode())


def _from_json(code: int, data: bytes) -> Any:
    if code != JSON:
        raise ValueError(f"unknown type {code}")
    return loads(data.decode())
