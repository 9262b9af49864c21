"""Publishers, of which some are killed, and queues that come and go beside them, with filters that change."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

import rqttl
from rqttl import Broker, InvalidInput, Message, Queue, QueueNotFound, Topic
from rqttl.flows import topics
from tests.process.test_passing_kills import reapers
from tests.process.test_policy_kills import NAME, PARTS, Place, Sends, nursery
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

#: Seconds of guests that come and go, for each kind of call.
SECONDS = float(os.environ.get("RQTTL_TEST_GUEST_SECONDS", "0.5"))
T = TypeVar("T")
WORDS = "abc"
PUBLISHERS, GUESTS, CALLS = 3, 6, 60
#: After all events; with a minus before them.
EVER = float("inf")


@dataclass
class Call:
    """A message that a publisher sent: its word, and the times between which its call was under way."""

    word: str
    begin: float
    end: float = EVER
    returned: bool = False


@dataclass
class Visit:
    """One life of a guest's queue: the changes of its filter, with begin and end, and what it got."""

    changes: list[tuple[float, float, str]] = field(default_factory=list)
    got: list[tuple[str, str]] = field(default_factory=list)
    #: All that was stored before this time has been received.
    seen: float = -EVER

    def drain(self, queue: Queue) -> None:
        while True:
            now = time.monotonic()
            found = queue.receive_many(250, wait="5ms", auto_ack=True)
            self.got += [(one.id, one.body.decode()) for one in found]
            if not found:
                self.seen = now
                return

    def periods(self) -> Iterator[tuple[float, float, float, float, str]]:
        """For each filter the times at which it begins and ends at the earliest and at the latest."""
        for (begin, begun, words), (end, ended, _) in pairwise([*self.changes, (EVER, EVER, "")]):
            yield begin, begun, end, ended, words

    def must_get(self, call: Call) -> bool:
        return call.end <= self.seen and any(
            call.word in words and begun <= call.begin and call.end <= end for _, begun, end, _, words in self.periods()
        )

    def may_get(self, call: Call) -> bool:
        return any(
            call.word in words and begin <= call.end and call.begin <= ended
            for begin, _, _, ended, words in self.periods()
        )


def publish(url: str, journal: Path, queues: int, seed: int, end: Place | None) -> None:
    """Send messages to the topic, and note each call. End within a send, or after all."""
    topics.QUEUES = queues
    topic, sends, chance = rqttl.connect(f"{url}?client_name={NAME}").topic("news"), Sends(), random.Random(seed)
    topic.stats()  # connects
    if end:
        sends.at(end, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with journal.open("a", buffering=1) as file, sends.counting():
        for number in range(CALLS):
            batch = [(f"{seed}.{number}.{k}", chance.choice(WORDS)) for k in range(chance.randint(1, 4))]
            texts = " ".join(f"{body}:{word}" for body, word in batch)
            file.write(f"{time.monotonic()} begin {texts}\n")
            topic.enqueue_many([Message(body.encode(), subject=f"{word}.x") for body, word in batch])
            file.write(f"{time.monotonic()} end {texts}\n")


def calls_of(journal: Path, ended: float) -> dict[str, Call]:
    """The messages of a publisher, in order. A call that did not return was over when its process had `ended`."""
    calls: dict[str, Call] = {}
    for line in journal.read_text().splitlines():
        at, kind, *texts = line.split()
        for text in texts:
            body, _, word = text.partition(":")
            if kind == "begin":
                calls[body] = Call(word, float(at), ended)
            else:
                calls[body].end, calls[body].returned = float(at), True
    return calls


def changed(visit: Visit, words: str, change: Callable[[], T]) -> T:
    """Make a change of bindings, and note when it was under way."""
    begin = time.monotonic()
    visit.changes.append((begin, EVER, words))
    result = change()
    visit.changes[-1] = (begin, time.monotonic(), words)
    return result


def visits(topic: Topic, name: str, chance: random.Random, over: threading.Event) -> list[Visit]:
    """Subscribe, receive, change the filter, and end in some way, again and again."""
    done: list[Visit] = []
    while not over.is_set():
        done.append(Visit())
        with suppress(QueueNotFound, InvalidInput):  # its lifetime is over: the machine is slow
            stay(done[-1], topic, name, chance, over)
    return done


def stay(visit: Visit, topic: Topic, name: str, chance: random.Random, over: threading.Event) -> None:
    how = chance.choice(["unbind", "delete", "unsubscribe", "leave"])
    options: dict[str, Any] = {"auto_delete_on_idle": "50ms"} if how == "leave" else {}
    words, filter = random_filter(chance)
    queue: Queue = changed(visit, words, partial(topic.subscribe, name, filter, **options))
    for _ in range(chance.randint(0, 4)):
        for _ in range(chance.randint(1, 4)):
            visit.drain(queue)
        words, filter = random_filter(chance)
        changed(visit, words, partial(topic.set_filter, name, filter))
    if how == "unbind":
        changed(visit, "", partial(topic.unbind, queue.name))
        visit.drain(queue)
    if how == "leave":
        until(lambda: over.is_set() or queue.name not in topic.bindings())
    else:
        ends: Callable[[], int] = queue.delete if how == "delete" else partial(topic.unsubscribe, name)
        changed(visit, "", ends)


def random_filter(chance: random.Random) -> tuple[str, Any]:
    words = "".join(chance.sample(WORDS, chance.randint(1, len(WORDS))))
    return words, None if len(words) == len(WORDS) else [f"{word}.#" for word in words]


def publications(client: redis.Redis, url: str, folder: Path, queues: int) -> tuple[dict[str, Call], int]:
    """Let publishers work at once, and others in their place, until the time is over. Every second one is killed."""
    chance, calls, killed, over = random.Random(queues), dict[str, Call](), 0, time.monotonic() + SECONDS
    for turn in count():
        if time.monotonic() > over:
            return calls, killed
        victims: list[tuple[Any, Path]] = []
        for seed in range(PUBLISHERS * turn, PUBLISHERS * (turn + 1)):
            end = Place(chance.randrange(CALLS), chance.choice(PARTS), chance.random()) if seed % 2 else None
            journal = folder / str(seed)
            process = nursery(__name__).Process(target=publish, args=(url, journal, queues, seed, end), daemon=True)
            process.start()
            victims.append((process, journal))
        for process, _ in victims:
            process.join(PATIENCE)
            assert process.exitcode in (0, -signal.SIGKILL)
            killed += process.exitcode != 0
        until(lambda: NAME not in [one["name"] for one in client.client_list()])
        for _, journal in victims:
            calls |= calls_of(journal, time.monotonic())
    raise AssertionError


@pytest.mark.parametrize("queues", [topics.QUEUES, 3], ids=["at once", "in steps"])
@pytest.mark.spec("TR-01", "TR-02")
def test_each_message_is_in_each_queue_that_was_bound_and_wanted_it_and_in_no_other_once_and_in_order(
    broker: Broker, client: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    """Who publishes `in steps` leaves messages to others where it is killed: filters of later times decide then."""
    monkeypatch.setattr(topics, "QUEUES", queues)
    topic = broker.declare_topic("news")
    hosts = [topic.subscribe(name) for name in ("aa", "zz")]
    over, done = threading.Event(), list[Visit]()
    with reapers(redis_url, 2), ThreadPoolExecutor(GUESTS) as pool:
        guests = [
            pool.submit(visits, rqttl.connect(redis_url).topic("news"), f"g{n}", random.Random(n), over)
            for n in range(GUESTS)
        ]
        try:
            calls, killed = publications(client, redis_url, tmp_path, queues)
        finally:
            over.set()
        for guest in guests:
            done += guest.result(PATIENCE)
        until(lambda: topic.stats().ready == 0)

    stays = [Visit([(-EVER, -EVER, WORDS)]) for host in hosts]
    for visit, host in zip(stays, hosts, strict=True):
        visit.drain(host)
    assert stays[0].got == stays[1].got
    stored = {body for _, body in stays[0].got}
    assert {body for body, call in calls.items() if call.returned} <= stored <= calls.keys()
    if queues == 3:
        for call in calls.values():
            call.end = EVER
    received = 0
    numbers = {body: number for number, body in enumerate(calls)}
    for visit in (*stays, *done):
        places = [tuple(map(int, sequence.split("-"))) for sequence, _ in visit.got]
        assert places == sorted(set(places))  # once, in one order for all queues
        got = {body for _, body in visit.got}
        for publisher in {body.partition(".")[0] for body in got}:
            own = [numbers[body] for _, body in visit.got if body.partition(".")[0] == publisher]
            assert own == sorted(own)
        assert got <= stored
        received += len(got)
        assert {body for body in stored if visit.must_get(calls[body])} <= got
        assert [body for body in got if not visit.may_get(calls[body])] == []
    assert min(killed, len(done), received - 2 * len(stored)) > 0
