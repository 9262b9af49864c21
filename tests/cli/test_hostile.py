"""Any text of a sender is shown escaped and short, and no command crashes.

The check does not trust `text.escape`: it knows by itself which characters are harmless.
"""

import base64
import json
import struct
import unicodedata
from typing import Any

import msgpack
import pytest

from rqttl import Broker, Message, Queue
from rqttl.flows.steps import GetConfig
from rqttl.protocol import codec
from rqttl.store.driver import driver_of
from rqttl.text import MARKS
from tests.cli.conftest import Run
from tests.cli.processes import Terminal
from tests.encoded import enqueue_encoded

_ESC, _CSI, _OSC, _ST, _BEL = "\x1b", "\x9b", "\x1b]", "\x1b\\", "\x07"

#: What moves, colours, hides, resizes, answers, renames, links or prints on a terminal.
_ESCAPES = (
    *(f"{_ESC}[{code}" for code in ("2J", "31m", "8m", "1000000000b", "?1049h", "6n", "21t", "4h", "!p", "5i", '0"q')),
    *(f"{_ESC}{code}" for code in ("c", "7", "#8", "(0", "%@", "N~", "\\", "[", "")),
    f"{_OSC}0;title{_BEL}",
    f"{_OSC}52;c;cm0gLXJmIC8={_BEL}",
    f"{_OSC}8;;http://evil.example{_ST}click{_OSC}8;;{_ST}",
    f"{_OSC}0;unterminated",
    f"{_ESC}Pq#0;2;0;0;0~-{_ST}",
    f"{_ESC}_Ga=T;AAAA{_ST}",
    f"{_CSI}31m",
    "\x9d52;c;AAAA\x9c",
    "".join(map(chr, range(0x80, 0xA0))),
)

_CONTROLS = (
    "".join(map(chr, (*range(0x20), 0x7F))),
    "a\x00b",
    "ok\r\nrqttl: all is well",
    "\n\n\nrqttl: done\n",
    "secret\b\b\b\b\b\bpublic",
    "\t" * 50,
)

#: What cannot be seen, or lets a text look as another.
_UNSEEN = (
    "\u202egpj.exe",
    "\u2066a\u2067b\u2068c\u2069",
    "a\u200bb\u200cc\u200dd\ufeff\u2060\u2064\u034f\u3164\ufe00\u180b\ufff9",
    "\u2028line\u2029para",
    "".join(chr(0xE0100 + ord(c)) for c in "smuggled"),
    "".join(chr(0xE0000 + ord(c)) for c in "smuggled"),
    "\u00a0\u2007\u202f\u3000",
    "\ue000\uf8ff",
    "\ufffe\uffff",
    "\u0378\u0530",
)

_SHAPES = (
    "Z" + "\u0300\u0301\u0489" * 300,
    "\u0e01" + "\u0e49" * 200,
    "漢" * 5_000,
    "👨\u200d👩\u200d👧\u200d👦" * 50,
    "שלום عالم",
    " " * 5_000,
    "",
)

#: What rich, a format, a shell, a spreadsheet or a reader of JSON might take for its own.
_MARKUP = (
    "[/x]",
    "[link=http://evil.example]x[/link]",
    ":smile: :bomb:",
    "%s %n %d",
    "{0.__class__}",
    "$(reboot)",
    '"}\n{"id":"fake"}',
    "\\u001b[31m",
    "--yes",
    "=cmd|'/c calc'!A1",
    "x" * 1_000_000,
)

TEXTS: tuple[str, ...] = (*_ESCAPES, *_CONTROLS, *_UNSEEN, *_SHAPES, *_MARKUP)

BYTES: tuple[bytes, ...] = (
    b"\x9d52;c;AAAA\x9c",
    bytes(range(256)),
    b"\xc0\x9b31m",
    b"\xe0\x80\x9b",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"\xff" * 1_000_000,
    b"\n" * 100_000,
    b"a" * 1_999 + "漢".encode(),
)

_DEEP = 900

PACKED: tuple[bytes, ...] = (
    msgpack.packb({"a": {"b": float("nan")}}),
    msgpack.packb({float("nan"): 1}),
    msgpack.packb({"\x1b[31m": "\u202e"}),
    msgpack.packb({b"\xff\x1b": b"\x9b"}),
    msgpack.packb({None: 1, True: 2, 1.5: 3}),
    msgpack.packb({1: "a", "1": "b"}),
    b"\x82\xa1a\x01\xa1a\x02",
    b"\x81\x91\x01\x02",
    msgpack.packb(msgpack.ExtType(5, b"\x1b[31m")),
    msgpack.packb(msgpack.Timestamp(2**34)),
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\x91" * _DEEP + b"\x01",
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xc1",
    b"",
    b"\xa3\xed\xa0\x80",
    msgpack.packb(list(range(100_000))),
    b"\xcb" + struct.pack(">Q", 0x7FF0000000000001),
    msgpack.packb("\u2028\u2029</script>"),
)

pytestmark = pytest.mark.once

#: Categories that act, that cannot be seen, or that are not assigned; a space is the only separator that may come.
_HARMFUL = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")
_LONGEST_LINE = 26_000  # 2,000 characters, each of them escaped to 10


def harmless(printed: str, longest: int = _LONGEST_LINE) -> None:
    for line in printed.split("\n"):
        assert len(line) <= longest
        used = set(line) - {" "}
        assert [c for c in used if unicodedata.category(c) in _HARMFUL] == []
        assert [c for c in used if 0xFE00 <= ord(c) < 0xFE0E or 0xE0100 <= ord(c) <= 0xE01EF] == []
        if not line.isascii():
            marks = "".join("m" if unicodedata.category(c) in ("Mn", "Me") else " " for c in line)
            assert "m" * (MARKS + 1) not in marks


def strict(printed: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert printed.isascii()
    harmless(printed, longest=100_000_000)
    return json.loads(printed, parse_constant=refuse)


def on_plain_terminal(*arguments: str) -> str:
    """The output on a terminal without bold text: a control character in it comes from a message."""
    with Terminal(*arguments, TERM="dumb", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        return terminal._bytes.decode("utf-8", "backslashreplace").replace("\r\n", "\n")


def pieces() -> list[Message]:
    """The corpus as messages: texts as ids, headers and content types too, which the library refuses from senders."""
    texts = [
        Message(
            text.encode(),
            id=text.encode()[: codec.MAX_ID_BYTES].decode(errors="ignore")[:80] or "-",
            headers={text[:9_000] or "-": text[:9_000]},
            content_type=text[:80],
        )
        for text in TEXTS
    ]
    broken = [Message(body, headers={"bytes": body[:9_000]}) for body in BYTES]
    return texts + broken + [Message(body, content_type=codec.MSGPACK) for body in PACKED]


@pytest.fixture
def orders(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue with the whole corpus, past the checks that keep ids and content types printable."""
    orders = broker.declare_queue("orders", dead_letter="dead")
    monkeypatch.setattr(codec, "check_id", lambda id: id.encode())
    monkeypatch.setattr(codec, "pack_extras", _unchecked)
    orders.enqueue_many(pieces())
    monkeypatch.undo()
    assert orders.stats().ready == len(pieces())
    return orders


def _unchecked(content_type: str | None, headers: Any) -> bytes:
    kind = codec._MSGPACK_CODE if content_type == codec.MSGPACK else content_type
    packed: bytes = msgpack.packb([kind, dict(headers) if headers else None], use_bin_type=True)
    return packed


@pytest.fixture
def dead(orders: Queue, broker: Broker) -> Queue:
    """The corpus as dead letters that were rejected with hostile words."""
    descriptions = [*TEXTS, *(one.decode("utf-8", "surrogateescape") for one in BYTES), *[""] * len(PACKED)]
    while batch := orders.receive_many(1_000):  # fewer come where bodies are large
        for delivery in batch:
            delivery.reject(descriptions.pop(0)[:900])
    assert descriptions == []
    return broker.queue("dead")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("receive", "orders", "--max", "0"),
        ("peek", "orders", "--limit", "1000", "--utc"),
        ("dead", "show", "dead", "--limit", "1000"),
    ],
    ids=" ".join,
)
def test_on_a_terminal(run: Run, request: pytest.FixtureRequest, redis_url: str, arguments: tuple[str, ...]) -> None:
    request.getfixturevalue("dead" if "dead" in arguments else "orders")

    printed = on_plain_terminal(*arguments, "--url", redis_url)

    harmless(printed)
    for markup in ("[/x]", "[link=http://evil.example]x[/link]", ":smile: :bomb:"):
        assert markup in printed


@pytest.mark.parametrize(
    "arguments",
    [("peek", "dead", "--limit", "1000"), ("dead", "ls", "dead"), ("dead", "show", "dead", "--limit", "1000")],
    ids=" ".join,
)
def test_into_a_pipe(run: Run, dead: Queue, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)

    assert (result.exit_code, result.stderr) == (0, "")
    harmless(result.stdout)
    document = strict(run(*arguments, "--json").stdout)
    assert len(document) == (len(pieces()) if "ls" not in arguments else 1)


def test_received_as_json_each_is_a_line_from_which_the_body_can_be_had_again(run: Run, orders: Queue) -> None:
    lines = run("receive", "orders", "--max", "0", "--json").stdout.removesuffix("\n").split("\n")

    documents = [strict(line) for line in lines]
    assert [one["body"] for one in documents[: len(TEXTS)]] == list(TEXTS)
    for one, piece in zip(documents, pieces(), strict=True):
        assert isinstance(piece.body, bytes)
        if "body_base64" in one:
            assert base64.b64decode(one["body_base64"]) == piece.body
        elif one["content_type"] == codec.MSGPACK:
            assert one["body"] == codec.unpack(piece.body)
        else:
            assert one["body"].encode() == piece.body


@pytest.mark.slow
def test_each_of_them_alone(run: Run, dead: Queue) -> None:
    for one in dead.peek(1_000):
        screen = run("message", "show", "dead", one.sequence)
        assert (screen.exit_code, screen.stderr) == (0, "")
        harmless(screen.stdout)
        document = strict(run("message", "show", "dead", one.sequence, "--json").stdout)
        assert document["sequence"] == one.sequence
        assert run("message", "show", "dead", one.sequence, "--raw").stdout_bytes == one.body


def test_errors_name_them_in_one_harmless_line(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")
    for one in TEXTS[:-1]:
        for arguments in (
            ("send", one, "x"),
            ("send", "orders", "x", "--header", one.replace("=", "")),
            ("send", "orders", "x", "--ttl", one),
            ("peek", "orders", "--after", one),
            ("message", "show", "orders", one),
            (f"{one}x",),
            ("peek", "orders", f"--x{one}"),
        ):
            last = arguments[-1]
            looks_like_an_option = last.startswith("-") and not last.startswith("--x")
            result = run(*arguments[:-1], *["--"] * looks_like_an_option, last)
            assert (result.exit_code in (2, 3), result.stdout) == (True, ""), arguments
            assert result.stderr.count("\n") == 1
            harmless(result.stderr, longest=200_000)


def test_ids_and_headers_that_are_no_text_are_printed_all_the_same(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")
    extras = msgpack.packb(["\udc80", {"\udc81": "\udc82"}], unicode_errors="surrogateescape")
    known = driver_of(broker).step(GetConfig("orders"))
    driver_of(broker).step(enqueue_encoded(known, [(b";2;;\xff\x1b" + extras, b"x")]))

    result = run("peek", "orders")

    assert result.exit_code == 0, result.stderr
    harmless(result.stdout)
    (header,) = strict(run("receive", "orders", "--json").stdout)["headers"].items()
    assert header == ("\ufffd", "\ufffd")


@pytest.mark.parametrize(
    "arguments",
    [
        ("{}",),
        ("receive", "orders", "{}"),
        ("send", "{}", "x"),
        ("message", "show", "orders", "{}"),
        ("--namespace", "{}", "queue", "ls"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_url_in_the_wrong_place_does_not_tell_its_secret(
    run: Run, broker: Broker, arguments: tuple[str, ...], debug: tuple[str, ...]
) -> None:
    broker.declare_queue("orders")
    url = "redis://user:hunter2@host:6379/0?password=hunter3"

    result = run(*debug, *(one.format(url) for one in arguments))

    assert result.exit_code in (2, 3)
    assert "hunter" not in result.stdout + result.stderr


def test_the_traceback_of_a_bug_neither_tells_secrets_nor_acts_on_a_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Broker) -> list[str]:
        try:
            raise ValueError("\x1b]0;x\x07 at redis://:hunter2@host:1/0")
        except ValueError as error:
            raise RuntimeError("rediss://user:hunter2@[::1]:1?password=hunter2&db=1\x9b31m") from error

    monkeypatch.setattr(Broker, "queues", broken)
    result = run("--debug", "queue", "ls")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "ValueError: \\x1b]0;x\\x07 at redis://***@host:1/0\n" in result.stderr
    assert "RuntimeError: rediss://***@[::1]:1?password=***&db=1\\x9b31m\n" in result.stderr
    assert "hunter2" not in result.stderr
    harmless(result.stderr)
