"""Queues that end: unused for `expires`, or idle for `auto_delete_on_idle`; what becomes of their messages; a trace."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from rqttl import Queue, QueueNotFound
from rqttl.flows.steps import Read, Step, Unregister
from rqttl.protocol.commands import Command
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, ms
from tests.contract.looks import one
from tests.drivers import before_step

LIFE = 10_000
#: What a caller may do to a queue, and whether `expires` and `auto_delete_on_idle` count it as use.
USES: dict[str, tuple[Callable[[Clocked, Queue], object], bool, bool]] = {
    "receive": (lambda clocked, queue: queue.receive(), True, True),
    "receive with a wait": (lambda clocked, queue: queue.receive(wait="1ms"), True, True),
    "touch": (lambda clocked, queue: queue.touch(), True, True),
    "declare": (lambda clocked, queue: clocked.declare_queue("q", **queue.options().as_arguments()), True, True),
    "update": (lambda clocked, queue: queue.update(max_length=5), True, True),
    "enqueue": (lambda clocked, queue: queue.enqueue(b"x"), False, True),
    "enqueue_many": (lambda clocked, queue: queue.enqueue_many([b"x", b"y"]), False, True),
    "peek": (lambda clocked, queue: queue.peek(), False, True),
    "stats": (lambda clocked, queue: queue.stats(), False, False),
    "options": (lambda clocked, queue: queue.options(), False, False),
    "purge": (lambda clocked, queue: queue.purge(), False, False),
    "sweep": (lambda clocked, queue: queue.sweep(), False, False),
}


def is_there(clocked: Clocked, name: str = "q") -> bool:
    return name in clocked.queues()


@pytest.mark.spec("QTL-02", "QTL-03", "S-072")
@pytest.mark.parametrize("life", [1, 299_999, 315_360_000_000])
@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_a_queue_that_nobody_uses_is_gone_from_that_millisecond_on(
    clocked: Clocked, client: redis.Redis, option: str, life: int
) -> None:
    clocked.declare_queue("q", **dict[str, Any]({option: ms(life)}))
    clocked.declare_queue("stays")

    clocked.advance(life - 1)
    assert clocked.queues() == ["q", "stays"]
    clocked.advance(1)
    assert clocked.queues() == ["stays"]
    clocked.queue("q").sweep()
    assert client.keys("*{q}*") == [b"rqttl:{q}:tombstone"]


@pytest.mark.parametrize(
    "use",
    [
        lambda clocked, queue: queue.enqueue(b"x", ttl=0),
        lambda clocked, queue: queue.enqueue_many([b"x"] * 600),
        lambda clocked, queue: queue.sweep() and queue.stats(),
        lambda clocked, queue: queue.delete(),
        *(use for name, (use, *_) in USES.items() if name not in ("declare", "options", "sweep")),
    ],
)
@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_without_a_reaper_the_first_call_after_that_finds_no_queue(
    clocked: Clocked, client: redis.Redis, option: str, use: Callable[[Clocked, Queue], object]
) -> None:
    queue = clocked.declare_queue("q", **dict[str, Any]({option: ms(LIFE)}))
    queue.enqueue_many([b"x"] * 3)
    clocked.advance(LIFE)

    with pytest.raises(QueueNotFound):
        use(clocked, queue)
    assert sorted(client.keys()) == [b"rqttl:dataset{rqttl}", b"rqttl:{q}:tombstone"]


@pytest.mark.spec("QTL-04", "QTL-05", "QTL-07", "QTL-08", "C-27", "C-29", "S-073", "W11")
@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_only_uses_begin_the_time_anew(clocked: Clocked, name: str, option: str) -> None:
    use, *counts = USES[name]
    queue = clocked.declare_queue("q", **dict[str, Any]({option: ms(LIFE)}))
    clocked.advance(LIFE * 3 // 4)

    use(clocked, queue)
    clocked.advance(LIFE - 1)

    assert is_there(clocked) == counts[option == "auto_delete_on_idle"]
    clocked.advance(1)
    assert not is_there(clocked)


@pytest.mark.spec("QTL-09", "QTL-11", "S-078")
def test_a_consumer_that_waits_is_a_use_and_a_lease_is_none(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), lease="1h")
    assert queue.receive(wait=ms(3 * LIFE)) is None
    assert is_there(clocked)

    queue.enqueue(b"x")
    one(queue)
    clocked.advance(LIFE)
    assert not is_there(clocked)


@pytest.mark.spec("QTL-10")
def test_a_consumer_that_was_killed_counts_until_its_stay_is_over_then_the_time_begins(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE))
    client.zadd("rqttl:{q}:consumers", {"killed": clocked.now + LIFE})
    queue.receive()

    clocked.advance(2 * LIFE - 1)
    queue.sweep()
    assert is_there(clocked)
    clocked.advance(1)
    assert not is_there(clocked)


@pytest.mark.spec("S-071")
def test_the_dead_letter_queue_of_an_idle_queue_stays(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", auto_delete_on_idle=ms(LIFE), dead_letter="{queue}/dead")
    queue.enqueue(b"x", ttl=0)
    queue.enqueue(b"waits")
    clocked.advance(LIFE)

    assert clocked.queues() == ["q/dead"]
    assert clocked.queue("q/dead").stats().ready == 1


@pytest.mark.spec("QTL-16", "S-076")
def test_messages_of_an_expired_queue_are_dropped_by_default(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), dead_letter="dead")
    queue.enqueue_many([b"x"] * 700)
    clocked.advance(LIFE)

    assert [one.retired for one in queue.sweep()] == [700]
    assert clocked.queues() == []


def test_a_declaration_after_that_makes_a_new_queue(clocked: Clocked) -> None:
    clocked.declare_queue("q", expires=ms(LIFE), max_length=3).enqueue(b"old")
    clocked.advance(LIFE)

    queue = clocked.declare_queue("q", expires=ms(LIFE))

    assert (queue.declared, queue.stats().ready, queue.options().max_length) == ("created", 0, None)


@pytest.mark.spec("WS-23", "W9")
def test_with_dead_letter_its_messages_of_all_states_go_first(clocked: Clocked) -> None:
    options: dict[str, Any] = {"expires": ms(LIFE), "on_expire": "dead-letter", "dead_letter": "dead"}
    queue = clocked.declare_queue("q", lease="1h", **options)
    queue.enqueue_many([b"%d" % i for i in range(600)])
    queue.receive()
    delayed = one(queue)
    delayed.nack(delay="30s")
    clocked.advance(LIFE)

    assert [one.retired for one in queue.sweep()][-1] == 0
    letters = clocked.queue("dead").peek(1000)
    assert [int(one.body) for one in letters] == [*range(2, 600), 0, 1]
    assert {(one.deaths[0].queue, one.deaths[0].reason) for one in letters} == {("q", "expired")}
    assert [one.deaths[0].delivery_count for one in letters[-3:]] == [0, 1, 1]
    assert clocked.queues() == ["dead"]


@pytest.mark.spec("QTL-15")
def test_a_lifetime_may_come_later_and_go_again(clocked: Clocked, queue: Queue) -> None:
    clocked.advance(10 * LIFE)
    queue.update(expires=ms(LIFE))
    clocked.advance(LIFE - 1)
    queue.update(expires=None)
    clocked.advance(10 * LIFE)

    assert is_there(clocked)


@pytest.mark.parametrize("end", ["delete", "stats", "sweep"])
def test_a_queue_that_is_made_again_before_its_name_is_taken_out_is_listed(
    clocked: Clocked, client: redis.Redis, end: str
) -> None:
    queue, other = clocked.declare_queue("q", expires=ms(LIFE)), Clocked(client)
    if end != "delete":
        clocked.advance(LIFE)
    before_step(driver_of(clocked), Unregister("q"), lambda: other.declare_queue("q"))

    if end == "stats":
        assert queue.stats().ready == 0
    else:
        getattr(queue, end)()

    assert is_there(clocked)


def test_a_queue_whose_name_is_taken_out_right_before_it_is_made_is_listed(
    clocked: Clocked, client: redis.Redis
) -> None:
    before_step(driver_of(clocked), Command, lambda: driver_of(Clocked(client)).step(Unregister("q")))

    clocked.declare_queue("q")

    assert is_there(clocked)


def test_many_queues_with_lifetimes_are_listed_in_few_round_trips(clocked: Clocked, client: redis.Redis) -> None:
    for i in range(60):
        queue = clocked.declare_queue(f"q{i:02}", expires=ms(LIFE + i), on_expire="keep" if i == 3 else "drop")
        queue.enqueue(b"x")
    clocked.advance(LIFE + 9)
    steps: list[Step] = []
    driver = driver_of(clocked)
    step = driver.step
    driver.step = lambda one: steps.append(one) or step(one)  # type: ignore[method-assign, assignment, func-returns-value]

    assert clocked.queues() == ["q03", *(f"q{i}" for i in range(10, 60))]
    # the registry, and the records
    assert [len(one.calls) for one in steps if isinstance(one, Read)] == [1, 60]
    assert len(steps) == 2


@pytest.mark.spec("WA-19", "W10")
def test_with_keep_a_queue_that_holds_messages_is_in_use(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep")
    queue.enqueue(b"x")
    clocked.advance(LIFE)
    assert queue.stats().ready == 1

    delivery = one(queue)
    delivery.ack()
    pass_time(clocked, 2 * LIFE - 1)
    assert is_there(clocked)
    pass_time(clocked, 1)
    assert not is_there(clocked)


def pass_time(clocked: Clocked, time: int) -> None:
    """Let time pass as it does beside a reaper, which sweeps the queue when it is due."""
    until = clocked.now + time
    while clocked.now < until:
        due = None
        with suppress(QueueNotFound):
            due = clocked.queue("q").sweep()[-1].due
        clocked.advance(max(1, min(due or until, until) - clocked.now))
    with suppress(QueueNotFound):
        clocked.queue("q").sweep()


@pytest.mark.parametrize("late", [1, LIFE // 2, LIFE])
def test_with_keep_a_queue_lives_for_one_to_two_lifetimes_after_its_last_message(clocked: Clocked, late: int) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep", lease=ms(5 * LIFE))
    queue.enqueue(b"x")
    pass_time(clocked, LIFE)
    delivery = one(queue)
    pass_time(clocked, 2 * LIFE - late)

    delivery.ack()

    pass_time(clocked, LIFE - 1)
    assert is_there(clocked)
    pass_time(clocked, LIFE + 1)
    assert not is_there(clocked)


@pytest.mark.spec("A-073")
def test_with_keep_a_message_that_expires_between_two_ends_counts_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep")
    clocked.advance(LIFE // 2)
    queue.enqueue(b"x", ttl=ms(LIFE // 2 - 1))
    pass_time(clocked, LIFE // 2 - 1)
    assert queue.stats(sweep=False).ready == 0

    pass_time(clocked, LIFE)

    assert is_there(clocked)
    pass_time(clocked, LIFE)
    assert not is_there(clocked)


def test_statistics_of_many_queues_keep_and_end_queues_as_those_of_one_do(clocked: Clocked) -> None:
    clocked.declare_queue("kept", expires=ms(LIFE), on_expire="keep").enqueue(b"x")
    clocked.declare_queue("ended", expires=ms(LIFE), on_expire="dead-letter", dead_letter="d").enqueue(b"y")
    clocked.advance(LIFE)

    stats = clocked.stats()

    assert {name: one.ready for name, one in stats.items()} == {"kept": 1}
    assert (clocked.queues(), clocked.queue("d").stats().ready) == (["d", "kept"], 1)
