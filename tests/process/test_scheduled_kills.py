"""Reapers and servers that are killed while scheduled messages arrive: none is lost, and none comes twice."""

import os
import random
import sys
from collections.abc import Callable
from typing import Literal

import pytest
import redis

from rqttl import Broker
from rqttl.flows.steps import GetConfig
from rqttl.protocol import commands
from rqttl.protocol.codec import Envelope
from rqttl.store.driver import driver_of
from tests.process.reapers import PAST, drain, reaping
from tests.servers import Server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("RQTTL_TEST_KILLS", "5"))
#: Messages that are due before each kill: eight steps of a sweep.
SENT = 2_000


def schedule_due(broker: Broker, numbers: range) -> None:
    """Schedule messages that were due long ago, and that nobody has swept. Every second one has an id."""
    known = driver_of(broker).step(GetConfig("q"))
    for start in range(numbers.start, numbers.stop, commands.BATCH):
        ids = {i: b"id %d" % i if i % 2 else b"" for i in range(start, start + commands.BATCH)}
        packed = [(b"@%d" % PAST, Envelope(id=id), b"%d" % i) for i, id in ids.items()]
        assert driver_of(broker).store.run(commands.schedule(known, packed))[0] == b"ok"


def rewrite(client: redis.Redis) -> None:
    """Write the append-only file anew: Redis up to 8 leaves in it a transaction that was cut, and runs it later."""
    client.bgrewriteaof()
    under_way = ("aof_rewrite_scheduled", "aof_rewrite_in_progress")
    until(lambda: not any(client.info("persistence")[field] for field in under_way))


@pytest.mark.spec("S-020", "A-063")
@pytest.mark.parametrize("victim", ["reaper", "redis"])
def test_a_kill_in_the_middle_of_arrivals_neither_loses_nor_repeats_a_message(
    start_server: Callable[..., Server], victim: Literal["reaper", "redis"]
) -> None:
    server, chance = start_server(appendonly="yes", appendfsync="always"), random.Random(KILLS)
    in_the_middle = sent = kills = 0
    with server.client() as client, Broker(client) as broker:
        queue = broker.declare_queue("q")
        # All may arrive before the kill, on a busy machine. Then further kills follow, each with twice as many.
        while kills < KILLS or not in_the_middle:
            more = SENT << max(0, kills - KILLS + 1)
            schedule_due(broker, range(sent, sent + more))
            enough = queue.stats(sweep=False).activated + chance.randint(1, SENT // 2)
            sent, kills = sent + more, kills + 1
            with reaping(server.url, watching=False) as reaper:
                until(lambda enough=enough: queue.stats(sweep=False).activated >= enough)  # type: ignore[misc]  # bound at once
                if victim == "reaper":
                    reaper.process.kill()
                else:
                    server.kill()
            if victim == "redis":
                server.start()
                rewrite(client)
            in_the_middle += queue.stats(sweep=False).scheduled > 0

        queue.sweep()
        stats = queue.stats()
        assert (stats.scheduled, stats.activated, stats.enqueued, stats.ready) == (0, sent, sent, sent)
        assert sorted(map(int, drain(broker, "q", sent))) == list(range(sent))
        assert client.exists("rqttl:{q}:scheduled", "rqttl:{q}:upcoming", "rqttl:{q}:scheduled_ids") == 0
    sys.stdout.write(f"{victim}: {kills} kills, {in_the_middle} of them in the middle of arrivals, {sent} messages\n")
