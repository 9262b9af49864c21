"""Messages whose time is over as they arrive: the receipt says so, by the clock of Redis."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Message, Receipt
from rqttl.option_types import OptionArguments
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import bodies, dead, one

BATCH: list[Any] = [
    Message(b"late", expires_at=START - 1, id="late"),
    Message(b"zero", ttl=0),
    b"stays",
    Message(b"now", expires_at=START),
    Message(b"named", id="named"),
    Message(b"in time", ttl="1ms", id="in time"),
]


def test_each_receipt_of_a_batch_says_whether_its_message_was_dead_on_arrival(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    receipts = queue.enqueue_many(BATCH)

    assert [receipt.expired for receipt in receipts if isinstance(receipt, Receipt)] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert receipts[0] == Receipt("late", at(-1), expired=True)
    assert (receipts[1].expires_at, receipts[5]) == (at(0), Receipt("in time", at(1)))  # type: ignore[union-attr]
    assert (len(bodies(queue)), dead(queue)) == (3, {"expired": 3})


def test_the_id_of_an_expired_message_is_the_place_at_which_its_letter_was_counted(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")

    first, second = queue.enqueue(b"x", ttl=0), queue.enqueue(b"y")

    assert (first.expired, len(first.id), first.id < second.id) == (True, len(second.id), True)


@pytest.mark.parametrize(
    "options",
    [{"message_ttl": 0}, {"default_ttl": 0}, {"max_ttl": 0}, {"min_ttl": 0}],
    ids=lambda options: str(*options),
)
def test_a_message_without_a_ttl_is_told_as_expired_where_its_queue_gives_it_none(
    clocked: Clocked, options: OptionArguments
) -> None:
    queue = clocked.declare_queue("q", **options)

    assert queue.enqueue(b"x") == Receipt(f"{START}-100000", at(0), expired=True)
    assert [receipt.expired for receipt in queue.enqueue_many([b"x", b"y"]) if isinstance(receipt, Receipt)] == [
        True
    ] * 2
    assert queue.enqueue(b"x", id="mine") == Receipt("mine", at(0), expired=True)


@pytest.mark.parametrize("options", [{"never_expire": True}, {"min_ttl": "1s"}], ids=lambda options: str(*options))
def test_a_message_that_its_queue_lets_live_is_not_expired(clocked: Clocked, options: OptionArguments) -> None:
    queue = clocked.declare_queue("q", **options)

    assert not queue.enqueue(b"x", expires_at=START - 1).expired
    assert not queue.enqueue(b"x", ttl=0).expired
    assert len(bodies(queue)) == 2


def test_the_clock_of_redis_decides_what_has_expired(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    clocked.go_to(500)

    assert queue.enqueue(b"x", expires_at=START + 500).expired
    assert not queue.enqueue(b"x", expires_at=START + 501).expired


@pytest.mark.parametrize("options", [{}, {"message_ttl": 0}], ids=str)
def test_a_message_that_a_waiting_consumer_gets_is_not_expired(clocked: Clocked, options: OptionArguments) -> None:
    queue, receipts = clocked.declare_queue("q", **options), list[Receipt]()
    clocked.while_waiting(lambda: receipts.append(queue.enqueue(b"zero", ttl=0)) if not receipts else None)

    delivery = queue.receive(wait="1s")

    assert delivery is not None
    assert (delivery.body, [receipt.expired for receipt in receipts]) == (b"zero", [False])
    assert queue.enqueue(b"zero", ttl=0).expired  # nobody waits now


def test_a_waiting_consumer_gets_none_that_had_expired_before_it_came(clocked: Clocked) -> None:
    queue, receipts = clocked.declare_queue("q"), list[Receipt]()
    clocked.while_waiting(
        lambda: receipts.append(queue.enqueue(b"late", expires_at=START - 1)) if not receipts else None
    )

    assert queue.receive(wait="10ms") is None
    assert [receipt.expired for receipt in receipts] == [True]


def test_a_duplicate_and_a_refused_message_are_not_told_as_expired(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", duplicate_window="1m", max_length=1, overflow="reject-publish")
    queue.enqueue(b"x", id="a")

    receipts = queue.enqueue_many([Message(b"x", id="a", ttl=0), Message(b"y", id="b"), Message(b"z", id="c", ttl=0)])

    assert receipts[0] == Receipt("a", duplicate=True)
    assert getattr(receipts[1], "code", None) == "queue_full"
    assert receipts[2] == Receipt("c", at(0), expired=True)


def test_a_letter_that_dies_where_it_goes_back_to_has_moved(clocked: Clocked) -> None:
    clocked.declare_queue("q", dead_letter="d", default_ttl=0).enqueue(b"x")
    letters = clocked.queue("d")
    place = letters.peek()[0].sequence

    assert letters.redrive_many([(place, "q")])[0].outcome == "moved"
    assert one(letters).deaths[0].count == 2
