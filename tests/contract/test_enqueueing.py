"""Storing messages: receipts, ids, headers, content types, values, sizes, refusals."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from rqttl import Broker, InvalidDuration, InvalidInput, InvalidName, Message, MessageTooLarge, QueueFull, Receipt
from rqttl.types import Header
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import bodies, one, ready, take


def test_bytes_are_stored_untouched(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    body = bytes(range(256)) * 3
    queue.enqueue_many([body, bytearray(b"array"), memoryview(b"view"), b""])

    delivered = take(queue)

    assert [delivery.body for delivery in delivered] == [body, b"array", b"view", b""]
    assert {delivery.content_type for delivery in delivered} == {"application/octet-stream"}
    assert delivered[0].decode() == body


@pytest.mark.parametrize(
    "value", [{"any": ["value", 1, 2.5, None, True, b"raw"]}, "text", 0, None, [], {1: 2}, 2**64 - 1, -(2**63)], ids=str
)
def test_any_other_value_is_packed_with_msgpack(broker: Broker, value: object) -> None:
    queue = broker.declare_queue("q")

    queue.enqueue(value)

    delivery = one(queue)
    assert delivery.content_type == "application/msgpack"
    assert delivery.decode() == value


@pytest.mark.parametrize("value", [object, {1, 2}, 2**64, datetime(2020, 1, 1), "\ud800"], ids=repr)  # noqa: DTZ001
def test_a_value_that_msgpack_cannot_hold_is_refused(broker: Broker, value: object) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match="body"):
        queue.enqueue_many([b"good", value])

    assert bodies(queue) == []


def test_any_header_of_a_sender_is_unpacked_safely(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    extension, cut_off, huge = b"\xc7\x01\x05x", b"\x93\x01", b"\xdd\xff\xff\xff\xff"
    queue.enqueue_many([Message(body, content_type="application/msgpack") for body in (extension, cut_off, huge)])

    for delivery in queue.receive_many(3):
        with pytest.raises(InvalidInput, match="msgpack"):
            delivery.decode()


@pytest.mark.spec("S-001", "A-001", "TTL-10")
def test_the_receipt_says_the_id_and_the_effective_deadline(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="1m")

    assert queue.enqueue(b"x", ttl="50ms", id="mine") == Receipt("mine", at(50))
    assert queue.enqueue(b"x", ttl="1h").expires_at == at(60_000)
    assert queue.enqueue(b"x").expires_at == at(60_000)
    assert clocked.declare_queue("for-ever").enqueue(b"x").expires_at is None


def test_without_an_id_the_sequence_is_the_id_and_it_rises(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")

    ids = [receipt.id for receipt in queue.enqueue_many([b"x"] * 300) if isinstance(receipt, Receipt)]

    assert ids == sorted(set(ids))
    assert [message.id for message in queue.peek(300)] == ids == [message.sequence for message in queue.peek(300)]
    assert one(queue).id == ids[0]


def test_an_id_travels_with_the_message(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    name = "Bestellung 7; ü %d {x} 🦆"

    assert queue.enqueue(b"x", id=name).id == name
    assert queue.peek()[0].id == name
    assert one(queue).id == name


@pytest.mark.parametrize("id", ["", "x" * 256, "ü" * 128, "line\nbreak", "nul\0", 7, b"bytes", "\ud800"], ids=repr)
def test_a_wrong_id_is_refused(broker: Broker, id: str) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidName, match="id"):
        queue.enqueue(b"x", id=id)

    assert bodies(queue) == []


def test_headers_of_every_kind_travel_with_the_message(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    headers: dict[str, Header] = {"text": "ü", "bytes": b"\0\xff", "int": -1, "float": 0.1, "flag": True, "none": None}

    queue.enqueue(b"x", headers=headers)

    assert queue.peek()[0].headers == headers
    assert one(queue).headers == headers


@pytest.mark.parametrize(
    "headers", [{1: "x"}, {"": "x"}, {"x": []}, {"x": {}}, {"x": 2**64}, {"x": object}, {"x": float("nan")}], ids=repr
)
def test_wrong_headers_are_refused_by_name(broker: Broker, headers: dict[str, Any]) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match="headers"):
        queue.enqueue(b"x", headers=headers)

    assert bodies(queue) == []


def test_a_content_type_travels_with_the_message(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    queue.enqueue_many([Message(b"{}", content_type="application/json"), Message(b"x", headers={"a": 1})])

    first, second = queue.receive_many(2)
    assert (first.content_type, first.decode()) == ("application/json", b"{}")
    assert second.content_type == "application/octet-stream"


def test_messages_and_bare_bodies_mix_and_keep_their_order(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    receipts = queue.enqueue_many(
        [Message(b"1", ttl="1h"), b"2", {"three": 3}, Message("4", headers={"a": 1}, id="four")]
    )

    assert [type(receipt) for receipt in receipts] == [Receipt] * 4
    assert [delivery.decode() for delivery in queue.receive_many(4)] == [b"1", b"2", {"three": 3}, "4"]


def test_a_message_says_everything_itself(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match="Message"):
        queue.enqueue(Message(b"x"), ttl="5ms")

    assert bodies(queue) == []


def test_enqueueing_nothing_is_nothing(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    assert queue.enqueue_many([]) == []
    assert queue.stats().enqueued == 0


def test_many_messages_arrive_whole_and_in_order(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    receipts = queue.enqueue_many([b"%d" % i for i in range(3_000)])

    assert len({receipt.id for receipt in receipts if isinstance(receipt, Receipt)}) == 3_000
    assert [int(delivery.body) for delivery in queue.receive_many(3_000)] == list(range(3_000))


@pytest.mark.spec("TTL-07", "S-005", "A-005")
@pytest.mark.parametrize(
    "ttl", ["soon", "10", 10, "10x", -1, "-1s", 1.5, True, "315360000001ms", timedelta(microseconds=-5)], ids=repr
)
def test_a_wrong_ttl_is_refused_before_anything_is_written(broker: Broker, ttl: Any) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidDuration) as caught:
        queue.enqueue_many([b"good", Message(b"bad", ttl=ttl)])

    assert "ttl" in str(caught.value)
    assert (bodies(queue), queue.stats().enqueued) == ([], 0)


@pytest.mark.parametrize("wrong", [datetime(2030, 1, 1), -1, True, "2030-01-01", 1.5, 10**15], ids=repr)  # noqa: DTZ001
def test_a_wrong_instant_is_refused(broker: Broker, wrong: int) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match="expires_at"):
        queue.enqueue(b"x", expires_at=wrong)

    assert bodies(queue) == []


@pytest.mark.spec("A-004")
def test_a_relative_and_an_absolute_ttl_together_are_refused(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match="ttl or expires_at"):
        queue.enqueue(b"x", ttl="5ms", expires_at=START)


@pytest.mark.spec("TTL-08")
def test_a_refused_message_touches_nothing_that_is_out(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"held")
    delivery = one(queue)

    with pytest.raises(InvalidDuration):
        queue.enqueue(b"x", ttl="-1s")

    assert queue.stats().leased == 1
    delivery.ack()


def test_a_body_beyond_max_message_bytes_is_refused(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_message_bytes=10)
    queue.enqueue(b"x" * 10)

    with pytest.raises(MessageTooLarge) as caught:
        queue.enqueue_many([b"good", b"x" * 11])

    assert caught.value.code == "message_too_large"
    assert "11 bytes" in str(caught.value)
    assert bodies(queue) == [b"x" * 10]


def test_headers_beyond_their_limit_are_refused(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(MessageTooLarge, match="headers"):
        queue.enqueue(b"x", headers={"much": "x" * 70_000})

    assert bodies(queue) == []


def test_large_bodies_are_delivered_a_few_at_a_time(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([bytes([i]) * 2**20 for i in range(9)])

    received = []
    while batch := queue.receive_many(9):
        assert len(batch) < 9
        received += batch

    assert [delivery.body[0] for delivery in received] == list(range(9))
    assert {len(delivery.body) for delivery in received} == {2**20}


@pytest.mark.spec("LEN-12", "LEN-16")
def test_a_batch_is_refused_message_by_message(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_length_bytes=10, overflow="reject-publish")

    results = queue.enqueue_many([b"four", b"too large to fit", b"four", b"4444", b"22"])

    assert [type(result) for result in results] == [Receipt, QueueFull, Receipt, QueueFull, Receipt]
    refusal = results[1]
    assert isinstance(refusal, QueueFull)
    assert (refusal.queue, refusal.limit, refusal.value) == ("q", "max_length_bytes", 10)
    assert ready(queue) == [b"four", b"four", b"22"]
    assert queue.stats().refused == 2


def test_a_large_batch_with_a_limit_is_refused_in_order_across_calls(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_length=700, overflow="reject-publish")

    results = queue.enqueue_many([b"%d" % i for i in range(1_000)])

    assert [isinstance(result, Receipt) for result in results] == [True] * 700 + [False] * 300
    assert (queue.stats().ready, queue.stats().refused, queue.stats().enqueued) == (700, 300, 700)
