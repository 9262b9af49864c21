"""Limits of a queue: exact by count and by bytes, also for messages that come back, and changed while others work."""

import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import redis

from rqttl import Broker, Message, MessageTooLarge, Queue, QueueFull, Receipt
from rqttl.flows import sweeping
from rqttl.store.driver import driver_of
from rqttl.testing.fake import ClockedBroker
from tests.contract.clocked import START, Clocked
from tests.contract.looks import bodies, bodies_in, dead, one, ready, take, taken
from tests.repository import ROOT


def filled(clocked: Clocked, count: int, **options: Any) -> Queue:
    queue = clocked.declare_queue("q", dead_letter="d", **options)
    queue.enqueue_many([b"%d" % i for i in range(1, count + 1)])
    return queue


@pytest.mark.spec("LEN-03", "LEN-11", "DLX-10")
@pytest.mark.parametrize("overflow", [{}, {"overflow": "drop-head"}], ids=str)
def test_by_default_the_oldest_message_makes_room(clocked: Clocked, overflow: dict[str, Any]) -> None:
    queue = clocked.declare_queue("q", max_length=1, dead_letter="d", **overflow)

    for body in (b"1", b"2", b"3"):
        assert isinstance(queue.enqueue(body), Receipt)

    assert (bodies(queue), bodies(clocked.queue("d"))) == ([b"3"], [b"1", b"2"])
    assert dead(queue) == {"maxlen": 2}


@pytest.mark.spec("LEN-04")
def test_a_limit_of_bytes_counts_bodies(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length_bytes=100)

    queue.enqueue(b"1" * 80, headers={"uncounted": "x" * 500})
    queue.enqueue(b"2" * 80)

    assert bodies(queue) == [b"2" * 80]
    assert queue.stats().ready_bytes == 80


@pytest.mark.spec("LEN-05", "LEN-21")
@pytest.mark.parametrize("limit", [{"max_length": 10}, {"max_length_bytes": 30}], ids=str)
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
@pytest.mark.parametrize("batch", [1, 7, 40])
def test_exactly_the_limit_may_stay_and_not_one_more(
    clocked: Clocked, limit: dict[str, Any], overflow: Any, batch: int
) -> None:
    queue = clocked.declare_queue("q", overflow=overflow, **limit)

    for start in range(0, 40, batch):
        queue.enqueue_many([b"%03d" % i for i in range(start, min(40, start + batch))])
        assert queue.stats().ready <= 10

    kept = range(30, 40) if overflow == "drop-head" else range(10)
    assert bodies(queue) == [b"%03d" % i for i in kept]
    assert queue.stats().ready_bytes == 30


@pytest.mark.spec("LEN-06")
def test_with_both_limits_the_head_goes_until_both_hold(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=3, max_length_bytes=10)
    queue.enqueue_many([b"1", b"2", b"3"])

    queue.enqueue(b"four")
    assert bodies(queue) == [b"2", b"3", b"four"]
    queue.enqueue(b"8 bytes!")

    assert bodies(queue) == [b"8 bytes!"]


@pytest.mark.spec("LEN-07")
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_leased_and_delayed_messages_take_no_room(clocked: Clocked, overflow: str) -> None:
    queue = filled(clocked, 4, max_length=4, overflow=overflow)
    held = queue.receive_many(4)
    queue.nack_many(held[:2], "1h")

    queue.enqueue_many([b"5", b"6", b"7", b"8"])

    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.delayed, dead(queue)) == (4, 2, 2, {})


@pytest.mark.spec("LEN-29")
def test_a_delayed_message_that_comes_back_counts_again(clocked: Clocked) -> None:
    queue = filled(clocked, 2, max_length=1, overflow="drop-head")
    one(queue).nack("1s")
    queue.enqueue(b"3")
    assert queue.stats().delayed == 1

    clocked.advance(1_000)

    assert taken(queue) == [b"3"]
    assert bodies(clocked.queue("d")) == [b"1", b"2"]


@pytest.mark.spec("LEN-08", "LEN-09")
@pytest.mark.parametrize("limit", [{"max_length": 0}, {"max_length_bytes": 0}], ids=str)
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_a_consumer_that_waits_takes_a_message_before_a_limit_acts(
    clocked: Clocked, limit: dict[str, Any], overflow: Any
) -> None:
    queue = clocked.declare_queue("q", overflow=overflow, dead_letter="d", **limit)
    clocked.while_waiting(lambda: queue.enqueue(b"x"))

    delivery = one(queue, wait="1s")

    delivery.ack()
    assert (dead(queue), queue.stats().refused, queue.stats().acked) == ({}, 0, 1)


@pytest.mark.spec("LEN-10", "DLX-11")
def test_a_message_larger_than_the_limit_drops_everything_and_itself(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length_bytes=10, dead_letter="d")
    queue.enqueue_many([b"1", b"2"])

    queue.enqueue(b"longer than ten")

    assert (bodies(queue), bodies(clocked.queue("d"))) == ([], [b"1", b"2", b"longer than ten"])
    assert dead(queue) == {"maxlen": 3}


@pytest.mark.spec("LEN-12", "LEN-13", "LEN-22")
def test_a_full_queue_refuses_and_takes_again_as_soon_as_one_place_is_free(clocked: Clocked) -> None:
    queue = filled(clocked, 10, max_length=10, overflow="reject-publish")
    with pytest.raises(QueueFull):
        queue.enqueue(b"11")

    taken(queue, 1)
    queue.enqueue(b"12")

    with pytest.raises(QueueFull):
        queue.enqueue(b"13")
    assert bodies(queue) == [*(b"%d" % i for i in range(2, 11)), b"12"]
    assert (queue.stats().refused, dead(queue)) == (2, {})


@pytest.mark.spec("LEN-17", "LEN-18")
def test_reject_publish_dlx_refuses_and_keeps_a_dead_letter(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=1, overflow="reject-publish-dlx", dead_letter="d")

    results = queue.enqueue_many([b"1", Message(b"2", ttl="1h", id="two", headers={"a": 1}), b"3"])

    assert [type(result) for result in results] == [Receipt, QueueFull, QueueFull]
    assert (bodies(queue), queue.stats().refused, dead(queue)) == ([b"1"], 2, {"maxlen": 2})
    letters = take(clocked.queue("d"))
    assert [letter.body for letter in letters] == [b"2", b"3"]
    assert (letters[0].id, letters[0].headers, letters[0].deaths[0].reason) == ("two", {"a": 1}, "maxlen")


@pytest.mark.spec("LEN-23")
def test_a_purge_or_another_limit_opens_a_full_queue(clocked: Clocked) -> None:
    queue = filled(clocked, 1, max_length=1, overflow="reject-publish")

    queue.purge()
    queue.enqueue(b"2")
    queue.update(max_length=None)
    queue.enqueue(b"3")

    assert bodies(queue) == [b"2", b"3"]


@pytest.mark.spec("LEN-24", "LEN-26", "LEN-27")
@pytest.mark.parametrize("before, update", [("reject-publish", {}), ("drop-head", {"overflow": "reject-publish"})])
def test_a_queue_that_refuses_trims_nothing_when_its_limit_is_lowered(
    clocked: Clocked, before: str, update: dict[str, Any]
) -> None:
    queue = filled(clocked, 5, overflow=before)

    queue.update(max_length=2, **update)

    assert (queue.stats().ready, dead(queue)) == (5, {})
    with pytest.raises(QueueFull):
        queue.enqueue(b"6")
    queue.update(overflow=None)
    assert (bodies(queue), dead(queue)) == ([b"4", b"5"], {"maxlen": 3})


@pytest.mark.spec("LEN-15", "LEN-13")
def test_under_a_race_every_receipt_is_a_stored_message_and_no_limit_is_exceeded(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_length=50, overflow="reject-publish")
    stored: list[str] = []

    def send(sender: int) -> None:
        for i in range(10):
            batch = [Message(b"x", id=f"{sender}/{i}/{n}") for n in range(5)]
            stored.extend(result.id for result in queue.enqueue_many(batch) if isinstance(result, Receipt))

    senders = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()

    assert len(stored) == 50
    assert sorted(message.id for message in queue.peek(1_000)) == sorted(stored)
    assert (queue.stats().ready, queue.stats().refused) == (50, 150)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%04d" % i for i in range(first, last)]


def depths(clocked: Clocked) -> list[int]:
    """Return the depths of `q` before, between and after the bounded steps of a sweep."""
    queue, seen = clocked.queue("q"), []
    while True:
        seen.append(queue.stats(sweep=False).ready)
        (swept,) = driver_of(clocked).perform(sweeping.sweep("q", rounds=1))
        if not swept.more:
            return [*seen, queue.stats(sweep=False).ready, queue.stats().ready]


@pytest.mark.parametrize("limit", [{"max_length": 50}, {"max_length_bytes": 200}], ids=str)
@pytest.mark.parametrize("how", ["lease", "delay"])
def test_no_look_sees_more_than_the_limit_while_messages_come_back(
    clocked: Clocked, limit: dict[str, Any], how: str
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many(numbered(0, 300))
    held = queue.receive_many(250, lease="1s") + queue.receive_many(50, lease="1s")
    if how == "delay":
        queue.nack_many(held, "1s")
    queue.update(**limit)
    queue.enqueue_many(numbered(300, 340))
    clocked.advance(1_000)

    assert max(depths(clocked)) <= 50

    assert ready(queue) == numbered(290, 340)
    assert dead(queue) == {"maxlen": 290}
    assert bodies(clocked.queue("d")) == numbered(0, 290)


#: Ways to send one body of 100 bytes.
SENDS: dict[str, Callable[[Queue], Any]] = {
    "enqueue": lambda queue: queue.enqueue(b"x" * 100),
    "enqueue with an id": lambda queue: queue.enqueue(b"x" * 100, id="a"),
    "enqueue_many": lambda queue: queue.enqueue_many([b"x", b"x" * 100]),
    "enqueue_many with ids": lambda queue: queue.enqueue_many([Message(b"x", id="a"), Message(b"x" * 100, id="b")]),
    "enqueue_many in one pipeline": lambda queue: queue.enqueue_many([b"x"] * 600 + [b"x" * 100]),
    "enqueue_many with a window": lambda queue: queue.enqueue_many([b"x"] * 600 + [b"x" * 100], duplicate_window="1m"),
}


@pytest.fixture
def other(client: redis.Redis) -> Broker:
    """Another client of the same server."""
    return Broker(client)


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("before, after", [(100, 99), (99, 100)], ids=["lowered", "raised"])
def test_every_client_obeys_a_changed_max_message_bytes(
    broker: Broker, other: Broker, send: str, before: int, after: int
) -> None:
    queue = broker.declare_queue("q", max_message_bytes=before)
    queue.enqueue(b"known")
    other.queue("q").update(max_message_bytes=after)

    if after < before:
        with pytest.raises(MessageTooLarge, match=r"^body: 100 bytes are more than max_message_bytes, 99$"):
            SENDS[send](queue)
        assert bodies(queue) == [b"known"]
    else:
        SENDS[send](queue)
        assert bodies(queue)[-1] == b"x" * 100


@pytest.mark.parametrize("before", ["1h", None])
@pytest.mark.parametrize("more", [1, 600])
def test_a_receipt_has_the_deadline_of_the_retention_in_force(
    broker: Broker, other: Broker, before: str | None, more: int
) -> None:
    queue = broker.declare_queue("q", message_ttl=before)
    queue.enqueue(b"known")
    other.queue("q").update(message_ttl="1m")

    sent: list[Any] = [*queue.enqueue_many([b"x"] * more + [Message(b"y", id="a")]), queue.enqueue(b"x")]

    assert [one.expires_at for one in sent] == [one.expires_at for one in queue.peek(1_000)[1:]]


@pytest.mark.parametrize("count", [1, 600])
def test_a_refusal_names_the_limit_in_force(count: int, broker: Broker, other: Broker) -> None:
    queue = broker.declare_queue("q", overflow="reject-publish", max_length=5)
    queue.enqueue_many([b"x"] * 5)
    other.queue("q").update(max_length=3)

    with pytest.raises(QueueFull) as refused:
        queue.enqueue(b"x")
    told = queue.enqueue_many([b"x"] * count)

    assert (refused.value.limit, refused.value.value) == ("max_length", 3)
    assert {one.value for one in told if isinstance(one, QueueFull)} == {3}


@pytest.mark.parametrize("limit", [{"max_length": 1_500}, {"max_length_bytes": 1_500}], ids=str)
def test_no_call_delivers_what_a_lowered_limit_pushes_out(broker: Broker, limit: dict[str, int]) -> None:
    queue = broker.declare_queue("w")
    queue.enqueue_many([b"%d" % (i % 10) for i in range(6_000)])
    kept = [one.sequence for one in queue.peek(6_000)][4_500:]
    broker.set_policy("p", "w", limit)

    got = queue.receive_many(2)

    assert [one.sequence for one in got] == kept[:2]
    assert (queue.stats().ready, queue.stats().deaths["maxlen"]) == (1_498, 4_500)


def by_schedule(clocked: ClockedBroker, queue: Queue) -> None:
    queue.enqueue(b"x", delay="1s")
    queue.enqueue_many([b"1", b"2"])
    clocked.clock.set(clocked.clock.ms + 1_000)


def by_return(clocked: ClockedBroker, queue: Queue) -> None:
    queue.enqueue(b"x")
    held = one(queue)
    queue.enqueue_many([b"1", b"2"])
    held.nack()


def reject(clocked: ClockedBroker, source: str, target: str) -> None:
    origin = clocked.declare_queue(source, dead_letter=target)
    origin.enqueue(b"x", id="x")
    one(origin).reject()


def by_letter(clocked: ClockedBroker, queue: Queue, source: str) -> None:
    queue.enqueue_many([b"1", b"2"])
    reject(clocked, source, "q")


def by_hand(clocked: ClockedBroker, queue: Queue, move: Callable[[Queue], object]) -> None:
    queue.enqueue_many([b"1", b"2"])
    reject(clocked, "q/source", "q/other")
    move(clocked.queue("q/other"))


#: How the message `x` comes into a full queue, by the first column of the table in the guide.
WAYS: dict[str, Callable[[ClockedBroker, Queue], object]] = {
    "send": lambda _, queue: [queue.enqueue_many([b"1", b"2"]), queue.enqueue(b"x")],
    "schedule, at its due time": by_schedule,
    "return": by_return,
    "redrive": lambda clocked, queue: by_hand(clocked, queue, lambda other: other.redrive(to="q")),
    "move": lambda clocked, queue: by_hand(clocked, queue, lambda other: other.move("x", "q")),
    "dead letter": lambda clocked, queue: by_letter(clocked, queue, "q/source"),
    "from another slot": lambda clocked, queue: by_letter(clocked, queue, "far"),
}
#: What is ready, dead of the limit and scheduled after it, by a cell of that table; and where else `x` is.
NEW, OLD = [b"1", b"2", b"x"], [b"1", b"2"]
CELLS: dict[str, tuple[list[bytes], list[bytes], list[bytes], list[bytes]]] = {
    "the oldest dies": (NEW[1:], NEW[:1], [], []),
    "refused": (OLD, [], [], [b"x"]),
    "refused, and dies": (OLD, [b"x"], [], []),
    "dies": (OLD, [b"x"], [], []),
    "stays scheduled": (OLD, [], [b"x"], []),
    "keeps its place": ([b"x", *OLD], [], [], []),
    "stays where it is": (OLD, [], [], [b"x"]),
}
GUIDE = (ROOT / "docs/guides/control.md").read_text()
TABLE = [
    re.split(r" *\| *", row)[1:-1] for row in re.findall(r"(?m)^\| it comes by.*(?:\n\|.*)*", GUIDE)[0].splitlines()
]


@pytest.mark.spec("LEN-19", "LEN-20", "LEN-29", "DLX-24")
@pytest.mark.parametrize(
    "way, overflow, cell",
    [
        (way, head.strip("`"), cell)
        for ways, *row in TABLE[2:]
        for way in ways.split(", also ")
        for head, cell in zip(TABLE[0][1:], row, strict=True)
    ],
)
def test_each_way_into_a_full_queue_ends_as_the_guide_says(
    client: redis.Redis, way: str, overflow: Any, cell: str
) -> None:
    with ClockedBroker(client, start=START, slotted=True) as clocked:
        queue = clocked.declare_queue("q", max_length=2, overflow=overflow, dead_letter="q/dead")

        with pytest.raises(QueueFull) if cell.startswith("refused") else nullcontext():
            WAYS[way](clocked, queue)
        queue.sweep()

        ready, died, scheduled, elsewhere = CELLS[cell]
        if way == "return" and overflow == "drop-head":
            ready, died = OLD, [b"x"]  # it is the oldest itself
        assert (bodies(queue), bodies_in(clocked, "q/dead")) == (ready, died)
        assert [view.body for view in queue.scheduled()] == scheduled
        if way in ("redrive", "move"):
            assert bodies_in(clocked, "q/other") == elsewhere
