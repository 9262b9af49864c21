"""Storing messages: receipts, ids, headers, values, sizes, refusals; and `duplicate_window`: an id is stored once."""

from datetime import timedelta
from typing import Any

import pytest
import redis

from rqttl import Broker, InvalidDuration, InvalidInput, Message, MessageTooLarge, Queue, QueueFull, Receipt
from tests.contract.clocked import START, Clocked, at, ms
from tests.contract.looks import bodies, one, ready, take
from tests.lua.states import everything


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


def test_any_header_of_a_sender_is_unpacked_safely(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    extension, cut_off, huge = b"\xc7\x01\x05x", b"\x93\x01", b"\xdd\xff\xff\xff\xff"
    queue.enqueue_many([Message(body, content_type="application/msgpack") for body in (extension, cut_off, huge)])

    for delivery in queue.receive_many(3):
        with pytest.raises(InvalidInput, match="msgpack"):
            delivery.decode()


@pytest.mark.spec("S-001", "A-001", "A-002", "TTL-10")
def test_the_receipt_says_the_id_and_the_effective_deadline_on_the_servers_clock(clocked: Clocked) -> None:
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


def test_what_a_sender_says_travels_with_the_message(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    name = "Bestellung 7; ü %d {x} 🦆"
    headers: dict[str, str | bytes | int | float | bool | None] = {
        "text": "ü",
        "bytes": b"\0\xff",
        "int": -1,
        "float": 0.1,
        "flag": True,
        "none": None,
    }

    assert queue.enqueue(b"{}", id=name, headers=headers, content_type="application/json").id == name

    (seen,), delivery = queue.peek(), one(queue)
    assert (seen.id, seen.headers, seen.content_type) == (name, headers, "application/json")
    assert (delivery.id, delivery.headers, delivery.content_type) == (name, headers, "application/json")
    assert delivery.decode() == b"{}"


def test_a_message_says_everything_itself(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match="Message"):
        queue.enqueue(Message(b"x"), ttl="5ms")

    assert bodies(queue) == []


@pytest.mark.spec("TTL-07", "TTL-08", "S-005", "A-005")
@pytest.mark.parametrize(
    "ttl", ["soon", "10", 10, "10x", -1, "-1s", 1.5, True, "315360000001ms", timedelta(microseconds=-5)], ids=repr
)
def test_a_wrong_ttl_is_refused_before_anything_is_written(broker: Broker, client: redis.Redis, ttl: Any) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"out")
    one(queue)
    before = everything(client)

    with pytest.raises(InvalidDuration, match="ttl"):
        queue.enqueue_many([b"good", Message(b"bad", ttl=ttl)])

    assert everything(client) == before


@pytest.mark.spec("A-004")
def test_a_relative_and_an_absolute_ttl_together_are_refused(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidInput, match="ttl or expires_at"):
        queue.enqueue(b"x", ttl="5ms", expires_at=START)


def test_a_body_beyond_max_message_bytes_is_refused(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_message_bytes=10)
    queue.enqueue(b"x" * 10)

    with pytest.raises(MessageTooLarge) as caught:
        queue.enqueue_many([b"good", b"x" * 11])

    assert caught.value.code == "message_too_large"
    assert "11 bytes" in str(caught.value)
    assert bodies(queue) == [b"x" * 10]


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


WINDOW = 10_000


@pytest.fixture
def queue(clocked: Clocked) -> Queue:
    return clocked.declare_queue("q", duplicate_window=ms(WINDOW))


@pytest.mark.spec("S-095", "C-42")
def test_five_sends_of_one_id_store_one_message(queue: Queue) -> None:
    receipts = [queue.enqueue(b"%d" % i, id="order-1") for i in range(5)]

    assert [receipt.duplicate for receipt in receipts] == [False, True, True, True, True]
    assert {receipt.id for receipt in receipts} == {"order-1"}
    assert bodies(queue) == [b"0"]
    assert queue.stats().enqueued == 1


def test_the_window_ends_in_the_millisecond_it_says_and_a_duplicate_does_not_move_it(
    clocked: Clocked, queue: Queue
) -> None:
    queue.enqueue(b"1", id="x")
    clocked.advance(WINDOW - 1)
    assert queue.enqueue(b"2", id="x").duplicate
    clocked.advance(1)
    assert not queue.enqueue(b"3", id="x").duplicate

    assert bodies(queue) == [b"1", b"3"]


def test_without_a_window_or_an_id_nothing_is_a_duplicate(clocked: Clocked, queue: Queue) -> None:
    free = clocked.declare_queue("free")

    assert not any(free.enqueue(b"x", id="same").duplicate for _ in range(3))
    assert not any(queue.enqueue(b"x").duplicate for _ in range(3))
    assert not any(one.duplicate for one in queue.enqueue_many([b"same"] * 300) if isinstance(one, Receipt))


def test_a_batch_has_duplicates_of_itself_and_of_earlier_ones(queue: Queue) -> None:
    queue.enqueue(b"old", id="a")
    sent = [Message(b"1", id="a"), Message(b"2", id="b"), Message(b"3"), Message(b"4", id="b", ttl="5s"), b"5"]

    receipts = queue.enqueue_many(sent)

    assert [isinstance(one, Receipt) and one.duplicate for one in receipts] == [True, False, False, True, False]
    assert bodies(queue) == [b"old", b"2", b"3", b"5"]
    assert queue.stats().enqueued == 4


@pytest.mark.spec("A-134")
def test_an_id_is_remembered_after_any_end_of_its_message(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"acked", id="1")
    delivery = one(queue)
    delivery.ack()
    queue.enqueue(b"expired", id="2", ttl="5ms")
    queue.enqueue(b"dead on arrival", id="3", ttl=0)
    clocked.advance(5)
    queue.sweep()
    queue.enqueue(b"purged", id="4")
    queue.purge()

    assert all(queue.enqueue(b"retry", id=str(i)).duplicate for i in range(1, 5))


def test_a_duplicate_finds_no_full_queue_and_pushes_nobody_out(clocked: Clocked) -> None:
    strict = clocked.declare_queue("strict", duplicate_window=ms(WINDOW), max_length=1, overflow="reject-publish")
    dropping = clocked.declare_queue("dropping", duplicate_window=ms(WINDOW), max_length=1, dead_letter="dead")
    for queue in (strict, dropping):
        queue.enqueue(b"x", id="a")
        assert queue.enqueue(b"y", id="a").duplicate
        assert bodies(queue) == [b"x"]
    assert clocked.queues() == ["dropping", "strict"]


@pytest.mark.spec("A-033", "WA-12")
def test_a_dead_letter_is_never_a_duplicate(clocked: Clocked) -> None:
    dead = clocked.declare_queue("dead", duplicate_window=ms(WINDOW))
    dead.enqueue(b"sent", id="a")
    one, other = (clocked.declare_queue(name, dead_letter="dead") for name in ("one", "other"))
    for queue in (one, other):
        queue.enqueue(b"letter", id="a", ttl=0)

    assert bodies(dead) == [b"sent", b"letter", b"letter"]


def test_a_window_may_change_and_what_it_no_longer_needs_is_forgotten(
    clocked: Clocked, queue: Queue, client: redis.Redis
) -> None:
    queue.enqueue_many([Message(b"x", id=str(i)) for i in range(700)])
    clocked.advance(50)
    queue.update(duplicate_window="50ms")
    assert client.zcard("rqttl:{q}:dedup") == 0
    assert not queue.enqueue(b"x", id="1").duplicate

    queue.update(duplicate_window=None)
    assert client.exists("rqttl:{q}:dedup") == 0
    assert not queue.enqueue(b"x", id="1").duplicate


# Windows of calls


def send(queue: Queue, *ids: str, window: int = WINDOW) -> list[bool | None]:
    """Send messages. Returns for each whether it was a duplicate; `None` if one was refused."""
    receipts = queue.enqueue_many([Message(b"x", id=id) for id in ids], duplicate_window=ms(window))
    return [one.duplicate if isinstance(one, Receipt) else None for one in receipts]


@pytest.fixture
def free(clocked: Clocked) -> Queue:
    """A queue that knows no duplicates."""
    return clocked.declare_queue("free")


def test_a_call_may_have_a_window_where_the_queue_has_none(clocked: Clocked, free: Queue) -> None:
    assert send(free, "a", "b", "a") == [False, False, True]
    clocked.advance(WINDOW - 1)
    free.sweep()
    assert send(free, "b", "c") == [True, False]
    clocked.advance(1)
    assert send(free, "a", "b", "c") == [False, False, True]
    assert free.stats().enqueued == 5


def test_each_call_says_for_how_long_and_a_duplicate_does_not_move_the_end(clocked: Clocked, free: Queue) -> None:
    send(free, "short", window=10)
    send(free, "long", window=50)
    clocked.advance(9)
    assert send(free, "short", "long", window=1000) == [True, True]
    clocked.advance(1)
    assert send(free, "short", "long", window=1000) == [False, True]
    clocked.advance(40)
    assert send(free, "short", "long", window=1) == [True, False]


def test_the_window_of_the_queue_and_the_window_of_a_call_know_the_ids_of_each_other(
    clocked: Clocked, queue: Queue
) -> None:
    queue.enqueue(b"x", id="a")
    assert send(queue, "a", "b", window=1) == [True, False]
    assert queue.enqueue(b"x", id="b").duplicate
    clocked.advance(WINDOW)
    assert not queue.enqueue(b"x", id="b").duplicate


def test_a_message_that_found_no_room_is_not_remembered(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=1, overflow="reject-publish")

    assert send(queue, "a", "b", "b") == [False, None, None]
    queue.purge()
    assert send(queue, "a", "b") == [True, False]


def test_remembered_ids_are_forgotten_by_later_calls_and_by_sweeps(
    clocked: Clocked, free: Queue, client: redis.Redis
) -> None:
    for i in range(100):
        send(free, str(i))
        clocked.advance(WINDOW // 10)
    assert (client.scard("rqttl:{free}:dedup_ids"), client.zcard("rqttl:{free}:dedup_windows")) == (10, 10)
    send(free, *[str(i) for i in range(700)])
    clocked.advance(WINDOW)
    free.sweep()
    assert client.exists("rqttl:{free}:dedup_ids", "rqttl:{free}:dedup_windows") == 0
