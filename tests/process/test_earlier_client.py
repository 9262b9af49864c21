"""A client of an earlier revision and one of now on one queue: scheduled messages."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import rqttl
from rqttl.protocol.codec import unpack
from tests.bench.instructions import check_out

pytestmark = pytest.mark.once

#: The last revision whose `scheduled_ids` has all first sequences of an id.
EARLIER = "14b3b6cc"
#: Calls methods of a queue, a line of JSON each.
CLIENT = """
import json, sys, rqttl
queue = rqttl.connect(sys.argv[1]).declare_queue("q")
for line in sys.stdin:
    method, words, named = json.loads(line)
    print(json.dumps(getattr(queue, method)(*words, **named), default=str), flush=True)
"""
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def earlier_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return check_out(EARLIER, tmp_path_factory.mktemp("earlier") / "tree")


@pytest.fixture
def earlier(earlier_tree: Path, redis_url: str) -> Iterator[Call]:
    """Calls a method of the queue with the code of then."""
    command, environment = [sys.executable, "-c", CLIENT, redis_url], {**os.environ, "PYTHONPATH": str(earlier_tree)}
    with (
        subprocess.Popen(
            command, cwd=earlier_tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        closing(process.stdin),  # type: ignore[type-var]  # there is one
    ):

        def call(method: str, *words: object, **named: object) -> Any:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps([method, words, named]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield call


def test_both_schedule_cancel_and_reschedule_the_messages_of_each_other(
    earlier: Call, broker: rqttl.Broker, client: redis.Redis
) -> None:
    queue, chance = broker.declare_queue("q"), random.Random(38)
    clients: list[Call] = [earlier, lambda method, *words, **named: getattr(queue, method)(*words, **named)]
    waiting: dict[str, list[int]] = {id: [] for id in ("a", "a1", ";1;;a", "b")}
    arrived: list[int] = []
    for number in range(400):
        call, id = chance.choice(clients), chance.choice([*waiting])
        what = chance.choice(("schedule", "schedule", "schedule", "cancel", "reschedule", "arrive"))
        if what == "schedule" and len(waiting[id]) < 24:
            call("enqueue", number, id=id, delay="1h")
            waiting[id].append(number)
        elif what == "cancel":
            assert call("cancel", id) == len(waiting[id])
            waiting[id] = []
        elif what == "reschedule":
            assert call("reschedule", id, delay="2h") == len(waiting[id])
        elif what == "arrive":
            assert call("reschedule", id, delay=0) == len(waiting[id])
            arrived += waiting[id]
            waiting[id] = []

    assert sorted(one.decode() for one in queue.receive_many(1_000)) == sorted(arrived)
    left = sorted(number for numbers in waiting.values() for number in numbers)
    assert sorted(unpack(one.body) for one in queue.scheduled(1_000)) == left
    assert sum(earlier("cancel", id) for id in waiting) == len(left)
    assert not [key for key in client.keys("*{q}*") if b":scheduled" in key or b":upcoming" in key]


def test_more_messages_with_one_id_than_a_list_holds(earlier: Call, broker: rqttl.Broker) -> None:
    queue = broker.declare_queue("q")

    for call in (earlier, lambda *words, **named: queue.cancel("me")):
        queue.enqueue_many([rqttl.Message(i, id="me", delay="1h") for i in range(60)])
        done = call("cancel", "me")
        assert (done, queue.cancel("me")) == ((24, 36) if call is earlier else (60, 0))
    for _ in range(60):
        earlier("enqueue", 1, id="me", delay="1h")
    assert (queue.reschedule("me", delay="2h"), queue.cancel("me"), earlier("cancel", "me")) == (60, 60, 0)
    queue.enqueue_many([rqttl.Message(i, id="me", delay="1h") for i in range(60)])
    for message in queue.scheduled(60):
        assert earlier("reschedule", message.sequence, delay=0) == 1  # it lets the message arrive
    assert (queue.stats().ready, queue.cancel("me"), earlier("cancel", "me")) == (60, 0, 0)
