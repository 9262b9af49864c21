"""`rqttl queue declare` and `update`: the pause after a failed delivery."""

from __future__ import annotations

import pytest

from rqttl import Broker
from tests.cli.conftest import Run


def test_a_pause_is_declared_changed_and_printed_as_people_write_it(run: Run, broker: Broker) -> None:
    words = ("--redelivery-delay", "10s", "--redelivery-multiplier", "2", "--redelivery-jitter", "0.25")
    assert run("queue", "declare", "orders", *words).exit_code == 0
    assert dict(broker.queue("orders").options().non_default) == {
        "redelivery_delay": 10_000,
        "redelivery_multiplier": 2,
        "redelivery_jitter": 0.25,
    }

    changed = run("queue", "update", "orders", "--redelivery-multiplier", "1.5").stdout.splitlines()
    printed = run("queue", "show", "orders").stdout

    assert [line.split() for line in changed[1:]] == [["--redelivery-multiplier", "2", "->", "1.5"]]
    for line in ("--redelivery-delay", "10s"), ("--redelivery-multiplier", "1.5"), ("--redelivery-jitter", "0.25"):
        assert list(line) in [one.split() for one in printed.splitlines()]


def test_a_pause_cannot_be_unset_below_what_shapes_it(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", redelivery_delay="10s", redelivery_jitter=0.5)

    result = run("queue", "update", "orders", "--unset", "redelivery-delay")

    assert (result.exit_code, result.stdout) == (2, "")
    assert broker.queue("orders").options()["redelivery_delay"] == 10_000


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--redelivery-jitter", "2"], "--redelivery-jitter: expected a number from 0 to 1, got 2.0"),
        (
            ["--redelivery-multiplier", "nan"],
            "--redelivery-multiplier: expected a number from 1 to 9007199254740991, got nan",
        ),
        (
            ["--redelivery-multiplier", "twice"],
            "invalid value for '--redelivery-multiplier': 'twice' is not a valid float",
        ),
        (["--redelivery-max-delay", "5s"], "--redelivery-max-delay: 5000 ms does nothing without"),
    ],
)
def test_a_pause_that_cannot_be_is_wrong_usage_in_one_line(
    run: Run, broker: Broker, words: list[str], expected: str
) -> None:
    result = run("queue", "declare", "orders", *words)

    assert (result.exit_code, result.stdout, broker.queues()) == (2, "", [])
    assert result.stderr.startswith(f"rqttl: {expected}")
    assert result.stderr.count("\n") == 1
