"""The plugin of pytest in the processes of `suites.py`: outcomes as they come, a time-out, and fixtures for kombu."""

import os
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

import rqttl.celery  # noqa: F401  # for URLs with the name of the transport

BROKER = os.environ["TEST_BROKER"]
DEAD = f"{BROKER.partition(':')[0]}://127.0.0.1:1"
OUTCOMES = Path("outcomes").absolute()
#: The messages that a drain is to hand out, where it is several.
DRAINS = {"BasePriority.test_publish_consume": (3,), "BasePriority.test_publish_requeue_consume": (3, 4)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # one with 20 s of its own needs more on a busy machine
        item.add_marker(pytest.mark.timeout(300), append=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    with OUTCOMES.open("a") as file:
        file.write(f"{report.outcome} {report.nodeid}\n")


class Draining(Connection):
    """A connection with the drain of virtual transports: a call hands out one message, so there are several calls."""

    counts: Iterator[int]

    def drain_events(self, **options: Any) -> None:
        for _ in range(next(self.counts)):
            super().drain_events(**options)


@pytest.fixture
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    if not BROKER.startswith("rqttl"):  # for kombu's transport, 0 is the highest priority
        request.cls.PRIORITY_ORDER = "desc"
    with Draining(BROKER) as made:
        made.counts = iter(DRAINS.get(request.function.__qualname__, repeat(1)))
        yield made


@pytest.fixture
def invalid_connection() -> Connection:
    return Connection(DEAD)


@pytest.fixture
def failover_connection() -> Iterator[Connection]:
    with Connection(f"{DEAD};{BROKER}") as made:
        yield made
