"""A consumer of the demo: which calls it handles, which it rejects, and when it says that it is ready."""

from __future__ import annotations

import threading

import pytest

import rqttl
from rqttl.demo.names import DEAD_LETTER, boarding
from rqttl.demo.worker import Consumer, Tally

pytestmark = pytest.mark.timeout(60)


def test_a_consumer_is_ready_when_it_waits_and_rejects_cancelled_calls(broker: rqttl.Broker) -> None:
    queues = {name: broker.declare_queue(boarding(name), dead_letter=DEAD_LETTER) for name in ("UA", "DL")}
    consumer = Consumer(broker, list(queues), agents=1, handling_ms=0.0)
    waiting: list[int] = []
    ready = threading.Event()

    def count() -> None:
        waiting.extend(queue.stats().consumers for queue in queues.values())
        ready.set()

    thread = threading.Thread(target=consumer.run, args=[count])
    thread.start()
    assert ready.wait(30)
    queues["UA"].enqueue_many([rqttl.Message({"cancelled": cancelled}) for cancelled in (False, True, False)])
    queues["DL"].enqueue_many([rqttl.Message({"cancelled": True})])
    consumer.finish()
    thread.join()

    assert waiting == [1, 1]
    assert consumer.tallies == {"UA": Tally(handled=2, rejected=1), "DL": Tally(rejected=1)}
    [letter] = broker.queue("boarding.DL/dead").peek()
    assert letter.deaths[0].description == "cancelled"
