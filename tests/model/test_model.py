"""Random operations of several clients, on a real Redis and on the model; after every step both hold the same.

The suite makes the same runs each time; with RQTTL_MODEL_RUNS so many are drawn anew. A failure prints the steps that
lead to it, and a `reproduce_failure` line.
"""

import os

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.clients import CLIENTS, Client
from tests.model.machine import NAMES
from tests.model.message_rules import QueueMachine
from tests.model.raw import Reader

#: A failing run is not made smaller where only the verdict counts.
PHASES = [Phase.generate] if os.environ.get("RQTTL_MODEL_QUICK") else list(Phase)
RUNS = int(os.environ.get("RQTTL_MODEL_RUNS", "100"))


@pytest.mark.timeout(1800)
def test_random_operations_agree_with_the_model(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqttl.flows.topics.QUEUES", 2)  # a message for more goes in steps
    brokers = [Client(client) for _ in range(CLIENTS)]
    reader = Reader(client, NAMES)
    run_state_machine_as_test(
        lambda: QueueMachine(client, brokers, reader),  # type: ignore[arg-type]  # a factory will do
        settings=settings(
            max_examples=RUNS,
            phases=PHASES,
            derandomize="RQTTL_MODEL_RUNS" not in os.environ,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    reader.close()
