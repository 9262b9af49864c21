"""A consumer of the demo: the calls that it handles, the calls that it rejects, and its counts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rqttl
from rqttl.demo import worker
from rqttl.demo.names import DEAD_LETTER, boarding
from rqttl.demo.worker import HANDLING, TALLIES, Agents, Tally, tallies
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.once]


def test_agents_reject_cancelled_calls_and_write_their_counts(
    broker: rqttl.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = {name: broker.declare_queue(boarding(name), dead_letter=DEAD_LETTER) for name in ("UA", "DL")}
    queues["UA"].enqueue_many([{"cancelled": cancelled} for cancelled in (False, True, False)])
    queues["DL"].enqueue({"cancelled": True})
    monkeypatch.setenv(HANDLING, "0")
    monkeypatch.setenv(TALLIES, str(tmp_path / "tallies"))

    rqttl.Worker(broker, [*map(boarding, queues)], call=Agents(), delivery=True, processes=0, burst=True).run()

    assert tallies(["UA", "DL", "AA"], tmp_path / "tallies") == {
        "UA": Tally(handled=2, rejected=1),
        "DL": Tally(rejected=1),
        "AA": Tally(),
    }
    [letter] = broker.queue("boarding.DL/dead").peek()
    assert letter.deaths[0].description == "cancelled"


def test_a_consumer_is_a_worker_that_ends_with_its_input(
    broker: rqttl.Broker, redis_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    queue = broker.declare_queue(boarding("UA"), dead_letter=DEAD_LETTER)
    queue.enqueue_many([{"cancelled": False}, {"cancelled": True}])
    task: dict[str, Any] = {
        "role": "consumer",
        "url": redis_url,
        "namespace": "rqttl",
        "carriers": ["UA"],
        "agents": 2,
        "handling_ms": 0.0,
    }

    class Input(io.StringIO):
        """The task, and an end when both calls are done."""

        def read(self, size: int | None = -1) -> str:
            until(lambda: queue.stats().depth == 0 and queue.stats().enqueued == 2)
            return ""

    monkeypatch.setattr(sys, "stdin", Input(json.dumps(task) + "\n"))
    worker.main()

    begun, counts = capfd.readouterr().out.splitlines()
    assert (begun, json.loads(counts)) == ('"begun"', {"UA": {"handled": 1, "rejected": 1}})
