"""Several queues in one `receive` and one `consume`: order and shares, one wait, missing queues, what it costs."""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

from rqttl import Broker, CommandEvent, Delivery, InvalidInput, Queue, QueueNotFound, WaitEvent
from rqttl.consuming.base import SharedSession
from rqttl.flows.steps import Flow
from rqttl.protocol.commands import BATCH
from rqttl.store.exchanges import Exchanges
from tests.contract.clocked import Clocked
from tests.contract.looks import ready
from tests.contract.test_waking import LONG, Waiters, waiters
from tests.waiting import PATIENCE, until

__all__ = ["waiters"]  # a fixture


@pytest.fixture
def high(clocked: Clocked) -> Queue:
    return clocked.declare_queue("high")


@pytest.fixture
def low(clocked: Clocked) -> Queue:
    return clocked.declare_queue("low")


def told(deliveries: list[Delivery]) -> list[tuple[str, bytes]]:
    return [(delivery.queue, delivery.body) for delivery in deliveries]


def waiting_in(client: redis.Redis, *queues: str) -> list[str]:
    """The queues that count a consumer as waiting."""
    return [name for name in queues if client.zcard(f"rqttl:{{{name}}}:waiters")]


class Receives(list[str]):
    """The queues of the `receive` calls of a broker, in order, and of its waits `wait`."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        broker.events.subscribe(
            lambda event: self.extend([str(event.queue)] if event.name == "receive" else []), CommandEvent
        )
        broker.events.subscribe(lambda _: self.append("wait"), WaitEvent)


# receive


@pytest.mark.parametrize("several", [False, True])
def test_what_was_taken_with_auto_ack_is_returned_although_a_later_call_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, several: bool
) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many(numbered := [b"%d" % number for number in range(2 * BATCH)])
    broker.events.subscribe(lambda _: None)  # now each script is an exchange
    send, replies = Exchanges._script, iter([True, False])

    def lose_replies(*call: Any) -> Generator[Any, Any, Any]:
        if call[2].script.name == "receive" and not next(replies, True):
            raise redis.ConnectionError("the reply was lost")
        return (yield from send(*call))

    monkeypatch.setattr(Exchanges, "_script", lose_replies)
    take = partial(broker.receive, ["q"]) if several else queue.receive_many
    assert [one.body for one in take(2 * BATCH, auto_ack=True)] == numbered[:BATCH]
    assert any("returning the messages that were taken" in record.getMessage() for record in caplog.records)
    assert [one.body for one in take(1, auto_ack=True)] == numbered[BATCH : BATCH + 1]


@pytest.mark.parametrize("wait", [None, "1m"])
def test_a_receive_empties_the_first_queue_first(
    clocked: Clocked, client: redis.Redis, high: Queue, low: Queue, wait: str | None
) -> None:
    low.enqueue_many([b"l1", b"l2", b"l3", b"l4"])
    high.enqueue_many([b"h1", b"h2"])

    taken = clocked.receive(["high", "low"], max=3, wait=wait, lease="1m")

    assert told(taken) == [("high", b"h1"), ("high", b"h2"), ("low", b"l1")]
    for delivery in taken:
        delivery.ack()
    assert told(clocked.receive(["high", "low"], wait=wait, auto_ack=True)) == [("low", b"l2")]
    assert told(clocked.receive(["high", "low"], 9, wait, "1h")) == [("low", b"l3"), ("low", b"l4")]
    assert clocked.receive(["high", "low"], 9, wait) == []
    assert (high.stats().acked, low.stats().acked, low.stats().leased) == (2, 2, 2)
    assert waiting_in(client, "high", "low") == []


@pytest.mark.parametrize("to", ["a", "b", "c"])
def test_one_wait_is_for_all_queues_and_ends_in_all(clocked: Clocked, client: redis.Redis, to: str) -> None:
    for name in ("a", "b", "c"):
        clocked.declare_queue(name)
    counts: list[list[str]] = []

    def send() -> None:
        if not counts:
            counts.append(waiting_in(client, "a", "b", "c"))
            clocked.queue(to).enqueue(b"now or never", ttl=0)

    clocked.while_waiting(send)

    assert told(clocked.receive(["a", "b", "c"], wait="1m")) == [(to, b"now or never")]
    assert counts == [["a", "b", "c"]]
    assert waiting_in(client, "a", "b", "c") == []
    assert [clocked.queue(name).stats().consumers for name in "abc"] == [0, 0, 0]


def test_a_wait_costs_one_call_for_each_queue_and_looks_at_one_when_work_is_due_there(clocked: Clocked) -> None:
    queues = [f"q{n}" for n in range(10)]
    for name in queues:
        clocked.declare_queue(name)
    clocked.queue("q7").enqueue(b"x")
    clocked.receive(queues)[0].nack(delay="30s")
    calls, since = Receives(clocked), clocked.now

    assert told(clocked.receive(queues, wait="1m")) == [("q7", b"x")]

    assert calls[:21] == [*queues, *["wait"] * 10, "q7"]
    assert Counter(calls[21:]) == Counter(set(queues) - {"q7"})  # it waits there no more
    assert clocked.now - since == 30_000


@pytest.mark.parametrize("wait", [None, "1m"])
def test_a_missing_queue_is_told_before_a_message_is_taken(
    clocked: Clocked, client: redis.Redis, high: Queue, wait: str | None
) -> None:
    high.enqueue(b"x")
    with pytest.raises(QueueNotFound, match="missing"):
        clocked.receive(["high", "missing"], max=2, wait=wait)

    clocked.declare_queue("gone")
    clocked.receive(["gone"])
    client.delete("rqttl:{gone}:meta")  # this broker still knows its options
    assert told(clocked.receive(["high", "gone"], max=2, wait=wait)) == [("high", b"x")]
    with pytest.raises(QueueNotFound, match="gone"):
        clocked.receive(["high", "gone"], wait=wait)
    assert waiting_in(client, "high") == []


@pytest.mark.parametrize(
    "how, arguments, words",
    [
        ("receive", {"queues": "high"}, "queues: expected names of queues"),
        ("receive", {"queues": []}, "queues: expected at least one"),
        ("receive", {"queues": ["high", "no name"]}, "queues: expected 1 to 128"),
        ("receive", {"queues": ["high"], "max": 0}, "max: expected"),
        ("receive", {"queues": ["high"], "wait": "soon"}, "wait"),
        ("receive", {"queues": ["high"], "lease": 0}, "lease"),
        ("consume", {"queues": []}, "queues: expected at least one"),
        ("consume", {"queues": ["h*"]}, "queues: expected 1 to 128"),
        ("consume", {"queues": ["high"], "prefetch": 0}, "prefetch"),
        ("consume", {"queues": ["high", "low"], "weights": {"high": 3}}, "weights: expected a weight for each"),
        ("consume", {"queues": ["high"], "weights": {"high": 3, "low": 1}}, "weights: expected a weight for each"),
        ("consume", {"queues": ["high"], "weights": [3]}, "weights: expected a weight for each"),
        ("consume", {"queues": ["high"], "weights": {"high": 0}}, "weights: high: expected a whole number from 1"),
        ("consume", {"queues": ["high"], "weights": {"high": 1_000_001}}, "to 1000000"),
    ],
)
def test_bad_input_is_refused_by_its_name_and_takes_nothing(
    clocked: Clocked, high: Queue, how: str, arguments: dict[str, Any], words: str
) -> None:
    high.enqueue(b"x")

    with pytest.raises(InvalidInput, match=words):
        getattr(clocked, how)(**arguments)

    assert ready(high) == [b"x"]


# consume


def test_without_weights_each_fetch_looks_at_the_first_queue_first(clocked: Clocked, high: Queue, low: Queue) -> None:
    low.enqueue_many([b"l1", b"l2", b"l3"])
    order: list[bytes] = []

    with clocked.consume(["high", "low"], prefetch=1, wait="1m") as deliveries:
        for delivery in deliveries:
            order.append(delivery.body)
            if delivery.body == b"l1":
                high.enqueue_many([b"h1", b"h2"])
            if order == [b"l1", b"h1"]:
                delivery.nack(delay="5s")
            elif delivery.body == b"l2":
                delivery.reject()
            else:
                delivery.ack()

    assert order == [b"l1", b"h1", b"h2", b"l2", b"l3", b"h1"]
    assert deliveries.lost_count == deliveries.unknown_count == 0
    assert (high.stats().acked, low.stats().acked, low.stats().deaths["rejected"]) == (2, 2, 1)


@pytest.mark.usefixtures("at_rest")
def test_a_message_that_was_handed_to_a_consumer_at_work_comes_next(clocked: Clocked, high: Queue, low: Queue) -> None:
    low.enqueue_many([b"l1", b"l2"])

    with clocked.consume(["high", "low"], prefetch=1, wait="1m") as deliveries:
        next(deliveries).ack()
        assert not high.enqueue(b"now or never", ttl=0).expired
        assert next(deliveries).body == b"now or never"


@pytest.mark.parametrize("how", ["receive", "consume"])
def test_who_leaves_with_a_message_of_one_queue_gives_back_what_was_handed_over_of_another(
    clocked: Clocked, high: Queue, how: str
) -> None:
    """It has not been delivered, so its limit of deliveries is as it was."""
    full = clocked.declare_queue("full", max_length=1, overflow="reject-publish", max_deliveries=1)
    arrive: list[Callable[[], object]] = [lambda: full.enqueue_many([b"1", b"2"]), lambda: high.enqueue(b"h")]
    clocked.while_waiting(lambda: [arrive.pop(0)() for _ in range(len(arrive))])

    if how == "receive":
        assert told(clocked.receive(["high", "full"], wait="1m")) == [("high", b"h")]
    else:
        with clocked.consume(["high", "full"], prefetch=1, wait="1m") as deliveries, next(deliveries) as delivery:
            assert delivery.body == b"h"
    clocked.advance(10_000)
    full.sweep()

    assert [(one.body, one.delivery_count) for one in full.receive_many(9)] == [(b"1", 1), (b"2", 1)]
    assert full.stats().deaths["delivery_limit"] == 0


@pytest.mark.parametrize("prefetch", [1, 10, 100])
def test_weights_share_the_messages(clocked: Clocked, high: Queue, low: Queue, prefetch: int) -> None:
    for queue in (high, low):
        queue.enqueue_many([b"x"] * 400)
    order: list[str] = []

    with clocked.consume(["low", "high"], weights={"high": 3, "low": 1}, prefetch=prefetch, wait=0) as deliveries:
        for delivery in deliveries:
            order.append(delivery.queue)
            delivery.ack()

    assert 285 <= order[:400].count("high") <= 315  # three to one, within 5 %
    assert 135 <= order[:200].count("high") <= 165
    assert Counter(order) == {"high": 400, "low": 400}


@pytest.mark.usefixtures("at_rest")
def test_queues_without_messages_cost_the_others_no_script(clocked: Clocked) -> None:
    names = [f"q{n}" for n in range(10)]
    for name in names:
        clocked.declare_queue(name)
    clocked.queue("q9").enqueue_many([b"x"] * 50)
    calls = Receives(clocked)

    with clocked.consume(names, prefetch=1, wait="1m") as deliveries:
        calls.clear()
        for _, delivery in zip(range(50), deliveries, strict=False):
            delivery.ack()

    assert Counter(calls[:59]) == {**dict.fromkeys(names, 1), "q9": 50}


def test_an_idle_consumer_makes_no_call_until_it_is_woken(
    broker: Broker, waiters: Waiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its renewer takes turns meanwhile, and would show the presence of a consumer that is not waiting."""
    turns, upkeep = list[object](), SharedSession.upkeep

    def counted(of: SharedSession[Any]) -> Flow[dict[str, int]]:
        turns.append(of)
        return upkeep(of)

    monkeypatch.setattr(SharedSession, "upkeep", counted)
    for name in ("LONGEST_REST", "CONSUMER_TTL_MS"):
        monkeypatch.setattr(f"rqttl.consuming.prefetch.{name}", 3)
    names = [f"q{n}" for n in range(10)]
    for name in names:
        broker.declare_queue(name)
    calls = Receives(broker)

    def consume() -> tuple[str, bytes]:
        with broker.consume(names) as deliveries, next(deliveries) as delivery:
            return delivery.queue, delivery.body

    def take_turns(number: int) -> None:
        seen = len(turns)
        until(lambda: len(turns) >= seen + number)

    (waiting,) = waiters.start(broker.queue("q3"), how=consume)
    take_turns(1)  # the one that had begun before the wait is over
    idle = list(calls)
    take_turns(5)
    assert calls == idle
    broker.queue("q3").enqueue(b"x")

    assert waiting.result(timeout=PATIENCE) == ("q3", b"x")
    assert [broker.queue(name).stats().consumers for name in names] == [0] * 10
    assert broker.queue("q3").stats().acked == 1


def test_a_missing_queue_is_looked_for_every_5_s(
    clocked: Clocked, high: Queue, low: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "rqttl.consumer")
    start, seen = clocked.now, list[tuple[bytes, int]]()
    low.enqueue(b"first")

    def act() -> None:
        if clocked.now - start == 10_000 and "late" not in clocked.queues():
            clocked.declare_queue("late").enqueue(b"late")

    clocked.while_waiting(act)
    with clocked.consume(["high", "late", "low"], wait="1m") as deliveries:
        for delivery in deliveries:
            seen.append((delivery.body, clocked.now - start))
            delivery.ack()
            if delivery.body == b"late":
                high.delete()
                low.enqueue(b"last")

    assert seen[:2] == [(b"first", 0), (b"late", 15_000)]
    assert seen[2][0] == b"last"
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [f"queue {name} does not exist; looking again every 5 s" for name in ("late", "high")]


def test_a_consumer_whose_handler_takes_long_waits_in_no_queue(broker: Broker, client: redis.Redis) -> None:
    """So no message that cannot wait is handed to it. One that was handed to it right before goes back."""
    high, low = broker.declare_queue("high"), broker.declare_queue("low")
    low.enqueue_many([b"1", b"2"])

    with broker.consume(["high", "low"], prefetch=1, wait="1m") as deliveries:
        with next(deliveries):
            assert waiting_in(client, "high") == ["high"]
            assert not high.enqueue(b"handed", ttl=0).expired
            until(lambda: not waiting_in(client, "high"))
            until(lambda: high.stats().deaths["expired"])
            assert high.enqueue(b"nobody waits", ttl=0).expired
        high.enqueue(b"urgent")
        assert next(deliveries).body == b"urgent"

    assert (high.stats().consumers, low.stats().consumers) == (0, 0)


def test_leases_of_all_queues_are_kept(clocked: Clocked) -> None:
    queues = [clocked.declare_queue("short", lease="1s"), clocked.declare_queue("long", lease="10m")]
    for queue in queues:
        queue.enqueue(b"x")

    with clocked.consume(["short", "long"], wait="1m") as deliveries:
        taken = [next(deliveries), next(deliveries)]
        clocked.clock.advance("1h")
        listed = [queue.consumers()[0] for queue in queues]
        assert [(info.in_flight, info.oldest) for info in listed] == [(1, delivery.id) for delivery in taken]
        for delivery in taken:
            delivery.ack()

    assert [queue.stats().acked for queue in queues] == [1, 1]
    assert deliveries.lost == []


def test_what_was_not_handed_out_goes_back_to_its_queue(clocked: Clocked, high: Queue, low: Queue) -> None:
    high.enqueue(b"h")
    low.enqueue_many([b"l1", b"l2", b"l3", b"l4", b"l5"])

    with clocked.consume(["high", "low"], prefetch=4, wait=0) as deliveries:
        first = next(deliveries)
        next(deliveries).ack()
        assert low.stats().leased == 3  # the limit is one for all queues
        first.ack()

    assert (ready(high), ready(low)) == ([], [b"l2", b"l3", b"l4", b"l5"])
    assert low.receive_many(9)[0].delivery_count == 1


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_a_wait_for_several_queues_is_ended_from_outside(
    broker: Broker, client: redis.Redis, waiters: Waiters, how: str
) -> None:
    queue = broker.declare_queue("a")
    broker.declare_queue("b")
    entered: list[Any] = []

    def consume() -> list[Delivery]:
        with broker.consume(["a", "b"], wait=LONG) as deliveries:
            entered.append(deliveries)
            return list(deliveries)

    act: Callable[[], None] = broker.interrupt if how == "interrupt" else lambda: entered[0].stop()  # noqa: PLW0108  # there is none yet
    (waiting,) = waiters.start(queue, how=consume)
    act()

    assert waiting.result(timeout=PATIENCE) == []
    assert waiting_in(client, "a", "b") == []


def test_threads_share_one_consumer_of_several_queues(broker: Broker) -> None:
    names = ["a", "b", "c"]
    for name in names:
        broker.declare_queue(name).enqueue_many([name.encode()] * 40)

    with broker.consume(names, prefetch=8, wait=0) as deliveries, ThreadPoolExecutor(8) as pool:
        for delivery in deliveries:
            pool.submit(delivery.ack)

    assert [broker.queue(name).stats().acked for name in names] == [40, 40, 40]
    assert deliveries.lost == []


def test_a_paused_queue_is_one_without_messages_until_it_is_resumed(clocked: Clocked, high: Queue, low: Queue) -> None:
    high.enqueue(b"h")
    low.enqueue(b"l")
    high.pause()
    clocked.while_waiting(lambda: high.resume() if high.stats().paused else None)

    assert told(clocked.receive(["high", "low"], max=2)) == [("low", b"l")]
    with clocked.consume(["high", "low"], wait="1m") as deliveries:
        assert next(deliveries).body == b"h"


def test_a_queue_over_its_rate_is_asked_again_when_the_next_message_may_go(clocked: Clocked, low: Queue) -> None:
    clocked.declare_queue("high", rate="1/10s", burst=1).enqueue_many([b"h1", b"h2"])
    low.enqueue(b"l")
    order: list[tuple[bytes, int]] = []
    start = clocked.now

    with clocked.consume(["high", "low"], prefetch=1, wait="15s") as deliveries:
        for delivery in deliveries:
            order.append((delivery.body, clocked.now - start))
            delivery.ack()

    assert order == [(b"h1", 0), (b"l", 0), (b"h2", 10_000)]
