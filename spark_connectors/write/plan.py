"""What a job is to write: the operation and its columns, checked on the driver before any task starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rqttl.errors import QueueNotFound
from spark_connectors.columns import schema as reading
from spark_connectors.errors import InvalidOption, InvalidSchema, NoSuchQueue, SaveMode
from spark_connectors.options.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string", re.compile(r"string|(var)?char\(\d+\)"))
_WHOLE = "tinyint|smallint|int|bigint"
_PLAIN = f"string|binary|boolean|{_WHOLE}|float|double"
#: What is no duration, because nobody knows whether it counts seconds or milliseconds.
_NUMBER = re.compile(rf"{_WHOLE}|float|double|decimal\(.*\)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column that an operation uses: the types it may have, and what it says."""

    types: str
    rule: re.Pattern[str]
    meaning: str


#: What `enqueue` writes of a row.
MESSAGE: Mapping[str, Column] = {
    "queue": Column(*_TEXT, "the queue to write to; not needed with option `queue`"),
    "id": Column(*_TEXT, "its id, by which it is stored once; needed unless `idempotency=off`"),
    "body": Column("binary or string", re.compile("binary|" + _TEXT[1].pattern), "the body; text becomes UTF-8"),
    "content_type": Column(*_TEXT, "the content type of the body"),
    "headers": Column("map<string,string>", re.compile(rf"map<string,({_PLAIN})>"),
                      "the headers; values may be numbers, flags and binary too"),
    "ttl": Column("string or an interval", re.compile(r"string|interval (day|hour|minute|second).*"),
                  "its TTL, a text with a unit such as `30s` or `5m`, or an interval"),
    "ttl_ms": Column("bigint", re.compile(_WHOLE), "instead: its TTL as a number of milliseconds"),
    "expires_at": Column(
        "timestamp", re.compile("timestamp"),
        "instead: when it expires. Where that has passed, as in rows that were read as dead letters, the message "
        "expires at once: leave the column out (`drop`), or use `redrive`",
    ),
}  # fmt: skip
_NO_UNIT = (
    ", which says no unit: of seconds make text, `concat(ttl, 's') AS ttl`; of milliseconds make the column ttl_ms, "
    "`CAST(ttl AS bigint) AS ttl_ms`"
)
#: What `redrive` and `purge` use of a row.
LETTER: Mapping[str, Column] = {
    "queue": Column(*_TEXT, "the dead-letter queue that holds the letter; not needed with option `queue`"),
    "sequence": Column(*_TEXT, "its place in this queue"),
    "source": Column(*_TEXT, "`redrive`: where it goes; without this column to the queue where it died last"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """An operation, the queue of all rows if there is one, and which columns are used."""

    operation: str
    queue: str | None
    columns: tuple[str, ...]


def plan(schema: StructType, options: Options, *, overwrite: bool) -> Plan:
    """What is to be done with rows of this schema. Raises `SaveMode`, `InvalidSchema` or `InvalidOption`."""
    if overwrite:
        raise SaveMode(
            'rqttl only adds to queues and cannot replace what they hold: use .mode("append"), or '
            '.outputMode("append") of a stream'
        )
    operation, queue = options.text("operation"), options.maybe_text("queue")
    path = options.maybe_text("rejectedPath") or ""
    if "://" in path:
        raise InvalidOption("rejectedPath: expected a folder in the file system of the executors, not a URL")
    _check_together(operation, options)
    known = MESSAGE if operation == "enqueue" else LETTER
    used = _used(schema, known, operation)
    for name in _needed(operation, options, queue):
        if name not in used:
            hint = " (or option queue)" if name == "queue" else ""
            hint = " (or option idempotency=off, if rows may be stored more than once)" if name == "id" else hint
            raise InvalidSchema(f"{name}: {operation} needs this column{hint}; it uses {_shown(known)}")
    return Plan(operation, queue, tuple(name for name in used if name != "queue" or queue is None))


def check_queue(options: Options, queue: str | None) -> None:
    """Raise `NoSuchQueue` if there is no queue of this name; or whatever is wrong with the connection."""
    from rqttl import _replies
    from rqttl._driver import driver_of
    from spark_connectors.redis.clients import insist, open_broker

    broker = open_broker(options)
    try:
        if queue is None:
            insist(options, lambda: driver_of(broker).store.call(_replies.data, "PING"))
        else:
            insist(options, lambda: broker.queue(queue).options())
    except QueueNotFound:
        namespace = options.text("namespace")
        raise NoSuchQueue(f"queue: there is no queue {queue!r} in namespace {namespace!r}; declare it first") from None
    finally:
        broker.close()


def _check_together(operation: str, options: Options) -> None:
    alone = {"enqueue": ("idempotency", "idempotencyTtl"), "purge": ("maxQueueDepth", "onFull", "fullTimeout")}
    for name in alone["enqueue"] if operation != "enqueue" else ():
        if name in options.given:
            raise InvalidOption(f"{name}: only for operation=enqueue; {operation} is repeatable by itself")
    for name in alone["purge"] if operation == "purge" else ():
        if name in options.given:
            raise InvalidOption(f"{name}: not for operation=purge, which fills no queue")


def _used(schema: StructType, known: Mapping[str, Column], operation: str) -> list[str]:
    used: list[str] = []
    for field in schema.fields:
        column, given = known.get(field.name), field.dataType.simpleString()
        if column is None:
            if operation == "enqueue" and field.name not in reading.known("json"):
                near = difflib.get_close_matches(field.name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "drop it, or put it into headers or body"
                raise InvalidSchema(f"{field.name[:80]}: enqueue does not write this column: {hint}")
            continue
        if not column.rule.fullmatch(given):
            hint = _NO_UNIT if field.name == "ttl" and _NUMBER.fullmatch(given) else ""
            raise InvalidSchema(f"{field.name}: expected {column.types}, got {given[:200]}{hint}")
        if field.name in used:
            raise InvalidSchema(f"{field.name}: the column is there twice")
        used.append(field.name)
    if "ttl" in used and "ttl_ms" in used:
        raise InvalidSchema("ttl_ms: give ttl or ttl_ms, not both")
    return used


def _needed(operation: str, options: Options, queue: str | None) -> list[str]:
    needed = [] if queue else ["queue"]
    if operation != "enqueue":
        return [*needed, "sequence"]
    return [*needed, *(["id"] if options.text("idempotency") == "required" else []), "body"]


def _shown(known: Mapping[str, Column]) -> str:
    return ", ".join(f"{name} {column.types}" for name, column in known.items())
