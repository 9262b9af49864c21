"""Scans of the reaper: each queue is seen once in a period, part by part, and swept only where there may be work."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.reaper.registry import Record
from rqttl.reaper.scan import PAGE, PART, UNCHANGED_EVERY, Scan


class Queues:
    """A registry without Redis. `records` has its contents; `tidied` counts ends of scans, `away` makes looks fail."""

    def __init__(self, count: int) -> None:
        self.records = {f"q{i:05}": Record(None, (b"v", b"", b"%d" % i)) for i in range(count)}
        self.tidied = 0
        self.away = False

    def names(self) -> list[str]:
        return sorted(self.records)

    def look(self, names: list[str]) -> dict[str, Record]:
        if self.away:
            raise ConnectionError
        return {name: self.records[name] for name in names}

    def tidy(self) -> None:
        self.tidied += 1


def scan_of(queues: Queues) -> Scan:
    registry: Any = queues
    return Scan(registry)


def run(scan: Scan, *, thorough: bool) -> list[str]:
    """The queues that one scan sweeps."""
    scan.begin(thorough=thorough)
    swept: list[str] = []
    while scan.running:
        swept += scan.look().sweep
    return swept


def test_a_thorough_scan_looks_at_a_page_at_a_time_and_sweeps_all() -> None:
    queues = Queues(PAGE + 1)
    scan = scan_of(queues)
    scan.begin(thorough=True)

    assert [len(scan.look().sweep), len(scan.look().sweep)] == [PAGE, 1]
    assert not scan.running
    assert (scan.queues, queues.tidied) == (set(queues.records), 1)


def test_a_scan_that_takes_its_time_spreads_its_parts_over_the_period() -> None:
    scan = scan_of(Queues(10 * PART))
    scan.begin(thorough=False)

    assert len(scan.look().dues) == PART
    assert scan.gap(300.0) == 30.0


def test_idle_queues_are_looked_at_and_not_swept_but_in_turn() -> None:
    queues = Queues(200)
    scan = scan_of(queues)
    run(scan, thorough=True)

    turns = [run(scan, thorough=False) for _ in range(UNCHANGED_EVERY)]

    assert all(len(swept) < 40 for swept in turns)
    assert sorted(queue for swept in turns for queue in swept) == queues.names()


@pytest.mark.parametrize("record", [Record(7, (b"v", b"7", b"0")), Record(None, (b"w", b"", b"0")),
                                    Record(None, (b"v", b"", b"1"))])  # fmt: skip
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
    scan.begin(thorough=False)

    assert scan.look().dues == {"q00000": None, "q00001": 5, "q00002": None}


def test_a_part_that_could_not_be_looked_at_is_looked_at_again() -> None:
    queues = Queues(1)
    scan = scan_of(queues)
    scan.begin(thorough=False)
    queues.away = True
    with pytest.raises(ConnectionError):
        scan.look()
    queues.away = False

    assert list(scan.look().dues) == ["q00000"]


def test_a_registry_without_queues_is_scanned_too() -> None:
    queues = Queues(0)

    assert run(scan_of(queues), thorough=False) == []
    assert queues.tidied == 1
