"""Sweeps meet every expired message, wherever it is, and two sweeps at once meet each of them once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rqttl import CommandEvent, Message
from tests.contract.clocked import Clocked, at
from tests.contract.looks import bodies, ready


@pytest.mark.spec("A-059")
def test_of_a_hundred_messages_every_second_one_expires(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, ttl="1s" if i % 2 else None) for i in range(100)])
    clocked.advance("1s")

    queue.sweep()

    assert ready(queue) == [b"%d" % i for i in range(0, 100, 2)]
    assert bodies(clocked.queue("d")) == [b"%d" % i for i in range(1, 100, 2)]


@pytest.mark.spec("A-060")
def test_one_sweep_meets_an_expired_message_behind_very_many_others(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"x"] * 5_000)
    queue.enqueue(b"last", ttl="1s")
    clocked.advance("1s")

    [step] = queue.sweep()

    assert (step.expired, step.more) == (1, False)
    assert queue.stats(sweep=False).ready == 5_000


@pytest.mark.spec("A-061")
def test_each_step_of_a_sweep_is_whole(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"x", ttl="1s")] * 2_000)
    clocked.advance("1s")
    depths: list[tuple[int, int]] = []

    def look(event: CommandEvent) -> None:
        if event.name == "sweep":
            depths.append((queue.stats(sweep=False).ready, clocked.queue("d").stats(sweep=False).ready))

    clocked.events.subscribe(look, CommandEvent)
    steps = queue.sweep()

    assert len(steps) > 1
    assert [left + moved for left, moved in depths] == [2_000] * len(depths)
    assert depths[-1] == (0, 2_000)


@pytest.mark.spec("A-051", "A-062")
def test_sweeps_at_once_all_return_and_each_message_expires_once(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, ttl="1s") for i in range(1_000)])
    clocked.advance("1s")

    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: queue.sweep(), range(10)))

    assert sum(step.expired for steps in results for step in steps) == 1_000
    assert bodies(clocked.queue("d")) == [b"%d" % i for i in range(1_000)]


@pytest.mark.spec("A-066")
def test_a_fetched_message_is_leased_so_it_is_handled_also_past_its_deadline(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue_many([Message(b"%d" % i, ttl="1s") for i in range(3)])
    handled = []

    with queue.consume(prefetch=2, wait=0) as deliveries:
        for delivery in deliveries:
            with delivery:
                handled.append((delivery.body, delivery.expires_at == at(1_000)))
                clocked.advance("1s")

    assert handled == [(b"0", True), (b"1", True)]
    assert queue.stats().deaths["expired"] == 1
