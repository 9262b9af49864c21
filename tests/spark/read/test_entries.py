"""Entries as columns, and the columns: held to `rqttl.protocol.codec` and to Spark's types; schemas of users."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from rqttl import units
from rqttl.protocol import codec
from rqttl.types import Death, Header
from spark_connectors.columns import schema, texts
from spark_connectors.columns.entries import BatchBuilder, QueuePage
from spark_connectors.errors import InvalidSchema, MalformedEntry
from spark_connectors.redis.pages import Page

pytestmark = pytest.mark.once

ALL = tuple(schema.available_columns("json"))
SEQUENCE = b"1700000001234-100007"


def record(
    queue: bytes = b"orders",
    reason: bytes = b"expired",
    count: int = 1,
    first: int = 1_700_000_000_001,
    last: int = 1_700_000_000_002,
    enqueued: int = 1_600_000_000_000,
    deadline: int | None = None,
    deliveries: int = 0,
    description: bytes = b"",
) -> bytes:
    words = (queue, reason, b"%d" % count, b"%d" % first, b"%d" % last, b"%d" % enqueued)
    ends = b"-" if deadline is None else b"%d" % deadline
    return b"%s %s %d %d %s" % (b" ".join(words), ends, deliveries, len(description), description)


def header(deadline: int | None = None, id: bytes = b"", deaths: bytes = b"", extras: bytes = b"") -> bytes:
    own = b"" if deadline is None else b"%d" % deadline
    if not id and not deaths and not extras:
        return own
    return b";".join(
        [own, b"%d" % len(id) if id else b"", b"%d" % len(deaths) if deaths else b"", id + deaths + extras]
    )


def rows(*runs: tuple[str, Sequence[Any]], names: tuple[str, ...] = ALL) -> list[dict[str, Any]]:
    batch = BatchBuilder(names).build([run(*one) for one in runs])
    batch.validate(full=True)
    assert batch.schema.equals(schema.arrow_schema(names))
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def run(queue: str, entries: Sequence[Any]) -> QueuePage:
    return queue, Page.from_entries(queue, entries)


def row(packed: bytes, body: bytes = b"", sequence: bytes = SEQUENCE) -> dict[str, Any]:
    return rows(("orders/dead", [[sequence, [packed, body]]]))[0]


TIMES = st.integers(0, units.MAX_INSTANT + 10)
WORDS = st.from_regex(r"[A-Za-z0-9._:/-]{1,20}", fullmatch=True).map(str.encode)
RECORDS = st.builds(
    record,
    WORDS,
    st.sampled_from([b"expired", b"maxlen", b"rejected", b"redriven"]),
    st.integers(1, 10**6),
    TIMES,
    TIMES,
    TIMES,
    st.none() | TIMES,
    st.integers(0, 10**6),
    st.binary(max_size=30) | WORDS,
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9)
)
EXTRAS = st.just(b"") | st.builds(
    lambda kind, headers: msgpack.packb([kind, headers or None]),
    st.sampled_from([None, 1, "text/plain", "application/json"]),
    st.dictionaries(st.text(min_size=1, max_size=9), SCALARS | st.binary(max_size=9), max_size=3),
)
HEADERS = st.builds(
    header,
    st.none() | TIMES,
    st.just(b"") | st.binary(min_size=1, max_size=40) | WORDS,
    st.lists(RECORDS, max_size=4).map(b"".join),
    EXTRAS,
)


@given(st.lists(HEADERS, min_size=1, max_size=12))
def test_columns_say_what_the_codec_says(packed: list[bytes]) -> None:
    sequences = [f"{1_700_000_000_000 + i}-100000" for i in range(len(packed))]

    found = rows(("q", [[sequence.encode(), [one, b"body"]] for sequence, one in zip(sequences, packed, strict=True)]))

    assert found == [expected(one, sequence) for sequence, one in zip(sequences, packed, strict=True)]


def expected(packed: bytes, sequence: str) -> dict[str, Any]:
    said = codec.unpack_header(packed)
    newest = said.deaths[0] if said.deaths else None
    arrived = units.as_datetime(codec.enqueued_at(sequence.encode()))
    own = None if said.deadline is None else units.as_datetime(said.deadline)
    return {
        "queue": "q",
        "message_id": said.id or sequence,
        "sequence": sequence,
        "died_at": arrived,
        "source": newest and newest.queue,
        "reason": newest and newest.reason,
        "description": newest and newest.description,
        "enqueued_at": newest.enqueued_at if newest else arrived,
        "expires_at": newest.expires_at if newest else own,
        "delivery_count": newest and newest.delivery_count,
        "death_count": sum(death.count for death in said.deaths),
        "content_type": said.content_type,
        "headers": header_texts(said.headers),
        "body": b"body",
        "deaths": [as_row(death) for death in said.deaths],
        "body_json": None if said.content_type != codec.MSGPACK else texts.body_json(b"body", codec.MSGPACK),
    }


def header_texts(headers: Mapping[str, Header]) -> list[tuple[str, str | None]] | None:
    return [(name, texts.header_text(value)) for name, value in headers.items()] or None


def as_row(death: Death) -> dict[str, Any]:
    return {field.name: getattr(death, field.name) for field in schema.DEATH}


@given(st.lists(HEADERS, min_size=1, max_size=6), st.sampled_from(ALL), st.sampled_from(ALL))
def test_a_column_is_the_same_whichever_others_are_asked_for(packed: list[bytes], one: str, other: str) -> None:
    entries = [[SEQUENCE, [header, b"\x81\xa1a\x01"]] for header in packed]
    names = tuple(dict.fromkeys((one, other)))

    everything = rows(("q", entries))

    assert rows(("q", entries), names=names) == [{name: found[name] for name in names} for found in everything]


@given(st.binary(max_size=60) | HEADERS.flatmap(lambda one: st.integers(0, len(one)).map(lambda n: one[:n] + b"x")))
def test_of_what_is_no_header_columns_show_what_the_codec_reads(packed: bytes) -> None:
    good = header(id=b"a", deaths=record())

    found = rows(("q", [[SEQUENCE, [packed, b"body"]], [SEQUENCE, [good, b"body"]]]))

    assert found == [expected(packed, SEQUENCE.decode()), expected(good, SEQUENCE.decode())]


@pytest.mark.parametrize(
    "entry, told",
    [
        ([SEQUENCE, [b"", b"", b"", b""]], "it has more than one field"),
        ([b"1-1", [b"", b""]], "its id is not a sequence"),
        ([b"17000000x1234-100007", [b"", b""]], "its id is not a sequence"),
        ([b"1700000001-234100007", [b"", b""]], "its id is not a sequence"),
        ([b"1700000001234-1000-7", [b"", b""]], "its id is not a sequence"),
    ],
)
def test_entries_of_other_programs_are_refused(entry: list[Any], told: str) -> None:
    with pytest.raises(MalformedEntry, match=told):
        rows(("q", [[SEQUENCE, [b"", b""]], entry]))


@pytest.mark.parametrize(
    "packed",
    [
        b"12a",
        b"12a;;;",
        b"12;;",
        b";;;\xc1",
        b";;;\x92\x01\xa1a",
        b";;;\x92\x05\xc0",
        b";;9;a b c d e",
        b";;18;q r 1 x 3 4 - 5 0 ",
        b";;18;q r 1 2 3 4 - 5 9 ",
        b";;18;q r 1 2 3 4 - 5 - ",
        header(id=b"a", deaths=record())[:-5],
        b"9" * 20,
    ],
)
def test_of_a_damaged_header_columns_show_what_can_be_read(packed: bytes) -> None:
    good = header(id=b"a", deaths=record())
    entries = [[SEQUENCE, [one, b"body"]] for one in (good, packed, good)]

    assert rows(("q", entries)) == [expected(one, SEQUENCE.decode()) for one in (good, packed, good)]


def test_numbers_that_no_column_can_hold_are_its_largest() -> None:
    found = row(header(deaths=record(count=2**40, deliveries=2**33, last=10**16 - 1)))

    assert (found["death_count"], found["delivery_count"]) == (2**31 - 1, 2**31 - 1)
    assert found["deaths"][0]["last_at"] == units.as_datetime(units.MAX_INSTANT)


def test_a_batch_stays_as_it_is_while_the_next_are_made() -> None:
    columns = BatchBuilder(ALL)
    headers = [header(id=b"id-%d" % i, deaths=record(description=b"said %d" % i)) for i in range(60)]
    entries = [[b"17000000000%02d-100000" % i, [packed, b"body %d" % i]] for i, packed in enumerate(headers)]
    runs = [run(f"q{i}", entries[i : i + 5]) for i in range(0, 60, 5)]

    first = columns.build(runs[:4])
    told = first.to_pylist()
    for start in (4, 8):
        columns.build(runs[start : start + 4])

    assert first.to_pylist() == told
    assert [one["body"] for one in told] == [b"body %d" % i for i in range(20)]


@pytest.mark.parametrize(
    "value, text",
    [
        ("eu", "eu"),
        (7, "7"),
        (True, "true"),
        (False, "false"),
        (1.5, "1.5"),
        (None, None),
        (b"raw", "raw"),
        (b"\xff\x00", "0xff00"),
        ("", ""),
    ],
)
def test_a_header_is_text(value: Header, text: str | None) -> None:
    assert row(header(extras=codec.pack_extras(None, {"a": value})))["headers"] == [("a", text)]


@pytest.mark.parametrize(
    "value, text",
    [
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'),
        (b"x", '"x"'),
        ({1: 2, b"k": b"\xff"}, '{"1":2,"k":"0xff"}'),
        ([float("nan"), 2.5, float("inf")], "[null,2.5,null]"),
        ({None: 1, True: 2}, '{"null":1,"true":2}'),
        (5, "5"),
        ([msgpack.Timestamp(1)], '["Timestamp(seconds=1, nanoseconds=0)"]'),
    ],
)
def test_a_msgpack_body_is_json_text(value: object, text: str) -> None:
    body = msgpack.packb(value)

    assert row(header(extras=codec.pack_extras(codec.MSGPACK, None)), body)["body_json"] == text
    assert json.loads(text) is not None


NO_MSGPACK = [b"", b"\xc1", b"\x92\x01", msgpack.packb(msgpack.ExtType(5, b"x")), b"\xa1\xff"]


@pytest.mark.parametrize(
    "kind, body, text",
    [
        *((codec.MSGPACK, body, None) for body in NO_MSGPACK),
        ("text/plain", b"{}", None),
        (None, b"\x01", None),
        *(
            (kind, '{"ä": [1,  2]}'.encode(), '{"ä": [1,  2]}')
            for kind in ("application/json; x=y", "application/vnd.x+json")
        ),
        *(("application/json", body, None) for body in (b"{", b"\xff", b"[" * 100_000, b'{"a": NaN}', b"[-Infinity]")),
    ],
)
def test_json_is_passed_through_and_what_is_none_has_no_text_and_is_there(
    kind: str | None, body: bytes, text: str | None
) -> None:
    found = row(header(extras=codec.pack_extras(kind, None)), body)

    assert (found["body_json"], found["body"]) == (text, body)


def test_more_different_headers_than_are_remembered_are_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_connectors.columns.entries._MAX_CACHED", 3)
    columns = BatchBuilder(("headers",))
    entries: Sequence[list[Any]] = [
        [SEQUENCE, [header(extras=codec.pack_extras(None, {"n": i})), b""]] for i in range(10)
    ]

    for _ in range(2):
        found = columns.build([run("q", entries)]).to_pylist()
        assert [one["headers"] for one in found] == [[("n", str(i))] for i in range(10)]


def test_headers_may_be_read_as_bytes() -> None:
    headers: dict[str, Header] = {"text": "ä", "bytes": b"\xff\x00", "number": 7, "flag": True}
    packed = header(extras=codec.pack_extras(None, headers))

    [found] = rows(("q", [[SEQUENCE, [packed, b""]]]), names=("queue", schema.RAW_HEADERS))

    assert found["headers"] == [("text", "ä".encode()), ("bytes", b"\xff\x00"), ("number", b"7"), ("flag", b"true")]


_TEXT, _TIME, _INT = StringType(), TimestampType(), IntegerType()
DEATH = StructType(
    [StructField(name, _TEXT) for name in ("queue", "reason")]
    + [StructField("count", _INT)]
    + [StructField(name, _TIME) for name in ("first_at", "last_at", "enqueued_at", "expires_at")]
    + [StructField("delivery_count", _INT), StructField("description", _TEXT)]
)
TYPES: dict[str, DataType] = {
    **dict.fromkeys(("queue", "message_id", "sequence"), _TEXT),
    "died_at": _TIME,
    **dict.fromkeys(("source", "reason", "description"), _TEXT),
    **dict.fromkeys(("enqueued_at", "expires_at"), _TIME),
    **dict.fromkeys(("delivery_count", "death_count"), _INT),
    "content_type": _TEXT,
    "headers": MapType(_TEXT, _TEXT),
    "body": BinaryType(),
    "deaths": ArrayType(DEATH),
}
JSON = StructField("body_json", StringType())


def of(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def test_arrow_types_are_what_spark_makes_of_its_own() -> None:
    expected = to_arrow_schema(StructType([*of(*TYPES).fields, JSON]), timezone="UTC")

    assert schema.arrow_schema((*TYPES, "body_json")).equals(expected)


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
