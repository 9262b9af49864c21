"""Consumers go by the clock of their driver, so a test can give one."""

from __future__ import annotations

import ast
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import rqttl
from rqttl.consuming.patience import patiently
from rqttl.consuming.prefetch import Prefetch, RenewalSchedule
from rqttl.consuming.renewer import Renewer, Sender
from rqttl.consuming.turns import Turns
from rqttl.events import RenewalEvent
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.runtime.timing import RealTiming
from tests.unit.test_flows import OK, received
from tests.unit.test_performing import Canned
from tests.unit.test_prefetch import delivery
from tests.waiting import PATIENCE

CLOCKS = {"time", "datetime"}
CONSUMING = sorted((Path(rqttl.__file__).parent / "consuming").glob("*.py"))


def imported(module: Path) -> set[str]:
    """The names of the packages that a module imports, also within functions and for types."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("module", CONSUMING, ids=lambda module: str(module.stem))
def test_no_part_of_a_consumer_knows_another_clock_than_its_drivers(module: Path) -> None:
    assert not imported(module) & CLOCKS


class Moved(RealTiming):
    """A clock that pauses move, and that remembers them. `at_last` is called in the last of so many."""

    def __init__(self, pauses: int = 100) -> None:
        self.ms, self.pauses = 1_000_000, list[float]()
        self._count = pauses
        self.at_last: Callable[[], object] = lambda: pytest.fail("it goes on for ever")

    def now(self) -> int:
        return self.ms

    def pause(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        self.pauses.append(ms())
        self.ms += int(self.pauses[-1])
        if len(self.pauses) == self._count:
            self.at_last()


def test_a_consumer_tries_again_with_longer_and_longer_pauses_and_for_no_longer_than_its_wait() -> None:
    timing, tries = Moved(), 0

    def away() -> None:
        nonlocal tries
        tries += 1
        raise redis.ConnectionError("gone")

    with pytest.raises(redis.ConnectionError):
        patiently(away, "orders", 12_000, Interrupt(), timing, logging.getLogger("test"))

    assert timing.pauses == [500, 1_000, 2_000, 4_000, 5_000]
    assert tries == 6


def test_a_stop_ends_the_pause_and_the_attempts() -> None:
    timing, stop = Moved(), Interrupt()

    def away() -> None:
        stop.ask()
        raise redis.ConnectionError("gone")

    assert patiently(away, "orders", 12_000, stop, timing, logging.getLogger("test")) is None
    assert len(timing.pauses) == 1


class Timed(Canned):
    """A driver without Redis whose clock moves as its consumers pause."""

    def __init__(self, timing: Moved, **replies: list[Any]) -> None:
        super().__init__(**replies)
        self.timing = timing


def test_leases_are_renewed_at_thirds_of_their_length_by_the_clock_of_the_driver() -> None:
    renewals, timing = list[float](), Moved(pauses=21)
    driver = Timed(timing, receive=[received() for _ in range(2)], renew=[[OK, b"", b"78", []], [OK, b"", b"79", []]])
    books, schedule, stop = Prefetch[rqttl.Delivery](1), RenewalSchedule(), Interrupt()
    driver.events.subscribe(lambda _: renewals.append(timing.ms), RenewalEvent)
    turns = Turns(driver.keyspace, "orders", "me", books, schedule, stop)
    renewer = Renewer(driver, turns, schedule, Sender(driver), stop, Wakeup())
    books.add([delivery(1, lease=30_000)])
    schedule.follow([30_000])
    ended = threading.Event()

    def end() -> None:
        renewer.closed.ask()
        ended.set()

    timing.at_last = end

    renewer.start()
    assert ended.wait(PATIENCE)
    renewer.close()

    assert renewals == [1_010_000, 1_020_000]
    assert driver.asked == ["receive", "renew", "renew"]
