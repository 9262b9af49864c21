"""Redriving: dead letters go back to where they died, in one step, and everything that holds for arriving messages."""

from typing import Any

import pytest

from rqttl import InvalidInput, Message, QueueNotFound, RedriveResult
from rqttl.inspector.dead_letters import DeadLetterFilter, DeadLetters
from rqttl.testing.fake import ClockedBroker
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import bodies, dead, dropped, letters, one, places, ready, taken


@pytest.mark.spec("A-115")
def test_letters_go_back_in_order_to_the_end_of_the_queue_where_they_died(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"1", b"2", b"3")
    queue.enqueue(b"new")

    assert dead_ones.redrive() == 3

    assert bodies(dead_ones) == []
    assert taken(queue) == [b"new", b"1", b"2", b"3"]
    assert dead_ones.redrive() == 0


def test_a_letter_keeps_its_id_its_headers_its_type_and_its_deaths(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, Message({"n": 1}, id="mine", headers={"region": "eu"}))
    (before,) = dead_ones.peek()
    clocked.advance(5)

    assert dead_ones.redrive() == 1

    delivery = one(queue)
    assert (delivery.id, delivery.headers, delivery.decode()) == ("mine", {"region": "eu"}, {"n": 1})
    assert delivery.deaths == before.deaths
    assert [death.reason for death in delivery.deaths] == ["rejected"]
    assert (delivery.delivery_count, delivery.enqueued_at) == (1, at(5))


def test_letters_of_one_error_go_back_as_the_selection_says_and_no_others(clocked: Clocked) -> None:
    queue, dead_ones = clocked.declare_queue("q", dead_letter="d"), clocked.queue("d")
    queue.enqueue_many([b"1", b"2", b"3"])
    for delivery, why in zip(queue.receive_many(3), ("E: 17", "E: 18", "F"), strict=True):
        delivery.reject(why)

    chosen = DeadLetters(dead_ones, DeadLetterFilter(error="E: …"), clocked.server_time())
    assert (sum(chosen.select()), chosen.left, len(bodies(dead_ones))) == (3, 2, 3)

    assert sum(chosen.redrive()) == 2
    assert (taken(queue), bodies(dead_ones)) == ([b"1", b"2"], [b"3"])


@pytest.mark.spec("A-117")
@pytest.mark.parametrize(
    "options, ends",
    [
        ({"message_ttl": "70ms"}, 75),
        ({"default_ttl": "60ms"}, 65),
        ({"max_ttl": "50ms"}, 55),
        ({"min_ttl": "40ms"}, 45),
        ({}, None),
    ],
)
def test_the_ttl_rules_of_its_queue_act_as_for_a_message_without_a_ttl(
    clocked: Clocked, options: dict[str, Any], ends: int | None
) -> None:
    queue, dead_ones = letters(clocked, b"x", **options)
    clocked.advance(5)

    dead_ones.redrive()

    (message,) = queue.peek()
    assert message.expires_at == (None if ends is None else at(ends))
    if ends is not None:
        clocked.go_to(ends)
        assert queue.receive() is None
        assert [death.reason for death in one(dead_ones).deaths] == ["expired", "rejected"]


def test_a_redriven_letter_with_ttl_0_dies_again_at_once_and_the_call_ends(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"x", b"y")
    queue.update(default_ttl=0)

    assert dead_ones.redrive() == 2

    assert bodies(queue) == []
    assert bodies(dead_ones) == [b"x", b"y"]
    assert [(death.reason, death.count) for death in dead_ones.peek()[0].deaths] == [("expired", 1), ("rejected", 1)]
    assert (queue.stats().enqueued, dead_ones.stats().redriven) == (4, 2)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_letter_without_room_stays_where_it_is_and_dies_no_further_death(clocked: Clocked, overflow: Any) -> None:
    queue, dead_ones = letters(clocked, b"1", b"2", b"3")
    dead_ones.nack_many(dead_ones.receive_many(3), description="later")
    queue.update(max_length=2, overflow=overflow)

    assert dead_ones.redrive() == 2

    assert (bodies(queue), bodies(dead_ones)) == ([b"1", b"2"], [b"3"])
    (left,) = dead_ones.peek()
    assert [death.reason for death in left.deaths] == ["rejected"]
    assert (left.delivery_count, left.description) == (1, "later")
    assert dead(queue) == {"rejected": 3}
    assert dead_ones.redrive() == 0
    taken(queue, 1)
    assert dead_ones.redrive() == 1
    assert dead_ones.stats().ready_bytes == 0


def test_of_a_ttl_of_0_it_reaches_a_consumer_that_waits(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"x")
    queue.update(message_ttl=0)
    clocked.while_waiting(dead_ones.redrive)

    delivery = one(queue, wait="5s")

    assert delivery.body == b"x"


def test_a_window_for_duplicates_does_not_act(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, Message(b"x", id="me"), duplicate_window="1h")

    assert dead_ones.redrive() == 1
    assert bodies(queue) == [b"x"]


def test_only_so_many_only_of_a_reason_only_of_a_queue(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"1", b"2", b"3")
    letters(clocked, b"4", origin="p")
    queue.enqueue(Message(b"5", ttl=0))

    assert dead_ones.redrive(limit=2) == 2
    assert bodies(queue) == [b"1", b"2"]
    assert dead_ones.redrive(source="p") == 1
    assert bodies(clocked.queue("p")) == [b"4"]
    assert dead_ones.redrive(reason="expired") == 1
    assert bodies(queue) == [b"1", b"2", b"5"]
    assert dead_ones.redrive(reason="maxlen") == dead_ones.redrive(source="nobody") == 0
    assert bodies(dead_ones) == [b"3"]


def test_all_may_go_to_another_queue(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"1")
    letters(clocked, b"2", origin="p")
    elsewhere = clocked.declare_queue("elsewhere", max_ttl="50ms")

    assert dead_ones.redrive(to="elsewhere") == 2

    assert (bodies(queue), bodies(elsewhere)) == ([], [b"1", b"2"])
    assert [message.deaths[0].queue for message in elsewhere.peek()] == ["q", "p"]
    assert elsewhere.peek()[0].expires_at == at(50)


def test_more_than_one_call_can_carry_go_in_order(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, *[b"%d" % i for i in range(250)])
    queue.enqueue_many([b"%d" % i for i in range(250, 600)])
    queue.reject_many(queue.receive_many(350))

    assert dead_ones.redrive() == 600

    assert taken(queue, 1_000) == [b"%d" % i for i in range(600)]
    assert dead_ones.stats().redriven == 600


def test_letters_that_are_leased_delayed_or_over_stay_or_have_gone(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"leased", b"delayed", b"returned", b"ready")
    held, later, back = dead_ones.receive_many(3)
    later.nack("1h")
    back.nack()

    assert dead_ones.redrive() == 2

    assert bodies(queue) == [b"returned", b"ready"]
    assert [(message.body, message.delivery_count) for message in queue.peek()] == [(b"returned", 0), (b"ready", 0)]
    held.ack()
    assert bodies(dead_ones) == [b"delayed"]


def test_a_letter_past_the_retention_of_its_queue_is_dead_and_does_not_go(clocked: Clocked) -> None:
    clocked.declare_queue("d", message_ttl="100ms")
    queue, dead_ones = letters(clocked, b"x")
    (place,) = places(dead_ones)
    clocked.advance(100)

    assert dead_ones.redrive() == 0
    assert dead_ones.redrive_many([(place, "q")]) == [RedriveResult(place, "q", "unavailable")]
    assert (bodies(queue), dead(dead_ones)) == ([], {"expired": 1})


def test_messages_that_never_died_stay(clocked: Clocked) -> None:
    _, dead_ones = letters(clocked, b"x")
    dead_ones.enqueue(b"no letter")

    assert dead_ones.redrive() == 1
    assert bodies(dead_ones) == [b"no letter"]


def test_a_letter_whose_queue_is_gone_stays(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"x")
    letters(clocked, b"y", origin="p")
    queue.delete()

    assert dead_ones.redrive() == 1

    assert bodies(dead_ones) == [b"x"]
    assert clocked.queues() == ["d", "p"]


def test_a_letter_that_died_in_the_queue_that_holds_it_stays(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter_rejected="q")
    queue.enqueue(b"x")
    one(queue).reject()
    (place,) = places(queue)

    assert queue.redrive() == 0
    assert queue.redrive_many([(place, "q")]) == [RedriveResult(place, "q", "same_queue")]
    assert places(queue) == [place]


def test_a_redrive_ends_a_circle_as_a_rejection_does(clocked: Clocked) -> None:
    a = clocked.declare_queue("a", dead_letter="b", message_ttl="100ms")
    b = clocked.declare_queue("b", dead_letter="a")
    a.enqueue(b"x")
    for count in range(1, 4):
        clocked.advance(100)
        a.sweep()
        (letter,) = b.peek()
        assert [(death.queue, death.reason, death.count) for death in letter.deaths] == [("a", "expired", count)]

        assert b.redrive() == 1

    clocked.advance(100)
    a.sweep()
    b.update(message_ttl=0)
    b.sweep()
    assert (bodies(a), bodies(b), dropped(b)) == ([], [], {"cycle": 1})


def test_a_letter_that_comes_back_ahead_of_the_cursor_hides_no_earlier_one(client: Any) -> None:
    with ClockedBroker(client, start=START, slotted=True) as broker:
        queue = broker.declare_queue("q")
        broker.declare_queue("far", max_length=0, overflow="reject-publish")
        queue.enqueue_many([b"1", b"2", b"3"])
        assert queue.redrive_many([(queue.peek()[1].sequence, "far")])[0].outcome == "full"

        queue.update(max_length=2)

        assert taken(queue) == [b"1", b"3"]


@pytest.mark.spec("S-038")
def test_the_outcome_of_each_chosen_letter_is_told_in_their_order(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"1", b"2", b"3", b"4", b"5")
    first, second, third, fourth, fifth = places(dead_ones)
    clocked.declare_queue("p", max_length=0, overflow="reject-publish")
    clocked.declare_queue("p2", max_length_bytes=0, overflow="reject-publish")
    one(dead_ones)
    unknown = "1600000000000-100000"

    told = dead_ones.redrive_many(
        [
            (third, "q"),
            (second, "q"),
            (fourth, "p"),
            (fourth, "p2"),
            (first, "q"),
            (fifth, "nobody"),
            (unknown, "q"),
            (fifth, "d"),
            (third, "q"),
        ]
    )

    assert told == [
        RedriveResult(third, "q", "moved"),
        RedriveResult(second, "q", "moved"),
        RedriveResult(fourth, "p", "full", "max_length"),
        RedriveResult(fourth, "p2", "full", "max_length_bytes"),
        RedriveResult(first, "q", "unavailable"),
        RedriveResult(fifth, "nobody", "no_origin"),
        RedriveResult(unknown, "q", "unavailable"),
        RedriveResult(fifth, "d", "same_queue"),
        RedriveResult(third, "q", "moved"),
    ]
    assert bodies(queue) == [b"2", b"3"]
    assert ready(dead_ones) == [b"4", b"5"]


def test_a_queue_that_is_not_there_is_told(clocked: Clocked) -> None:
    with pytest.raises(QueueNotFound, match="elsewhere"):
        clocked.declare_queue("d").redrive(to="elsewhere")
    with pytest.raises(InvalidInput, match=r"^to: expected another queue than 'd'"):
        clocked.queue("d").redrive(to="d")
