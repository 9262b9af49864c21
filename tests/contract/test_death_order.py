"""Messages expire in the order of their deadlines, for any number of them, in every command that meets them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rqttl import Message, Queue
from tests.contract.clocked import START, Clocked, ms
from tests.contract.looks import one, take


def order(clocked: Clocked) -> list[int]:
    """The deadlines that the letters in `d` name, in ms after the start, in the order in which they died."""
    letters: list[int] = []
    while some := take(clocked.queue("d")):
        for letter in some:
            ends = letter.deaths[0].expires_at
            assert ends is not None
            letters.append(round(ends.timestamp() * 1000) - START)
    return letters


def send(queue: Queue, ttls: list[int]) -> None:
    queue.enqueue_many([Message(b"%d" % ttl, ttl=ms(ttl)) for ttl in ttls])


SHUFFLED = random.Random(7).sample(range(1, 2_001), 900)


@pytest.mark.parametrize("options", [{}, {"message_ttl": "700ms"}, {"max_length": 10_000}], ids=str)
def test_900_messages_die_in_the_order_of_their_deadlines_across_steps(
    clocked: Clocked, options: dict[str, Any]
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", **options)
    for start in range(0, 900, 100):
        send(queue, SHUFFLED[start : start + 100])
        clocked.advance(1)
    clocked.advance(5_000)

    queue.sweep()

    died = order(clocked)
    assert (len(died), died) == (900, sorted(died))


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("options", [{}, {"message_ttl": "1500ms"}], ids=str)
def test_a_receive_that_meets_overdue_messages_keeps_the_order_of_their_deaths(
    clocked: Clocked, options: dict[str, Any], count: int
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", **options)
    send(queue, SHUFFLED)
    clocked.advance(1_500)
    queue.enqueue_many([b"alive"] * 100)
    clocked.advance(600)

    while got := queue.receive_many(count):
        assert {delivery.body for delivery in got} == {b"alive"}
        queue.ack_many(got)

    queue.sweep()
    died = order(clocked)
    assert (len(died), died) == (900, sorted(died))


def test_a_living_message_behind_overdue_ones_comes_with_the_first_receive(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    send(queue, list(range(1_000, 0, -1)))
    queue.enqueue(b"alive")
    clocked.advance(1_000)

    assert one(queue).body == b"alive"
    queue.sweep()
    assert order(clocked) == list(range(1, 1_001))


def test_delayed_messages_die_between_the_others(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    send(queue, SHUFFLED)
    for held in (queue.receive_many(250), queue.receive_many(50)):
        queue.nack_many(held, "1h")
    clocked.advance(2_001)

    queue.sweep()

    assert order(clocked) == sorted(SHUFFLED)


def test_many_delayed_messages_die_in_order_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", message_ttl="1500ms")
    send(queue, SHUFFLED)
    for _ in range(3):
        queue.nack_many(queue.receive_many(250), "1h")
    clocked.advance(2_001)

    queue.sweep()

    died = order(clocked)
    assert (len(died), died) == (900, sorted(died))


def test_a_delay_that_ended_before_the_deadline_changes_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    send(queue, [400, 100, 300, 200])
    queue.nack_many(queue.receive_many(3), "50ms")
    clocked.advance(500)

    queue.sweep()

    assert order(clocked) == [100, 200, 300, 400]


def test_leased_messages_that_come_back_too_late_die_in_order_among_each_other(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    send(queue, SHUFFLED[:200])
    held = queue.receive_many(100, lease="1h")
    queue.receive_many(100, lease="2500ms")
    clocked.advance(2_500)

    queue.nack_many(held)
    given_back = order(clocked)
    queue.sweep()

    assert given_back == sorted(SHUFFLED[:100])
    assert order(clocked) == sorted(SHUFFLED[100:200])


def test_an_enqueue_that_needs_room_keeps_the_order(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", max_length=900, message_ttl="1200ms")
    send(queue, SHUFFLED)
    clocked.advance(2_001)

    queue.enqueue(b"x")
    queue.sweep()

    died = order(clocked)
    assert (len(died), died) == (900, sorted(died))
