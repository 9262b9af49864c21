"""The crew with places that a test moves: boards, shares of places, slow handlers, and messages that come back."""

from __future__ import annotations

import time

import pytest

from rqttl.delivery import Delivery, Settler, from_parcel
from rqttl.options import QueueOptions
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.worker import board as boards
from rqttl.worker.counters import Counters
from rqttl.worker.crew import PATIENCE, Crew
from rqttl.worker.hands import Recorder, report_end
from rqttl.worker.outcomes import Outcome, RetryPolicy, Settlement
from rqttl.worker.pace import AT_HAND, Pace
from rqttl.worker.places import Place, Task
from rqttl.worker.reports import HELD, MANY, Reports

pytestmark = pytest.mark.once

OPTIONS = QueueOptions.read("q", {})
CONFIG = QueueConfig(Keyspace(), "q", b"", OPTIONS, OPTIONS)


def message(number: int) -> Delivery:
    def refuse(*_: object) -> None:
        raise AssertionError

    return from_parcel(
        Settler(refuse, refuse, refuse, refuse, refuse, None),
        CONFIG,
        (b"%013d-1" % number, b"", b"x", b"1000", 0, 30_000),
    )


class Ward:
    """A source that remembers outcomes. All messages are new."""

    queue = "q"

    def __init__(self) -> None:
        self.acked: list[Delivery] = []
        self.others: list[tuple[Delivery, str]] = []

    def finish(self, items: list[Delivery]) -> None:
        self.acked += items

    def settle(self, item: Delivery, settlement: Settlement) -> None:
        self.others.append((item, settlement.how))

    def in_queue(self, items: list[Delivery]) -> list[float]:
        return [0.0 for _ in items]


class Bench(Place):
    """A place whose handlers are the test."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(boards.local())
        self.slots = slots
        self.got: list[Task] = []
        self.recalls = 0

    takes = True

    def send(self, tasks: list[Task]) -> None:
        self.got += tasks

    def recall(self) -> None:
        self.recalls += 1

    def cancel(self, key: int) -> None:
        raise AssertionError("no test ends a handler")

    def begin(self, task: Task, at: float) -> None:
        self._board[2 * task.key] = at

    def end(self, task: Task, at: float) -> None:
        self._board[2 * task.key + 1] = at


class Scene:
    """A crew with places, and its clock."""

    def __init__(self, *places: Bench, prefetch: int | None = None) -> None:
        self.now = 100.0
        self.places, self.source, self.counters = places, Ward(), Counters()
        self.crew = Crew(self.counters, Pace(prefetch), RetryPolicy(), clock=lambda: self.now)
        self.crew.places += places

    def give(self, number: int) -> None:
        self.crew.give(self.source, [message(n) for n in range(number)])  # type: ignore[arg-type]  # a stand-in

    def make_fast(self) -> None:
        self.crew.pace.measured(0.0)


def test_the_board_acks_what_ended_and_a_report_only_says_where_to_look() -> None:
    scene = Scene(place := Bench(), prefetch=4)
    scene.give(3)
    first, second, third = place.got
    place.begin(first, 99.0)
    place.end(first, 99.5)
    place.begin(second, 99.5)

    assert scene.crew.collect(place, [first.key, second.key, third.key, 999]) == 1
    assert scene.crew.collect(place, [first.key]) == 0

    assert scene.source.acked == [first.delivery]
    assert list(place.tasks.values()) == [second, third]
    snapshot = scene.counters.snapshot()
    assert (snapshot.messages, snapshot.handling["q"].total) == ({("q", "ack"): 1}, 0.5)


def test_a_key_that_another_message_has_now_acks_nothing() -> None:
    scene = Scene(place := Bench(), prefetch=1)
    scene.give(1)
    [old] = place.got
    place.begin(old, 99.0)
    place.end(old, 99.1)
    scene.crew.look()
    place._newest_key = old.key - 1  # after 16,384 messages
    scene.give(1)

    assert place.got[1].key == old.key
    assert scene.crew.collect(place, [old.key]) == 0
    assert len(scene.source.acked) == 1


def test_a_dead_place_acks_what_ended_fails_what_ran_and_counts_nothing_unseen() -> None:
    scene = Scene(place := Bench(), other := Bench(), prefetch=3)
    scene.give(6)
    ended, running, unseen = place.got
    place.begin(ended, 99.0)
    place.end(ended, 99.5)
    place.begin(running, 99.5)
    for task in list(other.got):
        other.begin(task, 99.0)
        other.end(task, 99.1)
    scene.crew.collect(other, other.tasks)

    scene.crew.lost(place, "killed")

    assert scene.source.acked[-1] is ended.delivery
    assert scene.source.others == [(running.delivery, "nack")]
    assert other.got[-1] is unseen
    assert scene.counters.snapshot().running == {"q": 0}


def test_a_look_shows_the_begin_of_a_message_once() -> None:
    scene = Scene(place := Bench(), prefetch=1)
    scene.crew.timeout = 5.0
    scene.give(1)
    place.begin(place.got[0], 97.0)

    scene.crew.look()
    scene.crew.look()

    assert [task.begun_at for task in scene.crew.running()] == [97.0]
    assert [deadline.at for _, deadline in scene.crew.deadlines()] == [102.0]
    assert scene.counters.snapshot().running == {"q": 1}
    assert not scene.crew.is_watching
    place.end(place.got[0], 98.0)
    scene.crew.look()
    assert scene.crew.deadlines() == []
    snapshot = scene.counters.snapshot()
    assert (snapshot.running, snapshot.handling["q"].total) == ({"q": 0}, 1.0)


def test_messages_behind_a_slow_handler_go_to_another_place() -> None:
    scene = Scene(slow := Bench(), free := Bench())
    scene.make_fast()
    scene.give(20)
    slow.begin(slow.got[0], scene.now)
    for task in list(free.got):
        free.begin(task, scene.now)
        free.end(task, scene.now)
    scene.crew.look()
    assert slow.recalls == 0

    scene.now += 2 * AT_HAND
    scene.crew.look()
    behind = slow.got[1:]
    scene.crew.unseen(slow, [task.key for task in behind])

    assert slow.recalls == 1
    assert free.got[-len(behind) :] == behind
    assert list(slow.tasks.values()) == [slow.got[0]]


def test_messages_that_only_slow_handlers_could_take_go_back_to_the_queue() -> None:
    scene = Scene(slow := Bench())
    scene.make_fast()
    scene.give(5)
    slow.begin(slow.got[0], scene.now)
    scene.now += 2 * AT_HAND
    scene.crew.look()
    behind = slow.got[1:]
    scene.crew.unseen(slow, [task.key for task in behind])
    assert scene.source.others == []
    assert scene.crew.room() == 0

    scene.now += PATIENCE
    scene.crew.look()

    assert scene.source.others == [(task.delivery, "release") for task in behind]
    assert len(slow.got) == 5


def test_a_handler_that_ends_in_time_gets_the_messages_back() -> None:
    scene = Scene(slow := Bench())
    scene.make_fast()
    scene.give(3)
    slow.begin(slow.got[0], scene.now)
    scene.now += 2 * AT_HAND
    scene.crew.look()
    scene.crew.unseen(slow, [task.key for task in slow.got[1:]])

    slow.end(slow.got[0], scene.now)
    scene.crew.collect(slow, [slow.got[0].key])
    scene.now += PATIENCE
    scene.crew.look()

    assert [task.delivery for task in slow.got[3:]] == [task.delivery for task in slow.got[1:3]]
    assert scene.source.others == []


def test_a_given_prefetch_stays_with_its_handlers() -> None:
    scene = Scene(slow := Bench(), prefetch=3)
    scene.give(3)
    slow.begin(slow.got[0], scene.now)

    scene.now += 10 * AT_HAND
    scene.crew.look()
    scene.crew.look()

    assert slow.recalls == 0
    assert not scene.crew.is_watching


def test_a_place_without_work_gets_messages_though_the_others_are_nearly_full() -> None:
    scene = Scene(*(places := [Bench(), Bench(), Bench()]), prefetch=2)
    scene.give(6)
    for task in list(places[0].got):
        places[0].begin(task, 99.0)
        places[0].end(task, 99.1)

    scene.crew.look()

    assert scene.crew.room() == 2


def test_many_messages_spread_evenly() -> None:
    scene = Scene(*(places := [Bench(), Bench(), Bench()]), prefetch=100)
    scene.give(100)

    sizes = [len(place.got) for place in places]
    assert sum(sizes) == 100
    assert max(sizes) - min(sizes) <= 20
    assert [task.delivery.sequence for task in places[0].got] == sorted(
        task.delivery.sequence for task in places[0].got
    )


# Reports


class Notebook(Reports):
    """Reports that a test reads."""

    def __init__(self) -> None:
        super().__init__(boards.local())
        self.reports: list[list[int]] = []
        self.other: list[tuple[int, object]] = []

    def _report(self) -> None:
        self.reports.append(self._take())

    def ended(self, key: int, outcome: Outcome | None) -> None:
        self.other.append((key, outcome))

    def settled(self, key: int, outcome: Outcome) -> None:
        self.other.append((key, outcome.kind))

    def renewed(self, key: int, lease: int) -> None:
        self.other.append((key, lease))


def test_fast_successes_share_a_report_and_none_waits_after_a_slow_one() -> None:
    notebook, now = Notebook(), time.monotonic()
    notebook.succeeded(0, now)
    assert notebook.reports == [[0]]
    for key in range(1, 1 + MANY):
        notebook.succeeded(key, now)
    assert notebook.reports == [[0], list(range(1, 1 + MANY))]
    notebook.succeeded(100, now)
    notebook.succeeded(101, time.monotonic() + 2 * HELD)
    assert notebook.reports[2:] == [[100, 101]]
    notebook.succeeded(102, now)
    notebook.flush()
    notebook.flush()
    assert notebook.reports[3:] == [[102]]


def test_a_settle_after_the_end_of_the_handler_reaches_no_other_message() -> None:
    notebook = Notebook()
    recorder = Recorder(notebook)
    item = recorder.begin((7, CONFIG, (b"1-1", b"", b"x", b"1000", 0, 30_000)))
    item.renew("5s")
    recorder.end(item)
    report_end(notebook, 7, item, None)

    item.renew("5s")
    item.reject("late")

    assert notebook.other == [(7, 5000)]
    assert notebook.reports == [[7]]


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_a_settle_by_the_handler_is_reported_once(how: str) -> None:
    notebook = Notebook()
    recorder = Recorder(notebook)
    item = recorder.begin((7, CONFIG, (b"1-1", b"", b"x", b"1000", 0, 30_000)))

    getattr(item, how)()
    recorder.end(item)
    report_end(notebook, 7, item, None)

    assert notebook.other == [(7, how), (7, None)]
    assert notebook.reports == []
