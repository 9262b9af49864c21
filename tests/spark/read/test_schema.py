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
    TimestampNTZType,
    TimestampType,
)

from spark_connectors.columns import schema
from spark_connectors.errors import InvalidSchema

DEATH = StructType(
    [
        StructField("queue", StringType()),
        StructField("reason", StringType()),
        StructField("count", IntegerType()),
        StructField("first_at", TimestampType()),
        StructField("last_at", TimestampType()),
        StructField("enqueued_at", TimestampType()),
        StructField("expires_at", TimestampType()),
        StructField("delivery_count", IntegerType()),
        StructField("description", StringType()),
    ]
)
TYPES: dict[str, DataType] = {
    "queue": StringType(),
    "message_id": StringType(),
    "sequence": StringType(),
    "died_at": TimestampType(),
    "source": StringType(),
    "reason": StringType(),
    "description": StringType(),
    "enqueued_at": TimestampType(),
    "expires_at": TimestampType(),
    "delivery_count": IntegerType(),
    "death_count": IntegerType(),
    "content_type": StringType(),
    "headers": MapType(StringType(), StringType()),
    "body": BinaryType(),
    "deaths": ArrayType(DEATH),
}
JSON = StructField("body_json", StringType())


def of(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def test_the_columns_are_those_that_are_promised() -> None:
    assert list(schema.available_columns("none")) == list(TYPES)
    assert list(schema.available_columns("json")) == [*TYPES, "body_json"]
    assert {name: column.ddl for name, column in schema.COLUMNS.items()} == {
        name: kind.simpleString() for name, kind in TYPES.items()
    }


def test_arrow_types_are_what_spark_makes_of_its_own() -> None:
    expected = to_arrow_schema(StructType([*of(*TYPES).fields, JSON]), timezone="UTC")

    assert schema.arrow_schema((*TYPES, "body_json")).equals(expected)


@pytest.mark.parametrize("decode", ["none", "json"])
@pytest.mark.parametrize("deaths", [False, True])
def test_the_default_columns_are_typed_and_have_deaths_only_on_request(decode: str, deaths: bool) -> None:
    made = schema.spark_schema(schema.default_columns(decode, include_deaths=deaths))

    names = [name for name in TYPES if deaths or name != "deaths"]
    assert made == StructType([*of(*names).fields, *([JSON] if decode == "json" else [])])


def test_a_users_schema_may_have_some_columns_in_any_order() -> None:
    assert schema.requested_columns(of("body", "message_id", "deaths"), "none") == ("body", "message_id", "deaths")
    assert schema.requested_columns(StructType([JSON]), "json") == ("body_json",)


@pytest.mark.parametrize(
    "given, told",
    [
        (
            StructType([StructField("ids", StringType())]),
            "ids: no such column; the columns are queue string, message_id",
        ),
        (StructType([StructField("message_id", LongType())]), "message_id: expected string, got bigint"),
        (StructType([StructField("deaths", ArrayType(StringType()))]), "deaths: expected array<struct<queue:string"),
        (StructType([StructField("message_id", StringType(), nullable=False)]), "message_id: the column and all its"),
        (StructType([StructField("headers", MapType(StringType(), StringType(), False))]), "headers: the column and"),
        (StructType([StructField("deaths", ArrayType(DEATH, False))]), "deaths: the column and all its fields"),
        (StructType([StructField("died_at", TimestampNTZType())]), "died_at: expected timestamp, got timestamp_ntz. "),
        (StructType([JSON]), "body_json: no such column: it needs option decode=json; the columns"),
        (StructType([]), "expected at least one column of queue string"),
        (of("message_id", "body", "message_id"), "message_id, body, message_id: a column occurs twice"),
    ],
)
def test_another_schema_is_refused(given: StructType, told: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema.requested_columns(given, "none")

    assert str(caught.value).startswith(f"[RQTTL_INVALID_SCHEMA] {told}")
