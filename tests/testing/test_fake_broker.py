"""The fake broker: the API and the behaviour of a real one, and one clear error where it has to give up."""

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import rqttl
from rqttl import Broker, InvalidDuration, InvalidInput, Queue
from rqttl.protocol import scripts
from rqttl.reaper import Reaper
from rqttl.testing import Clock, FakeBroker, FakeUnavailable, NotSupportedByFake, fake_broker
from tests.contract.clocked import START, at
from tests.contract.looks import bodies
from tests.drivers import redis_of


def api(kind: type) -> dict[str, inspect.Signature]:
    """The public methods of a class, without those that only a fake has."""
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in ("run_reaper", "connect")
    }


def test_it_has_the_api_of_a_broker(fake: FakeBroker) -> None:
    assert api(FakeBroker) == api(Broker)
    assert api(type(fake.queue("q"))) == api(Queue)
    assert type(fake.declare_queue("q")) is type(fake.queue("q"))


def test_every_fake_broker_is_alone() -> None:
    with fake_broker() as one, fake_broker() as other:
        one.declare_queue("q")

        assert (one.queues(), other.queues()) == (["q"], [])


def test_a_script_is_compiled_once_and_again_after_redis_has_forgotten_it(fake: FakeBroker) -> None:
    """fakeredis compiles the text of a script at each call: several times the time of its run."""
    queue, sha = fake.declare_queue("q"), scripts.load("enqueue").sha.encode()
    client: Any = redis_of(fake)
    texts = client.fake_server.script_cache
    queue.enqueue(b"1")
    assert len(texts[sha]) < 100

    client.script_flush()
    queue.enqueue(b"2")
    client.script_load(scripts.load("enqueue").text)
    queue.enqueue(b"3")
    assert bodies(queue) == [b"1", b"2", b"3"]


def test_code_under_test_may_close_the_brokers_that_it_connects(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rqttl, "connect", fake.connect)
    with rqttl.connect("redis://host:6379/0") as own:
        own.declare_queue("q").enqueue(b"x", ttl="1h")
    with rqttl.connect() as own:
        assert bodies(own.queue("q")) == [b"x"]
        fake.clock.advance("1h")
        assert own.queue("q").receive() is None
    with rqttl.connect(namespace="other") as own:
        assert own.queues() == []

    assert fake.queues() == ["q"]
    with pytest.raises(rqttl.BrokerClosed):
        own.queues()


def test_a_wait_of_a_connected_broker_moves_the_clock_only_in_the_thread_of_the_test(fake: FakeBroker) -> None:
    queue = fake.connect().declare_queue("q")
    before = fake.clock.ms

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: fake.connect().queue("q").receive(wait="50ms")).result(timeout=60) is None
    assert fake.clock.ms == before

    assert queue.receive(wait="1h") is None
    assert fake.clock.ms == before + 3_600_000


def test_without_a_reaper_nothing_happens_and_with_one_all_that_is_due(fake: FakeBroker) -> None:
    first = fake.declare_queue("first", message_ttl="10s", dead_letter="second")
    second = fake.declare_queue("second", message_ttl="0ms", dead_letter="third")
    late = fake.declare_queue("late", message_ttl="20s", dead_letter="third")
    for queue in (first, late):
        queue.enqueue_many([b"a", b"b"])

    fake.clock.advance("10s")
    assert "third" not in fake.queues()
    totals = fake.run_reaper()

    # those of the first queue go on to the third at once, since the second keeps nothing
    assert (totals.expired, totals.failed) == (4, 0)
    assert bodies(fake.queue("third")) == [b"a", b"b"]
    assert (bodies(second), bodies(late)) == ([], [b"a", b"b"])
    assert fake.run_reaper().messages == 0


# What it cannot do


def test_a_reaper_that_runs_for_ever_takes_a_server(fake: FakeBroker) -> None:
    with pytest.raises(NotSupportedByFake, match=r"Reaper\.run: a fake broker cannot do this"):
        Reaper(fake).run()


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_without_what_it_is_made_of_it_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(FakeUnavailable, match=rf"{missing}.*`pip install '\.\[testing\]'` in a checkout"):
        fake_broker()


def test_it_begins_where_it_is_told_and_stands_still(fake: FakeBroker) -> None:
    assert repr(fake.clock) == "<Clock 2023-11-14T22:13:20.000+00:00>"
    queue = fake.declare_queue("q")

    queue.enqueue_many([b"x"] * 10)

    assert fake.clock.now == fake.server_time() == at(0)
    assert {one.enqueued_at for one in queue.peek()} == {at(0)}


@pytest.mark.parametrize("wrong", [5, timedelta(seconds=-1)], ids=str)
def test_an_invalid_duration_is_refused_and_no_time_passes(fake: FakeBroker, wrong: Any) -> None:
    with pytest.raises(InvalidDuration, match="duration"):
        fake.clock.advance(wrong)

    assert fake.clock.now == at(0)


@pytest.mark.parametrize("wrong", ["2023-11-14", 10**12 - 1, 10**13], ids=str)
def test_an_invalid_time_or_one_too_far_away_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="start"):
        fake_broker(start=wrong)
    with pytest.raises(InvalidInput, match="now"):
        Clock(START).set(wrong)
    with pytest.raises(InvalidInput, match="2286"):
        Clock(10**13 - 1).advance("1ms")


def test_it_is_set_forward_and_back(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q")
    first = queue.enqueue(b"x").id

    fake.clock.set(START + 1_000)
    second = queue.enqueue(b"x").id
    fake.clock.set(START - 1_000)
    third = queue.enqueue(b"x").id

    assert fake.clock.now == at(-1_000)
    assert first < second < third
