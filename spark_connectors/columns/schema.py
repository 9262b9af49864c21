"""The columns of the data source, and which of them a user's schema asks for.

Types are Arrow's, exactly as Spark expects them of each column; everything may be null, down to the last field, because
Spark checks that too. There is no column pruning in Spark's interface, so a schema given by the user does its work:
only what it names is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_connectors.errors import InvalidSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TIME = pa.timestamp("us", tz="UTC")
DEATH = pa.struct([
    ("queue", pa.string()), ("reason", pa.string()), ("count", pa.int32()), ("first_at", TIME), ("last_at", TIME),
    ("enqueued_at", TIME), ("expires_at", TIME), ("delivery_count", pa.int32()), ("description", pa.string()),
])  # fmt: skip
DEATH_DDL = (
    "struct<queue:string,reason:string,count:int,first_at:timestamp,last_at:timestamp,enqueued_at:timestamp,"
    "expires_at:timestamp,delivery_count:int,description:string>"
)
HEADERS = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type in Spark's words and in Arrow's, and what is in it."""

    name: str
    ddl: str
    arrow: pa.DataType
    meaning: str


COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("queue", "string", pa.string(), "the queue that was read"),
        Column("id", "string", pa.string(), "the sender's id; without one its first sequence"),
        Column("sequence", "string", pa.string(), "the place of the message in the queue; sorts as text"),
        Column("died_at", "timestamp", TIME, "when it came into this queue: for a dead letter, its death"),
        Column("source", "string", pa.string(), "the queue in which it died last; null if it never did"),
        Column("reason", "string", pa.string(), "why: `expired`, `maxlen`, `rejected` or `delivery_limit`"),
        Column("description", "string", pa.string(), "what the consumer said who rejected it"),
        Column("enqueued_at", "timestamp", TIME, "when it came into `source`, or into this queue if it never died"),
        Column("expires_at", "timestamp", TIME, "the deadline in force when it died, or its own if it never did"),
        Column("delivery_count", "int", pa.int32(), "failed deliveries before it died; null if it never did"),
        Column("death_count", "int", pa.int32(), "how often it died, all queues and reasons together"),
        Column("content_type", "string", pa.string(), "the content type of the body"),
        Column("headers", "map<string,string>", HEADERS, "the sender's headers, as text; null without any"),
        Column("body", "binary", pa.binary(), "the body as it was stored"),
        Column("deaths", f"array<{DEATH_DDL}>", pa.list_(DEATH), "one for each queue and reason, newest first"),
    )
}  # fmt: skip
#: What `decode=json` adds.
BODY_JSON = Column("body_json", "string", pa.string(), "a msgpack body as JSON text; null for other bodies")


def known(decode: str) -> Mapping[str, Column]:
    """The columns there are with this value of the option `decode`, in order."""
    return COLUMNS if decode == "none" else {**COLUMNS, BODY_JSON.name: BODY_JSON}


def ddl(decode: str) -> str:
    """The whole schema, as Spark reads it."""
    return ", ".join(f"{column.name} {column.ddl}" for column in known(decode).values())


def chosen(schema: StructType, decode: str) -> tuple[str, ...]:
    """The columns of a schema, in its order, which may be the user's own. Raises `InvalidSchema`."""
    columns = known(decode)
    if not schema.fields:
        raise InvalidSchema(f"expected at least one column of {ddl(decode)}")
    for field in schema.fields:
        column, given = columns.get(field.name), field.dataType.simpleString()
        if column is None:
            hint = ": it needs option decode=json" if field.name == BODY_JSON.name else ""
            raise InvalidSchema(f"{field.name[:80]}: no such column{hint}; there are {ddl(decode)}")
        if given != column.ddl:
            raise InvalidSchema(f"{field.name}: expected {column.ddl}, got {given[:200]}")
        if not _nullable(field.jsonValue()):
            raise InvalidSchema(f"{field.name}: may be null, in all its parts; leave out NOT NULL")
    if len(set(schema.names)) < len(schema.names):
        raise InvalidSchema(f"{', '.join(schema.names)[:200]}: a column is named twice")
    return tuple(schema.names)


def _nullable(part: object) -> bool:
    """Whether nothing in the JSON of a type says that it cannot be null."""
    if isinstance(part, dict):
        return all(
            value is not False if name in ("nullable", "containsNull", "valueContainsNull") else _nullable(value)
            for name, value in part.items()
        )
    return all(_nullable(value) for value in part) if isinstance(part, list) else True


def arrow(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns."""
    columns = known("json")
    return pa.schema([pa.field(name, columns[name].arrow) for name in names])
