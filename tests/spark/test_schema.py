"""The columns, as Spark and Arrow have them, and schemas of users."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_connectors.columns import schema
from spark_connectors.errors import InvalidSchema

DEATH = StructType([
    StructField("queue", StringType()), StructField("reason", StringType()), StructField("count", IntegerType()),
    StructField("first_at", TimestampType()), StructField("last_at", TimestampType()),
    StructField("enqueued_at", TimestampType()), StructField("expires_at", TimestampType()),
    StructField("delivery_count", IntegerType()), StructField("description", StringType()),
])  # fmt: skip
TYPES: dict[str, DataType] = {
    "queue": StringType(), "id": StringType(), "sequence": StringType(), "died_at": TimestampType(),
    "source": StringType(), "reason": StringType(), "description": StringType(), "enqueued_at": TimestampType(),
    "expires_at": TimestampType(), "delivery_count": IntegerType(), "death_count": IntegerType(),
    "content_type": StringType(), "headers": MapType(StringType(), StringType()), "body": BinaryType(),
    "deaths": ArrayType(DEATH),
}  # fmt: skip
JSON = StructField("body_json", StringType())


def of(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def test_the_columns_are_those_that_are_promised() -> None:
    assert list(schema.known("none")) == list(TYPES)
    assert list(schema.known("json")) == [*TYPES, "body_json"]
    assert {name: column.ddl for name, column in schema.COLUMNS.items()} == {
        name: kind.simpleString() for name, kind in TYPES.items()
    }


def test_arrow_types_are_what_spark_makes_of_its_own() -> None:
    expected = to_arrow_schema(StructType([*of(*TYPES).fields, JSON]), timezone="UTC")

    assert schema.arrow((*TYPES, "body_json")).equals(expected)


def test_a_users_schema_may_have_some_columns_in_any_order() -> None:
    assert schema.chosen(of("body", "id", "deaths"), "none") == ("body", "id", "deaths")
    assert schema.chosen(StructType([JSON]), "json") == ("body_json",)


@pytest.mark.parametrize("given, told", [
    (StructType([StructField("ids", StringType())]), "ids: no such column; there are queue string, id string"),
    (StructType([StructField("ID", StringType())]), "ID: no such column"),
    (StructType([StructField("id", LongType())]), "id: expected string, got bigint"),
    (StructType([StructField("deaths", ArrayType(StringType()))]), "deaths: expected array<struct<queue:string"),
    (StructType([StructField("id", StringType(), nullable=False)]), "id: may be null, in all its parts"),
    (StructType([StructField("headers", MapType(StringType(), StringType(), False))]), "headers: may be null"),
    (StructType([StructField("deaths", ArrayType(DEATH, False))]), "deaths: may be null"),
    (StructType([JSON]), "body_json: no such column: it needs option decode=json; there are"),
    (StructType([]), "expected at least one column of queue string"),
    (of("id", "body", "id"), "id, body, id: a column is named twice"),
])  # fmt: skip
def test_another_schema_is_refused(given: StructType, told: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema.chosen(given, "none")

    assert str(caught.value).startswith(f"[RQTTL_INVALID_SCHEMA] {told}")
