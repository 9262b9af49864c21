"""Consumers that are killed at work on a queue with a limit of leases: never more are out, and none is lost."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from rqttl import Broker
from tests.process.consuming import ROOT
from tests.servers import Server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = float(os.environ.get("RQTTL_TEST_SECONDS", "5"))
MOST, SENT = 5, 100_000
WORK = """
import random, sys, time, rqttl
with rqttl.connect(sys.argv[1]) as broker, broker.queue("q").consume(prefetch=2, lease="1s") as deliveries:
    for delivery in deliveries:
        time.sleep(random.uniform(0, 0.03))
        delivery.ack()
"""


def test_of_eight_consumers_that_are_killed_never_more_messages_are_out_than_may_be(
    start_server: Callable[..., Server],
) -> None:
    server, chance = start_server(), random.Random(MOST)

    def start() -> subprocess.Popen[bytes]:
        return started.enter_context(subprocess.Popen([sys.executable, "-c", WORK, server.url], cwd=ROOT))

    with server.client() as client, Broker(client) as broker, ExitStack() as started:
        queue = broker.declare_queue("q", max_leased=MOST)
        for _ in range(0, SENT, 250):
            queue.enqueue_many([b"x"] * 250)
        consumers = [start() for _ in range(8)]
        until(lambda: client.zcard("rqttl:{q}:leases"))
        leased, kills, kill_at = set[int](), 0, time.monotonic() + 0.5
        full, free = time.monotonic(), 0.0
        ends = full + SECONDS
        while (now := time.monotonic()) < ends:
            out = client.zcard("rqttl:{q}:leases")
            full, free = (full, max(free, now - full)) if out < MOST else (now, free)
            leased.add(out)
            if now > kill_at:
                consumers.pop(chance.randrange(8)).kill()
                consumers.append(start())
                kills, kill_at = kills + 1, now + 0.5
        for consumer in consumers:
            consumer.kill()

        stats = queue.stats()
        sys.stdout.write(
            f"{kills} kills, {stats.acked} messages, {sorted(leased)} out, a place free for {free:.3f} s\n"
        )
        assert max(leased) == MOST
        assert kills
        assert stats.acked + stats.depth == SENT
