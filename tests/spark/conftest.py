"""A Spark session for all tests of a process, and programs for spark-submit.

Each test that needs a JVM has the mark `spark`, by its fixtures; all of a process share one session. Without Java they
fail. Redis is that of `tests/conftest.py`: `client`, `broker`, `redis_url` (a unix socket, which executors of this
machine can reach too), `start_server`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_connectors.java import java_problem
from tests.spark.following import Follow, planners
from tests.spark.jvm import STARTED_TOO_LATE, Submitter, settings
from tests.spark.reading import Load, loader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a JVM.

    A test runs again if Spark has ended it because a Python process started too late.
    """
    for item in items:
        if item.path.is_relative_to(HERE) and "java" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=STARTED_TOO_LATE))


@pytest.fixture(scope="session")
def java() -> None:
    """Return True if Spark can run here; asks once."""
    if lacking := java_problem():
        pytest.fail(lacking)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process, `local[2]`. Settings of a test belong into `spark_conf`."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings(folder).items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2]").appName("rqttl tests")
        for name, setting in {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": False,
            "spark.ui.showConsoleProgress": False,
            "spark.local.dir": folder / "local",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": folder / "warehouse",
        }.items():
            builder = builder.config(name, str(setting).lower() if isinstance(setting, bool) else str(setting))
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture
def spark_conf(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets a configuration of the session for this test: `spark_conf("spark.sql.session.timeZone", "Asia/Tokyo")`."""
    before: dict[str, str | None] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first pause before a retry in this process last 2 ms."""
    monkeypatch.setattr("spark_connectors.redis.connect._FIRST_PAUSE", 0.002)


@pytest.fixture
def silent(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The data source warns of nothing in this test."""
    caplog.set_level(logging.WARNING, "spark_connectors")
    yield
    assert caplog.get_records("call") == []


@pytest.fixture
def submitter(java: None, tmp_path: Path) -> Submitter:
    """Runs programs with spark-submit, by default on a cluster of two executors."""
    return Submitter(tmp_path)


@pytest.fixture
def load(redis_url: str) -> Load:
    """Plans batch reads of the shared server, without Spark."""
    return loader(redis_url)


@pytest.fixture
def follow(redis_url: str) -> Follow:
    """Makes planners of streams of the shared server."""
    return planners(redis_url)
