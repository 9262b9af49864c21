import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

from rqttl import Broker, Delivery, Event, InvalidInput, Message, Observer, Observers, Operation, Receipt, SweepEvent
from rqttl.reaper import Reaper

pytestmark = pytest.mark.once


class Journal(Observer):
    """Writes down each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def command(self, event: Event) -> None:
        if isinstance(event, SweepEvent):
            self.calls.append(("swept", event.queue))

    @contextmanager
    def message(self, operation: Operation) -> Iterator[None]:
        call = operation.name, len(operation.messages)
        assert operation.queue in ("q", "d")
        try:
            yield
        except BaseException as error:
            self.calls.append((*call, type(error).__name__))
            raise
        assert operation.seconds() > 0
        self.calls.append(call)
        if operation.name == "enqueue":
            assert len(operation.results) == len(operation.messages)


class Broken(Observer):
    """Fails at one place of the operations of one name."""

    def __init__(self, name: str, place: str) -> None:
        self._name, self._place = name, place

    def _fail_at(self, place: str) -> None:
        if place == self._place:
            raise RuntimeError("of the observer")

    def command(self, event: Event) -> None:
        self._fail_at("command")

    def message(self, operation: Operation) -> AbstractContextManager[object]:
        if operation.name != self._name:
            return super().message(operation)
        self._fail_at("call")
        return self._around(operation)

    @contextmanager
    def _around(self, operation: Operation) -> Iterator[None]:
        self._fail_at("begin")
        if self._place == "too few":
            operation.messages = []
        yield
        self._fail_at("end")


PLACES = [
    ("enqueue", "command"),
    ("enqueue", "too few"),
    *((name, place) for name in ("enqueue", "receive", "process", "ack") for place in ("call", "begin", "end")),
]


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize("name, place", PLACES)
def test_an_observer_that_fails_breaks_no_call(
    broker: Broker, caplog: pytest.LogCaptureFixture, name: str, place: str, joined: bool
) -> None:
    journal = Journal()
    broker.observer = Observers(Broken(name, place), journal) if joined else Broken(name, place)
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
        assert {call[0] for call in journal.calls} == {"enqueue", "receive", "process", "ack", "nack"}


def test_an_observer_cannot_swallow_the_exception_of_a_call(broker: Broker) -> None:
    class Swallowing(Observer):
        @contextmanager
        def message(self, operation: Operation) -> Iterator[None]:
            try:
                yield
            except ValueError:
                return

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
        ("enqueue", 1),
        ("enqueue", 3),
        ("receive", 1),
        ("receive", 3),
        ("ack", 1),
        ("release", 1),
        ("reject", 1),
        ("redrive", 0),
        ("receive", 1),
    ]
    assert ("swept", "q") in journal.calls


def test_an_enqueue_on_a_topic_is_one_operation(broker: Broker) -> None:
    journal = broker.observer = Journal()
    topic = broker.declare_topic("q")
    for name in ("a", "b"):
        topic.subscribe(name)
    topic.enqueue(b"1")
    topic.enqueue_many([b"2", b"3"])
    topic.pause()
    topic.enqueue(b"4")
    topic.resume()
    assert [call for call in journal.calls if call[0] != "swept"] == [("enqueue", 1), ("enqueue", 2), ("enqueue", 1)]


def test_a_consumer_and_a_block_within_a_handler_are_seen_once(broker: Broker) -> None:
    journal = broker.observer = Journal()
    queue = broker.declare_queue("q")
    queue.enqueue(b"1")

    def handle(delivery: Delivery) -> None:
        with delivery:
            pass

    queue.run(handle, wait=0)
    assert journal.calls == [("enqueue", 1), ("receive", 1), ("ack", 1), ("process", 1)]


def test_each_observer_sees_the_messages_of_the_one_before_it(broker: Broker) -> None:
    class Stamp(Observer):
        def __init__(self, name: str) -> None:
            self._name = name

        def message(self, operation: Operation) -> AbstractContextManager[object]:
            headers = [one.headers or {} if isinstance(one, Message) else {} for one in operation.messages]
            operation.messages = [Message(b"x", headers={**given, self._name: len(given)}) for given in headers]
            return super().message(operation)

    broker.observer = Observers(Stamp("a"), Stamp("b"))
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    assert queue.peek()[0].headers == {"a": 0, "b": 1}


@pytest.mark.parametrize("wrong", [None, 5, print, Observer], ids=repr)
def test_an_observer_is_an_observer_or_none_and_several_are_observers(broker: Broker, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="observer: expected an Observer"):
        Observers(Observer(), wrong)
    with pytest.raises(InvalidInput, match="observer") if wrong is not None else nullcontext():
        broker.observer = wrong


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
import rqttl.worker.child, rqttl.worker.worker, rqttl.telemetry, rqttl.metrics, rqttl.aio.broker
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
