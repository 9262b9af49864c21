"""`rqttl receive`: what is printed is acked, and nothing else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rqttl import Broker, Queue
from tests.cli.conftest import Run
from tests.cli.processes import PATIENCE, command


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


def test_the_oldest_message_is_printed_and_acked(run: Run, orders: Queue) -> None:
    orders.enqueue_many([b"a", b"b"])

    result = run("receive", "orders")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "a\n", "")
    stats = orders.stats()
    assert (stats.ready, stats.leased, stats.acked) == (1, 0, 1)


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


def test_bodies_go_into_a_pipe_as_they_are(run: Run, orders: Queue) -> None:
    body = bytes(range(256))
    orders.enqueue_many([body, {"a": 1}])

    assert run("receive", "orders").stdout_bytes == body + b"\n"
    assert run("receive", "orders").stdout_bytes == b"\x81\xa1a\x01\n"


@pytest.mark.parametrize("flags", [("--format", "json"), ("--json",)])
def test_json_tells_all_about_a_message(run: Run, broker: Broker, flags: tuple[str, ...]) -> None:
    orders = broker.declare_queue("orders", dead_letter="dead")
    orders.enqueue(b"x\x1b\x7f\xc2\x9b", headers={"region": "eu", "raw": b"\xff"}, id="one")
    delivery = orders.receive()
    assert delivery is not None
    delivery.reject("no good")

    printed = run("receive", "dead", *flags).stdout

    assert printed.removesuffix("\n").isprintable()
    told = json.loads(printed)
    assert (told["id"], told["queue"], told["body"], told["delivery_count"]) == ("one", "dead", "x\x1b\x7f\x9b", 1)
    assert told["headers"] == {"region": "eu", "raw": "\\xff"}
    assert told["expires_at"] is None
    (death,) = told["deaths"]
    assert (death["queue"], death["reason"], death["count"], death["description"]) == (
        "orders",
        "rejected",
        1,
        "no good",
    )


def test_json_shows_values_as_values_and_bytes_that_are_no_text_in_base64(run: Run, orders: Queue) -> None:
    orders.enqueue_many([{"a": [1, None, "é"]}, b"\xff\x00"])

    lines = run("receive", "orders", "--max", "2", "--json").stdout.splitlines()

    assert json.loads(lines[0])["body"] == {"a": [1, None, "é"]}
    assert json.loads(lines[1])["body_base64"] == "/wA="


def test_auto_ack_removes_messages(run: Run, orders: Queue) -> None:
    orders.enqueue_many([b"a", b"b", b"c"])

    assert run("receive", "orders", "--auto-ack", "--max", "2").stdout == "a\nb\n"
    assert orders.stats().ready == 1


def test_a_lease_that_ended_before_the_message_was_printed_is_told(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.enqueue(b"a")
    taken = Queue.receive_many

    def slow(*arguments: object, **options: object) -> object:
        batch = taken(*arguments, **options)  # type: ignore[arg-type]  # whatever the command gives
        for one in batch:
            one.token = b"%d" % (int(one.token) - 1)  # nobody's lease any more
        return batch

    monkeypatch.setattr(Queue, "receive_many", slow)
    result = run("receive", "orders")

    assert (result.exit_code, result.stdout) == (3, "a\n")
    assert result.stderr == "rqttl: 1 lease of orders ended before the messages were printed; they come again\n"


@pytest.mark.slow
def test_a_message_that_comes_while_waiting_is_printed(broker: Broker, orders: Queue, redis_url: str) -> None:
    with subprocess.Popen(
        command("receive", "orders", "--wait", "60s", "--url", redis_url), stdout=subprocess.PIPE
    ) as process:
        orders.enqueue(b"late")

        told = process.communicate(timeout=PATIENCE)[0]

    assert (process.returncode, told) == (0, b"late\n")


@pytest.mark.slow
def test_an_output_that_cannot_be_written_leaves_the_message_in_the_queue(orders: Queue, redis_url: str) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("the system has no /dev/full")
    orders.enqueue(b"kept")

    with full.open("wb") as out:
        done = subprocess.run(
            command("receive", "orders", "--url", redis_url), stdout=out, stderr=subprocess.PIPE, check=False
        )

    assert (done.returncode, done.stderr) == (3, b"rqttl: cannot go on: No space left on device\n")
    assert orders.stats().ready == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["body", "json"])
def test_a_reader_that_goes_away_leaves_what_was_not_written_in_the_queue(
    orders: Queue, redis_url: str, form: str
) -> None:
    sent = [b"%06d" % i + b"x" * 10_000 for i in range(300)]
    orders.enqueue_many(sent)

    with subprocess.Popen(
        command("receive", "orders", "--max", "0", "--format", form, "--url", redis_url),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        process.wait(PATIENCE)
        noted = process.stderr.read()

    assert b"000000" in first
    assert (process.returncode, noted) == (0, b"")
    stats = orders.stats()
    assert (stats.leased, stats.ready + stats.acked) == (0, len(sent))
    assert 1 <= stats.acked < len(sent)
    left = orders.receive_many(1000)
    assert [one.body for one in left] == sent[stats.acked :]
    assert {one.delivery_count for one in left} == {1}
