"""`rqttl message show`: one message, by its id or its sequence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rqttl import Broker, Message, Queue
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.processes import on_terminal
from tests.contract.clocked import Clocked


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


@pytest.fixture
def dead(clocked: Clocked) -> Queue:
    """A letter that died twice, and is leased now."""
    dead = clocked.declare_queue("dead", message_ttl="7d")
    clocked.declare_queue("late", dead_letter="dead", message_ttl="1m")
    orders = clocked.declare_queue("orders", dead_letter="late")
    orders.enqueue(
        b"first line\r\nsecond\tline \x1b[31m\n\n[/x] end\n",
        id="order-17",
        headers={"region": "eu", "trace": b"\xff", "n\n": 1.5, "none": None},
        content_type="text/plain",
    )
    delivery = orders.receive()
    assert delivery is not None
    clocked.advance(5_000)
    delivery.reject("no good\x1b[31m: the customer is unknown, and so is the article; [bold]see the log[/bold]")
    clocked.advance(60_000)
    clocked.queue("late").sweep()
    assert dead.receive(lease="1h") is not None
    clocked.advance(184_000)
    return dead


@pytest.mark.parametrize(
    "name, flags", [("message.txt", ()), ("message_utc.txt", ("--utc",)), ("message.json", ("--json",))]
)
def test_all_about_a_message(run_clocked: Run, dead: Queue, name: str, flags: tuple[str, ...]) -> None:
    result = run_clocked("message", "show", "dead", "order-17", *flags)

    assert (result.exit_code, result.stderr) == (0, "")
    golden.check(name, result.stdout)


def test_a_plain_message_has_nothing_more_to_say(run_clocked: Run, clocked: Clocked) -> None:
    clocked.declare_queue("orders").enqueue(b"")

    golden.check("message_plain.txt", run_clocked("message", "show", "orders", "1700000000000-100000").stdout)


def test_the_last_failure_of_a_message_is_escaped_and_cut(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x", id="one")
    delivery = orders.receive()
    assert delivery is not None
    assert "last failure" not in run("message", "show", "orders", "one").stdout
    delivery.nack("1h", "ValueError: \x1b[31mno\n" + "y" * 3_000)

    short, full = (run("message", "show", "orders", "one", *flags).stdout for flags in ((), ("--full",)))

    assert "last failure  ValueError: \\x1b[31mno\\ny" in short
    assert "… (3,020 characters)" in short
    assert (short.count("y"), full.count("y")) == (short.count("y"), short.count("y") + 1_020)
    assert json.loads(run("message", "show", "orders", "one", "--json").stdout)["description"].startswith(
        "ValueError: "
    )


def test_a_message_is_read_by_its_sequence_without_a_search(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.enqueue_many([b"%d" % i for i in range(10)])
    looked: list[Any] = []
    peek = Queue.peek

    def note(queue: Queue, limit: int = 20, after: str | None = None) -> object:
        looked.append((limit, after))
        return peek(queue, limit, after)

    monkeypatch.setattr(Queue, "peek", note)
    for one in peek(orders):
        assert json.loads(run("message", "show", "orders", one.sequence, "--json").stdout)["body"] == one.body.decode()
    assert {limit for limit, _ in looked} == {1}


def test_the_first_possible_sequence_is_no_special_case(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x")

    assert run("message", "show", "orders", "0000000000000-000000").exit_code == 3


def test_an_id_is_found_wherever_it_is_and_also_where_it_is_a_sequence_of_another_queue(
    run: Run, broker: Broker
) -> None:
    dead = broker.declare_queue("dead")
    orders = broker.declare_queue("orders", dead_letter="dead")
    dead.enqueue_many([b"x"] * 1_500)
    id = orders.enqueue(b"the one").id
    delivery = orders.receive()
    assert delivery is not None
    delivery.reject()
    dead.enqueue_many([b"x"] * 10)

    assert json.loads(run("message", "show", "dead", id, "--json").stdout)["body"] == "the one"


def test_an_id_that_several_have_is_refused_with_their_sequences(run: Run, orders: Queue) -> None:
    orders.enqueue_many([Message(b"%d" % i, id="dup") for i in range(7)])
    sequences = [one.sequence for one in orders.peek()]

    result = run("message", "show", "orders", "dup")

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        f"rqttl: 7 messages have the id 'dup'; name one by its sequence: {', '.join(sequences[:5])}, … [ambiguous]\n"
    )
    assert json.loads(run("message", "show", "orders", sequences[3], "--json").stdout)["body"] == "3"


@pytest.mark.parametrize("id", ["nope", "1700000000000-100000"])
def test_a_missing_message_is_refused(run: Run, orders: Queue, id: str) -> None:
    result = run("message", "show", "orders", id)

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.endswith("`rqttl peek orders` shows those it holds [not_found]\n")
    assert result.stderr.removesuffix("\n").isprintable()


@pytest.mark.parametrize("id", ["", "\x1b[31m", "x" * 256])
def test_an_id_that_no_message_can_have_is_wrong_usage(run: Run, orders: Queue, id: str) -> None:
    result = run("message", "show", "orders", id)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "expected 1 to 255 bytes of printable text" in result.stderr
    assert result.stderr.removesuffix("\n").isprintable()


def test_a_missing_queue_is_refused(run: Run) -> None:
    assert run("message", "show", "nothing", "x").exit_code == 3


def test_a_long_body_and_long_headers_are_cut_without_full(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x" * 99_999, id="one", headers={"h": "q" * 9_999})

    short, full = (
        run("message", "show", "orders", "one").stdout,
        run("message", "show", "orders", "one", "--full").stdout,
    )

    assert "x… (99,999 bytes)\n" in short
    assert "q… (9,999 characters)\n" in short
    assert (full.count("x") - short.count("x"), full.count("q") - short.count("q")) == (97_999, 7_999)


def test_a_long_body_of_many_lines_is_cut_too(run: Run, orders: Queue) -> None:
    orders.enqueue(b"line\n" * 10_000, id="one")

    lines = run("message", "show", "orders", "one").stdout.splitlines()

    assert lines[-1] == "  … (50,000 bytes)"
    assert lines.count("  line") == 400
    assert run("message", "show", "orders", "one", "--full").stdout.splitlines().count("  line") == 10_000


def test_raw_is_the_body_byte_for_byte(run: Run, orders: Queue) -> None:
    body = bytes(range(256)) * 1_000
    orders.enqueue_many([Message(body, id="one"), Message({"a": 1}, id="two")])

    assert run("message", "show", "orders", "one", "--raw").stdout_bytes == body
    assert run("message", "show", "orders", "two", "--raw").stdout_bytes == b"\x81\xa1a\x01"


@pytest.mark.parametrize("flag", ["--json", "--full", "--utc"])
def test_raw_goes_alone(run: Run, orders: Queue, flag: str) -> None:
    result = run("message", "show", "orders", "one", "--raw", flag)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--raw writes only the body" in result.stderr


@pytest.mark.slow
def test_raw_does_not_go_to_a_terminal(orders: Queue, redis_url: str) -> None:
    orders.enqueue(b"\x1b]52;c;x\x07", id="one")

    printed = on_terminal("message", "show", "orders", "one", "--raw", "--url", redis_url)

    assert printed.startswith("rqttl: --raw would let the body act on this terminal")
    assert printed.count("\n") == 2  # folded


@pytest.mark.slow
def test_a_message_fits_a_terminal_and_lines_of_its_body_are_indented(orders: Queue, redis_url: str) -> None:
    orders.enqueue(("漢" * 300 + "\nstate   ready\n").encode(), id="漢" * 85, headers={"z" * 300: "q" * 300})

    printed = on_terminal("message", "show", "orders", "漢" * 85, "--url", redis_url)

    lines = printed.split("\n")
    assert max(sum(1 + (c == "漢") for c in line) for line in lines) <= 80
    assert [printed.count(c) for c in "漢zq"] == [385, 301, 303]  # folded, not cut; the rest is ours
    assert [line for line in lines if line.endswith("state   ready")] == ["  state   ready"]
