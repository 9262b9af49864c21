"""Clients that are killed while they pass on messages for more queues than one call has, beside reapers and others."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import redis

import rqttl
from rqttl import Broker
from rqttl.flows.steps import GetConfig
from rqttl.flows.topics import QUEUES, rebind
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.process.test_policy_kills import KILLS, PARTS, Place, Sends, nursery
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

#: Three steps for each message.
NAMES = [f"news/{number:03d}" for number in range(2 * QUEUES + 30)]
#: Clients that work at once, and the messages that each of them sends at most.
CLIENTS, MESSAGES = 4, 3


def _publish(url: str, texts: list[bytes], end: Place) -> None:
    """Send messages to the topic, and end within a send."""
    topic, sends = rqttl.connect(url).topic("news"), Sends()
    topic.stats()  # connects
    sends.at(end, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with sends.counting():
        topic.enqueue_many(texts)


@contextmanager
def reapers(url: str, number: int) -> Iterator[None]:
    """So many reapers at work."""
    working = [Reaper(rqttl.connect(url)) for _ in range(number)]
    threads = [threading.Thread(target=reaper.run) for reaper in working]
    for thread in threads:
        thread.start()
    yield
    for reaper in working:
        reaper.stop()
    for thread in threads:
        thread.join(PATIENCE)


@pytest.mark.spec("TR-05")
def test_each_copy_is_stored_once_and_in_order_however_many_clients_are_killed(
    broker: Broker, client: redis.Redis, redis_url: str
) -> None:
    driver, chance, killed = driver_of(broker), random.Random(7), 0
    topic = broker.declare_topic("news")
    for name in NAMES:
        broker.declare_queue(name)
    assert driver.perform(rebind(driver.keyspace, driver.step(GetConfig("news")), {name: [] for name in NAMES}))

    with reapers(redis_url, 2):
        for turn in count():
            victims: list[Any] = []
            for victim in range(CLIENTS):
                texts = [b"%d.%d.%d" % (turn, victim, number) for number in range(MESSAGES)]
                end = Place(chance.randrange(1, 6 * MESSAGES), chance.choice(PARTS), chance.random())
                victims.append(nursery(__name__).Process(target=_publish, args=(redis_url, texts, end), daemon=True))
                victims[-1].start()
            for one in victims:
                one.join(PATIENCE)
                assert one.exitcode in (0, -signal.SIGKILL)
                killed += one.exitcode != 0
            if killed >= KILLS:
                break
        until(lambda: topic.stats().ready == 0)

    stored = [[view.body for view in broker.queue(name).peek(10_000)] for name in NAMES]
    assert all(one == stored[0] for one in stored)
    by_victim: dict[bytes, list[bytes]] = {}
    for body in stored[0]:
        by_victim.setdefault(body.rpartition(b".")[0], []).append(body)
    assert all(texts == [b"%b.%d" % (name, n) for n in range(len(texts))] for name, texts in by_victim.items())
    stats = topic.stats()
    assert (stats.enqueued, stats.copies) == (len(stored[0]), len(stored[0]) * len(NAMES))
