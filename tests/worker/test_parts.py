"""The parts of a worker without Redis: turns of queues, outcomes, restarts, options, health."""

import gc
import math
import os
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rqttl import InvalidInput, Reject, Release, Retry, Worker
from rqttl.consuming.handling import ACK, Outcome, RetryPolicy, of_error, settlement
from rqttl.consuming.several import Queues
from rqttl.flows.receive import PERIOD
from rqttl.testing import fake_broker
from rqttl.worker import settings
from rqttl.worker.child import Child
from rqttl.worker.fetcher import PROOF, TURN
from rqttl.worker.health import SIGN_EVERY, Systemd
from rqttl.worker.pool import Frame, pack, unpacker
from rqttl.worker.supervisor import Place
from tests.unit.test_delivery import delivery
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once
ME = str(os.getpid())

# Session of queues


def follow(weights: dict[str, int | None]) -> Queues:
    queues = Queues()
    queues.follow(weights)
    return queues


def take(queues: Queues, count: Callable[[str], int], turns: int, now: float = 0) -> Counter[str]:
    """The messages of each queue after so many claims, each of which brings `count(queue)` of them."""
    taken = Counter[str]()
    for _ in range(turns):
        name = queues.next(now)
        assert name is not None
        queues[name].progress += count(name) / (queues[name].weight or 1)
        taken[name] += count(name)
    return taken


def test_weights_share_the_messages_and_not_the_claims() -> None:
    assert take(follow({"a": 3, "b": 1}), lambda _: 10, 400) == {"a": 3000, "b": 1000}
    taken = take(follow({"a": 1, "b": 1}), lambda name: 1 if name == "a" else 9, 300)
    assert abs(taken["a"] - taken["b"]) <= 9


def test_a_queue_that_was_empty_or_is_new_saves_no_turns_for_later() -> None:
    queues = follow({"a": 1, "b": 1})
    queues["a"].until = 10
    assert take(queues, lambda _: 10, 100) == {"b": 1000}
    assert take(queues, lambda _: 10, 21, now=10) == {"a": 110, "b": 100}
    queues.follow({"a": 1, "b": 1, "c": 1})
    assert take(queues, lambda _: 10, 30, now=10) == {"a": 100, "b": 100, "c": 100}


def test_an_empty_queue_is_asked_again_when_work_is_due_there() -> None:
    queues = follow({"a": None, "b": None})
    for queue, until in zip(queues.values(), (500, PERIOD), strict=True):
        queue.until, queue.is_awaited = until, True
    assert queues.candidates(499) == []
    assert queues.wait(0, TURN) == 500
    assert queues.candidates(500) == ["a"]
    assert queues.awaited == ["a", "b"]
    queues.suspect()  # the one that was asked longest ago
    assert queues.candidates(0) == ["a"]
    assert queues.wait(0, TURN) == TURN  # short enough to show that the worker lives


def test_a_wakeup_makes_a_queue_a_candidate_and_keeps_its_ticket() -> None:
    queues = follow({"a": None})
    queues["a"].until = PERIOD
    queues.woken("a", b"1-1 5")
    assert (queues.candidates(1), queues.ticketed) == (["a"], ["a"])
    queues.woken("gone", b"1-1 5")
    assert queues.ticketed == ["a"]


# Outcomes


def test_decisions_and_errors_have_outcomes() -> None:
    assert of_error(Reject("no")) == Outcome("reject", None, "no")
    assert of_error(Retry("5s", "later")) == Outcome("nack", 5000, "later")
    assert of_error(Release()) == Outcome("release")
    failed = of_error(ValueError("bad"))
    assert (failed.kind, failed.description) == ("nack", "ValueError: bad")


def test_failures_delay_longer_each_time_unless_the_queue_has_its_own_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    retries, failed = RetryPolicy(1000, 60_000, 0.5), Outcome("nack", None, "x")
    delays = [settlement(delivery(failed=n - 1), failed, retries)[1] for n in (1, 2, 3, 7, 100)]
    assert delays == [1000, 2000, 4000, 60_000, 60_000]
    own = delivery(redelivery_delay=60_000)
    assert settlement(own, failed, retries)[1] is None
    assert settlement(own, Outcome("nack", 7, "x"), retries)[1] == 7
    monkeypatch.setattr("random.random", lambda: 1.0)
    assert settlement(delivery(), failed, retries)[1] == 500


def test_a_crash_gives_the_message_back_at_once() -> None:
    assert settlement(delivery(), Outcome("crashed", None, "died"), RetryPolicy()) == ("nack", None, "died")
    assert settlement(delivery(), ACK, RetryPolicy())[0] == "ack"


# Supervision


def test_a_child_that_ends_early_again_and_again_is_started_ever_more_slowly() -> None:
    place, now, pauses = Place(), 100.0, list[float]()
    for _ in range(9):
        place.started_at = now
        place.ended(now + 1, failed=True)
        pauses.append(place.start_at - now - 1)
        now = place.start_at
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    place.started_at = now
    place.ended(now + 60, failed=True)
    assert place.start_at == now + 60


# Options


@pytest.mark.parametrize(
    "options, message",
    [
        ({"call": lambda value: value}, "can import by its name"),
        ({"call": "m:f", "thread": 2}, "did you mean threads"),
        ({"exec": ""}, "exec: expected a command"),
        ({"exec": b"cat"}, "exec: expected a command, got bytes"),
        ({"exec": "sh -c 'x"}, "exec: No closing quotation"),
    ],
)
def test_bad_options_are_refused_by_name(options: Any, message: str) -> None:
    with fake_broker() as broker, pytest.raises(InvalidInput, match=message):
        Worker(broker, "q", **options)


@pytest.mark.parametrize("queues", [[], {}, {"q": 0}, ["bad name!"], 5, {"q": 1, "p": None}])
def test_bad_queues_are_refused(queues: object) -> None:
    with pytest.raises(InvalidInput):
        settings.queues(queues)


def test_a_worker_that_never_runs_leaves_nothing_open() -> None:
    gc.collect()  # what other tests have left
    with fake_broker() as broker, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Worker(broker, "q", call="shop:handle")
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_worker_runs_once() -> None:
    with fake_broker() as broker:
        broker.declare_queue("q")
        worker = Worker(broker, "q", call=print, processes=0, burst=True)
        worker.run()
        with pytest.raises(InvalidInput, match="it has run already; make another one"):
            worker.run()


def test_the_longest_pause_is_never_shorter_than_the_first_without_a_word_of_the_user() -> None:
    assert settings.retries(None, None, 0.2) == RetryPolicy(1_000, 600_000, 0.2)
    assert settings.retries("1h", None, 0.2) == RetryPolicy(3_600_000, 3_600_000, 0.2)
    assert settings.retries(None, "500ms", 0).delay(1) == 500


def test_settings_read_sizes_and_addresses() -> None:
    given = settings.read({"max_memory": "2MiB", "health": "[::1]:80"})
    assert (given["max_memory"], given["health"]) == (2**21, ("::1", 80))


# Health


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker that seems to work: it never runs."""
    with fake_broker() as broker:
        worker = Worker(broker, "q", call="m:f", processes=2)
        worker._fetcher.answered_at = worker._fetcher.turned_at
        for place in worker._supervisor._places:
            place.child = SimpleNamespace(slots=1)  # type: ignore[assignment]
        yield worker
        for place in worker._supervisor._places:
            place.child = None


def test_a_worker_whose_loops_turn_is_alive_also_without_redis(worker: Worker) -> None:
    worker._sources.outages.failed(worker._sources.shared, ConnectionError())
    worker._fetcher.answered_at = None
    worker._fetcher.turned_at -= 60_000
    assert "fetcher" in worker.trouble()
    with worker._sources.locks[worker._sources.shared]:  # a loop may wait for Redis
        assert worker.trouble() == ""
        worker._turned_at -= 31.0
        assert "supervision" in worker.trouble()
    worker._turned_at = time.monotonic()
    worker._fetcher.turned_at += 60_000
    worker._sources.renewer.turned_at -= 31_000
    assert "renewer" in worker.trouble()


@pytest.mark.parametrize("is_full", [False, True])
def test_a_worker_is_ready_only_if_it_can_handle_messages_now(worker: Worker, is_full: bool) -> None:
    assert worker.obstacle() == ""
    worker._turned_at -= 31.0
    assert "supervision" in worker.obstacle()
    answered_at = worker._fetcher.answered_at
    assert answered_at is not None
    worker._fetcher.answered_at = answered_at - 41_000
    worker._in_flight.room = lambda: 0 if is_full else 1  # type: ignore[method-assign]
    assert ("no claim for 41 s" in worker.obstacle()) != is_full
    worker._fetcher.answered_at = None
    assert "has not answered a claim" in worker.obstacle()
    worker._sources.outages.failed(worker._sources.shared, ConnectionError())
    assert "does not answer" in worker.obstacle()
    worker._supervisor._places[0].child = None
    assert "1 of 2 child" in worker.obstacle()
    worker.quiet()
    assert "fetches no more" in worker.obstacle()


def test_a_queue_that_is_missing_or_rests_is_not_asked_whether_redis_answers(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher, pauses = worker._fetcher, list[float]()
    monkeypatch.setattr(fetcher._driver.timing, "pause", lambda _, ms: pauses.append(ms()))
    now = fetcher.turned_at + PROOF
    fetcher._queues.follow({"q": None})
    fetcher._queues["q"].until = now + 5_000
    fetcher._wait(now)

    assert (fetcher._queues.candidates(now), pauses) == ([], [5_000])


async def a_coroutine(_: Any) -> None: ...


@pytest.mark.parametrize("function", [print, a_coroutine])
def test_a_child_that_stops_gives_its_messages_back_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    """Without that the worker takes them for those that have crashed the child."""
    ours, theirs = socket.socketpair()
    child, send = Child(theirs, lambda: None, lambda: None, lambda: None, function), Child._send
    thread, lived = threading.Thread(target=child.run), list[bool]()

    def slow(self: Child, kind: Frame, *content: Any) -> None:
        if kind == Frame.UNSEEN:
            thread.join(0.1)
            lived.append(thread.is_alive())
        send(self, kind, *content)

    monkeypatch.setattr(Child, "_send", slow)
    with ours, theirs:
        setup: dict[str, Any] = {**dict.fromkeys(("exec", "call", "threads", "asyncio")), "path": [], "delivery": False}
        ours.sendall(pack(Frame.SETUP, setup) + pack(Frame.STOP))
        thread.start()
        frames = unpacker(ours.makefile("rb", buffering=0))
        assert [next(frames)[0], next(frames)] == [Frame.READY, (Frame.UNSEEN, ())]
        thread.join(PATIENCE)
    assert lived == [True]
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "variables, seconds",
    [
        ({}, math.inf),
        ({"WATCHDOG_PID": ME}, math.inf),
        ({"WATCHDOG_USEC": "3000000"}, 1.0),
        ({"WATCHDOG_USEC": "600000000"}, SIGN_EVERY),
        ({"WATCHDOG_USEC": "3", "WATCHDOG_PID": ME}, 1e-6),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, math.inf),
        *[({"WATCHDOG_USEC": value}, math.inf) for value in ("", "0", "-1", "5s", "1.5", "٣")],
    ],
)
def test_the_interval_of_the_watchdog_is_read_as_systemd_says(variables: dict[str, str], seconds: float) -> None:
    assert Systemd(variables).every == pytest.approx(seconds)
