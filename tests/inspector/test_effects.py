"""What a redrive would do, against what it does."""

from typing import Any

import pytest

from rqttl import Broker
from rqttl.inspector import effects
from rqttl.inspector.dead_letters import DeadLetterFilter, DeadLetters

FULL = "left alone: q has no room (--max-length)"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"max_length": 2, "overflow": "reject-publish"}, [f"1 dead letter {FULL}"]),
        ({"max_length": 0, "overflow": "reject-publish-dlx"}, [f"3 dead letters {FULL}"]),
        ({"max_length_bytes": 9, "overflow": "reject-publish"}, []),
        ({"max_length": 2}, ["q has no room for all: a limit pushes its oldest messages out"]),
        ({"rate": "5/s"}, ["q gives them to consumers by its rate, 5/1s"]),
        ({"paused": True}, ["q is paused: they wait there"]),
    ],
)
def test_the_forecast_of_a_redrive_is_what_happens(broker: Broker, options: dict[str, Any], words: list[str]) -> None:
    queue, dead = broker.declare_queue("q", dead_letter_rejected="dead"), broker.declare_queue("dead")
    queue.enqueue_many([b"abc"] * 3)
    queue.reject_many(queue.receive_many(3))
    queue.update(**options)
    letters = DeadLetters(dead, DeadLetterFilter(), broker.server_time())
    assert list(letters.select()) == [3]

    number, lines = effects.forecast(broker, "dead", letters.groups.ordered())

    assert lines == words
    assert list(letters.redrive()) == [3]
    assert letters.done == number
    assert [line for line in lines if "left alone" in line] == effects.stayed(letters.stayed)[0]


def test_a_limit_in_bytes_leaves_open_how_many_stay(broker: Broker) -> None:
    queue = broker.declare_queue("q", dead_letter_rejected="dead", max_length_bytes=7, overflow="reject-publish")
    queue.enqueue_many([b"abc"] * 2)
    queue.reject_many(queue.receive_many(2))
    queue.enqueue(b"abc")
    letters = DeadLetters(broker.queue("dead"), DeadLetterFilter(), broker.server_time())
    assert list(letters.select()) == [2]

    assert effects.forecast(broker, "dead", letters.groups.ordered()) == (2, ["q has room for 4 B: some may stay"])
    assert effects.forecast(broker, "dead", letters.groups.ordered(), "dead")[0] == 0
    assert effects.forecast(broker, "dead", letters.groups.ordered(), "none")[0] == 0
