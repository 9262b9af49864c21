"""Decisions of handlers by an exception: reject, retry, release; in `with delivery:` and in `Queue.run`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rqttl import Broker, Delivery, InvalidDuration, InvalidInput, Reject, Release, Retry
from rqttl.decisions import Decision


def work(decision: Decision) -> None:
    """A part of a handler that decides."""
    raise decision


def decide(broker: Broker, decision: Decision) -> Delivery:
    queue = broker.declare_queue("q", dead_letter="dead", max_deliveries=5)
    queue.enqueue(b"x", id="1")
    delivery = queue.receive()
    assert delivery is not None
    with delivery:
        work(decision)
    return delivery


def test_a_rejection_ends_with_the_block_and_is_a_death(broker: Broker) -> None:
    assert decide(broker, Reject("no such item")).settled == "reject"

    [letter] = broker.queue("dead").peek()
    assert (letter.deaths[0].reason, letter.deaths[0].description) == ("rejected", "no such item")


@pytest.mark.parametrize("text", ["é" * 5_000, "a" + "\udcff" * 5_000, "name \udcff"])
def test_the_words_of_a_rejection_never_keep_it_from_its_death(broker: Broker, text: str) -> None:
    decide(broker, Reject(text))

    [letter] = broker.queue("dead").peek()
    description = letter.deaths[0].description or ""
    assert text.encode(errors="backslashreplace").decode().startswith(description)
    assert len(description.encode()) > min(4_090, len(text))


@pytest.mark.parametrize("decision", [Reject, lambda words: Retry("1s", words)])
def test_a_description_that_is_no_text_is_refused_where_it_is_written(decision: Callable[[object], Decision]) -> None:
    with pytest.raises(InvalidInput, match="description: expected text, got ValueError"):
        decision(ValueError("no such item"))


def test_a_retry_is_a_failed_delivery_with_its_own_delay(broker: Broker) -> None:
    decide(broker, Retry("1h", "sold out"))

    [message] = broker.queue("q").peek()
    assert message.state == "delayed"


def test_a_release_counts_as_no_failure(broker: Broker) -> None:
    decide(broker, Release())

    again = broker.queue("q").receive()
    assert again is not None
    assert again.delivery_count == 1


def test_a_decision_after_a_settlement_changes_nothing(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None

    with delivery:
        delivery.ack()
        work(Reject("late"))

    assert (delivery.settled, queue.stats().acked) == ("ack", 1)


def test_a_run_honours_decisions_and_counts_only_retries_as_failed(broker: Broker) -> None:
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue_many([b"reject", b"retry", b"done"])
    decisions = {b"reject": Reject("no"), b"retry": Retry("1h")}

    def handle(delivery: Delivery) -> None:
        decision = decisions.get(delivery.body)
        if decision is not None:
            raise decision

    counts = queue.run(handle, wait=0)

    assert (counts.handled, counts.failed) == (2, 1)
    assert (queue.stats().acked, queue.stats().delayed, queue.stats().deaths["rejected"]) == (1, 1, 1)


def test_a_delay_of_a_retry_has_a_unit() -> None:
    with pytest.raises(InvalidDuration):
        Retry(5)  # type: ignore[arg-type]
