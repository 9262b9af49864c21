"""The number of commands of an idle Redis: consumers wait, and a reaper watches empty queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import redis

import rqttl
from rqttl.consuming import prefetch
from rqttl.flows import messages
from rqttl.reaper import Reaper, hints

CONSUMERS, QUEUES = 100, 1_000
#: Seconds for which commands are counted. All periods are so many times shorter, so that the window holds each of them.
WINDOW, FASTER = 60.0, 12
SCAN_PERIOD = timedelta(minutes=5)  # the default
PATIENCE = 60.0


@contextmanager
def faster() -> Iterator[None]:
    """Shorten the periods of waits, renewers and of the reaper's connection."""
    before = messages.PERIOD, prefetch.CONSUMER_TTL_MS, hints.QUIET
    messages.PERIOD, prefetch.CONSUMER_TTL_MS, hints.QUIET = (
        before[0] // FASTER,
        before[1] // FASTER,
        before[2] / FASTER,
    )
    try:
        yield
    finally:
        messages.PERIOD, prefetch.CONSUMER_TTL_MS, hints.QUIET = before


def commands_a_minute(client: redis.Redis, broker: rqttl.Broker) -> float:
    """All commands a minute as Redis counts them, those within scripts too."""
    for i in range(QUEUES):
        broker.declare_queue(f"q{i}")
    waiting = threading.Semaphore(0)
    broker.events.subscribe(lambda _: waiting.release(), rqttl.WaitEvent)
    reaper = Reaper(broker, scan_period=SCAN_PERIOD / FASTER)
    with faster():
        threads = [threading.Thread(target=_wait, args=(broker.queue(f"q{i}"), i % 2)) for i in range(CONSUMERS)]
        threads.append(threading.Thread(target=reaper.run))
        for thread in threads:
            thread.start()
        for _ in range(CONSUMERS):
            if not waiting.acquire(timeout=PATIENCE):
                raise RuntimeError("a consumer does not wait")
        _until_calm(client)
        time.sleep(
            SCAN_PERIOD.total_seconds() / FASTER
        )  # until the reaper looks at one part of the queues after another
        before = counted(client)
        time.sleep(WINDOW)
        commands = counted(client) - before
        reaper.stop()
        broker.interrupt()
        for thread in threads:
            thread.join()
    return commands / (WINDOW / 60 * FASTER)


def _wait(queue: rqttl.Queue, loop: int) -> None:
    if loop:
        with queue.consume() as deliveries:
            for _ in deliveries:
                pass
    else:
        queue.receive(wait="1h")


def _until_calm(client: redis.Redis) -> None:
    """Return when the reaper has had its first look at all queues."""
    before = -1
    while (now := counted(client)) - before > QUEUES:
        before = now
        time.sleep(2)


def counted(client: redis.Redis) -> int:
    """Commands since the server was started."""
    info: Any = client.info("stats")
    return int(info["total_commands_processed"])
