"""Handlers that fail: the pause that a queue makes, and the error that a message keeps."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Delivery, InvalidInput, InvalidOption, Queue
from rqttl.protocol import codec
from rqttl.testing import dead_letters
from tests.contract.clocked import Clocked
from tests.contract.looks import dead, one, ready


class OutOfCups(Exception):
    """An error of a handler, of a class of its own."""


def fail(delivery: Delivery, error: BaseException) -> None:
    """A handler fails."""
    with pytest.raises(type(error)), delivery:
        raise error


def description(queue: Queue) -> str | None:
    (shown,) = queue.peek()
    return shown.description


def pauses(clocked: Clocked, queue: Queue, how: str, times: int) -> list[int]:
    """Let the only message fail so many times. Returns for how many ms it was away after each failure."""
    found = []
    delivery = one(queue)
    for _ in range(times):
        if how == "nack":
            delivery.nack()
        elif how == "with":
            fail(delivery, ValueError("no"))
        else:
            clocked.advance(1_000)  # the lease
        failed = clocked.now
        again = queue.receive(wait="10d")
        assert again is not None
        found.append(clocked.now - failed)
        delivery = again
    return found


# Pauses


def test_a_message_that_always_fails_is_tried_as_often_as_the_pauses_let_it(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s")
    queue.enqueue(b"poison")

    tries = 0
    for _ in range(600):
        delivery = queue.receive()
        if delivery:
            tries += 1
            fail(delivery, OutOfCups("none left"))
        clocked.advance(100)

    assert tries == 6


@pytest.mark.parametrize("how", ["nack", "with", "lease"])
def test_pauses_grow_with_each_failed_delivery_up_to_the_longest(clocked: Clocked, how: str) -> None:
    queue = clocked.declare_queue(
        "q", lease="1s", redelivery_delay="1s", redelivery_multiplier=2.5, redelivery_max_delay="10s"
    )
    queue.enqueue(b"x")

    assert pauses(clocked, queue, how, 5) == [1_000, 2_500, 6_250, 10_000, 10_000]


@pytest.mark.parametrize("how", ["nack", "with", "lease"])
def test_without_the_option_a_failed_message_is_ready_at_once(clocked: Clocked, how: str) -> None:
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue(b"x")

    assert pauses(clocked, queue, how, 3) == [0, 0, 0]


@pytest.mark.parametrize("delay,ms", [("30s", 30_000), (0, 0)])
def test_a_delay_of_the_handler_goes_before_the_pause_of_the_queue(clocked: Clocked, delay: Any, ms: int) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s")
    queue.enqueue(b"x")

    one(queue).nack(delay=delay)

    assert queue.receive(wait="1h") is not None
    assert clocked.now == 1_700_000_000_000 + ms


def test_an_uncounted_return_makes_no_pause_and_cannot_be_described(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s")
    queue.enqueue(b"x")
    delivery = one(queue)

    with pytest.raises(InvalidInput, match=r"^description: expected none with counted=False"):
        queue.nack_many([delivery], counted=False, description="why")
    queue.nack_many([delivery], counted=False)

    assert one(queue).delivery_count == 1


def test_a_message_that_pauses_lets_others_pass_and_returns_to_its_place(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s")
    queue.enqueue_many([b"1", b"2", b"3"])
    one(queue).nack()

    assert ready(queue) == [b"2", b"3"]
    assert queue.stats().delayed == 1
    clocked.advance(10_000)
    queue.sweep()
    assert ready(queue) == [b"1", b"2", b"3"]


@pytest.mark.spec("TTL-38")
def test_a_message_that_pauses_expires_at_its_deadline(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s", dead_letter="d")
    queue.enqueue(b"x", ttl="3s")
    one(queue).nack(description="no")

    assert queue.receive(wait="1h") is None
    (letter,) = dead_letters(queue)
    assert (letter.deaths[0].reason, letter.deaths[0].description) == ("expired", None)
    assert (letter.deaths[0].last_at, letter.deaths[0].delivery_count) == (letter.deaths[0].expires_at, 1)


@pytest.mark.spec("TTL-19")
def test_a_ttl_of_zero_gets_no_second_chance_from_a_pause(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s")
    clocked.while_waiting(lambda: queue.enqueue(b"now or never", ttl=0))
    delivery = queue.receive(wait="1s")
    assert delivery is not None

    delivery.nack()

    assert dead(queue) == {"expired": 1}
    assert queue.peek() == []


def test_a_changed_pause_acts_on_failures_after_the_change(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s")
    queue.enqueue_many([b"1", b"2", b"3"])
    first, second, third = queue.receive_many(3)
    first.nack()
    queue.update(redelivery_delay="1s")
    second.nack()
    queue.update(redelivery_delay=None)
    third.nack()

    found = {message.body: message.until for message in queue.peek()}
    assert found[b"3"] is None
    assert [found[body].timestamp() * 1000 - clocked.now for body in (b"1", b"2")] == [10_000, 1_000]  # type: ignore[union-attr]  # both pause


def test_jitter_spreads_a_batch_that_failed_together(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="100s", redelivery_jitter=0.5)
    queue.enqueue_many([b"x"] * 100)

    queue.nack_many(queue.receive_many(100))

    away = [message.until.timestamp() * 1000 - clocked.now for message in queue.peek(100) if message.until]
    assert 50_000 <= min(away) < 60_000
    assert 90_000 < max(away) <= 100_000
    assert len(set(away)) > 90


def test_an_option_that_could_do_nothing_is_refused_and_nothing_is_declared(clocked: Clocked) -> None:
    with pytest.raises(InvalidOption, match=r"^redelivery_jitter: 0\.5 does nothing without redelivery_delay"):
        clocked.declare_queue("q", redelivery_jitter=0.5)

    assert "q" not in clocked.queues()


# Descriptions


def test_a_message_that_failed_too_often_says_its_last_error(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_deliveries=3, dead_letter="d")
    queue.enqueue(b"x")

    for left in (2, 1, 0):
        fail(one(queue), OutOfCups(f"{left} cups left"))

    (letter,) = dead_letters(queue, "delivery_limit")
    assert letter.deaths[0].description == f"{__name__}.OutOfCups: 0 cups left"
    assert letter.deaths[0].delivery_count == 3


@pytest.mark.parametrize("last", ["nack", "lease"])
def test_a_failure_that_says_nothing_leaves_the_error_before(clocked: Clocked, last: str) -> None:
    queue = clocked.declare_queue("q", max_deliveries=2, dead_letter="d", lease="1s")
    queue.enqueue(b"x")
    one(queue).nack(description="no cups")
    delivery = one(queue)

    if last == "nack":
        delivery.nack()
    clocked.advance(1_000)

    (letter,) = dead_letters(queue, "delivery_limit")
    assert letter.deaths[0].description == "no cups"


def test_the_last_error_of_a_message_is_shown_until_it_is_settled(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    assert description(queue) is None

    fail(one(queue), ValueError("first"))
    assert description(queue) == "ValueError: first"
    one(queue).nack(description="second")
    assert description(queue) == "second"
    one(queue).nack()
    assert description(queue) == "second"

    one(queue).ack()
    queue.enqueue(b"x")
    assert description(queue) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_a_program_that_is_told_to_end_gives_back_what_it_held_and_says_so(
    clocked: Clocked, error: BaseException
) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    fail(one(queue), error)

    assert description(queue) == codec.describe(error)
    assert one(queue).delivery_count == 2


def test_a_consumer_keeps_the_error_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    with queue.consume(wait=0) as deliveries:
        fail(next(deliveries), OSError("disk full"))

    assert description(queue) == "OSError: disk full"


def test_many_are_given_back_with_one_description(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"x"] * 300)

    queue.nack_many(queue.receive_many(300), description="no network")

    assert {message.description for message in queue.peek(300)} == {"no network"}


@pytest.mark.parametrize("text", ["x" * 4096, "é" * 2048, "a\x00b\n c", " "])
def test_a_description_of_4096_bytes_is_kept_as_it_is(clocked: Clocked, text: str) -> None:
    queue = clocked.declare_queue("q", max_deliveries=2, dead_letter="d")
    queue.enqueue(b"x")
    one(queue).nack(description=text)
    assert description(queue) == text

    one(queue).nack()

    (letter,) = dead_letters(queue)
    assert letter.deaths[0].description == text


def test_a_longer_one_is_refused_and_the_delivery_is_still_held(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    delivery = one(queue)

    with pytest.raises(InvalidInput, match=r"^description: 4097 bytes are more than 4096$"):
        delivery.nack(description="x" * 4097)

    delivery.ack()


def test_an_error_of_any_length_is_kept_as_far_as_it_fits(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    fail(one(queue), ValueError("😀" * 5_000))

    kept = description(queue)
    assert kept is not None
    assert kept.startswith("ValueError: 😀😀")
    assert 4093 <= len(kept.encode()) <= 4096
