"""The pure parts of a worker: turns of queues, knowledge about queues, frames, outcomes, supervision."""

from __future__ import annotations

import gc
import warnings
from collections import Counter

import pytest

from rqttl import InvalidInput, Reject, Release, Retry, Worker
from rqttl.options import QueueOptions
from rqttl.testing import fake_broker
from rqttl.worker import settings
from rqttl.worker.child import Frame, FrameReader, pack
from rqttl.worker.fetcher import PERIOD, TURN, Queues, period
from rqttl.worker.metrics import Counters
from rqttl.worker.outcomes import ACK, Outcome, RetryPolicy, of_error, settlement
from rqttl.worker.supervisor import Restarts

pytestmark = pytest.mark.once

OPTIONS = QueueOptions.read("q", {})


# Turns


def test_weights_share_the_messages() -> None:
    queues, taken = Queues({"a": 3, "b": 1}), Counter[str]()
    for _ in range(400):
        queue = queues.next(0)
        assert queue is not None
        queues.charge(queue, 10)
        taken[queue] += 10
    assert taken == {"a": 3000, "b": 1000}


def test_weights_count_messages_and_not_claims() -> None:
    queues, taken = Queues({"a": 1, "b": 1}), Counter[str]()
    for _ in range(300):
        queue = queues.next(0)
        assert queue is not None
        size = 1 if queue == "a" else 9
        queues.charge(queue, size)
        taken[queue] += size
    assert abs(taken["a"] - taken["b"]) <= 9


def test_without_weights_the_first_queue_with_messages_comes_first() -> None:
    queues = Queues({"a": None, "b": None})
    queues.charge("a", 1000)
    assert queues.next(0) == "a"
    queues.emptied("a", 10)
    assert queues.next(0) == "b"
    queues.emptied("b", 10)
    assert queues.next(0) is None


def test_an_empty_queue_saves_no_turns_for_later() -> None:
    queues = Queues({"a": 1, "b": 1})
    queues.emptied("a", 10)
    for _ in range(100):
        assert queues.next(0) == "b"
        queues.charge("b", 10)
    taken = Counter[str]()
    for _ in range(20):
        queue = queues.next(10)
        assert queue is not None
        queues.charge(queue, 10)
        taken[queue] += 1
    assert taken == {"a": 10, "b": 10}


def test_a_new_queue_begins_with_the_progress_of_the_others() -> None:
    queues = Queues({"a": 1})
    queues.next(0)
    queues.charge("a", 1000)
    queues.follow({"a": 1, "b": 1})
    assert {queues.next(0)} <= {"a", "b"}
    queues.charge("b", 10)
    assert queues.next(0) == "a"


def test_an_empty_queue_is_asked_again_when_work_is_due_there() -> None:
    queues = Queues({"a": None, "b": None})
    queues.emptied("a", 500)
    queues.emptied("b", PERIOD)
    assert queues.candidates(499) == []
    assert queues.wait(0) == 500
    assert queues.candidates(500) == ["a"]
    assert queues.noted == ["a", "b"]
    queues.suspect()  # the one that was asked longest ago
    assert queues.candidates(0) == ["a"]


def test_a_wait_is_short_enough_to_show_that_the_worker_lives() -> None:
    queues = Queues({"a": None})
    queues.emptied("a", PERIOD)
    assert queues.wait(0) == TURN


def test_a_wakeup_makes_a_queue_a_candidate_and_keeps_its_ticket() -> None:
    queues = Queues({"a": None})
    queues.emptied("a", PERIOD)
    queues.woken("a", b"1-1 5")
    assert (queues.candidates(1), queues.ticketed) == (["a"], ["a"])
    assert (queues.take_ticket("a"), queues.take_ticket("a")) == (b"1-1 5", b"")
    queues.woken("gone", b"1-1 5")
    assert (queues.ticketed, queues.hinted) == ([], [])


def test_periods_of_queues_differ() -> None:
    periods = {period("worker", f"q{n}") for n in range(20)}
    assert len(periods) > 10
    assert all(PERIOD // 2 < each <= PERIOD for each in periods)


# Frames


def test_frames_arrive_in_any_pieces() -> None:
    sent = [pack(Frame.RUN, "q", "{}", [(1, (b"1-1", b"", b"\0" * 100_000))]), pack(Frame.STOP)]
    reader, received = FrameReader(), []
    data = b"".join(sent)
    for start in range(0, len(data), 997):
        received += list(reader.feed(data[start : start + 997]))
    assert [frame[0] for frame in received] == [Frame.RUN, Frame.STOP]
    assert received[0][3][0][1][2] == b"\0" * 100_000


# Outcomes


def test_decisions_and_errors_have_outcomes() -> None:
    assert of_error(Reject("no")) == Outcome("reject", None, "no")
    assert of_error(Retry("5s", "later")) == Outcome("nack", 5000, "later")
    assert of_error(Release()) == Outcome("release")
    failed = of_error(ValueError("bad"))
    assert (failed.kind, failed.description) == ("nack", "ValueError: bad")


def test_failures_pause_longer_each_time_unless_the_queue_has_its_own_pause() -> None:
    retries, failed = RetryPolicy(1000, 60_000, 0.5), Outcome("nack", None, "x")
    pauses = [settlement(failed, OPTIONS, n, retries, lambda: 0.0).delay for n in (1, 2, 3, 7, 100)]
    assert pauses == [1000, 2000, 4000, 60_000, 60_000]
    assert settlement(failed, OPTIONS, 1, retries, lambda: 1.0).delay == 500
    own = QueueOptions.read("q", {"redelivery_delay": "1m"})
    assert settlement(failed, own, 1, retries, lambda: 0.0).delay is None
    assert settlement(Outcome("nack", 7, "x"), own, 1, retries, lambda: 0.0).delay == 7


def test_a_crash_gives_the_message_back_at_once() -> None:
    crashed = settlement(Outcome("crashed", None, "died"), OPTIONS, 1, RetryPolicy(), lambda: 0.0)
    assert (crashed.how, crashed.delay, crashed.description) == ("nack", None, "died")
    assert settlement(ACK, OPTIONS, 1, RetryPolicy(), lambda: 0.0).how == "ack"


# Supervision


def test_a_child_that_ends_early_again_and_again_is_started_ever_more_slowly() -> None:
    restarts, now, pauses = Restarts(), 100.0, []
    for _ in range(9):
        restarts.started(now)
        start = restarts.next_start(now + 1, failed=True)
        pauses.append(start - now - 1)
        now = start
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    restarts.started(now)
    assert restarts.next_start(now + 60, failed=True) == now + 60


# Counters and settings


def test_counters_of_deleted_queues_go_and_those_of_others_and_all_sums_stay() -> None:
    counters = Counters()
    for queue in ("gone", "lives", "works"):
        counters.begun(queue, 0.5)
        counters.ended(queue, 0.02)
        counters.settled(queue, "ack")
        counters.settled(queue, "lost")
        counters.begun(queue, 0.5)
        counters.acked(queue, [0.5])
    counters.begun("works", 0.5)

    counters.keep({"lives", "other"})

    snapshot = counters.snapshot()
    assert {queue for queue, _ in snapshot.messages} == {"lives", "works"}
    for series in (snapshot.handling, snapshot.waiting, snapshot.running, snapshot.leases_lost):
        assert set(series) == {"lives", "works"}
    assert snapshot.messages["lives", "ack"] == 2
    assert (counters.handled, counters.lost) == (6, 3)


def test_counters_show_all_that_a_collector_needs() -> None:
    counters = Counters()
    counters.begun("q", 0.5)
    counters.ended("q", 0.02)
    counters.settled("q", "ack")
    counters.settled("q", "lost", 2)
    counters.begun("q", 0.25)
    counters.begun("q", 1.0)
    counters.acked("q", [0.5, 0.25])
    counters.restarted("crashed")
    counters.reconnected()
    counters.claimed(5.0)
    snapshot = counters.snapshot()
    assert snapshot.messages == {("q", "ack"): 3, ("q", "lost"): 2}
    assert (snapshot.leases_lost, snapshot.restarts, snapshot.reconnects) == ({"q": 2}, {"crashed": 1}, 1)
    assert (sum(snapshot.handling["q"].counts), snapshot.waiting["q"].total) == (3, 1.75)
    assert (snapshot.running, snapshot.last_claim) == ({"q": 0}, 5.0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"call": lambda value: value}, "can import by its name"),
        ({"call": "m:f", "thread": 2}, "did you mean threads"),
        ({"exec": ""}, "exec: expected a command"),
        ({"exec": b"cat"}, "exec: expected a command, got bytes"),
        ({"exec": "sh -c 'x"}, "exec: No closing quotation"),
        ({"call": "a:b", "health_file": 5}, "health_file: expected the name of a file, got int 5"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        settings.read("q", options)


@pytest.mark.parametrize("queues", [[], {}, {"q": 0}, ["bad name!"], 5, {"q": 1, "p": None}])
def test_bad_queues_are_refused(queues: object) -> None:
    with pytest.raises(InvalidInput):
        settings.read(queues, {"call": "m:f"})


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
    assert settings.read("q", {"call": "m:f"}).retries == RetryPolicy(1_000, 600_000, 0.2)
    assert settings.read("q", {"call": "m:f", "retry_delay": "1h"}).retries == RetryPolicy(3_600_000, 3_600_000, 0.2)
    assert settings.read("q", {"call": "m:f", "retry_max": "500ms"}).retries.pause(1, lambda: 0.0) == 500


def test_settings_read_sizes_patterns_and_weights() -> None:
    read = settings.read({"a": 3, "b.*": 1}, {"call": "m:f", "max_memory": "2MiB", "health": "[::1]:80"})
    assert (read.max_memory, read.patterns, read.health) == (2**21, ["b.*"], ("::1", 80))
