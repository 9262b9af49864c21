"""The tools of these tests, and what Spark needs of a machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_connectors
from rqttl import Broker, Message
from rqttl.demo.stage import ProgramFailed, ask_spark, boarding, dead_letters
from spark_connectors import demo_report, java
from tests.process.demo_runs import check_document, command_line, family, start
from tests.process.embedded_users import data_folder, running
from tests.spark.letters import bury
from tests.waiting import until


@pytest.mark.parametrize(
    "said, told",
    [
        ('openjdk version "17.0.15" 2025-04-15', ""),
        ("", "is of no version"),
        ('openjdk version "11.0.2"', 'is openjdk version "11'),
    ],
)
def test_a_java_that_is_too_old_is_named_with_what_to_install(
    said: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    lacking = java.java_problem()

    assert bool(lacking) == bool(told)
    assert told in lacking
    assert not told or "openjdk-17-jre-headless" in lacking
    program.unlink()
    assert java.java_problem().startswith(f"no Java runs as {program}; Spark needs Java 17 or later")


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


def test_letters_are_counted_by_carrier_and_scheduled_hour(spark: SparkSession, broker: Broker, redis_url: str) -> None:
    def call(i: int) -> Message:
        return Message({"flight": f"UA {i}", "scheduled": f"2013-01-0{i % 9 + 1} {i % 24:02}:5{i % 10}"})

    bury(broker, 240, into=dead_letters("UA"), source=boarding("UA"), make=call)
    bury(broker, 30, into=dead_letters("DL"), source=boarding("DL"), make=call, reason="rejected")
    bury(broker, 5, into="orders/dead")
    spark_connectors.register(spark)

    counts = demo_report.count(spark, {"url": redis_url, "queuePattern": dead_letters("*")})

    assert counts == {"UA": dict.fromkeys(range(24), 10), "DL": {hour: 1 + (hour < 6) for hour in range(24)}}


@pytest.mark.slow
def test_a_run_on_the_embedded_server_ends_with_the_report_of_spark(java: None, folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "picture.png"
    with start(folder, "--json", "--picture", str(picture), spark=True) as process:
        out, shown = process.communicate()

    assert process.returncode == 0, shown
    document = json.loads(out)
    check_document(document)
    hours = document["spark"]["hours"]
    dead = {carrier: one["dead_lettered"] for carrier, one in document["carriers"].items() if one["dead_lettered"]}
    assert {carrier: sum(counts.values()) for carrier, counts in hours.items()} == dead
    assert document["spark"]["picture"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert shown.rstrip().endswith(f"The same as a picture: {picture}")
    assert "WARN" not in shown
    assert family(folder) == running(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_while_spark_works_leaves_no_spark_behind(
    java: None, redis_url: str, folder: Path, number: int
) -> None:
    def at_work() -> bool:
        return any(b"java" in command_line(pid) for pid in family(folder))

    with start(folder, "--url", redis_url, spark=True) as process:
        until(at_work, 240)  # the demo itself comes first
        os.kill(process.pid, number)
        process.communicate()

    assert process.returncode == {signal.SIGINT: 130}.get(signal.Signals(number), -number)
    until(lambda: family(folder) == [])


@pytest.mark.slow
def test_a_report_that_fails_says_why(java: None, redis_url: str) -> None:
    with pytest.raises(
        ProgramFailed, match=r"the Spark report failed: \[RQTTL_INVALID_OPTION\] url: expected db, username"
    ):
        ask_spark(f"{redis_url}?timeout=1")
