"""The columns of the data source, and the check of a user's schema.

Each column has the exact Arrow type that Spark expects. All columns and fields are nullable, because Spark checks that,
too. Spark's interface has no column pruning; the user's schema takes its place: only its columns are built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_connectors.errors import InvalidSchema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

TIMESTAMP = pa.timestamp("us", tz="UTC")
DEATH = pa.struct(
    [
        ("queue", pa.string()),
        ("reason", pa.string()),
        ("count", pa.int32()),
        ("first_at", TIMESTAMP),
        ("last_at", TIMESTAMP),
        ("enqueued_at", TIMESTAMP),
        ("expires_at", TIMESTAMP),
        ("delivery_count", pa.int32()),
        ("description", pa.string()),
    ]
)
DEATH_DDL = (
    "struct<queue:string,reason:string,count:int,first_at:timestamp,last_at:timestamp,enqueued_at:timestamp,"
    "expires_at:timestamp,delivery_count:int,description:string>"
)
HEADERS = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type in Spark and in Arrow, and a description."""

    name: str
    ddl: str
    arrow: pa.DataType
    meaning: str


COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("queue", "string", pa.string(), "queue that was read"),
        Column("message_id", "string", pa.string(), "id that the sender chose; default: first sequence of the message"),
        Column("sequence", "string", pa.string(), "place of the message in the log of the queue; sorts as text"),
        Column("died_at", "timestamp", TIMESTAMP, "arrival in this queue: for a dead letter, its death"),
        Column("source", "string", pa.string(), "queue of the last death; null if the message never died"),
        Column("reason", "string", pa.string(), "of the last death: `expired`, `maxlen`, `rejected`, `delivery_limit`"),
        Column("description", "string", pa.string(), "description by the consumer, for example of its error"),
        Column("enqueued_at", "timestamp", TIMESTAMP, "arrival in `source`, or here if the message never died"),
        Column("expires_at", "timestamp", TIMESTAMP, "deadline at the last death, or its own if it never died"),
        Column("delivery_count", "int", pa.int32(), "failed deliveries before the last death, or null"),
        Column("death_count", "int", pa.int32(), "number of deaths, in all queues and for all reasons"),
        Column("content_type", "string", pa.string(), "content type of the body"),
        Column("headers", "map<string,string>", HEADERS, "headers of the sender as text; null for none"),
        Column("body", "binary", pa.binary(), "body, as it was stored"),
        Column("deaths", f"array<{DEATH_DDL}>", pa.list_(DEATH), "one record for each queue and reason, newest first"),
    )
}
#: The column that `decode=json` adds.
BODY_JSON = Column("body_json", "string", pa.string(), "msgpack body as JSON text, JSON body as it is; else null")
#: The keys of the column `headers` in a schema that has its values as bytes, or all of it as msgpack.
RAW_HEADERS, PACKED_HEADERS = "headers:binary", "headers:packed"
_VARIANTS: Mapping[str, Column] = {
    RAW_HEADERS: Column("headers", "map<string,binary>", pa.map_(pa.string(), pa.binary()), "headers of the sender"),
    PACKED_HEADERS: Column("headers", "binary", pa.binary(), "headers of the sender in msgpack, for a write"),
}


def available_columns(decode: str) -> Mapping[str, Column]:
    """Return all columns for a value of the option `decode`, in order."""
    return COLUMNS if decode == "none" else {**COLUMNS, BODY_JSON.name: BODY_JSON}


def schema_ddl(columns: Mapping[str, Column]) -> str:
    """Return the schema of columns in Spark's DDL."""
    return ", ".join(f"{column.name} {column.ddl}" for column in columns.values())


def default_columns(decode: str, *, include_deaths: bool) -> Mapping[str, Column]:
    """Return the columns of a read without a schema of the user, in order."""
    return {name: column for name, column in available_columns(decode).items() if include_deaths or name != "deaths"}


def spark_schema(columns: Mapping[str, Column]) -> StructType:
    """Return columns as Spark's types. DDL cannot replace them: in it `timestamp` depends on the session."""
    from pyspark.sql import types

    plain: Mapping[str, type[DataType]] = {
        "string": types.StringType,
        "binary": types.BinaryType,
        "int32": types.IntegerType,
        str(TIMESTAMP): types.TimestampType,
    }

    def convert(kind: pa.DataType) -> DataType:
        if pa.types.is_struct(kind):
            return types.StructType([types.StructField(field.name, convert(field.type)) for field in kind])
        if pa.types.is_list(kind):
            return types.ArrayType(convert(kind.value_type))
        if pa.types.is_map(kind):
            return types.MapType(convert(kind.key_type), convert(kind.item_type))
        return plain[str(kind)]()

    return types.StructType([types.StructField(column.name, convert(column.arrow)) for column in columns.values()])


def requested_columns(schema: StructType, decode: str) -> tuple[str, ...]:
    """Return the keys of the columns of a schema, in its order, after a check. Raises `InvalidSchema`."""
    columns = available_columns(decode)
    if not schema.fields:
        raise InvalidSchema(f"expected at least one column of {schema_ddl(columns)}")
    for field in schema.fields:
        column, actual = columns.get(field.name), field.dataType.simpleString()
        if column is None:
            hint = ": it needs option decode=json" if field.name == BODY_JSON.name else ""
            raise InvalidSchema(f"{field.name[:80]}: no such column{hint}; the columns are {schema_ddl(columns)}")
        if actual not in (column.ddl, *(variant.ddl for variant in _VARIANTS.values() if variant.name == field.name)):
            raise InvalidSchema(f"{field.name}: expected {column.ddl}, got {actual[:200]}{without_zone_hint(actual)}")
        if not _nullable(field.jsonValue()):
            raise InvalidSchema(f"{field.name}: the column and all its fields are nullable; leave out NOT NULL")
    if len(set(schema.names)) < len(schema.names):
        raise InvalidSchema(f"{', '.join(schema.names)[:200]}: a column occurs twice")
    asked = {field.name: field.dataType.simpleString() for field in schema.fields}
    keys = {variant.name: key for key, variant in _VARIANTS.items() if asked.get(variant.name) == variant.ddl}
    return tuple(keys.get(name, name) for name in schema.names)


def without_zone_hint(actual: str) -> str:
    """Return a hint for a type that has timestamps without a zone, else an empty text."""
    if "timestamp_ntz" not in actual:
        return ""
    return (
        ". With spark.sql.timestampType=TIMESTAMP_NTZ, `timestamp` has no zone: write `timestamp_ltz` in a schema, or "
        "convert with CAST(... AS timestamp_ltz)"
    )


def _nullable(part: object) -> bool:
    """True if a type, given as JSON, and all its fields are nullable."""
    if isinstance(part, dict):
        return all(
            value is not False if name in ("nullable", "containsNull", "valueContainsNull") else _nullable(value)
            for name, value in part.items()
        )
    return all(_nullable(value) for value in part) if isinstance(part, list) else True


def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of the columns with these keys."""
    columns = {**available_columns("json"), **_VARIANTS}
    return pa.schema([pa.field(columns[name].name, columns[name].arrow) for name in names])
