"""Processes declare, fill and delete queues, and let messages die, while others change the policies of these queues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rqttl import Broker
from rqttl.store.driver import driver_of
from tests.in_force import problems

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("work", "work", "work", "work", "change", "change")
#: `make test-policies` races for longer.
SECONDS = float(os.environ.get("RQTTL_TEST_RACE_SECONDS", "6"))


def race(url: str, seconds: float) -> Counter[str]:
    """Let the processes race. Returns the numbers of their calls."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.process.policy_worker", url, role, str(seed), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for seed, role in enumerate(ROLES)
    ]
    calls: Counter[str] = Counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, log = process.communicate()
        assert (process.returncode, log) == (0, "")
        calls.update(json.loads(out))
    return calls


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_after_a_race_of_policies_with_declarations_and_deaths_nothing_is_left_to_reconcile(
    redis_url: str, broker: Broker
) -> None:
    calls = race(redis_url, SECONDS)

    print(dict(calls))  # noqa: T201  # the figures of `make test-policies`
    assert min(calls[name] for name in ("created", "existing", "deleted", "updated", "rejected")) > 0
    assert min(calls[name] for name in ("policies set", "policies deleted", "queues changed")) > 0
    first, second = broker.reconcile(), broker.reconcile()
    assert (first.changed, first.damaged) == ({}, {})
    assert (second.changed, second.damaged) == ({}, {})
    assert any(name.startswith("EXP.") for name in broker.queues())
    assert problems(broker) == []
    # every name leads to a queue, too: each call returned
    keyspace = driver_of(broker).keyspace
    assert all(driver_of(broker).store.client.exists(keyspace.key(name, "meta")) for name in broker.queues())
