"""Listeners hear of every command that a broker sends to Redis."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import redis

import rqttl
from rqttl import Broker, CommandEvent, Event, QueueNotFound, RenewalEvent, SweepEvent, SweepResult, WaitEvent
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked


def listened(broker: Broker) -> list[CommandEvent]:
    heard: list[CommandEvent] = []
    broker.events.subscribe(heard.append, CommandEvent)
    return heard


def told(events: list[CommandEvent]) -> list[tuple[str, str | None, str]]:
    return [(event.name, event.queue, event.outcome) for event in events]


def test_a_script_is_told_with_its_queue_and_its_refusal(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    queue.touch()  # both scripts are loaded
    events = listened(broker)

    queue.enqueue(b"x")
    with pytest.raises(QueueNotFound):
        broker.queue("never").touch()

    assert told(events) == [("enqueue", "q", "ok"), ("touch", "never", "not_found")]
    assert all(event.seconds > 0 for event in events)


def test_each_script_of_a_pipeline_is_told_with_its_own_outcome(broker: Broker) -> None:
    for name in ("a", "b"):
        broker.declare_queue(name)
    broker.stats()  # loads the scripts
    events = listened(broker)

    broker.stats(["a", "never", "b"])

    lookups, stats = events[:3], events[3:]
    assert told(lookups) == [("lookup", "a", "ok"), ("lookup", "never", "not_found"), ("lookup", "b", "ok")]
    assert told(stats) == [("stats", "a", "ok"), ("stats", "b", "ok")]
    assert (len({event.seconds for event in lookups}), len({event.seconds for event in stats})) == (1, 1)


def test_plain_commands_are_told_each_with_its_own_outcome(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("a")
    broker.declare_queue("b")
    client.set("rqttl:{b}:log", "not a stream")
    events = listened(broker)

    broker.stats(["a", "b"], sweep=False)
    broker.declare_queue("c")

    assert told(events) == [
        ("TIME", None, "ok"),
        ("HMGET", None, "ok"),
        ("HMGET", None, "ok"),
        ("XLEN", None, "ok"),
        ("ZCOUNT", None, "ok"),
        ("XLEN", None, "ResponseError"),
        ("ZCOUNT", None, "ok"),
        ("SISMEMBER", None, "ok"),
        ("HGET", None, "ok"),
        ("HSETNX", None, "ok"),
        ("SADD", None, "ok"),
        ("declare", "c", "ok"),
        ("SISMEMBER", None, "ok"),
        ("HGET", None, "ok"),
    ]


def test_a_wait_is_told_with_what_ended_it(broker: Broker) -> None:
    queue = broker.declare_queue("q")
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


def test_a_failure_is_told_by_the_class_of_its_exception(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = broker.declare_queue("q")
    store = driver_of(broker).store
    events = listened(broker)

    def lose(*_: object) -> object:
        raise redis.ConnectionError("gone")

    for attempt in ("_send_one", "_round_trip"):
        monkeypatch.setattr(store, attempt, lose)
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", ())
    for ask in (queue.touch, lambda: broker.stats(["q"], sweep=False), broker.reaper_count):
        with pytest.raises(redis.ConnectionError):
            ask()

    assert told(events) == [
        ("touch", "q", "ConnectionError"),
        ("TIME", None, "ConnectionError"),
        ("HMGET", None, "ConnectionError"),
        ("PUBSUB NUMSUB", None, "ConnectionError"),
    ]


@pytest.mark.parametrize(
    "event",
    [
        CommandEvent("enqueue", "q", 0.1, "ok"),
        WaitEvent("q"),
        RenewalEvent("q", 1),
        SweepEvent("q", SweepResult(1, None, False, 0, 0, 0, 0, 0)),
    ],
)
def test_an_event_is_frozen_and_public(event: Event) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.queue = "x"  # type: ignore[misc]
    assert {type(event).__name__, "Event", "Events"} <= set(rqttl.__all__)


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


def test_a_listener_may_leave_while_it_is_called(clocked: Clocked) -> None:
    calls: list[str] = []

    def once(event: CommandEvent) -> None:
        calls.append(event.name)
        clocked.events.unsubscribe(once)

    clocked.events.subscribe(once, CommandEvent)
    clocked.events.subscribe(lambda _: calls.append("other"), CommandEvent)
    clocked.queues()

    assert calls[:2] == ["SMEMBERS", "other"]


def test_listing_queues_goes_on_after_a_lost_connection(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.declare_queue("q")
    store = driver_of(broker).store
    send, lost = store._round_trip, []

    def lose_each_once(connection: Any, calls: list[tuple[object, ...]]) -> object:
        if calls not in lost:
            lost.append(calls)
            raise redis.ConnectionError("gone")
        return send(connection, calls)

    monkeypatch.setattr(store, "_round_trip", lose_each_once)

    assert broker.queues() == ["q"]
    assert [call[0] for calls in lost for call in calls] == ["SMEMBERS", "TIME", "HMGET"]
