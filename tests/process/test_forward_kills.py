"""A chain of queues that forward, while senders, a reaper, consumers and Redis are killed."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

import rqttl
from rqttl import Broker, Message, RqttlError
from rqttl.reaper import Reaper
from tests.process.test_passing_kills import reapers
from tests.process.test_policy_kills import nursery
from tests.process.test_scheduled_kills import rewrite
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

#: Seconds of kills.
SECONDS = float(os.environ.get("RQTTL_TEST_FORWARD_SECONDS", "3"))
CHAIN = [f"q/{number}" for number in range(1, 5)]
#: Every so-manieth blow hits Redis.
OF_REDIS = 7
WORKERS = ("send", "send", "send", "consume", "consume", "reap")


def send(url: str, journal: Path) -> None:
    """Send batches to the first queue, one after the other and each until it is confirmed; note the last number."""
    queue, chance, number = rqttl.connect(url).queue(CHAIN[0]), random.Random(journal.name), 0
    with journal.open("a", buffering=1) as file:
        while True:
            end = number + chance.choice([1, 1, 5, 40])
            texts = [f"{journal.name}.{n}" for n in range(number, end)]
            while number < end:
                with suppress(RedisError, RqttlError):  # Redis is away
                    queue.enqueue_many([Message(text.encode(), id=text) for text in texts])
                    file.write(f"{end - 1}\n")
                    number = end


def consume(url: str, journal: Path) -> None:
    """Note the messages that come at the end of the chain, and ack them."""
    queue = rqttl.connect(url).queue(CHAIN[-1])
    with journal.open("a", buffering=1) as file:
        while True:
            with suppress(RedisError, RqttlError):
                deliveries = queue.receive_many(50, wait="1s", lease="3s")
                file.writelines(f"{one.sequence} {one.body.decode()}\n" for one in deliveries)
                file.flush()
                queue.ack_many(deliveries)


def reap(url: str, _: Path) -> None:
    """Sweep and pass on."""
    while True:
        with suppress(RedisError, RqttlError):
            Reaper(rqttl.connect(url)).run()


@contextmanager
def workers(url: str, folder: Path) -> Iterator[Callable[[int], None]]:
    """All workers at work. The function kills one of them, and starts another in its place."""
    numbers, working = count(), list[Any]()

    def begin(kind: str) -> Any:
        journal = folder / f"{kind}-{next(numbers)}"
        process = nursery(__name__).Process(target=globals()[kind], args=(url, journal), daemon=True)
        process.start()
        return process

    def strike(place: int) -> None:
        working[place].kill()
        working[place].join(PATIENCE)
        working[place] = begin(WORKERS[place])

    working += map(begin, WORKERS)
    try:
        yield strike
    finally:
        for process in working:
            process.kill()
            process.join(PATIENCE)


def lines(folder: Path, kind: str) -> dict[str, list[str]]:
    """The whole lines in the journals of a kind of workers."""
    return {path.name: path.read_text().split("\n")[:-1] for path in folder.glob(f"{kind}-*")}


@pytest.mark.spec("S-089", "C-45")
def test_a_chain_loses_nothing_and_keeps_its_order_while_everything_is_killed(
    durable: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.02, *[0.1] * 300))
    chance, killed, over = random.Random(4), Counter[str](), time.monotonic() + SECONDS
    with durable.client() as client, Broker(client) as broker:
        *chain, end = [broker.declare_queue(name) for name in CHAIN]
        for queue, after in zip(chain, CHAIN[1:], strict=True):
            queue.update(forward_to=after, duplicate_window="1h")
        with workers(durable.url, tmp_path) as strike:
            for blow in count(1):
                enqueued = end.stats(sweep=False).enqueued
                until(lambda enqueued=enqueued: end.stats(sweep=False).enqueued >= enqueued + chance.randrange(200))  # type: ignore[misc]  # bound at once
                if blow % OF_REDIS == 0:
                    durable.kill()
                    durable.start()
                    rewrite(client)
                    killed["redis"] += 1
                else:
                    place = chance.randrange(len(WORKERS))
                    killed[WORKERS[place]] += 1
                    strike(place)
                if time.monotonic() > over and blow > OF_REDIS:
                    break
        with reapers(durable.url, 1):
            until(lambda: all(queue.stats().depth == 0 for queue in chain))
            got = [line.split(" ") for found in lines(tmp_path, "consume").values() for line in found]
            while end.stats().depth:
                for delivery in end.receive_many(250, wait="4s"):
                    got.append([delivery.sequence, delivery.body.decode()])
                    delivery.ack()

        places = {text: sequence for sequence, text in got}
        numbers: dict[str, list[int]] = {}
        for text in sorted(places, key=places.__getitem__):
            sender, _, number = text.rpartition(".")
            numbers.setdefault(sender, []).append(int(number))
        assert {text: sequence for sequence, text in reversed(got)} == places  # one place each: stored once
        assert all(found == [*range(len(found))] for found in numbers.values())  # in order, without a gap
        confirmed = {name: int(found[-1]) for name, found in lines(tmp_path, "send").items() if found}
        assert all(len(numbers.get(name, ())) > last for name, last in confirmed.items())
        assert [queue.stats().copies for queue in chain] == [len(places)] * 3 == [end.stats().enqueued] * 3
        assert not any(end.stats().deaths.values())
    told = ", ".join(f"{number} × {kind}" for kind, number in sorted(killed.items()))
    sys.stdout.write(f"{len(places)} messages, {len(got) - len(places)} delivered again; killed: {told}\n")
