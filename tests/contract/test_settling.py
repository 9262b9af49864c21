"""Deliveries: order and leases, settling once by the holder, one or many at a time, and renewing."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import redis

from rqttl import AlreadySettled, CommandEvent, Delivery, InvalidInput, LeaseLost, Queue
from rqttl.protocol import codec
from rqttl.store.driver import driver_of
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import Renewals, bodies, dead, description, one, ready, taken
from tests.drivers import drop_connections
from tests.waiting import until


def test_messages_come_in_the_order_in_which_they_were_stored(clocked: Clocked, queue: Queue) -> None:
    for start in range(0, 700, 100):
        queue.enqueue_many([b"%d" % i for i in range(start, start + 100)])
        clocked.advance(start % 3 - 1)  # the clock of Redis may step back

    received = [int(one.body) for count in (1, 99, 600) for one in queue.receive_many(count)]

    assert received == list(range(700))


@pytest.mark.spec("S-048")
def test_the_lease_counts_from_the_hand_over_on_the_servers_clock(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="10s")
    queue.enqueue_many([b"default", b"own"])
    clocked.advance(500)

    assert one(queue).leased_until == at(10_500)
    delivery = one(queue, lease="7d")
    assert delivery.leased_until == at(500 + 604_800_000)


@pytest.mark.spec("S-044", "S-042")
def test_the_first_delivery_counts_one_and_each_failed_one_adds_one(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")

    counts = []
    for _ in range(3):
        delivery = one(queue)
        delivery.renew()
        counts.append(delivery.delivery_count)
        delivery.nack()

    assert counts == [1, 2, 3]
    stats = queue.stats()
    assert (stats.delivered, stats.redelivered) == (3, 2)


@pytest.mark.spec("S-043", "S-041")
@pytest.mark.parametrize("fail", ["nack", "lease"])
def test_with_n_deliveries_allowed_a_message_is_handed_out_n_times(clocked: Clocked, fail: str) -> None:
    queue = clocked.declare_queue("q", max_deliveries=3, dead_letter="d", lease="100ms")
    queue.enqueue(b"x")

    for _ in range(3):
        delivery = one(queue)
        if fail == "nack":
            delivery.nack()
        else:
            clocked.advance(100)

    assert queue.receive() is None
    letter = one(clocked.queue("d"))
    assert (letter.deaths[0].reason, letter.deaths[0].delivery_count) == ("delivery_limit", 3)


@pytest.mark.spec("S-057", "S-052", "S-047")
def test_messages_given_back_return_to_their_exact_places_at_once(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([b"%d" % i for i in range(8)])
    deliveries = queue.receive_many(6)

    for i in (4, 1, 3):
        deliveries[i].nack()

    assert ready(queue) == [b"1", b"3", b"4", b"6", b"7"]
    assert taken(queue) == [b"1", b"3", b"4", b"6", b"7"]


@pytest.mark.spec("S-054")
def test_a_delayed_message_lets_others_pass_and_then_takes_its_old_place(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])
    one(queue).nack(delay="100ms")

    assert one(queue).body == b"2"
    clocked.advance(99)
    assert ready(queue) == [b"3"]
    clocked.advance(1)

    assert taken(queue) == [b"1", b"3"]


@pytest.mark.spec("S-056")
def test_auto_ack_removes_at_once_and_never_brings_back(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue_many([b"1", b"2"])

    deliveries = queue.receive_many(2, auto_ack=True)

    assert [delivery.body for delivery in deliveries] == [b"1", b"2"]
    assert [delivery.leased_until for delivery in deliveries] == [None, None]
    clocked.advance(1_000)
    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.acked, stats.delivered) == (0, 0, 2, 2)


@pytest.mark.spec("S-055")
@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "renew"])
def test_a_delivery_with_auto_ack_cannot_be_settled(clocked: Clocked, queue: Queue, settle: str) -> None:
    queue.enqueue(b"x")
    delivery = one(queue, auto_ack=True)

    with pytest.raises(AlreadySettled, match="auto_ack"):
        getattr(delivery, settle)()


@pytest.mark.spec("S-059")
def test_a_receive_that_finds_nothing_returns_nothing_after_its_wait(clocked: Clocked, queue: Queue) -> None:
    assert queue.receive() is None
    assert queue.receive(wait=0) is None
    assert queue.receive_many(5) == []
    assert clocked.now == at(0).timestamp() * 1000
    assert queue.receive(wait="17s") is None

    assert clocked.now == at(17_000).timestamp() * 1000


@pytest.mark.parametrize("returned", ["lease", "delay"])
def test_a_wait_ends_when_a_lease_or_a_delay_of_another_ends(clocked: Clocked, returned: str) -> None:
    queue = clocked.declare_queue("q", lease="700ms")
    queue.enqueue(b"x")
    delivery = one(queue)
    if returned == "delay":
        delivery.nack("700ms")

    assert one(queue, wait="1h").delivery_count == 2
    assert clocked.now == START + 700


SETTLES = ["ack", "nack", "reject"]


@pytest.mark.spec("S-051")
@pytest.mark.parametrize("first", SETTLES)
@pytest.mark.parametrize("second", [*SETTLES, "renew"])
def test_a_delivery_is_settled_once(clocked: Clocked, queue: Queue, first: str, second: str) -> None:
    queue.enqueue(b"x")
    delivery = one(queue)
    getattr(delivery, first)()
    before = queue.stats()

    with pytest.raises(AlreadySettled) as caught:
        getattr(delivery, second)()

    assert (caught.value.code, caught.value.id, caught.value.how) == ("already_settled", delivery.id, first)
    assert queue.stats() == before


@pytest.mark.spec("S-050", "S-049", "S-042")
@pytest.mark.parametrize("settle", [*SETTLES, "renew"])
def test_settling_after_the_lease_has_ended_is_refused_and_changes_nothing(clocked: Clocked, settle: str) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    delivery = one(queue)
    clocked.advance(99)
    assert queue.receive() is None
    clocked.advance(1)

    with pytest.raises(LeaseLost) as caught:
        getattr(delivery, settle)()

    assert (caught.value.code, caught.value.queue, caught.value.ids) == ("lease_lost", "q", (delivery.id,))
    assert one(queue).delivery_count == 2
    assert dead(queue) == {}


@pytest.mark.spec("S-049")
def test_renewing_counts_from_now_as_often_as_one_likes(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    delivery = one(queue)

    for _ in range(20):
        clocked.advance(99)
        delivery.renew()
        assert queue.receive() is None
    assert delivery.leased_until == at(20 * 99 + 100)
    delivery.renew("1h")
    assert delivery.leased_until == at(20 * 99 + 3_600_000)
    assert queue.peek()[0].until == delivery.leased_until

    delivery.ack()
    assert bodies(queue) == []


@pytest.mark.spec("DLX-02", "DLX-03", "DLX-06", "DLX-07", "DLX-08", "S-053")
@pytest.mark.parametrize("order", [range(100), (2, 0, 1)], ids=len)
@pytest.mark.parametrize("together", [True, False])
def test_rejected_messages_die_once_in_the_order_of_the_rejections(
    clocked: Clocked, order: Sequence[int], together: bool
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"%d" % i for i in range(len(order))])
    one(queue).nack()
    deliveries = queue.receive_many(len(order))

    if together:
        queue.reject_many([deliveries[i] for i in order])
    for n, i in enumerate(() if together else order, 1):
        deliveries[i].reject()
        assert clocked.queue("d").stats().ready == n

    assert bodies(clocked.queue("d")) == [b"%d" % i for i in order]
    assert dead(queue) == {"rejected": len(order)}


@pytest.mark.spec("DLX-04")
def test_giving_back_dead_letters_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"1", b"2", b"3"])

    queue.nack_many(queue.receive_many(3))
    one(queue).nack()

    assert (bodies(queue), dead(queue), clocked.queues()) == ([b"1", b"2", b"3"], {}, ["q"])


@pytest.mark.parametrize("settle", ["ack_many", "nack_many", "reject_many", "renew_many"])
def test_a_batch_settles_all_that_hold_and_names_the_others(clocked: Clocked, queue: Queue, settle: str) -> None:
    queue.enqueue_many([b"%d" % i for i in range(600)])
    lost, held = queue.receive_many(300, lease="100ms"), queue.receive_many(300, lease="1h")
    mixed = [one for pair in zip(lost, held, strict=True) for one in pair]
    clocked.advance(100)

    with pytest.raises(LeaseLost) as caught:
        getattr(queue, settle)(mixed)

    assert caught.value.ids == tuple(delivery.id for delivery in lost)
    assert {delivery.settled for delivery in lost} == {"lease lost"}
    assert {delivery.settled for delivery in held} == {None if settle == "renew_many" else settle.removesuffix("_many")}
    assert queue.stats().leased == (300 if settle == "renew_many" else 0)


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_deliveries_of_one_message_in_a_batch_only_the_newer_counts(clocked: Clocked, order: int) -> None:
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue(b"x")
    old = one(queue)
    clocked.advance(1_000)
    new = one(queue)

    with pytest.raises(LeaseLost) as caught:
        queue.ack_many([old, new][::order])

    assert caught.value.ids == (old.id,)
    assert (new.settled, old.settled, queue.stats().acked) == ("ack", "lease lost", 1)


def test_a_batch_with_a_wrong_delivery_settles_none(clocked: Clocked) -> None:
    queue, other = clocked.declare_queue("q"), clocked.declare_queue("other")
    queue.enqueue_many([b"1", b"2"])
    other.enqueue(b"x")
    first, second = queue.receive_many(2)
    done = one(other)

    with pytest.raises(InvalidInput, match="other"):
        queue.ack_many([first, done])
    with pytest.raises(InvalidInput, match="twice"):
        queue.ack_many([first, first])
    second.ack()
    with pytest.raises(AlreadySettled):
        queue.ack_many([first, second])

    assert queue.stats().leased == 1
    first.ack()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("error", [None, RuntimeError("handler"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_a_context_acks_and_an_exception_gives_back_and_goes_on(
    clocked: Clocked, error: BaseException | None, lost: bool
) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    delivery = one(queue)

    def handle() -> None:
        with delivery:
            clocked.advance(100 if lost else 0)
            if error is not None:
                raise error

    raised = type(error) if error else LeaseLost if lost else None
    with pytest.raises(raised) if raised else nullcontext():
        handle()

    until(lambda: delivery.settled)  # on asyncio, a task that has to end waits for nothing
    assert delivery.settled == ("lease lost" if lost else "nack" if error else "ack")
    if error and not lost:
        assert description(queue) == codec.describe(error)
    if error or lost:
        assert one(queue).delivery_count == 2
    else:
        assert (queue.stats().acked, bodies(queue)) == (1, [])


@pytest.mark.spec("S-060")
def test_settling_works_on_a_new_connection(queue: Queue) -> None:
    queue.enqueue(b"x")
    delivery = one(queue)

    drop_connections(driver_of(queue))

    delivery.ack()
    assert bodies(queue) == []


@pytest.mark.spec("S-061", "S-045")
def test_changing_options_takes_no_lease_away(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue_many([b"1", b"2"])
    first, second = queue.receive_many(2)

    queue.update(lease="5ms", max_deliveries=1, max_length=0, message_ttl="1ms")
    clocked.advance(60_000)

    assert queue.stats().leased == 2
    first.ack()
    second.ack()


def test_each_of_many_is_renewed_for_as_long_as_it_was_given_for_in_one_call_for_each_length(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue_many([b"%d" % i for i in range(5)])
    lost, *held = [one(queue, lease=lease) for lease in ("1s", "5s", "5s", None, "5s")]
    clocked.advance(1_000)
    scripts: list[str] = []
    clocked.events.subscribe(lambda event: scripts.append(event.name), CommandEvent)

    with pytest.raises(LeaseLost) as caught:
        queue.renew_many([lost, *held])

    assert (caught.value.ids, scripts.count("renew")) == ((lost.id,), 3)
    assert [one.leased_until for one in held] == [at(6_000), at(6_000), at(3_601_000), at(6_000)]
    scripts.clear()
    queue.renew_many(held, "5m")
    assert scripts == ["renew"]


@pytest.mark.usefixtures("at_rest")
def test_a_lease_that_gets_shorter_while_a_consumer_runs_sets_the_rhythm_of_its_renewals(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h", max_deliveries=1)
    renewals = Renewals(clocked)

    with queue.consume(prefetch=3) as deliveries:
        queue.enqueue(b"long")
        before = next(deliveries)
        queue.update(lease="300ms")
        queue.enqueue(b"short")
        after = next(deliveries)
        renewals.outlast(clocked, after, 300)
        before.ack()
        after.ack()

    assert (deliveries.lost, queue.stats().acked) == ([], 2)


#: What stands in front of all messages: well-formed, and not.
IDS = [f"{START - 5000:013d}-{100_000 + i}" for i in range(600)] + ["garbage", "0-0", "x" * 20]
#: Scores that make the id due, or the first to be read.
SETS = {"requeued": START - 5000, "expiry": START - 1, "delayed": START - 1, "leases": (START - 1) * 1000}

ACTIONS: dict[str, Callable[[Queue], object]] = {
    "sweep": lambda queue: queue.sweep(),
    "receive": lambda queue: queue.receive_many(100, lease="1h"),
    "stats": lambda queue: queue.stats(),
    "purge": lambda queue: queue.purge(),
    "delete": lambda queue: queue.delete(),
    "update": lambda queue: queue.update(message_ttl="1h"),
    "preview": lambda queue: queue.preview_update(message_ttl="1s"),
    "nack": lambda queue: queue.nack_many(queue.receive_many(2, lease="1h")),
    "reject": lambda queue: queue.reject_many(queue.receive_many(2, lease="1h")),
    "enqueue": lambda queue: queue.enqueue_many([b"new"] * 300),
    "peek": lambda queue: queue.peek(100),
    "consume": lambda queue: next(iter(queue.consume(wait="1s").__enter__())),
}


class Spinning(AssertionError):
    """Somebody calls again and again."""


@pytest.mark.parametrize("limit", [{}, {"max_length": 200}], ids=str)
@pytest.mark.parametrize("part", SETS)
@pytest.mark.parametrize("action", ACTIONS)
def test_nobody_spins_at_ids_without_a_message(
    clocked: Clocked, client: redis.Redis, action: str, part: str, limit: dict[str, Any]
) -> None:
    queue = clocked.declare_queue("q", **limit)
    queue.enqueue_many([b"%d" % i for i in range(100)])
    key = driver_of(clocked).keyspace.key("q", part)
    client.zadd(key, dict.fromkeys(IDS, SETS[part]))
    client.hset(driver_of(clocked).keyspace.key("q", "meta"), "due_at", 0)
    calls = 0

    def count(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 100:
            raise Spinning(action)

    clocked.events.subscribe(count, CommandEvent)
    ACTIONS[action](queue)
    clocked.events.unsubscribe(count)

    if action != "delete":
        queue.sweep()
        queue.receive_many(250)
        stats = queue.stats()
        assert client.zcount(key, SETS[part], SETS[part]) == 0
        assert stats.ready + stats.leased + stats.delayed == len(queue.peek(1_000))


@pytest.mark.parametrize("settle", [*SETTLES, "renew"])
@pytest.mark.parametrize("back", [0, 60_000])
@pytest.mark.parametrize("by", ["a declaration", "a dead letter"])
def test_a_lease_of_a_deleted_queue_does_not_fit_its_successor(
    clocked: Clocked, settle: str, back: int, by: str
) -> None:
    """All of it happens within one millisecond, or the clock of Redis has stepped back."""

    def leased() -> Delivery:
        if by == "a declaration":
            clocked.declare_queue("dead").enqueue(b"x")
        else:
            source = clocked.declare_queue("q", dead_letter="dead")
            source.enqueue(b"x")
            one(source).reject()
        return one(clocked.queue("dead"))

    old = leased()
    clocked.queue("dead").delete()
    clocked.advance(-back)
    new = leased()

    with pytest.raises(LeaseLost):
        getattr(old, settle)()

    new.ack()
