"""`rqttl peek` and `rqttl message show`: messages with their states, page by page, or one with all about it."""

import json
import re
from typing import Any

import pytest

from rqttl import Broker, Message, Queue
from rqttl.protocol import commands
from tests.cli.conftest import Run, check_golden
from tests.cli.processes import on_terminal
from tests.contract.clocked import Clocked
from tests.contract.looks import one
from tests.drivers import redis_of


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
    one(other).reject("no good")
    clocked.advance(184_000)
    return orders


@pytest.mark.parametrize("name, flags", [("peek.txt", ()), ("peek.json", ("--json",))])
def test_each_message_has_its_state(run_clocked: Run, mixed: Queue, name: str, flags: tuple[str, ...]) -> None:
    before = redis_of(mixed).hgetall("rqttl:{orders}:meta")

    result = run_clocked("peek", "orders", *flags)

    assert (result.exit_code, result.stderr) == (0, "")
    check_golden(name, result.stdout)
    assert redis_of(mixed).hgetall("rqttl:{orders}:meta") == before


def test_a_message_that_failed_says_why_below_its_body(run_clocked: Run, clocked: Clocked) -> None:
    orders = clocked.declare_queue("orders", redelivery_delay="10s")
    orders.enqueue_many([b"first", b"second"])
    one(orders).nack(description="ValueError: no\x1b[31m such " + "y" * 500)

    lines = run_clocked("peek", "orders").stdout.splitlines()

    assert ": delayed, 10s left" in lines[0]
    assert lines[1] == "  first"
    assert lines[2].startswith("  last failure: ValueError: no\\x1b[31m such yyy")
    assert lines[4:] == ["  second"]
    first, second = json.loads(run_clocked("peek", "orders", "--json").stdout)
    assert (first["description"][:15], second["description"]) == ("ValueError: no\x1b", None)


@pytest.mark.parametrize(
    "delay, state, noun", [(None, (), "messages"), ("1h", ("--state", "scheduled"), "scheduled messages")]
)
def test_pages_follow_each_other_and_a_note_says_how(
    run: Run, orders: Queue, delay: str | None, state: tuple[str, ...], noun: str
) -> None:
    orders.enqueue_many([Message(b"%d" % i, delay=delay) for i in range(5)])
    results: list[str] = []
    flags = [*state]

    for left in (3, 1, 0):
        result = run("peek", "orders", "--limit", "2", "--json", *flags)
        page = json.loads(result.stdout)
        results += [one["body"] for one in page]
        flags = [*state, "--after", page[-1]["sequence"]]
        assert result.stderr == (f"rqttl: there are more: --after {flags[-1]}\n" if left else "")

    assert results == ["0", "1", "2", "3", "4"]
    result = run("peek", "orders", *flags)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"rqttl: no more {noun} in orders\n")


def test_an_empty_queue_is_an_empty_answer_and_a_note(run: Run, orders: Queue) -> None:
    for flags, stdout in (((), ""), (("--json",), "[]\n")):
        result = run("peek", "orders", *flags)
        assert (result.exit_code, result.stdout, result.stderr) == (0, stdout, "rqttl: orders is empty\n")

    orders.enqueue(b"later", delay="1h")
    assert run("peek", "orders").stderr == "rqttl: orders has only 1 scheduled message: --state scheduled lists them\n"
    assert run("peek", "orders", "--state", "leased").stderr == "rqttl: no leased messages in orders\n"


@pytest.mark.slow
def test_the_list_fits_a_terminal_with_each_body_on_one_line(broker: Broker, redis_url: str) -> None:
    orders = broker.declare_queue("orders")
    ids = ["short", "漢" * 85, "x" * 255]
    orders.enqueue_many([Message(b"y" * 500, id=id, ttl="300w") for id in ids] + ["漢".encode() * 200, b""])
    orders.receive_many(2, lease="300w")

    printed = on_terminal("peek", "orders", "--url", redis_url, "--utc")

    lines = printed.split("\n")
    bodies = [line for line in lines if line.startswith(("  y", "  漢"))]
    assert [line[-1] for line in bodies] == ["…"] * 4
    assert max(map(_cells, bodies)) == 80
    assert printed.count("x") >= 255  # an id is not cut


def _cells(line: str) -> int:
    return sum(1 + (c == "漢") for c in line)


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
    delivery = one(orders)
    clocked.advance(5_000)
    delivery.reject("no good\x1b[31m: the customer is unknown, and so is the article; [bold]see the log[/bold]")
    clocked.advance(60_000)
    clocked.queue("late").sweep()
    one(dead, lease="1h")
    clocked.advance(184_000)
    return dead


@pytest.mark.parametrize("name, flags", [("message_utc.txt", ("--utc",)), ("message.json", ("--json",))])
def test_all_about_a_message(run_clocked: Run, dead: Queue, name: str, flags: tuple[str, ...]) -> None:
    result = run_clocked("message", "show", "dead", "order-17", *flags)

    assert (result.exit_code, result.stderr) == (0, "")
    check_golden(name, result.stdout)


def test_the_last_failure_of_a_message_is_escaped_and_cut(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x", id="one")
    delivery = one(orders)
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
    looked: list[int] = []
    peek = commands.peek

    def note(*words: Any, **how: Any) -> object:
        looked.append(how["limit"])
        return peek(*words, **how)

    shown = orders.peek()
    monkeypatch.setattr(commands, "peek", note)
    for view in shown:
        document = json.loads(run("message", "show", "orders", view.sequence, "--json").stdout)
        assert document["body"] == view.body.decode()
    assert looked == [1] * 10


def test_an_id_is_found_wherever_it_is_and_also_where_it_is_a_sequence_of_another_queue(
    run: Run, broker: Broker
) -> None:
    dead = broker.declare_queue("dead")
    orders = broker.declare_queue("orders", dead_letter="dead")
    dead.enqueue_many([b"x"] * 1_500)
    id = orders.enqueue(b"the one").id
    one(orders).reject()
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


def test_a_long_body_and_long_headers_are_cut_without_full(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x" * 99_999, id="one", headers={"h": "q" * 9_999})
    orders.enqueue(b"line\n" * 10_000, id="lines")

    short, full = (run("message", "show", "orders", "one", *flags).stdout for flags in ((), ("--full",)))
    lines = run("message", "show", "orders", "lines").stdout.splitlines()

    assert "x… (99,999 bytes)\n" in short
    assert "q… (9,999 characters)\n" in short
    assert (full.count("x") - short.count("x"), full.count("q") - short.count("q")) == (97_999, 7_999)
    assert (lines[-1], lines.count("  line")) == ("  … (50,000 bytes)", 400)


def test_raw_is_the_body_byte_for_byte(run: Run, orders: Queue) -> None:
    body = bytes(range(256)) * 1_000
    orders.enqueue_many([Message(body, id="one"), Message({"a": 1}, id="two")])

    assert run("message", "show", "orders", "one", "--raw").stdout_bytes == body
    assert run("message", "show", "orders", "two", "--raw").stdout_bytes == b"\x81\xa1a\x01"


def test_raw_goes_alone(run: Run, orders: Queue) -> None:
    result = run("message", "show", "orders", "one", "--raw", "--full")

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


# Acting on one


#: The words of a command, its verb and its participle, and the queue that has the messages then.
ACTIONS = {
    "delete": ((), "delete", "deleted", None),
    "expire": ((), "expire", "expired", "dead"),
    "dead-letter": (("--description", "poison"), "dead_letter", "dead_lettered", "dead"),
    "redeliver": ((), "redeliver", "redelivered", "orders"),
    "move": (("parked",), "move", "moved", "parked"),
}


@pytest.fixture
def delayed(broker: Broker) -> Queue:
    """A queue with two delayed messages of one id and a leased one, and queues for those that die or move."""
    orders = broker.declare_queue("orders", dead_letter="dead")
    for name in ("dead", "parked"):
        broker.declare_queue(name)
    broker.declare_queue("full", max_length=0, overflow="reject-publish")
    orders.enqueue_many([Message(b"1", id="dup"), Message(b"2", id="dup"), Message(b"3", id="held")])
    orders.nack_many(orders.receive_many(2), "1h")
    one(orders, lease="1h")
    return orders


@pytest.mark.spec("A-112", "A-114", "A-118", "A-120", "C-41", "WA-16")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_command_acts_on_all_messages_with_an_id_and_a_dry_run_on_none(
    run: Run, broker: Broker, delayed: Queue, action: str
) -> None:
    words, verb, done, goal = ACTIONS[action]
    line = ("message", action, "orders", "dup", *words)
    told = done.replace("_", "-")

    assert run(*line, "--dry-run").stdout == f"2 messages of orders would be {told}\n"
    dry = {"queue": "orders", "id": "dup", f"would_{verb}": 2}
    assert json.loads(run(*line, "--dry-run", "--json").stdout) == dry
    assert [one.state for one in delayed.peek()] == ["delayed", "delayed", "leased"]
    if verb in ("delete", "expire", "dead_letter"):
        assert "no terminal for the question: use --yes to go on" in run(*line).stderr
        assert [one.state for one in delayed.peek()] == ["delayed", "delayed", "leased"]
        line = (*line, "--yes")
    assert run(*line).stdout == f"2 messages of orders {told}\n"

    places = {name: [one.body for one in broker.queue(name).peek() if one.id == "dup"] for name in broker.queues()}
    assert {name: found for name, found in places.items() if found} == ({goal: [b"1", b"2"]} if goal else {})
    if action == "dead-letter":
        assert broker.queue("dead").peek()[0].deaths[0].description == "poison"
    if action != "redeliver":
        gone = run(*line, "--json")
        assert (gone.exit_code, json.loads(gone.stdout)) == (3, {"queue": "orders", "id": "dup", done: 0})
        assert "holds no message 'dup'" in gone.stderr


@pytest.mark.parametrize(
    "action, id, code, line",
    [
        *[
            ((action, *words), "held", 3, r"queue 'orders': .* its lease ends at [-\d]+ [:\d]+ UTC \[leased\]")
            for action, (words, *_) in ACTIONS.items()
        ],
        (("move", "orders"), "dup", 2, r"to: expected another queue than 'orders' \[invalid_input\]"),
        (("move", "none"), "dup", 3, r"queue 'none' does not exist: .* \[not_found\]"),
        (("move", "full"), "dup", 3, r"queue 'full' is full: --max-length is 0 \[queue_full\]"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    run: Run, delayed: Queue, action: tuple[str, ...], id: str, code: int, line: str
) -> None:
    for flags in ((), ("--dry-run",)):
        result = run("message", action[0], "orders", id, *action[1:], *flags)
        assert (result.exit_code, result.stdout) == (code, "")
        assert re.fullmatch(f"rqttl: {line}\n", result.stderr)
    assert [one.state for one in delayed.peek()] == ["delayed", "delayed", "leased"]
