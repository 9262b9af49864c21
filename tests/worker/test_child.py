"""A child process that a test drives: what it reports for each frame."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rqttl.worker.children import ChildProcess
from rqttl.worker.counters import Counters
from rqttl.worker.crew import Crew
from rqttl.worker.outcomes import Outcome, RetryPolicy
from rqttl.worker.pace import Pace
from rqttl.worker.places import Place, Task
from tests.waiting import until
from tests.worker.test_crew import Ward, message

pytestmark = pytest.mark.once


class Notes(Crew):
    """A crew that only writes down the keys that a child reports."""

    def __init__(self) -> None:
        super().__init__(Counters(), Pace(None), RetryPolicy())
        self.ended: list[int] = []
        self.back: list[int] = []

    def collect(self, place: Place, keys: object) -> int:
        assert isinstance(keys, tuple)
        self.ended += keys
        return len(keys)

    def done(self, place: Place, key: int, outcome: Outcome | None) -> None:
        self.ended.append(key)

    def unseen(self, place: Place, keys: object) -> None:
        assert isinstance(keys, tuple)
        self.back += keys


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def child(notes: Notes) -> Iterator[ChildProcess]:
    setup = dict.fromkeys(("exec", "delivery", "reload", "threads", "asyncio", "max_memory", "max_age"))
    child = ChildProcess(notes, 0, {**setup, "call": "builtins:len", "max_messages": 2, "path": []}, lambda: None)
    yield child
    child.end()


def tasks(first: int, number: int) -> list[Task]:
    out = [Task(Ward(), message(n)) for n in range(number)]  # type: ignore[arg-type]  # a stand-in
    for key, task in enumerate(out, start=first):
        task.key = key
    return out


def test_a_child_that_reached_a_limit_begins_no_message_that_the_worker_sent_before_it_knew(
    child: ChildProcess, notes: Notes
) -> None:
    until(lambda: child.receive() and child.is_ready)
    child.send(tasks(0, 5))
    until(lambda: child.receive() and len(notes.ended + notes.back) == 5)
    assert (child.retiring, notes.ended, notes.back) == ("max_messages", [0, 1], [2, 3, 4])

    child.send(tasks(5, 3))
    child.send(tasks(8, 3))
    until(lambda: child.receive() and len(notes.ended + notes.back) == 11)

    assert (notes.ended, notes.back) == ([0, 1], [*range(2, 11)])
