"""A Python process that starts too late for Spark: the message of each failing test tells it to the rule for reruns."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark.drivers import Drivers
from tests.spark.jvm import STARTED_TOO_LATE, Done

LINE = f"1 ERROR Executor: org.apache.spark.SparkException: {STARTED_TOO_LATE}."
#: Fails as a driver does: what Spark said comes first, then much else, then the error of Python.
PROGRAM = f"""
import sys, threading
print({LINE!r}, *["1 ERROR TaskSetManager: Task 0 failed"] * 200, sep="\\n", file=sys.stderr)
if "stay" in sys.argv:
    threading.Event().wait()
raise SystemExit("the query failed")
"""


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path, PROGRAM)
    yield drivers
    drivers.end()


def test_the_end_of_a_program_tells_it_from_the_logs() -> None:
    done = Done(1, "began\n\tat here\nended", "x\n" * 200 + LINE + "\ny" * 200)

    assert done.end == f"began\nended\n{LINE}"


@pytest.mark.parametrize(
    "wait",
    [
        lambda drivers, driver: drivers.finish(driver),
        lambda drivers, driver: drivers.wait_until(lambda: False, driver),
    ],
)
def test_the_failure_of_a_driver_tells_it(
    wait: Callable[[Drivers, subprocess.Popen[bytes]], None], drivers: Drivers
) -> None:
    driver = drivers.start()
    # A driver that still runs is not waited for: the error of Python would not be there yet.
    driver.wait(60)

    with pytest.raises(AssertionError, match=rf"(?s)the query failed.*{re.escape(STARTED_TOO_LATE)}"):
        wait(drivers, driver)


def test_a_driver_that_stays_after_that_is_not_waited_for(drivers: Drivers) -> None:
    with pytest.raises(AssertionError, match=STARTED_TOO_LATE):
        drivers.wait_until(lambda: False, drivers.start("stay"))
