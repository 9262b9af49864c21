"""`rqttl send` says which of the stored messages were dead on arrival."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rqttl import Broker, Queue
from tests.cli.conftest import Run

PAST = "2020-01-01 00:00Z"


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return broker.declare_queue("orders")


@pytest.mark.parametrize("flags", [("--expires-at", PAST), ("--ttl", "0"), ("--ttl", "0s")], ids=str)
def test_a_message_that_is_dead_on_arrival_is_counted(run: Run, orders: Queue, flags: tuple[str, str]) -> None:
    result = run("send", "orders", "x", *flags)

    assert (result.exit_code, result.stdout) == (0, "stored 1 message in orders, already expired\n")
    assert orders.peek() == []


def test_of_many_messages_the_expired_ones_are_counted(run: Run, orders: Queue) -> None:
    lines = [{"body": "x", "expires_at": PAST if i % 500 == 0 else None} for i in range(2_000)]

    result = run("send", "orders", "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())

    assert result.stdout == "stored 2,000 messages in orders, 4 of them already expired\n"
    assert orders.stats().deaths["expired"] == 4


def test_expired_messages_are_counted_beside_duplicates_and_refusals(run: Run, broker: Broker) -> None:
    broker.declare_queue("full", max_length=1, overflow="reject-publish", duplicate_window="1h")
    lines = [{"body": "1", "id": "a"}, {"body": "2", "id": "a"}, {"body": "3", "ttl": 0}, {"body": "4"}]

    result = run("send", "full", "--format", "json", stdin="\n".join(map(json.dumps, lines)).encode())

    assert result.stdout == (
        "stored 2 messages in full, 1 of them already expired, 1 duplicate left out; refused 1 (--max-length is 1)\n"
    )


def test_json_counts_the_expired_ones(run: Run, orders: Queue) -> None:
    expired = json.loads(run("send", "orders", "a", "b", "--ttl", "0", "--json").stdout)
    lives = json.loads(run("send", "orders", "a", "--ttl", "1h", "--json").stdout)

    assert (expired["stored"], expired["expired"], len(expired["ids"])) == (2, 2, 2)
    assert (lives["stored"], lives["expired"]) == (1, 0)


def test_a_file_is_sent_to_its_end_also_with_expired_messages(run: Run, orders: Queue, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x\n" * 1_000)

    result = run("send", "orders", "--file", str(tmp_path / "lines"), "--expires-at", PAST)

    assert result.stdout == "stored 1,000 messages in orders, 1,000 of them already expired\n"
