"""Consumers go by the clock of their driver, so a test can give one."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import rqttl
from rqttl.consuming.patience import patiently
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.runtime.timing import RealTiming

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
    """A clock that rests move, and that remembers them."""

    def __init__(self) -> None:
        self.ms, self.rests = 1_000_000, list[float]()

    def now(self) -> int:
        return self.ms

    def rest(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        self.rests.append(ms())
        self.ms += int(self.rests[-1])


def test_a_consumer_tries_again_with_longer_and_longer_pauses_and_for_no_longer_than_its_wait() -> None:
    timing, tries = Moved(), 0

    def away() -> None:
        nonlocal tries
        tries += 1
        raise redis.ConnectionError("gone")

    with pytest.raises(redis.ConnectionError):
        patiently(away, "orders", 12_000, Interrupt(), timing, logging.getLogger("test"))

    assert timing.rests == [500, 1_000, 2_000, 4_000, 5_000]
    assert tries == 6


def test_a_stop_ends_the_pause_and_the_attempts() -> None:
    timing, stop = Moved(), Interrupt()

    def away() -> None:
        stop.ask()
        raise redis.ConnectionError("gone")

    assert patiently(away, "orders", 12_000, stop, timing, logging.getLogger("test")) is None
    assert len(timing.rests) == 1
