"""Scans of the reaper: each queue is seen once in a period, part by part, and swept only where there may be work."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from rqttl.flows.steps import Flow, Now
from rqttl.reaper.registry import PAGE, PART, UNCHANGED_EVERY, Record, Scan

T = TypeVar("T")


class Queues:
    """A registry without Redis. `records` has its contents; `tidied` counts ends of scans, `away` makes looks fail."""

    def __init__(self, count: int) -> None:
        self.records = {f"q{i:05}": Record(None, (b"v", b"", b"%d" % i)) for i in range(count)}
        self.tidied = 0
        self.away = False

    def names(self) -> Flow[list[str]]:
        yield Now()
        return sorted(self.records)

    def look(self, names: list[str]) -> Flow[dict[str, Record]]:
        yield Now()
        if self.away:
            raise ConnectionError
        return {name: self.records[name] for name in names}

    def tidy(self) -> Flow[None]:
        yield Now()
        self.tidied += 1


def perform(flow: Flow[T]) -> T:
    """Perform a flow whose steps are of no consequence."""
    try:
        while True:
            assert flow.send(None) == Now()
    except StopIteration as done:
        result: T = done.value
        return result


def scan_of(queues: Queues) -> Scan:
    registry: Any = queues
    return Scan(registry)


def run(scan: Scan, *, thorough: bool) -> list[str]:
    """The queues that one scan sweeps."""
    perform(scan.begin(thorough=thorough))
    swept: list[str] = []
    while scan.running:
        swept += perform(scan.look()).sweep
    return swept


def test_a_thorough_scan_looks_at_a_page_at_a_time_and_sweeps_all() -> None:
    queues = Queues(PAGE + 1)
    scan = scan_of(queues)
    perform(scan.begin(thorough=True))

    assert [len(perform(scan.look()).sweep), len(perform(scan.look()).sweep)] == [PAGE, 1]
    assert not scan.running
    assert (scan.queues, queues.tidied) == (set(queues.records), 1)


@pytest.mark.spec("A-056")
def test_a_scan_that_takes_its_time_spreads_its_parts_over_the_period() -> None:
    scan = scan_of(Queues(10 * PART))
    perform(scan.begin(thorough=False))

    assert len(perform(scan.look()).dues) == PART
    assert scan.gap(300.0) == 30.0


def test_idle_queues_are_looked_at_and_not_swept_but_in_turn() -> None:
    queues = Queues(200)
    scan = scan_of(queues)
    run(scan, thorough=True)

    turns = [run(scan, thorough=False) for _ in range(UNCHANGED_EVERY)]

    assert all(len(swept) < 40 for swept in turns)
    assert sorted(queue for swept in turns for queue in swept) == sorted(queues.records)


@pytest.mark.parametrize(
    "record", [Record(7, (b"v", b"7", b"0")), Record(None, (b"w", b"", b"0")), Record(None, (b"v", b"", b"1"))]
)
def test_a_queue_that_has_changed_is_swept(record: Record) -> None:
    queues = Queues(1)
    scan = scan_of(queues)
    run(scan, thorough=True)
    idle = [swept for _ in range(UNCHANGED_EVERY) for swept in run(scan, thorough=False)]

    queues.records["q00000"] = record

    assert idle == ["q00000"]
    assert run(scan, thorough=False) == ["q00000"]


def test_the_next_time_of_each_queue_is_told_swept_or_not() -> None:
    queues = Queues(3)
    queues.records["q00001"] = Record(5, (b"v", b"5", b"1"))
    scan = scan_of(queues)
    for _ in range(2):
        run(scan, thorough=False)
    perform(scan.begin(thorough=False))

    assert perform(scan.look()).dues == {"q00000": None, "q00001": 5, "q00002": None}


def test_a_part_that_could_not_be_looked_at_is_looked_at_again() -> None:
    queues = Queues(1)
    scan = scan_of(queues)
    perform(scan.begin(thorough=False))
    queues.away = True
    with pytest.raises(ConnectionError):
        perform(scan.look())
    queues.away = False

    assert list(perform(scan.look()).dues) == ["q00000"]


def test_a_registry_without_queues_is_scanned_too() -> None:
    queues = Queues(0)

    assert run(scan_of(queues), thorough=False) == []
    assert queues.tidied == 1
