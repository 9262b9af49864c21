"""Bodies, headers, deaths and descriptions as bytes, and back; `tests/golden` fixes the stored form."""

import json
import re
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rqttl import InvalidInput, InvalidName, Message
from rqttl.checks import MAX_DESCRIPTION_BYTES
from rqttl.protocol import codec, commands
from rqttl.types import Death
from rqttl.units import MAX_INSTANT, as_datetime

GOLDEN = Path(__file__).parent.parent / "golden"
NOW = 1_700_000_000_000

words = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | words | st.binary()
)
headers = st.dictionaries(
    words.filter(bool), scalars.filter(lambda v: v not in (float("inf"), float("-inf"))), max_size=4
)
ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(str.isprintable)


@pytest.mark.parametrize(
    "value, advice",
    [
        (datetime(2026, 1, 1, tzinfo=timezone.utc), "got a datetime.datetime: pass its isoformat(), or a number"),
        ([UUID(int=1)], "got a UUID: pass str() of it"),
        ({"price": Decimal(1)}, "got a decimal.Decimal: pass str() of it"),
    ],
)
def test_a_body_that_msgpack_does_not_know_is_refused_with_a_remedy(value: object, advice: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(advice)):
        codec.pack_body(value)


@pytest.mark.parametrize("body", [object(), {1}, 2**64, "\ud800", ...])
def test_a_value_that_msgpack_cannot_hold_is_refused(body: object) -> None:
    with pytest.raises(InvalidInput, match=r"^body: expected bytes or a value that msgpack can hold"):
        codec.pack_body(body)


leaves = (
    scalars
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**34), st.integers(0, 10**9 - 1))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(leaves | st.tuples(leaves), inner)
        | st.dictionaries(words, inner).map(OrderedDict)
    ),
)


def as_lists(value: Any) -> Any:
    """A value with its tuples as lists, as consumers get them."""
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if type(value) in (list, tuple) else value


def is_decodable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is not tuple for key in value) and all(map(is_decodable, (*value, *value.values())))
    if type(value) in (list, tuple):
        return all(map(is_decodable, value))
    return not isinstance(value, msgpack.ExtType)


@given(values)
@example(["\u0531\u05d0", -3e300, b"\xc7\xd4"])  # bytes as those of extension types
@example([{"deep": [msgpack.ExtType(5, b"x")]}])
@example({(1, 2): 3})
def test_a_value_can_be_decoded_or_is_refused_by_the_sender(value: Any) -> None:
    packs: list[Callable[[], bytes]] = [lambda: codec.pack_body([value])[0], lambda: codec.pack_values([[value]])[0]]
    for pack in packs:
        if is_decodable(value):
            assert codec.unpack(pack()) == [as_lists(value)]
        else:
            with pytest.raises(InvalidInput, match=r"^body: expected a value that consumers can decode: .*(tuple|ext)"):
                pack()


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgpack.packb(msgpack.ExtType(1, b"x")), b"\xdf\xff\xff\xff\xff", b"\x91" * 2000]
)
def test_unpacking_is_safe(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^body: not valid msgpack"):
        codec.unpack(data)


def packed(deadline: int | None, id: str | None, deaths: bytes, content_type: str | None, given: object) -> bytes:
    """A header as scripts write it, for an envelope of a sender."""
    envelope, _ = commands.pack(Message(b"", id=id, content_type=content_type, headers=given))  # type: ignore[arg-type]  # generated
    own = b"%d" % deadline if deadline is not None else b""
    length = b"%d" % len(envelope.id) if envelope.id else b""
    history = b"%d" % len(deaths) if deaths else b""
    parts = envelope.id + deaths + envelope.extras
    return b"%b;%b;%b;%b" % (own, length, history, parts) if parts else own


@given(st.none() | st.integers(0, MAX_INSTANT), st.none() | ids, st.none() | words.filter(str.isprintable), headers)
def test_the_envelope_of_a_sender_comes_back(
    deadline: int | None, id: str | None, content_type: str | None, given: dict[str, object]
) -> None:
    read = codec.unpack_header(packed(deadline, id, b"", content_type, given))

    assert (read.deadline, read.id, read.headers, read.deaths) == (deadline, id, given, ())
    assert read.content_type == (content_type or codec.BINARY)


def test_a_plain_header_is_read_without_parsing() -> None:
    assert codec.unpack_header(b"") == codec.ParsedHeader(None, None, codec.BINARY, {}, ())
    assert codec.unpack_header(b"1700000000000").deadline == NOW


@pytest.mark.parametrize("extras", [b"", b"\x92\x01\xc0", b"\x92\xc0\x81\xa1a\xa1b", b"\x92", b";;;", b"1 ;"])
def test_a_header_of_extras_alone_is_read_like_one_with_empty_parts(extras: bytes) -> None:
    assert codec.unpack_header(b";;;" + extras) == codec.unpack_header(b";0;0;" + extras)


def test_the_stored_form_is_what_it_was() -> None:
    golden = bytes.fromhex((GOLDEN / "header.hex").read_text())
    deaths = (
        b"orders rejected 2 1700000000000 1700000000500 1700000000400 1700000060000 3 13 bad; \n\0\xc3\xa9 two"
        b"a.b expired 1 1700000000000 1700000000000 1690000000000 - 1 0 "
    )
    header = packed(NOW, "me;é", deaths, codec.MSGPACK, {"region": "eu", "n": 1, "raw": b"\0", "none": None, "f": 0.5})

    assert header == golden
    read = codec.unpack_header(golden)
    assert (read.deadline, read.id, read.content_type) == (NOW, "me;é", codec.MSGPACK)
    assert read.headers == {"region": "eu", "n": 1, "raw": b"\0", "none": None, "f": 0.5}
    assert read.deaths == (
        Death(
            "orders",
            "rejected",
            2,
            as_datetime(NOW),
            as_datetime(NOW + 500),
            as_datetime(NOW + 400),
            as_datetime(NOW + 60_000),
            3,
            "bad; \n\0é two",
        ),
        Death("a.b", "expired", 1, as_datetime(NOW), as_datetime(NOW), as_datetime(1_690_000_000_000), None, 1, None),
    )


@pytest.mark.parametrize("id", ["", "x" * 256, "é" * 128, "a\n", "a\0", "\ud800", 5, None, b"x"])
def test_any_other_id_is_refused(id: object) -> None:
    with pytest.raises(InvalidName, match=r"^id: expected 1 to 255 bytes of printable text, got "):
        codec.check_id(id)  # type: ignore[arg-type]  # what people pass


def test_a_description_is_up_to_4096_bytes_of_text() -> None:
    assert codec.pack_description(None) == codec.pack_description("") == b""
    assert codec.pack_description("é" * 2048) == "é".encode() * 2048
    assert codec.pack_description("\ud800") == b"?"
    with pytest.raises(InvalidInput, match=r"^description: 4098 bytes are more than 4096"):
        codec.pack_description("é" * 2049)


@pytest.mark.parametrize(
    "text,good",
    [
        ("1700000000000-100000", True),
        ("1700000000000-1", False),
        ("1700000000000-100000\n", False),
        (5, False),
        ("", False),
    ],
)
def test_a_place_in_a_queue_has_one_form(text: object, good: bool) -> None:
    assert codec.is_sequence(text) is good


@pytest.mark.parametrize(
    "sequence, before",
    [
        ("1700000000000-100001", "1700000000000-100000"),
        ("1700000000000-000000", "1699999999999-999999"),
        ("0000000000000-000000", "0000000000000-000000"),
    ],
)
def test_the_place_before_another_is_one_too(sequence: str, before: str) -> None:
    assert codec.sequence_before(sequence) == before
    assert codec.is_sequence(before)


RECORD = b"q expired 1 1700000000000 1700000000000 1700000000000 - 1 3 why"


@given(st.binary(max_size=80) | st.text("0123456789;. -qa", max_size=40).map(str.encode))
@example(b"9" * 5000)
@example(b"9" * 5000 + b";;;")
@example(b";" + b"9" * 5000 + b";;x")
@example(b";;%d;" % (len(RECORD) + 4999) + RECORD.replace(b" 1 ", b" %b " % (b"9" * 5000), 1))
@example(b";;;\x93\x01\xc0\xc0")
@example(b";;;\x92\xc0\x81\x01\x02")
def test_any_bytes_can_be_read_as_a_header(header: bytes) -> None:
    read = codec.unpack_header(header)

    assert all(isinstance(name, str) for name in read.headers)
    if not header.endswith(codec.pack_extras(None, read.headers)) or not read.headers:
        return
    assert codec.unpack_header(codec.sound_header(header)) == read


def test_of_a_damaged_header_the_readable_parts_are_read() -> None:
    deaths = RECORD * 2 + RECORD[:-1]

    read = codec.unpack_header(b"5;2;%d;id%b\xc1" % (len(deaths), deaths))

    assert (read.deadline, read.id, len(read.deaths), read.headers) == (5, "id", 2, {})
    assert codec.unpack_header(b"5;99;;id").deadline == 5
    assert codec.sound_header(b"5;2;%d;id%b" % (len(deaths), deaths)) == b"5;2;%d;id%b" % (2 * len(RECORD), RECORD * 2)


class Odd(Exception):
    """An error whose text is what `answer` returns."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def __str__(self) -> str:
        text: str = self.answer()
        return text


def fail() -> str:
    raise SystemExit(9)


def test_an_error_is_its_class_and_its_text() -> None:
    assert codec.describe(ValueError("no such item: 7")) == "ValueError: no such item: 7"
    assert codec.describe(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert codec.describe(SystemExit(3)) == "SystemExit: 3"
    assert codec.describe(ValueError("two\nlines")) == "ValueError: two\nlines"


def test_a_class_that_is_not_built_in_is_named_with_its_module() -> None:
    assert codec.describe(json.JSONDecodeError("bad", "x", 0)).startswith("json.decoder.JSONDecodeError: bad")
    assert codec.describe(Odd(lambda: "why")) == f"{__name__}.Odd: why"
    assert codec.describe(type("Error", (Exception,), {"__module__": "__main__"})("why")) == "Error: why"


@pytest.mark.parametrize("answer", [fail, lambda: 5, lambda: None, lambda: Odd(fail), lambda: str(Odd(fail))])
def test_an_error_whose_text_fails_is_described_all_the_same(answer: Any) -> None:
    assert codec.describe(Odd(answer)) == f"{__name__}.Odd: <exception str() failed>"


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 10_000, "😀" * 10_000, "a" + "😀" * 10_000, "\udcff" * 10_000])
def test_a_long_text_is_cut_at_a_character(text: str) -> None:
    described = codec.describe(ValueError(text))

    assert MAX_DESCRIPTION_BYTES - 4 < len(described.encode()) <= MAX_DESCRIPTION_BYTES
    assert codec.pack_description(described) == described.encode()
    assert f"ValueError: {text.encode('utf-8', 'backslashreplace').decode()}".startswith(described)


def test_text_that_utf8_cannot_hold_is_escaped() -> None:
    assert codec.describe(OSError("caf\udce9.txt")) == "OSError: caf\\udce9.txt"
