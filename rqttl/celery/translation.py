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
_NEEDLESS = {"x-max-priority", "x-queue-type", "x-queue-mode", "x-queue-version"}

#: The header with the packed rest.
HEADER = "kombu"
#: The usual values of the headers of a task, and the types of those that Celery's workers take for granted.
_USUAL: dict[str, Any] = dict.fromkeys(("eta", "expires", "group", "group_index", "parent_id", "shadow"))
_USUAL |= {"argsrepr": "()", "kwargsrepr": "{}", "lang": "py", "ignore_result": False, "retries": 0}
_USUAL |= {"replaced_task_nesting": 0, "stamped_headers": None}
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("eta", "expires", "group", "parent_id", "root_id"), str | None),
    **dict.fromkeys(("id", "task"), str),
    **dict.fromkeys(("stamped_headers", "timelimit"), list | None),
    "retries": int | None,
    "stamps": dict | None,
}


def parts_of(name: str, *, prioritized: object) -> list[str]:
    """The queues in rqttl of a queue, in the order in which they are consumed."""
    return [*(f"{escape(name)}/p{level}" for level in LEVELS if prioritized), escape(name)]


def rank(part: str) -> int:
    """The place of the priority of a queue in rqttl."""
    return next((place for place, level in enumerate(LEVELS) if part.endswith(f"/p{level}")), len(LEVELS))


def options_of(queue: str, arguments: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a queue with these arguments. Raises `InvalidInput` for a promise that rqttl does not keep."""
    options = {**usual}
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        if name in _REFUSED:
            raise InvalidInput(f"queue {queue!r}: {name}: {_REFUSED[name]}")
        if name in _TAKEN:
            option, read = _TAKEN[name]
            options[option] = read(value)
        elif name not in _NEEDLESS:
            logger.warning("queue %s: rqttl does nothing for the argument %s", queue, name)
    return options


def encode(message: Mapping[str, Any]) -> Message:
    """A message of kombu as one of rqttl. The `eta` of a task is its arrival, and `expires` its deadline."""
    headers, properties, body = {**message["headers"]}, {**message["properties"]}, message["body"]
    sent = Message(body.encode() if isinstance(body, str) else body, content_type=message.get("content-type"))
    id, clear = headers.get("id"), {}
    if isinstance(headers.get("task"), str) and isinstance(id, str) and 0 < len(id) < 64:
        sent.id, clear["task"] = id, headers.pop("task")
        sent.deliver_at, sent.expires_at = _time(headers.get("eta")), _time(headers.get("expires"))
    if sent.expires_at is None and properties.get("expiration") is not None:
        sent.ttl = timedelta(milliseconds=int(properties["expiration"]))
    info, usual = properties.pop("delivery_info", {}), _usual(id)
    properties.pop("body_encoding", None)  # of another transport
    if is_short := bool(clear) and usual.keys() <= headers.keys():
        headers = {name: value for name, value in headers.items() if name not in usual or value != usual[name]}
    rest = [is_short, message.get("content-encoding"), info.get("exchange"), info.get("routing_key")]
    packed = msgpack.packb(
        [*rest, headers, properties], default=lambda value: msgpack.ExtType(1, dumps(value).encode())
    )
    sent.headers = {HEADER: packed, **clear}
    return sent


def decode(delivery: Delivery) -> dict[str, Any]:
    """The message of kombu in a delivery. Raises any error: anybody may have sent it."""
    packed = delivery.headers.get(HEADER)
    if not isinstance(packed, bytes):
        raise TypeError(f"expected a header {HEADER!r} of bytes")
    # what msgpack cannot hold, such as a `datetime`, is in the JSON of kombu
    unpacked = msgpack.unpackb(packed, strict_map_key=False, ext_hook=lambda _, data: loads(data.decode()))
    is_short, encoding, exchange, key, headers, properties = unpacked
    if not all(isinstance(text, str | None) for text in (encoding, exchange, key)):
        raise TypeError("content encoding, exchange and routing key: expected text")
    headers = {**(_usual(delivery.id) if is_short else {}), **headers}
    if "task" in delivery.headers:
        headers["task"] = delivery.headers["task"]
        _check_task(headers)
        if headers.get("expires"):  # a redrive has taken the deadline away
            headers["expires"] = delivery.expires_at and delivery.expires_at.isoformat()
    info = {"exchange": exchange, "routing_key": key, "redelivered": delivery.delivery_count > 1}
    return {
        "body": delivery.body,
        "content-type": delivery.content_type,
        "content-encoding": encoding,
        "headers": headers,
        "properties": {**properties, "delivery_info": info},
    }


def _check_task(headers: dict[str, Any]) -> None:
    for name, types in _TYPES.items():
        if not isinstance(headers.get(name), types):
            raise TypeError(f"header {name!r} of a task: got {type(headers.get(name)).__name__}")
    if headers.get("timelimit") is not None and len(headers["timelimit"]) != 2:
        raise ValueError("header 'timelimit' of a task: expected two")
    if not all(isinstance(name, str) for name in headers.get("stamped_headers") or ()):
        raise TypeError("header 'stamped_headers' of a task: expected texts")
    _time(headers.get("expires"))
    eta = _time(headers.get("eta"))
    if eta and eta > datetime.now(timezone.utc):  # it is due by the clock of Redis, or it was rescheduled
        headers["eta"] = None


def _usual(id: str | None) -> dict[str, Any]:
    return {**_USUAL, "id": id, "root_id": id, "stamps": {}, "timelimit": [None, None]}


def _time(text: str | None) -> datetime | None:
    """A time of Celery's headers. One without a zone is UTC, as for Celery's workers."""
    time = datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
    return time.replace(tzinfo=time.tzinfo or timezone.utc) if time else None
