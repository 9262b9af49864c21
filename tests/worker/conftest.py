"""Fixtures of the workers' tests."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.processes import WorkerProcess

Spawn = Callable[..., WorkerProcess]


@pytest.fixture
def spawn(redis_url: str, tmp_path: Path) -> Iterator[Spawn]:
    """Starts workers: `spawn("orders --processes 1", call="plain")`. Further words follow as they are."""
    workers: list[WorkerProcess] = []

    def start(words: str, *further: str, call: str | None = None, url: str = redis_url) -> WorkerProcess:
        workers.append(WorkerProcess(url, tmp_path, *shlex.split(words), *further, call=call))
        return workers[-1]

    yield start
    for worker in workers:
        worker.remove()
