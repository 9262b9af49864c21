"""`rqttl send`: bodies from arguments, files and stdin, as lines, JSON or whole; and exact counts."""

import base64
import json
import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

from rqttl import Broker, CommandEvent, Message, NotReplicated, OutcomeUnknown, Queue, Receipt
from rqttl.cli import cli
from rqttl.cli import send as module
from rqttl.cli.send import BROKER_FIELDS, SENDER_FIELDS
from rqttl.inspector.message_view import Viewed, to_json
from rqttl.protocol.commands import BATCH, BATCH_BYTES
from rqttl.types import MessageView
from tests.cli.conftest import Run, check_golden
from tests.contract.clocked import Clocked
from tests.drivers import redis_of

pytestmark = pytest.mark.once


def bodies(queue: Queue) -> list[bytes]:
    return [one.body for one in queue.peek(100_000)]


def test_arguments_are_bodies_in_their_order(run: Run, orders: Queue) -> None:
    result = run("send", "orders", "a", "", "c d", "é", "--", "--ttl")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "stored 5 messages in orders\n", "")
    assert bodies(orders) == [b"a", b"", b"c d", "é".encode(), b"--ttl"]


LINES = pytest.mark.parametrize(
    "written, sent",
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\na\n", [b"", b"", b"a"]),
        (b"\xff\x01\r\n\x1b[31m\n", [b"\xff\x01\r", b"\x1b[31m"]),
        (b"\xef\xbb\xbfa\x0b\x0c\x1c\x85\r\nb\r", [b"\xef\xbb\xbfa\x0b\x0c\x1c\x85\r", b"b\r"]),
        (b"x" * 1_000_000 + b"\n" + b"y" * 1_000_000, [b"x" * 1_000_000, b"y" * 1_000_000]),
    ],
    ids=["empty", "lines", "no-last-newline", "empty-lines", "binary", "only-newlines-end-lines", "megabytes"],
)


@LINES
def test_without_arguments_each_line_of_stdin_or_of_a_file_is_a_body(
    run: Run, orders: Queue, tmp_path: Path, written: bytes, sent: list[bytes]
) -> None:
    path = tmp_path / "bodies"
    path.write_bytes(written)
    for arguments in ((), ("--file", "-"), ("--file", str(path))):
        result = run("send", "orders", *arguments, stdin=written)

        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == f"stored {len(sent)} message{'s' * (len(sent) != 1)} in orders\n"
        assert bodies(orders) == sent
        orders.purge()


@pytest.mark.parametrize("chunk", [1, 7])
def test_many_lines_arrive_whole_and_in_order_however_they_are_cut(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "BATCH", 3)
    lines = [b"%d" % (i * i) for i in range(300)]

    run("send", "orders", stdin=b"\n".join(lines))

    assert bodies(orders) == lines


@pytest.mark.parametrize("arguments", [("--file", "nowhere"), ("--file", "."), ("--file", "")])
def test_a_file_that_cannot_be_is_wrong_usage(run: Run, orders: Queue, arguments: Sequence[str]) -> None:
    result = run("send", "orders", *arguments)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("rqttl: invalid value for '--file': ")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("x", "--file", "-"), "--file: give BODY or --file, not both"),
        (("x", "--format", "json"), "--format: a BODY is sent as it is"),
        (("x", "--ttl", "1s", "--expires-at", "2026-11-21 10:00Z"), "--ttl: give --ttl or --expires-at, not both"),
        (("x", "--expires-at", "2026-11-21 10:00"), "'--expires-at': expected a time with its zone"),
        (("x", "y", "--id", "one"), "--id: give exactly one body"),
        (("--id", "one"), "--id: give exactly one body"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage(
    run: Run, orders: Queue, arguments: Sequence[str], expected: str
) -> None:
    result = run("send", "orders", *arguments, stdin=b"a\n")

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert expected in result.stderr
    assert bodies(orders) == []


def test_messages_carry_what_the_flags_say(run: Run, orders: Queue) -> None:
    flags = ["--ttl", "1h", "--header", "region=eu", "--header", "a=b=c", "--id", "one", "--content-type", "text/plain"]
    run("send", "orders", "x", *flags)
    run("send", "orders", "--expires-at", "2999-11-21 10:00Z", "--header", "n=", stdin=b"y\nz\n")

    x, y, z = orders.peek()
    assert x.expires_at is not None
    assert (x.expires_at - x.enqueued_at).total_seconds() == 3600
    assert (dict(x.headers), x.id, x.content_type) == ({"region": "eu", "a": "b=c"}, "one", "text/plain")
    for one in (y, z):
        assert one.expires_at is not None
        assert (one.expires_at.isoformat(), dict(one.headers)) == ("2999-11-21T10:00:00+00:00", {"n": ""})


def test_the_answer_in_text_and_json(run_clocked: Run, clocked: Clocked) -> None:
    clocked.declare_queue("orders", max_length=2, overflow="reject-publish")

    expected = [
        run_clocked("send", "orders", *arguments) for arguments in (("a", "--json"), ("b", "c", "d"), ("e", "--json"))
    ]

    assert [result.exit_code for result in expected] == [0, 3, 3]
    check_golden("send.txt", "".join(result.stdout + result.stderr for result in expected))


def test_only_arguments_have_their_ids_in_the_answer(run: Run, orders: Queue) -> None:
    ids = json.loads(run("send", "orders", "a", "b", "--json").stdout)["ids"]

    assert ids == [one.id for one in orders.peek()]
    assert "ids" not in json.loads(run("send", "orders", "--json", stdin=b"c\n").stdout)


@pytest.mark.parametrize(
    "stdin, stored, line",
    [(b"ok\n" + b"x" * 100, 1, 2), (b"ok\nok\n" + b"x" * 11 + b"\nok\n", 2, 3), (b"x" * 11 + b"\n", 0, 1)],
)
@pytest.mark.parametrize("chunk", [4, 1000])
def test_a_line_that_is_too_long_is_named_and_what_came_before_is_stored(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch, stdin: bytes, stored: int, line: int, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    orders = broker.declare_queue("orders", max_message_bytes=10)

    result = run("send", "orders", stdin=stdin)

    assert (result.exit_code, result.stdout) == (3, f"stored {stored} message{'s' * (stored != 1)} in orders\n")
    assert result.stderr.startswith(f"rqttl: stdin:{line}: body: ")
    assert result.stderr.endswith(" [message_too_large]\n")
    assert "--max-message-bytes" in result.stderr
    assert bodies(orders) == [b"ok"] * stored


def test_a_wrong_argument_is_named_and_what_came_before_is_stored(run: Run, broker: Broker) -> None:
    orders = broker.declare_queue("orders", max_message_bytes=3)

    several, alone = run("send", "orders", "a", "b", "long", "c"), run("send", "orders", "long")

    assert (several.exit_code, several.stdout) == (3, "stored 2 messages in orders\n")
    assert several.stderr.startswith("rqttl: BODY 3: body: 4 bytes are more than --max-message-bytes, 3")
    assert (alone.stdout, alone.stderr[:12]) == ("stored 0 messages in orders\n", "rqttl: body:")
    assert bodies(orders) == [b"a", b"b"]


@pytest.mark.parametrize("flags", [(), ("--header", "a=" + "é" * 20_000, "--ttl", "10w")], ids=["light", "heavy"])
@pytest.mark.parametrize("form", ["lines", "json", "arguments"])
def test_no_batch_takes_more_than_one_call_so_that_counts_can_be_exact(
    orders: Queue, broker: Broker, monkeypatch: pytest.MonkeyPatch, form: str, flags: Sequence[str]
) -> None:
    calls: list[str] = []
    asked: list[int] = []
    enqueue_many = Queue.enqueue_many

    def counted(queue: Queue, messages: Sequence[Any]) -> Any:
        asked.append(len(messages))
        return enqueue_many(queue, messages)

    def connect(*_: object) -> Broker:
        made = Broker(redis_of(broker))
        made.events.subscribe(lambda event: calls.append(event.name), CommandEvent)
        return made

    monkeypatch.setattr(Queue, "enqueue_many", counted)
    monkeypatch.setattr("rqttl.cli.common.settings.Settings.connect", connect)
    rng = random.Random(7)
    sizes = [rng.choice((0, 10, 3_000, 40_000, BATCH_BYTES, BATCH_BYTES + 9)) for _ in range(300)] + [1] * (2 * BATCH)
    lines = [b"1" * size for size in sizes]
    if form == "arguments":
        lines = [one for one in lines if len(one) < 1000]
        result = CliRunner().invoke(cli, ["send", "orders", *flags, *(one.decode() for one in lines)])
    else:
        texts = [b'{"body":[%s1e5],"headers":{"b":1e5}}' % (b"1e15," * (len(one) // 6)) for one in lines]
        texts[5::70] = [one.replace(b"{", b'{"delay":"1h",', 1) for one in texts[5::70]]  # calls of their own
        values = lines if form == "lines" else texts
        result = CliRunner().invoke(cli, ["send", "orders", *flags, "--format", form], input=b"\n".join(values))

    assert result.stdout.startswith(f"stored {len(lines):,} messages in orders")
    assert ("schedule" in calls) == (form == "json")
    assert calls.count("enqueue") + calls.count("schedule") == len(asked)
    assert sum(asked) == len(lines)


UNCONFIRMED = NotReplicated("orders", "replica", "no replica", [Receipt("1"), Receipt("2")], 1)


@pytest.mark.parametrize(
    "failure, code, line, unknown",
    [
        (OutcomeUnknown("orders", "enqueue"), 4, "500 messages in orders; not known: 250 messages", 250),
        (UNCONFIRMED, 4, "502 messages in orders; not confirmed: 1 message", 0),
        (ConnectionResetError(), 3, "500 messages in orders", 0),
    ],
    ids=["unknown", "not confirmed", "failed"],
)
def test_every_end_has_the_counts_of_stored_and_unknown_messages(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch, failure: Exception, code: int, line: str, unknown: int
) -> None:
    enqueue_many, calls = Queue.enqueue_many, count(1)

    def losing(queue: Queue, messages: Sequence[Any]) -> Any:
        if next(calls) % 3 == 0:
            raise failure
        return enqueue_many(queue, messages)

    monkeypatch.setattr(Queue, "enqueue_many", losing)
    lines = b"".join(b"%d\n" % i for i in range(1000))

    text = run("send", "orders", stdin=lines)
    facts = json.loads(run("send", "orders", "--json", stdin=lines).stdout)

    assert (text.exit_code, text.stdout) == (code, f"stored {line}\n")
    assert (facts["stored"], facts["unknown"]) == (int(line[:3]), unknown)
    assert orders.stats().enqueued == 1000


PAST = "2020-01-01 00:00Z"


@pytest.mark.parametrize("flags", [("--expires-at", PAST), ("--ttl", "0")], ids=str)
def test_a_message_that_is_dead_on_arrival_is_counted(run: Run, orders: Queue, flags: tuple[str, str]) -> None:
    result = run("send", "orders", "x", *flags)

    assert (result.exit_code, result.stdout) == (0, "stored 1 message in orders, already expired\n")
    assert orders.peek() == []


def test_expired_messages_are_counted_beside_duplicates_and_refusals(run: Run, broker: Broker) -> None:
    broker.declare_queue("full", max_length=1, overflow="reject-publish", duplicate_window="1h")
    lines = [{"body": "1", "id": "a"}, {"body": "2", "id": "a"}, {"body": "3", "ttl": 0}, {"body": "4"}]

    result = run("send", "full", "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())

    assert result.stdout == (
        "stored 2 messages in full, 1 of them already expired, 1 duplicate left out; refused 1 (--max-length is 1)\n"
    )


def test_a_full_queue_of_a_topic_is_named(run: Run, broker: Broker) -> None:
    topic = broker.declare_topic("news")
    for name in ("a", "b"):
        topic.subscribe(name, f"{name}.#", max_length=0, overflow="reject-publish")
    topic.subscribe("all")

    one = run("send", "news", "x", "y", "--subject", "a")
    assert one.stdout == "stored 0 messages in news; refused 2 (--max-length of news/a is 0)\n"
    told = "queue 'news/a' is full: 2 messages refused (--max-length of news/a is 0) [queue_full]"
    assert (one.exit_code, one.stderr) == (3, f"rqttl: {told}\n")
    lines = [json.dumps({"body": "x", "subject": subject}) for subject in ("a.1", "b", "c")]
    two = run("send", "news", "--format", "json", "--json", stdin="\n".join(lines).encode())
    assert json.loads(two.stdout)["refused_in"] == {"news/a": 1, "news/b": 1}
    assert (two.exit_code, "queues 'news/a', 'news/b' are full: 1 message" in two.stderr) == (3, True), two.stderr
    assert bodies(broker.queue("news/all")) == [b"x"]


def test_a_subject_is_a_header_and_that_of_a_line_goes_first(run: Run, orders: Queue) -> None:
    lines = [{"body": "1"}, {"body": "2", "subject": "line"}, {"body": "3", "headers": {"subject": "header"}}]
    run("send", "orders", "x", "--subject", "orders.eu", "--header", "a=b")
    run("send", "orders", "--format", "json", "--subject", "flag", stdin="\n".join(map(json.dumps, lines)).encode())

    told = [dict(message.headers) for message in orders.peek()]
    assert told == [{"a": "b", "subject": "orders.eu"}, *({"subject": one} for one in ("flag", "line", "header"))]


LATER = datetime(2999, 11, 21, 10, tzinfo=timezone.utc)


def sent(run: Run, queue: Queue, words: object, *flags: str) -> MessageView:
    """The one message that a line makes."""
    line = words if isinstance(words, bytes) else json.dumps(words).encode()
    result = run("send", queue.name, "--format", "json", *flags, stdin=line + b"\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"stored 1 message in {queue.name}\n", "")
    (message,) = queue.peek()
    return message


@pytest.mark.parametrize(
    "words, body, content_type",
    [
        ({"body": "é\x00\n"}, "é\x00\n".encode(), "application/octet-stream"),
        ({"body_base64": "/wA="}, b"\xff\x00", "application/octet-stream"),
        ({"body": {"n": [1, 2.5, None, "é"]}}, msgpack.packb({"n": [1, 2.5, None, "é"]}), "application/msgpack"),
        ({"body": None}, msgpack.packb(None), "application/msgpack"),
        ({"body": "text", "content_type": "application/msgpack"}, msgpack.packb("text"), "application/msgpack"),
        ({"body": "text", "content_type": "text/plain"}, b"text", "text/plain"),
        ({"body": {"é": 1}, "content_type": "application/json"}, '{"é":1}'.encode(), "application/json"),
        ({"body": [1], "content_type": "application/ld+JSON; a=b"}, b"[1]", "application/ld+JSON; a=b"),
        ({"body": "[1]", "content_type": "application/json"}, b"[1]", "application/json"),
        ({"body": "nearly", "body_base64": "kcA="}, b"\x91\xc0", "application/octet-stream"),
    ],
)
def test_a_body_is_stored_as_what_it_is(run: Run, orders: Queue, words: object, body: bytes, content_type: str) -> None:
    message = sent(run, orders, words)

    assert (message.body, message.content_type) == (body, content_type)


@pytest.mark.parametrize(
    "words, flags, ttl",
    [
        ({}, ("--ttl", "1h"), timedelta(hours=1)),
        ({"ttl": "2h"}, ("--ttl", "1h"), timedelta(hours=2)),
        ({"ttl": None, "expires_at": None}, ("--ttl", "1h"), timedelta(hours=1)),
        ({"expires_at": LATER.isoformat()}, ("--ttl", "1h"), None),
        ({}, ("--expires-at", LATER.isoformat()), None),
        ({"expires_at": int(LATER.timestamp()) * 1_000}, (), None),
    ],
)
def test_the_deadline_of_a_line_goes_before_that_of_the_flags(
    run: Run, orders: Queue, words: dict[str, Any], flags: Sequence[str], ttl: timedelta | None
) -> None:
    message = sent(run, orders, {"body": "x", **words}, *flags)

    assert message.expires_at == (message.enqueued_at + ttl if ttl else LATER)


def test_headers_and_content_type_of_a_line_go_before_those_of_the_flags(run: Run, orders: Queue) -> None:
    flags = ("--header", "a=flag", "--header", "b=flag", "--content-type", "text/plain")

    lines = [
        {"body": "1"},
        {"body": "2", "headers": {"b": "line", "c": 1}, "content_type": "text/csv"},
        {"body": "3", "content_type": "application/octet-stream", "headers": None},
    ]
    run("send", "orders", "--format", "json", *flags, stdin=b"\n".join(json.dumps(line).encode() for line in lines))

    first, second, third = orders.peek()
    assert (dict(first.headers), first.content_type) == ({"a": "flag", "b": "flag"}, "text/plain")
    assert (dict(second.headers), second.content_type) == ({"a": "flag", "b": "line", "c": 1}, "text/csv")
    assert (dict(third.headers), third.content_type) == ({"a": "flag", "b": "flag"}, "application/octet-stream")


def test_blank_lines_a_mark_of_byte_order_and_windows_line_ends_are_read_over(run: Run, orders: Queue) -> None:
    lines = b'\xef\xbb\xbf{"body": "a"}\r\n\r\n  \n {"body": "b"} \r\n\n{"body": "c"}'
    result = run("send", "orders", "--format", "json", stdin=lines)

    assert (result.exit_code, result.stdout) == (0, "stored 3 messages in orders\n")
    assert [one.body for one in orders.peek()] == [b"a", b"b", b"c"]


WRONG = [
    (b'{"body":"a","ttl":"soon"}', "ttl: expected a number with a unit such as '30s'", "invalid_duration"),
    (b'{"body":"a","ttl":1.5}', "got 1.5: write '1.5s' or '1.5ms'", "invalid_duration"),
    (b'{"body":"a","ttl":"1s","expires_at":1800000000000}', "ttl: give ttl or expires_at, not both", "invalid_input"),
    (b'{"body":"a","expires_at":1763745600}', "got 1763745600, which is in seconds: write 1763745600", "invalid_input"),
    (b'{"body":"a","tll":"1s"}', "unknown field 'tll'; did you mean ttl?", "invalid_input"),
    (b'{"body":"a","x\\u001b[31m":1}', r"unknown field 'x\x1b[31m'; there are body, body_base64,", "invalid_input"),
    (b'{"body":"a","id":7}', "id: expected text, got a number", "invalid_input"),
    (b'{"body":"a","headers":[1]}', "headers: expected an object, got a list", "invalid_input"),
    (b'{"body":"a","headers":{"b":[1]}}', "headers: 'b': expected text", "invalid_input"),
    (b'{"body":1,"content_type":"a/b"}', "body: expected text where content_type is 'a/b', got a num", "invalid_input"),
    (b'{"body":"\\ud800"}', "body: character 1 is half of a surrogate pair", "invalid_input"),
    (b'{"body_base64":"!"}', "body_base64: expected text in base64", "invalid_input"),
    (b'{"ttl":"1s"}', "body: missing; give body or body_base64", "invalid_input"),
    (b"[1]", 'expected an object such as {"body": "hello"}, got a list', "invalid_input"),
    (b"orders", "not JSON: Expecting value at character 1", "invalid_input"),
    (b'{"body":NaN}', "not JSON that can be read: NaN is not JSON", "invalid_input"),
    (b'{"body":"\xff"}', "not JSON: byte 10 is not UTF-8", "invalid_input"),
    (b'{"body":' + b"[" * 100_000, "not JSON that can be read", "invalid_input"),
]


@pytest.mark.parametrize("line, expected, code", WRONG)
def test_a_wrong_line_is_named_and_all_before_it_is_stored(
    run: Run, orders: Queue, tmp_path: Path, line: bytes, expected: str, code: str
) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_bytes(b'{"body":"a"}\n\n' * 150 + line + b'\n{"body":"b"}\n')

    result = run("send", "orders", "--format", "json", "--file", str(path))

    assert (result.exit_code, result.stdout) == (2, "stored 150 messages in orders\n")
    assert result.stderr.startswith(f"rqttl: {path}:301: ")
    assert expected in result.stderr
    assert result.stderr.endswith(f" [{code}]\n")
    assert result.stderr.removesuffix("\n").isprintable()
    assert len(result.stderr) < 400
    assert [one.body for one in orders.peek(1000)] == [b"a"] * 150


def test_a_body_that_is_too_large_is_refused_by_its_own_size_not_by_that_of_its_line(run: Run, broker: Broker) -> None:
    orders = broker.declare_queue("orders", max_message_bytes=3)
    fits = json.dumps({"body_base64": base64.b64encode(b"abc").decode(), "headers": {"a": "x" * 1000}}).encode()

    result = run("send", "orders", "--format", "json", stdin=fits + b'\n{"body": "long"}\n')

    assert (result.exit_code, result.stdout) == (3, "stored 1 message in orders\n")
    assert result.stderr.startswith("rqttl: stdin:2: body: 4 bytes are more than --max-message-bytes, 3")
    assert [one.body for one in orders.peek()] == [b"abc"]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", max_message_bytes=3)

    result = run("send", "orders", "--format", "json", stdin=b'{"body": "a"}\n{"body": "' + b"x" * 2_000_000)

    assert (result.exit_code, result.stdout) == (3, "stored 1 message in orders\n")
    assert result.stderr.startswith("rqttl: stdin:2: body: a line of more than ")


def everything() -> list[Message]:
    return [
        Message(b"plain"),
        Message(b"\xff\x00\n"),
        Message("é\r\n".encode(), headers={"a": "b", "n": 1.5, "none": None, "yes": True}, id="own", ttl="1h"),
        Message({"order": 1, "items": ["a", {"b": None}]}, ttl="1h"),
        Message("text"),
        Message(None),
        Message({1: b"\xff", b"k": float("nan")}),
        Message(b"[1]", content_type="application/json"),
        Message(b"\xc1", content_type="application/msgpack"),
        Message(b"a" * 1_000_000, content_type="text/plain"),
    ]


@pytest.mark.parametrize("dead", [False, True], ids=["messages", "dead letters"])
def test_the_output_of_receive_makes_the_same_messages_again(run: Run, broker: Broker, dead: bool) -> None:
    target = broker.declare_queue("target")
    source = broker.declare_queue("orders", dead_letter="dead")
    source.enqueue_many(everything())
    if dead:
        source.reject_many(source.receive_many(100))
        source = broker.queue("dead")
    before = source.peek(100)

    printed = run("receive", source.name, "--max", "0", "--json").stdout
    result = run("send", "target", "--format", "json", stdin=printed.encode())

    assert (result.exit_code, result.stdout, result.stderr) == (0, "stored 10 messages in target\n", "")
    for old, new in zip(before, target.peek(100), strict=True):
        own = None if old.id == old.sequence else old.id
        assert (new.body, new.headers, new.content_type) == (old.body, old.headers, old.content_type)
        assert new.expires_at == old.expires_at
        assert new.id == (own or new.sequence)


def test_every_printed_field_of_a_message_may_be_sent(orders: Queue) -> None:
    orders.enqueue_many([b"text", b"\xff"])
    every: list[Viewed] = [*orders.peek(), *orders.receive_many(2)]
    printed = {name for one in every for name in to_json(one)}

    assert printed <= {*SENDER_FIELDS, *BROKER_FIELDS}


#: No text: NUL bytes, both kinds of line ends, and no newline at the end.
PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\n" * 50_000 + b"\xff\x00end"


def test_a_file_or_stdin_is_one_message_byte_for_byte(run: Run, broker: Broker, tmp_path: Path) -> None:
    orders = broker.declare_queue("orders", max_message_bytes=len(PICTURE))
    path = tmp_path / "picture.png"
    path.write_bytes(PICTURE)
    send = ("send", "orders", "--format", "body")

    run(*send, "--file", str(path), "--id", "p-1", "--content-type", "image/png", "--header", "a=b")
    results = [run(*send, stdin=PICTURE), run(*send, "--file", "-", stdin=b"")]

    assert [(one.exit_code, one.stdout, one.stderr) for one in results] == [(0, "stored 1 message in orders\n", "")] * 2
    assert bodies(orders) == [PICTURE, PICTURE, b""]
    message = orders.peek()[0]
    assert (message.id, message.content_type, message.headers) == ("p-1", "image/png", {"a": "b"})

    path.write_bytes(PICTURE + b"x")
    result = run(*send, "--file", str(path))

    assert (result.exit_code, result.stdout) == (3, "stored 0 messages in orders\n")
    assert result.stderr.startswith(f"rqttl: {path}: body: {len(PICTURE) + 1} bytes are more than --max-message-bytes")


@pytest.mark.parametrize(
    "flags, expected",
    [
        (("--id", ""), "invalid value for '--id': expected 1 to 255 bytes of printable text, got ''"),
        (("--id", "a\nb"), r"invalid value for '--id': expected 1 to 255 bytes of printable text, got 'a\nb'"),
        (("--content-type", "a\nb"), r"--content-type: expected printable text, got 'a\nb'"),
        (("--header", "a=" + "x" * 70_000), "--header: "),
        (("--subject", "a..b"), "--subject: expected printable words with dots between them, at most 255 bytes, got"),
        (("--subject", "a", "--header", "subject=b"), "--subject: given as a header, too: 'b'; leave one of them out"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
@pytest.mark.parametrize("arguments", [("x",), ("--format", "body")], ids=" ".join)
def test_a_flag_that_no_message_can_have_is_named_before_anything_is_sent(
    run: Run, orders: Queue, arguments: tuple[str, ...], flags: tuple[str, ...], expected: str
) -> None:
    result = run("send", "orders", *arguments, *flags, stdin=b"x")

    assert result.exit_code in (2, 3)  # what is too large is refused
    assert result.stdout == ""
    assert result.stderr.startswith(f"rqttl: {expected}")
    assert bodies(orders) == []
