"""Checks of topics: what is bound and gone, circles, and messages that nobody passes on."""

from typing import Any

import pytest

from rqttl import Broker, Message
from rqttl.doctor import examine, queues
from rqttl.flows.steps import Flow, Sleep
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked
from tests.doctor.looking import of, wrong
from tests.drivers import before_step, redis_of
from tests.lua.states import everything


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "PAUSE", 0)


def test_sound_topics_are_one_line_with_what_no_queue_wanted(broker: Broker) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    assert of(examine(broker), "topics") == []
    for name in ("news", "alerts"):
        topic = broker.declare_topic(name)
        topic.subscribe("eu", "eu.#")
        topic.enqueue(b"x", subject="eu.new")
    assert of(examine(broker), "topics") == [("ok", "2 queues with messages that go on")]

    topic.enqueue_many([b"1", b"2"])

    text = "2 queues with messages that go on; no bound queue wanted 2 messages of alerts"
    assert of(examine(broker), "topics") == [("ok", text)]
    assert of(examine(broker, ["news"]), "topics") == [("ok", "1 queue with messages that go on")]
    assert wrong(broker) == []


def test_a_bound_queue_that_is_gone_is_a_warning(broker: Broker) -> None:
    topic = broker.declare_topic("news")
    for name in ("news/eu", "{news}.mails"):
        topic.bind(broker.declare_queue(name).name)
    broker.queue("{news}.mails").delete()

    assert wrong(broker) == wrong(broker, "news") == [("news", "warning", "bound to it, but not there: {news}.mails")]
    topic.enqueue(b"x")
    assert wrong(broker) == []


def test_a_target_of_a_forward_that_is_missing_is_a_warning(broker: Broker) -> None:
    inbox = broker.declare_queue("inbox", forward_to="{queue}/desk")

    assert wrong(broker) == [("inbox", "warning", "it forwards to inbox/desk, which is not there")]
    inbox.enqueue(b"x")
    assert wrong(broker) == []


def test_messages_that_wait_at_a_queue_that_forwards_are_told_with_its_full_target(clocked: Clocked) -> None:
    clocked.declare_queue("q/desk", max_length=1, overflow="reject-publish").enqueue(b"1")
    queue = clocked.declare_queue("q")
    queue.enqueue(b"2")
    queue.update(forward_to="q/desk")
    clocked.advance("11s")

    text = "1 message waits to be passed on, the oldest for 11s: q/desk is full"
    assert wrong(clocked) == [("q", "warning", text)]


def test_a_circle_of_topics_or_forwards_is_a_problem(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("news", "news/a", "news/b", "news/c"):
        broker.declare_topic(name)
    with monkeypatch.context() as patch:  # as if two clients closed it at once
        patch.setattr("rqttl.flows.topics.comes_back", lambda *_, **__: _answer(""))
        patch.setattr("rqttl.flows.bindings.comes_back", lambda *_, **__: _answer(""))
        for topic, bound in (("news", "news/a"), ("news/a", "news/b"), ("news/b", "news/a"), ("news/b", "news/c")):
            broker.topic(topic).bind(bound)
        for name, target in (("q", "q/a"), ("q/a", "q")):
            broker.declare_queue(name, forward_to=target)

    circles = ["news/a > news/b > news/a", "news/b > news/a > news/b", "q > q/a > q", "q/a > q > q/a"]
    text = "its messages wait, as they would come back: "
    assert wrong(broker) == [(circle.partition(" ")[0], "problem", text + circle) for circle in circles]
    assert len(wrong(broker, "news/b")) == 1


def _answer(value: Any) -> Flow[Any]:
    yield from ()
    return value


LIMITS: dict[str, tuple[dict[str, Any], bool]] = {
    "length": ({"max_length": 1, "overflow": "reject-publish"}, True),
    "no length": ({"max_length": 0, "overflow": "reject-publish-dlx"}, True),
    "bytes": ({"max_length_bytes": 3, "overflow": "reject-publish"}, True),
    "a target": ({"max_length": 1, "overflow": "reject-publish-dlx", "dead_letter": "news/late"}, False),
    "room": ({"max_length": 2, "overflow": "reject-publish"}, False),
    "drop-head": ({"max_length": 1}, False),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_messages_that_wait_for_ten_seconds_are_told_with_the_queue_that_holds_them(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    options, holds = LIMITS[limit]
    topic = clocked.declare_topic("news")
    topic.subscribe("eu", "eu", **options)
    topic.subscribe("us", {"subject": {"not": "eu"}}, max_length=0, overflow="reject-publish")
    if options["max_length" if "max_length" in options else "max_length_bytes"]:
        topic.enqueue(b"xx", subject="eu")
    topic.pause()
    topic.enqueue_many([Message(b"yy", subject="eu")] * 2)
    with monkeypatch.context() as patch:  # as if this client died
        patch.setattr("rqttl.flows.queues._pass_on", lambda *_: _answer([]))
        topic.resume()
        clocked.advance("9s")
        assert wrong(clocked) == []
        clocked.advance("1s")
        before = everything(redis_of(clocked))

        found = wrong(clocked)

    assert everything(redis_of(clocked)) == before
    text = "2 messages wait to be passed on, the oldest for 10s"
    assert found == [("news", "warning", text + (": news/eu is full" if holds else ", and nobody does it"))]
    assert wrong(clocked, "news") == found
    topic.pause()
    assert wrong(clocked) == []


def test_messages_that_go_on_while_the_doctor_looks_are_no_finding(clocked: Clocked) -> None:
    topic = clocked.declare_topic("news")
    eu = topic.subscribe("eu", max_length=1, overflow="reject-publish")
    topic.enqueue(b"1")
    topic.enqueue_many([Message(b"2", delay="1s"), Message(b"3", delay="1s")])
    clocked.advance("1s")
    topic.sweep()
    clocked.advance("10s")
    assert [(name, level) for name, level, _ in wrong(clocked)] == [("news", "warning")]

    def receive() -> None:
        eu.receive(auto_ack=True)
        topic.sweep()

    before_step(driver_of(clocked), Sleep, receive)
    assert wrong(clocked) == []
    assert topic.stats().ready == 1
