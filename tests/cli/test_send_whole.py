"""`rqttl send --format body`: a file or all of stdin as one message; and flags that no message can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from rqttl import Broker, Queue
from tests.cli.conftest import Run
from tests.cli.processes import Terminal
from tests.cli.test_errors import failed

#: No text: NUL bytes, both kinds of line ends, and no newline at the end.
PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\n" * 50_000 + b"\xff\x00end"


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "picture.png"
    path.write_bytes(PICTURE)
    return str(path)


def bodies(queue: Queue) -> list[bytes]:
    return [one.body for one in queue.peek(100)]


def test_a_file_is_one_message_byte_for_byte(run: Run, orders: Queue, picture: str) -> None:
    flags = ("--id", "p-1", "--content-type", "image/png", "--header", "a=b")
    result = run("send", "orders", "--file", picture, "--format", "body", *flags)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "stored 1 message in orders\n", "")
    [message] = orders.peek()
    assert message.body == PICTURE
    assert (message.id, message.content_type, message.headers) == ("p-1", "image/png", {"a": "b"})


@pytest.mark.parametrize("arguments", [(), ("--file", "-")], ids=str)
def test_all_of_stdin_is_one_message(run: Run, orders: Queue, arguments: tuple[str, ...]) -> None:
    result = run("send", "orders", "--format", "body", *arguments, stdin=PICTURE)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "stored 1 message in orders\n", "")
    assert bodies(orders) == [PICTURE]


def test_an_empty_input_is_one_empty_message(run: Run, orders: Queue, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    assert run("send", "orders", "--format", "body", stdin=b"").stdout == "stored 1 message in orders\n"
    assert run("send", "orders", "--format", "body", "--file", str(tmp_path / "empty")).exit_code == 0
    assert bodies(orders) == [b"", b""]


def test_a_file_that_is_too_large_is_refused_with_its_name_its_size_and_the_limit(
    run: Run, broker: Broker, picture: str
) -> None:
    queue = broker.declare_queue("orders", max_message_bytes=1000)

    result = run("send", "orders", "--format", "body", "--file", picture)

    assert (result.exit_code, result.stdout) == (3, "stored 0 messages in orders\n")
    assert result.stderr == (
        f"rqttl: {picture}: body: {len(PICTURE):,} bytes; --max-message-bytes is 1,000 [message_too_large]\n"
    )
    assert bodies(queue) == []


def test_an_input_that_is_too_large_is_not_read_to_its_end(run: Run, broker: Broker) -> None:
    queue = broker.declare_queue("orders", max_message_bytes=1000)

    result = run("send", "orders", "--format", "body", stdin=b"x" * 10_000_000)

    assert result.exit_code == 3
    assert result.stderr.startswith("rqttl: stdin: body: ")
    assert result.stderr.endswith(" bytes or more; --max-message-bytes is 1,000 [message_too_large]\n")
    assert bodies(queue) == []


def test_a_body_as_large_as_the_limit_is_stored(run: Run, broker: Broker) -> None:
    queue = broker.declare_queue("orders", max_message_bytes=1000)

    assert run("send", "orders", "--format", "body", stdin=b"\0" * 1000).exit_code == 0
    assert bodies(queue) == [b"\0" * 1000]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("form", ["body", "json"])
def test_an_argument_has_no_format(run: Run, form: str) -> None:
    line = failed(run("send", "orders", "x", "--format", form), 2)

    assert line.startswith(f"--format: a BODY is sent as it is; --format {form} is for stdin and --file (see ")


@pytest.mark.slow
def test_on_a_terminal_all_that_is_typed_is_one_message(orders: Queue, redis_url: str) -> None:
    with Terminal("send", "orders", "--format", "body", "--url", redis_url) as terminal:
        terminal.until("all that you type is one message; Ctrl-D ends")
        terminal.type(b"a\rb\r\x04")
        assert terminal.end() == 0

    assert bodies(orders) == [b"a\nb\n"]


# NUL bytes


def test_lines_with_nul_bytes_are_sent_and_warned_about_once(run: Run, orders: Queue) -> None:
    result = run("send", "orders", stdin=b"text\na\0b\n\0\n" + b"x" * 600_000 + b"\n\0\n")

    assert (result.exit_code, result.stdout) == (0, "stored 5 messages in orders\n")
    assert result.stderr == (
        "rqttl: stdin:2: a NUL byte: is this no text? `--format body` sends the input as one message\n"
    )
    assert bodies(orders) == [b"text", b"a\0b", b"\0", b"x" * 600_000, b"\0"]


@pytest.mark.usefixtures("orders")
def test_lines_of_text_are_not_warned_about(run: Run) -> None:
    assert run("send", "orders", stdin="grün\r\n\x1b\n".encode()).stderr == ""


# Flags that no message can have


@pytest.mark.parametrize(
    "flags, expected",
    [
        (("--id", ""), "invalid value for '--id': expected 1 to 255 bytes of printable text, got ''"),
        (("--id", "a\nb"), r"invalid value for '--id': expected 1 to 255 bytes of printable text, got 'a\nb'"),
        (("--content-type", "a\nb"), r"--content-type: expected printable text, got 'a\nb'"),
        (("--header", "a=" + "x" * 70_000), "--header: "),
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


@pytest.mark.usefixtures("orders")
def test_a_field_of_a_line_keeps_its_own_name(run: Run) -> None:
    result = run("send", "orders", "--format", "json", stdin=b'{"body": "x", "id": ""}\n')

    assert result.stderr.startswith("rqttl: stdin:1: id: expected 1 to 255 bytes")
