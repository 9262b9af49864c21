"""`rqttl peek`: messages with their states, page by page, and nothing changes."""

from __future__ import annotations

import json

import pytest

from rqttl import Broker, Message, Queue
from rqttl.store.driver import driver_of
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.processes import on_terminal
from tests.contract.clocked import Clocked


@pytest.fixture
def mixed(clocked: Clocked) -> Queue:
    """A leased message, a delayed one, one that came back, an expired one that nobody has swept, a dead letter."""
    other = clocked.declare_queue("other", dead_letter="orders")
    orders = clocked.declare_queue("orders")
    orders.enqueue_many(
        [
            b"leased",
            Message({"a": ["é", 1]}, id="delayed", ttl="1h"),
            Message(b"back\n[/x]", headers={"h": b"\xff"}),
            Message(b"gone", ttl="10s"),
        ]
    )
    for delivery in orders.receive_many(3, lease="20m"):
        if delivery.id == "delayed":
            delivery.nack("10m")
        elif delivery.body.startswith(b"back"):
            delivery.nack()
    other.enqueue(b"x" * 250)
    letter = other.receive()
    assert letter is not None
    letter.reject("no good")
    clocked.advance(184_000)
    return orders


@pytest.mark.parametrize("name, flags", [("peek.txt", ()), ("peek_utc.txt", ("--utc",)), ("peek.json", ("--json",))])
def test_each_message_has_its_state(run_clocked: Run, mixed: Queue, name: str, flags: tuple[str, ...]) -> None:
    before = driver_of(mixed).store.client.hgetall("rqttl:{orders}:meta")

    result = run_clocked("peek", "orders", *flags)

    assert (result.exit_code, result.stderr) == (0, "")
    golden.check(name, result.stdout)
    assert driver_of(mixed).store.client.hgetall("rqttl:{orders}:meta") == before


def test_a_message_that_failed_says_why_below_its_body(run_clocked: Run, clocked: Clocked) -> None:
    orders = clocked.declare_queue("orders", redelivery_delay="10s")
    orders.enqueue_many([b"first", b"second"])
    delivery = orders.receive()
    assert delivery is not None
    delivery.nack(description="ValueError: no\x1b[31m such " + "y" * 500)

    lines = run_clocked("peek", "orders").stdout.splitlines()

    assert lines[2].startswith("delayed, 10s left")
    assert lines[3] == "  first"
    assert lines[4] == "  " + ("last failure: ValueError: no\\x1b[31m such " + "y" * 500)[:197] + "…"
    assert lines[6:] == ["  second"]
    first, second = json.loads(run_clocked("peek", "orders", "--json").stdout)
    assert (first["description"][:15], second["description"]) == ("ValueError: no\x1b", None)


def test_a_lease_that_is_over_but_not_swept_is_called_so(run_clocked: Run, clocked: Clocked) -> None:
    orders = clocked.declare_queue("orders")
    orders.enqueue(b"x")
    orders.receive(lease="1s")
    clocked.advance(1_000)

    assert run_clocked("peek", "orders").stdout.splitlines()[2].startswith("leased, over ")


def test_pages_follow_each_other_and_a_note_says_how(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders").enqueue_many([b"%d" % i for i in range(5)])
    results: list[str] = []
    flags: list[str] = []

    for left in (3, 1, 0):
        result = run("peek", "orders", "--limit", "2", "--json", *flags)
        page = json.loads(result.stdout)
        results += [one["body"] for one in page]
        flags = ["--after", page[-1]["sequence"]]
        assert result.stderr == (f"rqttl: there are more: --after {flags[1]}\n" if left else "")

    assert results == ["0", "1", "2", "3", "4"]
    result = run("peek", "orders", *flags)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "rqttl: no more messages in orders\n")


@pytest.mark.parametrize("flags, stdout", [((), ""), (("--json",), "[]\n")])
def test_an_empty_queue_is_an_empty_answer_and_a_note(
    run: Run, broker: Broker, flags: tuple[str, ...], stdout: str
) -> None:
    broker.declare_queue("orders")

    result = run("peek", "orders", *flags)

    assert (result.exit_code, result.stdout, result.stderr) == (0, stdout, "rqttl: orders is empty\n")


@pytest.mark.parametrize(
    "arguments, code, expected",
    [
        (("orders", "--after", "soon"), 2, "--after: expected the sequence of a message, got 'soon' [invalid_input]"),
        (("orders", "--limit", "0"), 2, "invalid value for '--limit': 0 is not in the range x>=1"),
        (("ordres",), 3, "queue 'ordres' does not exist; did you mean orders? [not_found]"),
        (("nothing",), 3, "queue 'nothing' does not exist: `rqttl queue declare nothing` creates it [not_found]"),
    ],
)
def test_an_error_is_one_line(run: Run, broker: Broker, arguments: tuple[str, ...], code: int, expected: str) -> None:
    broker.declare_queue("orders")

    result = run("peek", *arguments)

    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(f"rqttl: {expected}")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--utc",)])
def test_the_list_fits_a_terminal_with_each_body_on_one_line(
    broker: Broker, redis_url: str, flags: tuple[str, ...]
) -> None:
    orders = broker.declare_queue("orders")
    ids = ["short", "漢" * 85, "x" * 255]
    orders.enqueue_many([Message(b"y" * 500, id=id, ttl="300w") for id in ids] + ["漢".encode() * 200, b""])
    orders.receive_many(2, lease="300w")

    printed = on_terminal("peek", "orders", "--url", redis_url, *flags)

    lines = printed.split("\n")
    assert max(map(_cells, lines)) == 80
    assert [line for line in lines if line.startswith("  y")] == ["  " + "y" * 77 + "…"] * 3
    assert printed.count("x") == 255 + sum(line.count("x") for line in lines[:1])  # folded, not cut
    assert printed.count("漢") == 85 + 38


def _cells(line: str) -> int:
    return sum(1 + (c == "漢") for c in line)
