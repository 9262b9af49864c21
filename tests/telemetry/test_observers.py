from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from rqttl import Broker, Delivery, InvalidInput, Message, Observer, Observers, Receipt, Sending, connect_async
from rqttl.reaper import Reaper

pytestmark = pytest.mark.once


class Journal(Observer):
    """Writes down each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def sending(self, queue: str, messages: Sequence[Message | object]) -> Sending:
        self.calls.append(("sending", queue, len(messages)))
        return Sending(messages)

    def received(self, queue: str, deliveries: Sequence[Any], seconds: float) -> None:
        assert seconds > 0
        self.calls.append(("received", queue, len(deliveries)))

    @contextmanager
    def _around(self, *call: Any) -> Any:
        self.calls.append(("begin", *call))
        try:
            yield
        except BaseException as error:
            self.calls.append(("failed", *call, type(error).__name__))
            raise
        self.calls.append(("end", *call))

    def handling(self, delivery: Any) -> AbstractContextManager[object]:
        return self._around("handling", delivery.body)

    def settling(self, queue: str, how: str, deliveries: Sequence[Any]) -> AbstractContextManager[object]:
        return self._around(how, len(deliveries))

    def swept(self, queue: str, swept: Any) -> None:
        self.calls.append(("swept", queue))


class Broken(Observer):
    """Fails at one place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def _fail_at(self, place: str) -> None:
        if place == self._place:
            raise RuntimeError("of the observer")

    def sending(self, queue: str, messages: Sequence[Message | object]) -> Sending:
        self._fail_at("sending")
        observer = self

        class Own(Sending):
            def __enter__(self) -> Sequence[Message | object]:
                observer._fail_at("sending begins")
                return [] if observer._place == "too few" else self.messages

            def stored(self, results: Sequence[Any]) -> None:
                observer._fail_at("stored")

            def __exit__(self, *_: object) -> None:
                observer._fail_at("sending ends")

        return Own(messages)

    def received(self, queue: str, deliveries: Sequence[Any], seconds: float) -> None:
        self._fail_at("received")

    @contextmanager
    def _around(self, call: str) -> Any:
        self._fail_at(f"{call} begins")
        try:
            yield
        finally:
            self._fail_at(f"{call} ends")

    def handling(self, delivery: Any) -> AbstractContextManager[object]:
        self._fail_at("handling")
        return self._around("handling")

    def settling(self, queue: str, how: str, deliveries: Sequence[Any]) -> AbstractContextManager[object]:
        self._fail_at("settling")
        return self._around("settling")


PLACES = [
    "sending",
    "sending begins",
    "too few",
    "stored",
    "sending ends",
    "received",
    "handling",
    "handling begins",
    "handling ends",
    "settling",
    "settling begins",
    "settling ends",
]


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize("place", PLACES)
def test_an_observer_that_fails_breaks_no_call(
    broker: Broker, caplog: pytest.LogCaptureFixture, place: str, joined: bool
) -> None:
    journal = Journal()
    broker.observer = Observers(Broken(place), journal) if joined else Broken(place)
    queue = broker.declare_queue("q", redelivery_delay="1h")
    assert isinstance(queue.enqueue(b"1"), Receipt)
    assert len(queue.enqueue_many([b"2", b"3"])) == 2
    first = queue.receive()
    assert first is not None
    with first:
        assert first.body == b"1"
    handled: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.body)
        if delivery.body == b"2":
            raise ValueError

    with caplog.at_level(logging.CRITICAL, "rqttl.run"):
        counts = queue.run(handle, wait=0)
    assert (handled, counts.handled, counts.failed) == ([b"2", b"3"], 1, 1)
    assert (queue.stats().delayed, queue.stats().depth) == (1, 1)
    assert [record for record in caplog.records if record.name == "rqttl.observer"]
    if joined:
        assert {call[0] for call in journal.calls} == {"sending", "received", "begin", "end", "failed"}


def test_an_observer_cannot_swallow_the_exception_of_a_call(broker: Broker) -> None:
    class Swallowing(Observer):
        @contextmanager
        def _swallow(self) -> Any:
            try:
                yield
            except ValueError:
                return

        def handling(self, delivery: Any) -> AbstractContextManager[object]:
            return self._swallow()

    broker.observer = Swallowing()
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None
    with pytest.raises(ValueError, match="of the handler"), delivery:
        raise ValueError("of the handler")


def test_an_observer_is_asked_once_for_each_call(broker: Broker) -> None:
    journal = broker.observer = Journal()
    queue = broker.declare_queue("q", dead_letter="d")
    dead = broker.declare_queue("d")
    queue.enqueue(b"1")
    queue.enqueue_many([b"2", b"3", b"4"])
    queue.enqueue_many([])
    assert queue.receive(auto_ack=True) is not None
    second, third, fourth = queue.receive_many(10)
    second.ack()
    queue.nack_many([third], counted=False)
    fourth.reject()
    dead.redrive()
    assert queue.receive() is not None
    Reaper(broker).run_once()
    assert [call for call in journal.calls if call[0] != "swept"] == [
        ("sending", "q", 1),
        ("sending", "q", 3),
        ("received", "q", 1),
        ("received", "q", 3),
        ("begin", "ack", 1),
        ("end", "ack", 1),
        ("begin", "release", 1),
        ("end", "release", 1),
        ("begin", "reject", 1),
        ("end", "reject", 1),
        ("begin", "redrive", 0),
        ("end", "redrive", 0),
        ("received", "q", 1),
    ]
    assert ("swept", "q") in journal.calls


def test_a_consumer_and_a_block_within_a_handler_are_seen_once(broker: Broker) -> None:
    journal = broker.observer = Journal()
    queue = broker.declare_queue("q")
    queue.enqueue(b"1")

    def handle(delivery: Delivery) -> None:
        with delivery:
            pass

    queue.run(handle, wait=0)
    assert journal.calls[1:] == [
        ("received", "q", 1),
        ("begin", "handling", b"1"),
        ("begin", "ack", 1),
        ("end", "ack", 1),
        ("end", "handling", b"1"),
    ]


async def _each(url: str, journal: Journal) -> None:
    async with connect_async(url) as broker:
        broker.observer = journal
        queue = await broker.declare_queue("q")
        await queue.enqueue(b"1")
        async with queue.consume(wait=0) as deliveries:
            await deliveries.each(_nothing)
        await queue.enqueue(b"2")
        delivery = await queue.receive()
        assert delivery is not None
        await delivery.nack(0)


async def _nothing(_: object) -> None:
    pass


def test_asyncio_asks_the_observer_in_the_same_places(redis_url: str) -> None:
    journal = Journal()
    asyncio.run(_each(redis_url, journal))
    assert journal.calls == [
        ("sending", "q", 1),
        ("received", "q", 1),
        ("begin", "handling", b"1"),
        ("end", "handling", b"1"),
        ("begin", "ack", 1),
        ("end", "ack", 1),
        ("sending", "q", 1),
        ("received", "q", 1),
        ("begin", "nack", 1),
        ("end", "nack", 1),
    ]


def test_each_observer_sees_the_messages_of_the_one_before_it(broker: Broker) -> None:
    class Stamp(Observer):
        def __init__(self, name: str) -> None:
            self._name = name

        def sending(self, queue: str, messages: Sequence[Message | object]) -> Sending:
            headers = [message.headers or {} if isinstance(message, Message) else {} for message in messages]
            return Sending([Message(b"x", headers={**given, self._name: len(given)}) for given in headers])

    broker.observer = Observers(Stamp("a"), Stamp("b"))
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    assert queue.peek()[0].headers == {"a": 0, "b": 1}


@pytest.mark.parametrize("wrong", [None, 5, Observer], ids=repr)
def test_several_observers_are_observers(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="observer: expected an Observer"):
        Observers(Observer(), wrong)


def test_an_observer_is_an_observer_or_none(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match="observer"):
        broker.observer = print  # type: ignore[assignment]  # what the test is about
    broker.observer = None


WITHOUT = """
import sys

class Importers:  # redis-py imports OpenTelemetry itself, where it is installed
    found = []

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("opentelemetry", "prometheus_client"):
            frame = sys._getframe(1)
            while "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            self.found.append((name, frame.f_globals.get("__name__")))

sys.meta_path.insert(0, Importers())
import rqttl
with rqttl.connect(sys.argv[1]) as broker:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    queue.run(lambda _: None, wait=0)
import rqttl.worker.child, rqttl.worker.parent, rqttl.telemetry, rqttl.metrics, rqttl.twins
ours = [pair for pair in Importers.found if str(pair[1]).split(".")[0] == "rqttl"]
if len(sys.argv) > 2:
    rqttl.telemetry.instrument(broker)
    ours = [name for name, importer in Importers.found if str(importer).startswith("rqttl.telemetry")]
print(len(ours))
"""


@pytest.mark.parametrize("instrumented", [False, True])
def test_without_an_observer_rqttl_imports_neither_library(redis_url: str, instrumented: bool) -> None:
    words = [sys.executable, "-c", WITHOUT, redis_url, *["yes"] * instrumented]
    answer = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    assert (int(answer.stdout) > 0) is instrumented
