"""`duplicate_window`: an id that was seen within it is not stored again."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl import InvalidDuration, Message, Queue, QueueFull, Receipt
from tests.contract.clocked import Clocked, at, ms
from tests.contract.looks import one

WINDOW = 10_000


@pytest.fixture
def queue(clocked: Clocked) -> Queue:
    return clocked.declare_queue("q", duplicate_window=ms(WINDOW))


def bodies(queue: Queue) -> list[bytes]:
    return [one.body for one in queue.peek(1000)]


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


@pytest.mark.parametrize("ttl", [None, "5s"])
def test_the_content_of_a_message_without_an_id_is_never_taken_for_an_id(queue: Queue, ttl: str | None) -> None:
    texts: list[dict[str, Any]] = [{"headers": {"note": "see ;1;;a"}}, {"content_type": "text;1;;a"}]
    sent = [Message(b"x", ttl=ttl, **text) for text in texts for _ in range(2)]

    for window in (None, WINDOW):
        receipts = queue.enqueue_many(sent, duplicate_window=ms(window))
        assert not any(isinstance(one, Receipt) and one.duplicate for one in receipts)
    assert not queue.enqueue(b"x", id="a").duplicate
    assert len(bodies(queue)) == 9


def test_a_batch_that_must_first_forget_ids_is_not_overtaken_by_the_next(clocked: Clocked) -> None:
    free = clocked.declare_queue("free")
    free.enqueue_many([Message(b"old", id="0")], duplicate_window=ms(WINDOW))
    clocked.advance(WINDOW)
    sent = [Message(b"%d" % i, id=str(i)) for i in range(600)]

    receipts = free.enqueue_many([*sent, Message(b"late", id="1")], duplicate_window=ms(WINDOW))

    assert bodies(free) == [b"old", *(message.body for message in sent)]
    assert [isinstance(one, Receipt) and one.duplicate for one in receipts] == [False] * 600 + [True]


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


def test_a_refused_message_was_not_seen_nor_was_its_double(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", duplicate_window=ms(WINDOW), max_length=1, overflow="reject-publish")
    queue.enqueue(b"in the way")

    refused = queue.enqueue_many([Message(b"x", id="a"), Message(b"x", id="a")])
    assert [type(one) for one in refused] == [QueueFull, QueueFull]
    queue.purge()
    assert not queue.enqueue(b"x", id="a").duplicate
    assert queue.stats().refused == 2


def test_a_duplicate_finds_no_full_queue_and_pushes_nobody_out(clocked: Clocked) -> None:
    strict = clocked.declare_queue("strict", duplicate_window=ms(WINDOW), max_length=1, overflow="reject-publish")
    dropping = clocked.declare_queue("dropping", duplicate_window=ms(WINDOW), max_length=1, dead_letter="dead")
    for queue in (strict, dropping):
        queue.enqueue(b"x", id="a")
        assert queue.enqueue(b"y", id="a").duplicate
        assert bodies(queue) == [b"x"]
    assert clocked.queues() == ["dropping", "strict"]


def test_a_duplicate_is_handed_to_nobody(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"first", id="a")
    assert queue.receive(auto_ack=True) is not None
    clocked.while_waiting(lambda: queue.enqueue_many([Message(b"retry", id="a"), Message(b"fresh", ttl=0)]))

    delivery = one(queue, wait="1s")

    assert delivery.body == b"fresh"


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


def test_old_ids_go_as_new_ones_come(clocked: Clocked, queue: Queue, client: redis.Redis) -> None:
    for i in range(100):
        queue.enqueue(b"x", id=str(i))
        clocked.advance(WINDOW // 10)

    assert client.zcard("rqttl:{q}:dedup") == 10


def test_a_new_queue_of_that_name_has_seen_nothing(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    queue.delete()

    assert not clocked.declare_queue("q", duplicate_window=ms(WINDOW)).enqueue(b"x", id="a").duplicate


def test_the_receipt_of_the_first_says_when_it_expires(queue: Queue) -> None:
    assert queue.enqueue(b"x", id="a", ttl="5s") == Receipt("a", at(5000))
    assert queue.enqueue(b"x", id="a", ttl="5s") == Receipt("a", None, duplicate=True)


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


def test_a_call_without_a_window_reports_no_duplicates_and_remembers_no_ids(free: Queue) -> None:
    send(free, "a")
    assert not free.enqueue(b"retry", id="a").duplicate
    assert not free.enqueue(b"new", id="b").duplicate
    assert send(free, "b", "a") == [False, True]


def test_the_window_of_the_queue_and_the_window_of_a_call_know_the_ids_of_each_other(
    clocked: Clocked, queue: Queue
) -> None:
    queue.enqueue(b"x", id="a")
    assert send(queue, "a", "b", window=1) == [True, False]
    assert queue.enqueue(b"x", id="b").duplicate
    clocked.advance(WINDOW)
    assert not queue.enqueue(b"x", id="b").duplicate


def test_the_window_of_a_call_outlasts_the_option(clocked: Clocked, queue: Queue) -> None:
    send(queue, "a", window=10 * WINDOW)
    queue.update(duplicate_window=None)
    queue.update(duplicate_window="5ms")
    clocked.advance(5)
    queue.sweep()

    assert send(queue, "a") == [True]
    assert not queue.enqueue(b"x", id="a").duplicate


def test_a_message_that_found_no_room_is_not_remembered(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=1, overflow="reject-publish")

    assert send(queue, "a", "b", "b") == [False, None, None]
    queue.purge()
    assert send(queue, "a", "b") == [True, False]


def test_messages_without_an_id_are_never_duplicates(free: Queue) -> None:
    for _ in range(2):
        found = free.enqueue_many([b"x", Message(b"y")], duplicate_window="1h")
        assert [isinstance(one, Receipt) and one.duplicate for one in found] == [False, False]
    assert len(bodies(free)) == 4


def test_more_than_one_call_can_carry_and_a_second_time_nothing(free: Queue) -> None:
    ids = [str(i) for i in range(1_000)]

    assert send(free, *ids) == [False] * 1_000
    assert send(free, *ids) == [True] * 1_000
    assert free.stats().enqueued == 1_000


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


def test_an_id_whose_time_is_over_is_new_however_much_is_to_be_forgotten_first(
    clocked: Clocked, free: Queue, client: redis.Redis
) -> None:
    ids = [str(i) for i in range(1_000)]
    send(free, *ids[:500])
    send(free, *ids[500:], "late", window=WINDOW + 1)
    clocked.advance(WINDOW)

    assert send(free, "0", "499", "999", "late", "0") == [False, False, True, True, True]
    assert client.scard("rqttl:{free}:dedup_ids") == 503
    clocked.advance(1)
    assert send(free, "late", "0", "new") == [False, True, False]
    assert client.scard("rqttl:{free}:dedup_ids") == 4
    assert free.stats().enqueued == 1_005


@pytest.mark.parametrize("window", [0, -1, 60, "60", "soon", True])
def test_a_window_that_is_no_duration_is_refused(free: Queue, window: Any) -> None:
    with pytest.raises(InvalidDuration, match="duplicate_window"):
        free.enqueue_many([Message(b"x", id="a")], duplicate_window=window)
    assert bodies(free) == []
