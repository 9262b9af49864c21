"""Flags of `rqttl worker` as a user gives them: queues, formats of the log, exit codes with a pause."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from rqttl import Broker, Message, Queue
from tests.worker.conftest import Spawn
from tests.worker.processes import ids

pytestmark = [pytest.mark.slow, pytest.mark.once]


def test_names_and_patterns_are_consumed_in_their_order(spawn: Spawn, broker: Broker) -> None:
    for name in ("tenant.a", "mails", "orders", "other"):
        broker.declare_queue(name).enqueue(name)

    worker = spawn("orders mails tenant.* --processes 1 --burst", call="plain")

    assert worker.end() == 0, worker.log()
    assert ids(worker.journal("done")) == ["orders", "mails", "tenant.a"]
    assert "handling messages of orders, mails, tenant.*, 1 at a time" in worker.log()
    assert broker.queue("other").stats().ready == 1


def test_a_log_as_json_has_one_line_for_each_message(spawn: Spawn, queue: Queue) -> None:
    queue.enqueue_many([Message(word, id=word) for word in ("work", "retry", "fail")])

    worker = spawn("q --processes 1 --burst --retry-delay 1h --log-format json -v", call="by_word")

    assert worker.end() == 0
    lines = [json.loads(line) for line in worker.log().splitlines()]
    assert all({"time", "level", "event"} <= {*line} for line in lines)
    messages = {line["id"]: line for line in lines if line["event"] == "message"}
    assert len(messages) == sum(line["event"] == "message" for line in lines) == 3
    for line in messages.values():
        assert (line["queue"], line["delivery"]) == ("q", 1)
        assert isinstance(line["seconds"], float)
    assert [(messages[word]["outcome"], messages[word]["level"]) for word in ("work", "retry", "fail")] == [
        ("ack", "debug"),
        ("nack", "debug"),
        ("nack", "warning"),
    ]
    assert messages["retry"]["description"] == "later"
    assert "ValueError: broken" in messages["fail"]["traceback"]


@pytest.mark.parametrize(
    "code, outcome",
    [(75, "DEBUG queue q: message 1 failed, again in "), (1, "WARNING queue q: message 1 failed, again in ")],
)
def test_an_exit_code_that_asks_for_another_try_pauses_the_message(
    spawn: Spawn, broker: Broker, code: int, outcome: str
) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue("x", id="1")

    worker = spawn(
        "q --processes 1 --burst -v --retry-delay 1h --retry-max 1h --retry-jitter 0.5",
        "--exec",
        f"sh -c 'echo later >&2; exit {code}'",
    )

    assert worker.end() == 0, worker.log()
    [item] = queue.peek()
    assert (item.state, item.delivery_count) == ("delayed", 1)
    end = queue.stats().next_delay_end
    assert end is not None
    assert timedelta(minutes=25) < end - broker.server_time() <= timedelta(hours=1)
    assert outcome in worker.log()
