"""`rqttl send`: bodies from arguments, files and stdin, and exact counts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rqttl import Broker, CommandEvent, OutcomeUnknown, Queue
from rqttl.cli import cli
from rqttl.cli.send import sources
from rqttl.protocol.commands import BATCH, BATCH_BYTES
from rqttl.store.driver import driver_of
from tests.cli import golden
from tests.cli.conftest import Run
from tests.contract.clocked import Clocked

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
    monkeypatch.setattr(sources, "CHUNK", chunk)
    monkeypatch.setattr(sources, "BATCH", 3)
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
    golden.check("send.txt", "".join(result.stdout + result.stderr for result in expected))


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
    monkeypatch.setattr(sources, "CHUNK", chunk)
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

    def connect(_: object) -> Broker:
        made = Broker(driver_of(broker).store.client)
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
        values = lines if form == "lines" else texts
        result = CliRunner().invoke(cli, ["send", "orders", *flags, "--format", form], input=b"\n".join(values))

    assert result.stdout == f"stored {len(lines):,} messages in orders\n"
    assert asked
    assert calls.count("enqueue") == len(asked)
    assert sum(asked) == len(lines)


class Losing(Broker):
    """A broker whose third enqueue fails."""

    failure: Callable[[], Exception]

    def queue(self, name: str) -> Queue:
        found = super().queue(name)
        calls: list[int] = []
        enqueue_many = found.enqueue_many

        def losing(messages: Sequence[Any]) -> Any:
            calls.append(len(messages))
            if len(calls) == 3:
                raise self.failure()
            return enqueue_many(messages)

        found.enqueue_many = losing  # type: ignore[method-assign,assignment]  # of this one queue
        return found


@pytest.mark.parametrize(
    "failure, code, expected, unknown",
    [
        (
            lambda: OutcomeUnknown("orders", "enqueue"),
            4,
            "stored 500 messages in orders; not known: 250 messages\n",
            250,
        ),
        (lambda: ConnectionResetError("gone"), 3, "stored 500 messages in orders\n", 0),
    ],
)
def test_every_end_has_the_counts_of_stored_and_unknown_messages(
    orders: Queue,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    failure: Callable[[], Exception],
    code: int,
    expected: str,
    unknown: int,
) -> None:
    monkeypatch.setattr(Losing, "failure", staticmethod(failure), raising=False)
    monkeypatch.setattr("rqttl.cli.common.settings.Settings.connect", lambda _: Losing(driver_of(broker).store.client))
    lines = b"".join(b"%d\n" % i for i in range(1000))

    text = CliRunner().invoke(cli, ["send", "orders"], input=lines)
    facts = json.loads(CliRunner().invoke(cli, ["send", "orders", "--json"], input=lines).stdout)

    assert (text.exit_code, text.stdout) == (code, expected)
    assert (facts["stored"], facts["unknown"]) == (500, unknown)
    assert orders.stats().enqueued == 1000


PAST = "2020-01-01 00:00Z"


@pytest.mark.parametrize("flags", [("--expires-at", PAST), ("--ttl", "0")], ids=str)
def test_a_message_that_is_dead_on_arrival_is_counted(run: Run, orders: Queue, flags: tuple[str, str]) -> None:
    result = run("send", "orders", "x", *flags)

    assert (result.exit_code, result.stdout) == (0, "stored 1 message in orders, already expired\n")
    assert orders.peek() == []


def test_of_many_messages_the_expired_ones_are_counted(run: Run, orders: Queue) -> None:
    lines = [{"body": "x", "expires_at": PAST if i % 500 == 0 else None} for i in range(2_000)]

    result = run("send", "orders", "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())

    assert result.stdout == "stored 2,000 messages in orders, 4 of them already expired\n"
    assert orders.stats().deaths["expired"] == 4


def test_json_counts_the_expired_ones(run: Run, orders: Queue) -> None:
    expired = json.loads(run("send", "orders", "a", "b", "--ttl", "0", "--json").stdout)
    lives = json.loads(run("send", "orders", "a", "--ttl", "1h", "--json").stdout)

    assert (expired["stored"], expired["expired"], len(expired["ids"])) == (2, 2, 2)
    assert (lives["stored"], lives["expired"]) == (1, 0)
