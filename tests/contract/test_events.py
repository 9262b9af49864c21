"""What a call costs and what listeners hear of it; calls that are repeated, and work that follows a call."""

import gc
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from itertools import product
from typing import Any

import pytest
import redis

from rqttl import (
    Broker,
    CommandEvent,
    Event,
    LeaseLost,
    OutcomeUnknown,
    Queue,
    QueueNotFound,
    QueuesAway,
    SweepEvent,
    WaitEvent,
)
from rqttl.protocol.commands import Command
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from rqttl.store.exchanges import Exchanges
from rqttl.store.topology import Node
from tests.contract.clocked import Clocked
from tests.drivers import redis_of


def listened(broker: Broker) -> list[CommandEvent]:
    heard: list[CommandEvent] = []
    broker.events.subscribe(heard.append, CommandEvent)
    return heard


def told(events: list[CommandEvent]) -> list[tuple[str, str | None, str]]:
    return [(event.name, event.queue, event.outcome) for event in events]


def test_a_script_is_told_with_its_queue_and_its_refusal(broker: Broker, queue: Queue) -> None:
    queue.enqueue(b"x")
    queue.touch()  # both scripts are loaded
    events = listened(broker)

    queue.enqueue(b"x")
    with pytest.raises(QueueNotFound):
        broker.queue("never").touch()

    assert told(events) == [("enqueue", "q", "ok"), ("touch", "never", "not_found")]
    assert all(event.seconds > 0 for event in events)


def test_each_script_of_a_pipeline_is_told_with_its_own_outcome(broker: Broker) -> None:
    for name in ("a", "a/b"):
        broker.declare_queue(name)
    broker.stats()  # loads the scripts
    events = listened(broker)

    broker.stats(["a", "a/never", "a/b"])

    lookups, stats = events[:3], events[3:]
    assert told(lookups) == [("lookup", "a", "ok"), ("lookup", "a/never", "not_found"), ("lookup", "a/b", "ok")]
    assert told(stats) == [("stats", "a", "ok"), ("stats", "a/b", "ok")]
    assert (len({event.seconds for event in lookups}), len({event.seconds for event in stats})) == (1, 1)


def test_plain_commands_are_told_each_with_its_own_outcome(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("a")
    broker.declare_queue("a/b")
    client.set(driver_of(broker).keyspace.key("a/b", "log"), "not a stream")
    events = listened(broker)

    with pytest.raises(QueuesAway):
        broker.stats(["a", "a/b"], sweep=False)

    assert told(events) == [
        ("TIME", None, "ok"),
        ("HMGET", None, "ok"),
        ("HMGET", None, "ok"),
        ("XLEN", None, "ok"),
        ("ZCOUNT", None, "ok"),
        ("XLEN", None, "ResponseError"),
        ("ZCOUNT", None, "ok"),
    ]


def test_a_wait_is_told_with_what_ended_it(broker: Broker, queue: Queue) -> None:
    events = listened(broker)
    waits = threading.Semaphore(0)
    broker.events.subscribe(lambda _: waits.release(), WaitEvent)

    def send() -> None:
        waits.acquire(timeout=60)
        queue.enqueue(b"x")

    sender = threading.Thread(target=send)
    sender.start()
    assert queue.receive(wait="60s") is not None
    sender.join()
    assert queue.receive(wait="10ms") is None
    assert [one for one in told(events) if one[0] == "BLPOP"] == [("BLPOP", "q", "ok"), ("BLPOP", "q", "timeout")]


def test_a_failure_is_told_by_the_class_of_its_exception(
    broker: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = driver_of(broker).store
    events = listened(broker)

    def lose(*_: object, **__: object) -> object:
        raise redis.ConnectionError("gone")

    for node, attempt in product(store.topology.nodes, ("send_one", "round_trip")):
        monkeypatch.setattr(node, attempt, lose)
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", ())
    monkeypatch.setattr(store.exchanges, "patience", None)
    for ask in (queue.touch, lambda: broker.stats(["q"], sweep=False), broker.reaper_count):
        with pytest.raises((redis.ConnectionError, QueuesAway)):  # on a cluster other nodes may have other queues
            ask()

    assert told(events) == [
        ("touch", "q", "ConnectionError"),
        ("TIME", None, "ConnectionError"),
        ("HMGET", None, "ConnectionError"),
        ("HGETALL", None, "ConnectionError"),
        ("TIME", None, "ConnectionError"),
    ]


def test_a_listener_hears_events_of_its_class_and_one_without_a_class_hears_all(clocked: Clocked) -> None:
    everything: list[Event] = []
    waits: list[WaitEvent] = []
    queue = clocked.declare_queue("q")
    clocked.events.subscribe(everything.append)
    clocked.events.subscribe(waits.append, WaitEvent)

    assert queue.receive(wait="1s") is None

    assert set(waits) == {WaitEvent("q")}
    assert [event for event in everything if type(event) is WaitEvent] == waits
    assert "receive" in {event.name for event in everything if type(event) is CommandEvent}


def test_a_reaper_tells_each_sweep_beside_its_command(clocked: Clocked) -> None:
    clocked.declare_queue("q").enqueue(b"x", ttl="1s")
    clocked.advance("1s")
    events: list[Event] = []
    clocked.events.subscribe(events.append)

    Reaper(clocked).run_once()

    sweeps = [event for event in events if type(event) is SweepEvent]
    commands = [event for event in events if type(event) is CommandEvent and event.name == "sweep"]
    assert (sum(sweep.swept.expired for sweep in sweeps), {sweep.queue for sweep in sweeps}) == (1, {"q"})
    assert len(commands) == len(sweeps)


def test_nobody_is_notified_after_the_last_listener_has_left(clocked: Clocked) -> None:
    events: list[Event] = []
    clocked.events.subscribe(events.append)
    clocked.events.subscribe(events.append, WaitEvent)

    clocked.events.unsubscribe(events.append)
    clocked.queues()
    clocked.events.unsubscribe(events.append)

    assert events == []
    assert clocked.events.notify is None


#: What the server counts where a client has called it; commands inside scripts are among the others.
CALLS = ("evalsha", "eval", "script|load", "blpop", "multi", "sadd", "smembers", "get", "ping")


def calls_of(client: redis.Redis, action: Callable[[], object]) -> dict[str, int]:
    """How often the server was called while something was done."""

    def calls() -> dict[str, int]:
        stats: Any = client.info("commandstats")
        return {name: int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in CALLS}

    before = calls()
    action()
    return {name: count - before[name] for name, count in calls().items() if count != before[name]}


@pytest.fixture
def no_others(broker: Broker) -> Iterator[None]:
    """Brokers that earlier tests left open are closed before the test, not within it: that takes calls."""
    gc.collect()
    broker.queues()  # on asyncio the portal closes them before it makes this call
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def known_queue(broker: Broker, no_others: None) -> Queue:
    """A queue that the broker knows, with scripts that the server knows."""
    queue = broker.declare_queue("q", message_ttl="1h", dead_letter="q/d", max_message_bytes=1)
    queue.enqueue_many([b"x"] * 400)
    for delivery, settle in zip(queue.receive_many(4), ("ack", "nack", "reject", "renew"), strict=True):
        getattr(delivery, settle)()
    queue.peek()
    queue.stats()
    queue.enqueue(b"x", id="me", delay="1h")
    queue.reschedule("me", delay="2h")
    queue.cancel("none")
    return queue


@pytest.mark.parametrize(
    "action, expected",
    [
        (lambda queue: queue.enqueue(b"x", ttl="1m"), {"evalsha": 1}),
        (lambda queue: queue.enqueue_many([b"x"] * 100), {"evalsha": 1}),
        (lambda queue: queue.enqueue_many([b"x"] * 1_000), {"evalsha": 4, "multi": 1}),
        (lambda queue: queue.receive(), {"evalsha": 1}),
        (lambda queue: queue.receive_many(100), {"evalsha": 1}),
        (lambda queue: queue.receive(wait="1m"), {"evalsha": 1}),
        (lambda queue: queue.peek(), {"evalsha": 1}),
        (lambda queue: queue.stats(), {"evalsha": 1}),
        (lambda queue: queue.enqueue(b"x", delay="1m"), {"evalsha": 1}),
        (lambda queue: queue.reschedule("me", delay="1m"), {"evalsha": 1}),
        (lambda queue: queue.cancel("me"), {"evalsha": 1}),
    ],
)
def test_a_call_is_one_script(
    client: redis.Redis, known_queue: Queue, action: Callable[[Queue], object], expected: dict[str, int]
) -> None:
    assert calls_of(client, lambda: action(known_queue)) == expected


@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "renew"])
@pytest.mark.parametrize("count", [1, 100])
def test_settling_is_one_script(client: redis.Redis, known_queue: Queue, settle: str, count: int) -> None:
    deliveries = known_queue.receive_many(count)

    assert calls_of(client, lambda: getattr(known_queue, f"{settle}_many")(deliveries)) == {"evalsha": 1}


@pytest.mark.usefixtures("no_others")
@pytest.mark.parametrize("policies", [0, 200])
def test_policies_add_no_round_trip(client: redis.Redis, broker: Broker, policies: int) -> None:
    for i in range(policies):
        broker.set_policy(f"p{i}", ("q", "a.#", "#")[i % 3], {"max_length": 1_000 + i})
    broker.declare_queue("q").enqueue_many([b"x"] * 10)
    assert broker.queue("q").receive()  # now the server knows all scripts

    def work() -> None:
        queue = broker.declare_queue("q")
        queue.enqueue(b"x")
        assert queue.receive()

    assert calls_of(client, work) == {"evalsha": 3}


def test_of_a_batch_the_lost_deliveries_are_named_and_the_unknown_ones_are_the_cause(
    clocked: Clocked, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many([b"0", b"1", b"2"])
    gone, there = queue.receive_many(2, lease="1s")
    (held,) = queue.receive_many(1)
    clocked.advance(1_000)
    (again, _) = queue.receive_many(2)
    again.ack()
    store = driver_of(clocked).store
    run = store.run
    monkeypatch.setattr(
        store, "run", lambda command: run(command.as_replay())
    )  # as if the reply to an earlier try was lost

    with pytest.raises(LeaseLost) as error:
        queue.ack_many([gone, there, held])

    assert error.value.ids == (there.id,)
    assert isinstance(error.value.__cause__, OutcomeUnknown)
    assert error.value.__cause__.ids == (gone.id,)
    assert [one.settled for one in (gone, there, held)] == ["outcome unknown", "lease lost", "ack"]


@pytest.mark.parametrize("how", ["ack", "reject", "redrive"])
def test_a_lost_reply_and_other_options_after_it_make_no_success_a_failure(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Redis carries out a call, its reply is lost, and Redis refuses the repeated call: the options are other ones."""
    queue = broker.declare_queue("q", dead_letter="q/dead")
    queue.enqueue(b"x", id="mine")
    if how == "redrive":
        queue.reject_many(queue.receive_many(1))
    broker.events.subscribe(lambda _: None)  # now each script is an exchange
    store = driver_of(broker).store
    send = store.exchanges._script
    lost: list[str] = []

    def lose_one_reply(node: Node, command: Command, first: Any) -> Generator[Any, Any, Any]:
        reply = yield from send(node, command, first)
        if command.script.name in ("receive", "reject", "redrive") and not lost:
            lost.append(command.script.name)
            other = Broker(redis_of(broker))
            other.set_policy("p", "q", {"lease": "1m"})
            raise redis.ConnectionError("the reply was lost")
        return reply

    if how == "ack":
        with queue.consume(wait=0) as deliveries:
            delivery = next(deliveries)
            monkeypatch.setattr(store.exchanges, "_script", lose_one_reply)
            delivery.ack()
            assert list(deliveries) == []
        assert (deliveries.lost, queue.stats().acked) == ([], 1)
    elif how == "reject":
        (delivery,) = queue.receive_many(1)
        monkeypatch.setattr(store.exchanges, "_script", lose_one_reply)
        delivery.reject()
        assert (delivery.settled, broker.queue("q/dead").stats().ready) == ("reject", 1)
    else:
        (letter,) = broker.queue("q/dead").peek(1)
        monkeypatch.setattr(store.exchanges, "_script", lose_one_reply)
        (result,) = broker.queue("q/dead").redrive_many([(letter.sequence, "q")])
        assert (result.outcome, queue.stats().ready) == ("moved", 1)
    assert lost


def test_a_message_that_was_stored_is_reported_as_stored_although_redis_went_away_after_it(
    clocked: Clocked, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = clocked.declare_queue("orders", max_length=1, dead_letter="orders/dead")
    queue.enqueue(b"1")

    def away(*_: object, **__: object) -> object:
        raise redis.ConnectionError("gone")

    with monkeypatch.context() as outage, caplog.at_level(logging.WARNING, "rqttl"):
        outage.setattr(Exchanges, "read", away)
        receipt = queue.enqueue(b"2")

    assert [one.id for one in queue.peek()] == [receipt.id]
    assert [record.getMessage() for record in caplog.records] == [
        "queue orders/dead: could not follow up on created; a reaper will: gone"
    ]
    assert clocked.queue("orders/dead").stats().ready == 1


def test_a_target_that_was_deleted_meanwhile_is_no_error_of_the_sender(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("orders", max_length=1, dead_letter="orders/dead")
    clocked.declare_queue("orders/dead", max_length=1)
    queue.enqueue_many([b"1", b"2"])
    other = Broker(client)

    def delete(event: CommandEvent) -> None:
        if (event.name, event.queue) == ("enqueue", "orders"):
            clocked.events.unsubscribe(delete)
            other.queue("orders/dead").delete()

    clocked.events.subscribe(delete, CommandEvent)
    queue.enqueue(b"3")

    assert [one.body for one in queue.peek()] == [b"3"]
    assert clocked.queues() == ["orders"]
