"""Looking at queues in a test: ready messages, dead letters, and failures that name the actual contents."""

import asyncio
from typing import Any

import pytest

import rqttl
from rqttl import Broker, InvalidInput, Message, Queue, QueueNotFound
from rqttl.testing import FakeBroker, assert_depth, async_fake_broker, bodies, dead_letters, messages
from tests.contract.clocked import at
from tests.contract.looks import one
from tests.drivers import broker_of


@pytest.fixture
def orders(fake: FakeBroker) -> Queue:
    return fake.declare_queue("orders", dead_letter="dead", max_length=300, max_deliveries=2, lease="30s")


def ids(found: list[Any]) -> list[str]:
    return [each.id for each in found]


def test_messages_are_all_that_is_there_or_what_is_in_one_state(orders: Queue) -> None:
    orders.enqueue_many([Message(b"x", id=f"{n}") for n in range(4)])
    orders.receive_many(1)
    orders.nack_many(orders.receive_many(1), delay="1m")
    orders.enqueue_many([Message(b"x", id="5", delay="2h"), Message(b"x", id="4", delay="1h")])

    assert ids(messages(orders)) == ["0", "1", "2", "3", "4", "5"]
    assert ids(messages(orders, "scheduled")) == ["4", "5"]
    assert ids(messages(orders, "leased")) == ["0"]
    assert ids(messages(orders, "delayed")) == ["1"]
    assert ids(messages(orders, "ready")) == ["2", "3"]


def test_bodies_are_what_was_sent(orders: Queue) -> None:
    orders.enqueue_many([{"item": 7}, b"\xff", "text", None])
    orders.receive_many(2)

    assert bodies(orders) == [{"item": 7}, b"\xff", "text", None]
    assert bodies(messages(orders, "leased")) == [{"item": 7}, b"\xff"]
    assert bodies([]) == []


def test_due_work_happens_first(fake: FakeBroker, orders: Queue) -> None:
    orders.enqueue_many([Message(b"x", ttl="5s"), b"y"])
    orders.receive_many(2)
    fake.clock.advance("30s")

    assert bodies(messages(orders, "leased")) == []
    assert bodies(orders) == [b"y"]


def test_dead_letters_are_those_of_the_queue_in_the_order_of_their_deaths(fake: FakeBroker, orders: Queue) -> None:
    other = fake.declare_queue("other", dead_letter="dead")
    other.enqueue(b"not ours", ttl=0)
    orders.enqueue_many([Message({"n": n}, id=f"{n}") for n in range(3)])
    orders.update(dead_letter_rejected="rejected")
    first, second = orders.receive_many(2)
    second.reject("no")
    fake.clock.advance("1s")
    first.reject("no")
    orders.enqueue(b"late", ttl="10s", id="late")
    fake.clock.advance("10s")

    assert ids(dead_letters(orders)) == ["1", "0", "late"]
    assert bodies(dead_letters(orders, "rejected")) == [{"n": 1}, {"n": 0}]
    assert [letter.deaths[0].last_at for letter in dead_letters(orders)] == [at(0), at(1_000), at(11_000)]
    assert ids(dead_letters(other)) == [broker_of(other).queue("dead").peek()[0].id]


def test_a_letter_that_died_again_is_one_of_its_second_queue(fake: FakeBroker, orders: Queue) -> None:
    dead = fake.declare_queue("dead", message_ttl="1h", dead_letter="archive")
    orders.enqueue(b"x", ttl=0, id="x")
    assert (ids(dead_letters(orders)), ids(dead_letters(dead))) == (["x"], [])

    fake.clock.advance("1h")

    assert (ids(dead_letters(orders)), ids(dead_letters(dead))) == ([], ["x"])


@pytest.mark.parametrize("state, depth", [("ready", 2), ("leased", 3), ("delayed", 1), ("scheduled", 1), ("all", 7)])
def test_a_depth_that_is_right_passes_and_any_other_fails(orders: Queue, state: Any, depth: int) -> None:
    orders.enqueue_many([b"x"] * 6)
    orders.nack_many(orders.receive_many(1), delay="1m")
    orders.receive_many(3)
    orders.enqueue(b"x", delay="1h")

    assert_depth(orders, depth, state)
    with pytest.raises(AssertionError, match=f"expected {depth + 1} .*, found {depth}\n"):
        assert_depth(orders, depth + 1, state)


def test_a_failure_says_what_is_there(orders: Queue) -> None:
    orders.enqueue_many([Message({"n": 1}, id="order-1"), Message(b"a" * 50, id="order-2"), Message(b"", ttl=0)])
    one(orders)
    orders.enqueue(b"", id="order-3", delay="1h")

    with pytest.raises(AssertionError) as failed:
        assert_depth(orders, 3)

    assert str(failed.value).splitlines() == [
        "queue 'orders': expected 3 ready messages, found 1",
        "  now: ready 1, leased 1, delayed 0, scheduled 1; so far: enqueued 3, acked 0, deaths: expired 1",
        "  leased: order-1 b'\\x81\\xa1n\\x01'",
        "  ready: order-2 b'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'... (50 bytes)",
        "  scheduled: order-3 b''",
    ]


def test_states_that_do_not_exist_and_queues_that_do_not_are_told(fake: FakeBroker, orders: Queue) -> None:
    wrong: Any = "done"
    with pytest.raises(InvalidInput, match="ready, leased, delayed, scheduled, got 'done'"):
        messages(orders, wrong)
    with pytest.raises(InvalidInput, match="ready, leased, delayed, scheduled, all, got 'done'"):
        assert_depth(orders, 0, wrong)
    for look in (messages, bodies, dead_letters, lambda queue: assert_depth(queue, 0)):
        with pytest.raises(QueueNotFound):
            look(fake.queue("missing"))


def test_they_look_at_a_real_server_as_well(broker: Broker) -> None:
    queue = broker.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message("dead", ttl=0), "alive"])

    assert_depth(queue, 1)
    assert (bodies(queue), bodies(dead_letters(queue))) == (["alive"], ["dead"])


def test_they_take_a_queue_of_the_asyncio_fake_without_await() -> None:
    async def work() -> None:
        async with async_fake_broker() as broker:
            orders = await broker.declare_queue("orders", dead_letter="dead")
            await orders.enqueue_many(["late", "good"])
            (first,) = await orders.receive_many(1)
            await first.reject()

            assert_depth(orders, 1)
            assert bodies(orders) == ["good"]
            assert bodies(messages(orders, "ready")) == ["good"]
            assert bodies(dead_letters(orders)) == ["late"]

    asyncio.run(work())


def test_an_asyncio_queue_of_a_real_server_is_refused() -> None:
    with pytest.raises(InvalidInput, match="queue: expected a Queue, or an AsyncQueue of a fake broker"):
        assert_depth(rqttl.connect_async("redis://localhost").queue("q"), 0)
