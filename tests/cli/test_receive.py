"""`rqttl receive`: printed messages are acked, and no others."""

import json
import logging
import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from rqttl import CommandEvent, Message, Queue, Worker
from tests.cli.conftest import Run, check_golden
from tests.contract.clocked import Clocked
from tests.drivers import broker_of


def test_the_oldest_message_is_printed_and_acked(run: Run, orders: Queue) -> None:
    orders.enqueue_many([b"a", b"b"])

    result = run("receive", "orders")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "a\n", "")
    stats = orders.stats()
    assert (stats.ready, stats.leased, stats.acked) == (1, 0, 1)


@pytest.mark.parametrize("words", ["news", "orders news", "orders news --weights 1,1", "orders news --follow"])
def test_a_topic_is_told_as_one_before_a_message_is_taken(run: Run, orders: Queue, words: str) -> None:
    broker_of(orders).declare_topic("news").subscribe("eu")
    orders.enqueue(b"x")
    expected = "queue 'news' is a topic, which passes its messages on: receive from the queues that are bound to it:"
    result = run("receive", *words.split())
    assert (result.exit_code, result.stdout, expected in result.stderr) == (3, "", True), result.stderr
    assert orders.stats().delivered == 0


def test_of_several_queues_the_first_comes_first_or_each_its_share(run: Run, orders: Queue) -> None:
    mails = broker_of(orders).declare_queue("mails")
    for weights, expected in (((), "o o o o m m"), (("--weights", "1,2"), "o o m m m m")):
        orders.enqueue_many([b"o"] * 4)
        mails.enqueue_many([b"m"] * 4)

        printed = run("receive", "orders", "mails", "--max", "6", *weights)

        assert (printed.exit_code, " ".join(printed.stdout.split())) == (0, expected)
        assert orders.purge() + mails.purge() == 2
    line = run("receive", "orders", "mails", "--wait", "10ms")
    assert line.stderr == "rqttl: nothing is ready in orders, mails\n"


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (("missing",), 3, "queue 'missing' does not exist"),
        (("--weights", "1,1"), 2, "--weights: expected a number from 1 to 1000000 for each queue"),
        (("mails", "--weights", "1"), 2, "for each queue, such as 3,1, got"),
        (("mails", "--weights", "1,0"), 2, "for each queue, such as 3,1, got"),
    ],
)
def test_missing_queues_and_wrong_weights_are_refused(
    run: Run, orders: Queue, arguments: tuple[str, ...], code: int, words: str
) -> None:
    orders.enqueue(b"x")

    result = run("receive", "orders", *arguments)

    assert (result.exit_code, result.stdout, orders.stats().ready) == (code, "", 1)
    assert words in result.stderr


@pytest.mark.parametrize("most, left", [("3", 2), ("5", 0), ("99", 0), ("0", 0)])
def test_up_to_max_messages_are_printed(run: Run, orders: Queue, most: str, left: int) -> None:
    orders.enqueue_many([b"%d" % i for i in range(5)])

    result = run("receive", "orders", "--max", most)

    assert result.stdout.split() == ["0", "1", "2", "3", "4"][: 5 - left]
    assert (orders.stats().ready, orders.stats().leased) == (left, 0)


def test_more_than_one_batch_is_printed_in_order(run: Run, orders: Queue) -> None:
    orders.enqueue_many([b"%d" % i for i in range(333)])

    assert run("receive", "orders", "--max", "250").stdout.split() == [str(i) for i in range(250)]
    assert run("receive", "orders", "--max", "0").stdout.split() == [str(i) for i in range(250, 333)]


def test_an_empty_queue_is_an_empty_answer_and_a_note(run: Run, orders: Queue) -> None:
    result = run("receive", "orders", "--wait", "10ms")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "rqttl: nothing is ready in orders\n")


@pytest.mark.parametrize(
    "options, why",
    [
        ({"paused": True}, "paused"),
        ({"max_leased": 1, "lease": "1h"}, r"at its max_leased of 1: the next lease ends in (1h|59m \d+s)"),
        ({"rate": "1/1h"}, r"held by its rate: the next message may go in (1h|59m \d+s)"),
    ],
)
def test_a_queue_that_holds_its_messages_back_says_why_and_until_when(
    run: Run, orders: Queue, caplog: pytest.LogCaptureFixture, options: dict[str, Any], why: str
) -> None:
    orders.enqueue_many([b"1", b"2", b"3"])
    orders.update(**options)
    left = 3 - len(orders.receive_many(1))

    result = run("receive", "orders", "--max", "0")
    with caplog.at_level(logging.INFO, "rqttl.worker"):
        Worker(broker_of(orders), "orders", call=print, processes=0, burst=True).run()

    said = f"orders has {left} ready messages, but is {why}"
    assert (result.exit_code, result.stdout) == (0, "")
    assert re.fullmatch(f"rqttl: {said}\n", result.stderr)
    assert [text for text in caplog.messages if re.fullmatch(f"the worker ends: {said}", text)]


def test_bodies_go_into_a_pipe_as_they_are(run: Run, orders: Queue) -> None:
    body = bytes(range(256))
    orders.enqueue_many([body, {"a": 1}])

    assert run("receive", "orders").stdout_bytes == body + b"\n"
    assert run("receive", "orders").stdout_bytes == b"\x81\xa1a\x01\n"


def test_a_lease_that_ended_before_the_message_was_written_is_an_error(run_clocked: Run, clocked: Clocked) -> None:
    orders = clocked.declare_queue("orders", lease="10s")
    orders.enqueue(b"a")

    def let_it_end(event: CommandEvent) -> None:
        if event.name == "receive":
            clocked.advance(10_000)
            clocked.events.unsubscribe(let_it_end)

    clocked.events.subscribe(let_it_end, CommandEvent)
    result = run_clocked("receive", "orders")

    assert (result.exit_code, result.stdout) == (3, "a\n")
    assert result.stderr == (
        "rqttl: 1 lease of orders ended before the messages were written; they come again [lease_lost]\n"
    )
    (again,) = orders.receive_many(10)
    assert again.delivery_count == 2


def test_a_lease_of_ones_own_is_asked_for(run: Run, orders: Queue) -> None:
    orders.enqueue(b"a")
    result = run("receive", "orders", "--lease", "1h", "--json")

    leased = datetime.fromisoformat(json.loads(result.stdout)["leased_until"])
    assert leased - broker_of(orders).server_time() > timedelta(minutes=50)
    assert orders.stats().acked == 1


def test_json_is_what_it_was(run_clocked: Run, clocked: Clocked) -> None:
    orders = clocked.declare_queue("orders")
    orders.enqueue_many([Message({"a": [1.5, "é"]}, ttl="1m", headers={"h": True}, id="one"), b"\xff"])

    check_golden("receive.json", run_clocked("receive", "orders", "--max", "0", "--json").stdout)


@pytest.mark.parametrize(
    "flags, expected",
    [
        (("--follow", "--wait", "0s"), "--follow and --wait exclude each other"),
        (("--lease", "0s"), "--lease: expected 1 to"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage_and_nothing_is_received(
    run: Run, orders: Queue, flags: tuple[str, ...], expected: str
) -> None:
    orders.enqueue(b"a")

    result = run("receive", "orders", *flags)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"rqttl: {expected}")
    assert orders.stats().delivered == 0


def test_following_goes_on_until_max(run: Run, orders: Queue) -> None:
    orders.enqueue_many([b"a", b"b", b"c"])

    result = run("receive", "orders", "--follow", "--max", "2")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "a\nb\n", "")
    assert (orders.stats().ready, orders.stats().leased) == (1, 0)
