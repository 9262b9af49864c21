"""The fixtures of these tests keep their promises."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rqttl import Broker
from spark_connectors import java
from tests.spark.letters import DEATHS, bury


@pytest.mark.parametrize("reason", DEATHS)
def test_letters_are_buried_in_order_and_their_source_is_left_empty(broker: Broker, reason: str) -> None:
    bury(broker, 1_500, reason=reason)
    letters = bury(broker, 10, reason=reason, first=1_500).peek(2_000)

    assert [letter.id for letter in letters] == [f"m-{i}" for i in range(1_510)]
    assert Counter((letter.deaths[0].queue, letter.deaths[0].reason) for letter in letters) == {
        ("orders", reason): 1_510
    }
    assert broker.queue("orders").stats().ready == 0


@pytest.mark.parametrize(
    "said, told",
    [
        ('openjdk version "17.0.15" 2025-04-15', ""),
        ('java version "21"', ""),
        ("", "is of no version"),
        ('openjdk version "11.0.2"', 'is openjdk version "11'),
        ('java version "1.8.0_402"', 'is java version "1.8.0'),
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


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert java.java_problem().startswith(f"no Java runs as {tmp_path}/bin/java; Spark needs Java 17 or later")
