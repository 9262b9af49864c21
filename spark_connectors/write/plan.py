"""The plan of a write: the operation and its columns, checked on the driver before a task starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rqttl.errors import QueueNotFound
from rqttl.text import did_you_mean
from spark_connectors.columns.schema import available_columns, without_zone_hint
from spark_connectors.errors import InvalidOption, InvalidSchema, NoSuchQueue, SaveMode
from spark_connectors.options.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string", re.compile(r"string|(var)?char\(\d+\)"))
_WHOLE = "tinyint|smallint|int|bigint"
_PLAIN = f"string|binary|boolean|{_WHOLE}|float|double"
_DURATION = re.compile(r"string|interval (day|hour|minute|second).*")
#: Types that are no duration, because a number may count seconds or milliseconds.
_NUMBER = re.compile(rf"{_WHOLE}|float|double|decimal\(.*\)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an operation: its possible types, and a description."""

    types: str
    rule: re.Pattern[str]
    meaning: str


#: The columns of `enqueue`.
MESSAGE_COLUMNS: Mapping[str, Column] = {
    "queue": Column(*_TEXT, "queue to write to; not needed with option `queue`"),
    "message_id": Column(*_TEXT, "id of the message, which Redis stores once; needed unless `idempotency=off`"),
    "body": Column("binary or string", re.compile("binary|" + _TEXT[1].pattern), "body; text becomes UTF-8"),
    "content_type": Column(*_TEXT, "content type of the body"),
    "headers": Column(
        "map<string,string>", re.compile(rf"map<string,({_PLAIN})>|binary"), "headers, also of other types"
    ),
    "ttl": Column("string or an interval", _DURATION, "TTL: a text with a unit such as `30s` or `5m`, or an interval"),
    "ttl_ms": Column("bigint", re.compile(_WHOLE), "TTL as a number of milliseconds, instead of `ttl`"),
    "expires_at": Column("timestamp", re.compile("timestamp"), "deadline, instead of a TTL"),
    "delay": Column("string or an interval", _DURATION, "schedules the message: time from the write to its arrival"),
    "deliver_at": Column("timestamp", re.compile("timestamp"), "time of the arrival, instead of a delay"),
}
_NO_UNIT = (
    ", which has no unit: convert seconds to text, `concat(ttl, 's') AS ttl`; convert milliseconds to ttl_ms, "
    "`CAST(ttl AS bigint) AS ttl_ms`"
)
_NO_UNITS = {"ttl": _NO_UNIT, "delay": ", which has no unit: convert seconds to text, `concat(delay, 's') AS delay`"}
#: Hints for missing columns.
_HINTS = {"queue": " (or option queue)", "message_id": " (or option idempotency=off, if duplicates are acceptable)"}
#: The columns of `redrive` and `purge`.
LETTER_COLUMNS: Mapping[str, Column] = {
    "queue": Column(*_TEXT, "queue of the dead letter; not needed with option `queue`"),
    "sequence": Column(*_TEXT, "sequence of the dead letter in this queue"),
    "source": Column(*_TEXT, "target of `redrive`; default: the queue of the last death"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """An operation, the queue of all rows if there is one, and the columns in use."""

    operation: str
    queue: str | None
    columns: tuple[str, ...]


def make_plan(schema: StructType, options: Options, *, overwrite: bool) -> Plan:
    """Plan the write of rows of this schema. Raises `SaveMode`, `InvalidSchema` or `InvalidOption`."""
    if overwrite:
        raise SaveMode(
            'rqttl adds messages to queues and cannot replace their messages: use .mode("append"), or '
            '.outputMode("append") of a stream'
        )
    operation, queue = options.text("operation"), options.optional_text("queue")
    _check_together(operation, options)
    columns = MESSAGE_COLUMNS if operation == "enqueue" else LETTER_COLUMNS
    used = _used(schema, columns, operation)
    for name in _needed(operation, options, queue):
        if name not in used:
            raise InvalidSchema(
                f"{name}: {operation} needs this column{_HINTS.get(name, '')}; it uses {_described(columns)}"
            )
    return Plan(operation, queue, tuple(name for name in used if queue is None or name != "queue"))


def check_target(options: Options, queue: str | None) -> None:
    """Check the connection, that the server takes writes, and, if there is one queue for all rows, the queue.

    Raises `NoSuchQueue` and others.
    """
    from spark_connectors.redis.broker import open_broker, with_retries
    from spark_connectors.redis.bulk_reader import BulkReader

    with BulkReader(options) as reader, closing(open_broker(options)) as broker:
        reader.refuse_replica()
        try:
            if queue is not None:
                with_retries(
                    options, lambda: broker.queue(queue).options(), command=("the options of", f"queue {queue!r}")
                )
        except QueueNotFound:
            reader.refuse_cluster()
            namespace = options.text("namespace")
            raise NoSuchQueue(
                f"queue: there is no queue {queue!r} in namespace {namespace!r}; declare it first"
            ) from None


def _check_together(operation: str, options: Options) -> None:
    for name in ("idempotency", "idempotencyTtl") if operation != "enqueue" else ():
        if name in options.explicit:
            raise InvalidOption(f"{name}: only for operation=enqueue; {operation} is repeatable by itself")
    for name in ("maxQueueDepth", "fullTimeout") if operation == "purge" else ():
        if name in options.explicit:
            raise InvalidOption(f"{name}: not for operation=purge, which fills no queue")


def _used(schema: StructType, columns: Mapping[str, Column], operation: str) -> list[str]:
    used: list[str] = []
    for field in schema.fields:
        name = field.name.lower()
        column, actual = columns.get(name), field.dataType.simpleString()
        if column is None:
            if operation == "enqueue" and name not in available_columns("json"):
                hint = did_you_mean(field.name, columns, "drop it, or put it into headers or body")
                raise InvalidSchema(f"{field.name[:80]}: enqueue has no such column{hint}")
            continue
        if not column.rule.fullmatch(actual):
            no_unit = _NO_UNITS.get(name) if _NUMBER.fullmatch(actual) else None
            hint = no_unit or without_zone_hint(actual)
            raise InvalidSchema(f"{field.name}: expected {column.types}, got {actual[:200]}{hint}")
        if name in used:
            raise InvalidSchema(f"{field.name}: the column occurs twice")
        used.append(name)
    if "ttl" in used and "ttl_ms" in used:
        raise InvalidSchema("ttl_ms: set ttl or ttl_ms, not both")
    return used


def _needed(operation: str, options: Options, queue: str | None) -> list[str]:
    needed = [] if queue else ["queue"]
    if operation != "enqueue":
        return [*needed, "sequence"]
    return [*needed, *(["message_id"] if options.text("idempotency") == "required" else []), "body"]


def _described(columns: Mapping[str, Column]) -> str:
    return ", ".join(f"{name} {column.types}" for name, column in columns.items())
