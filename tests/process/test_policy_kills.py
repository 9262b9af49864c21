"""Clients and servers that are killed in the middle of a change of policies or of a declaration."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import pytest
import redis
from redis.connection import AbstractConnection

import rqttl
from rqttl import Broker, PolicyNotFound, connect
from rqttl.flows.policies import PAGE
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.chaos.stage import MEMORY
from tests.drivers import redis_of
from tests.in_force import problems
from tests.servers import Server
from tests.waiting import PATIENCE, until

Part = Literal["before", "half", "after"]
PARTS: tuple[Part, ...] = ("before", "half", "after")


@dataclass(frozen=True)
class Place:
    """The place of a blow: the number of the send, from 0, and its part. `cut` is the portion that `half` sends."""

    send: int
    part: Part
    cut: float = 0.5


NAME = "victim"
Call = Callable[[rqttl.Broker], object]

#: The calls that are cut off. Messages die by most of them, and their letters create further queues.
CALLS: dict[str, Call] = {
    "set": lambda broker: broker.set_policy("p", "orders.#", {"message_ttl": 0, "dead_letter_expired": "{queue}.late"}),
    "replace": lambda broker: broker.set_policy("old", "orders.*", {"max_length": 1, "dead_letter_maxlen": "graves"}),
    "set operator": lambda broker: broker.set_policy("o", "#", {"max_length": 2, "lease": "2m"}, operator=True),
    "delete": lambda broker: broker.delete_policy("all"),
    "declare new": lambda broker: broker.declare_queue("orders.new", max_length=9),
    "declare existing": lambda broker: broker.declare_queue("orders.1"),
    "adopt": lambda broker: broker.declare_queue("graves", lease="3m"),
    "declare expired": lambda broker: broker.declare_queue("brief", max_length=9),
}
#: Changes that another client makes in the middle of such a call.
CHANGES: dict[str, Call] = {
    "none": lambda broker: None,
    "lift": lambda broker: broker.delete_policy("all"),
    "limit": lambda broker: broker.set_policy("other", "#", {"max_length": 3, "dead_letter": "new.{queue}"}),
    "move": lambda broker: broker.set_policy("old", "graves", {"expires": "9h"}),
}


AT_ONCE = Place(0, "before")


@dataclass(frozen=True)
class Blow:
    """A call that ends at a place, and the change of another client at an earlier place."""

    call: str
    end: Place
    change: str = "none"
    change_at: Place = AT_ONCE


def set_up(broker: rqttl.Broker) -> None:
    """Queues with messages, policies, and a queue that a dead letter created."""
    broker.set_policy("all", "#", {"dead_letter_expired": "EXP.{queue}", "dead_letter_maxlen": "EXP.{queue}"})
    broker.set_policy("old", "jobs", {"max_length": 3})
    broker.declare_queue("jobs", dead_letter_rejected="graves").enqueue_many([b"x"] * 3)
    broker.queue("jobs").reject_many(broker.queue("jobs").receive_many(1))
    for number in range(3):
        broker.declare_queue(f"orders.{number}").enqueue_many([b"x"] * 4)
    broker.declare_queue("brief", expires="1ms")
    over = redis_of(broker).time()
    until(lambda: redis_of(broker).time()[1] // 1000 != over[1] // 1000)


def random_blow(chance: random.Random, sends: dict[str, int]) -> Blow:
    """A blow of any kind. `sends` has the number of sends of each call."""
    call = chance.choice(sorted(CALLS))
    end = Place(chance.randrange(sends[call]), chance.choice(PARTS), chance.random())
    earlier = Place(chance.randint(0, end.send), "before")
    # the other changes end the queue at the end of its lifetime, too: tests/unit/test_reaper.py has this race
    changes = ["none", "move"] if call == "declare expired" else sorted(CHANGES)
    return Blow(call, end, chance.choice(changes), earlier)


def strike(broker: rqttl.Broker, url: str, blow: Blow) -> bool:
    """Let a process make a call and end at a place of it. Returns False if the call came to its end before."""
    process: Any = nursery(__name__).Process(target=_suffer, args=(url, blow), daemon=True)
    process.start()
    process.join(PATIENCE)
    client = redis_of(broker)
    # Redis carries out all that was sent before it notices the end of a connection
    until(lambda: NAME not in [one["name"] for one in client.client_list()])
    assert process.exitcode in (0, -signal.SIGKILL)
    return bool(process.exitcode)


@cache
def nursery(module: str) -> Any:
    """Starts processes by a fork from one that has imported a module of tests, and has one thread."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([module])
    return made


def _suffer(url: str, blow: Blow) -> None:
    broker, other = (rqttl.connect(f"{url}?client_name={NAME}") for _ in range(2))
    sends = Sends()
    for client in (broker, other):
        client.policies()  # connects
        client.queues()
    sends.at(blow.change_at, lambda: _change(other, blow.change))
    sends.at(blow.end, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with sends.counting(), suppress(rqttl.PolicyNotFound):  # the other client has deleted it
        CALLS[blow.call](broker)


def _change(broker: rqttl.Broker, change: str) -> None:
    with suppress(rqttl.PolicyNotFound):  # the call has deleted it
        CHANGES[change](broker)


class Sends:
    """Counts sends. An action at a place happens once; its own sends do not count."""

    def __init__(self) -> None:
        self.count = 0
        self._actions: list[tuple[Place, Callable[[], object]]] = []
        self._acting = False

    @property
    def done(self) -> bool:
        """True if all actions have happened."""
        return not self._actions

    def at(self, place: Place, action: Callable[[], object]) -> None:
        """Do something at a place."""
        self._actions.append((place, action))

    def meet(self, part: Part, number: int, unsent: Callable[[float], object] = lambda _: None) -> None:
        """Carry out the actions of this place. `unsent` sends a portion of the bytes."""
        for place, action in [pair for pair in self._actions if (pair[0].part, pair[0].send) == (part, number)]:
            self._actions.remove((place, action))
            self._acting = True
            unsent(place.cut)
            action()
            self._acting = False

    @contextmanager
    def counting(self) -> Iterator[Sends]:
        """Count the sends of all connections of this process."""
        send: Callable[..., Any] = AbstractConnection.send_packed_command

        def counted(connection: Any, command: Any, check_health: bool = True) -> Any:
            if self._acting:
                return send(connection, command, check_health)
            number, self.count = self.count, self.count + 1
            packed = b"".join([command] if isinstance(command, bytes) else command)
            self.meet("before", number)
            self.meet("half", number, lambda cut: connection._sock.sendall(packed[: int(len(packed) * cut)]))
            answer = send(connection, command, check_health)
            self.meet("after", number)
            return answer

        AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]
        try:
            yield self
        finally:
            AbstractConnection.send_packed_command = send  # type: ignore[method-assign]


pytestmark = pytest.mark.slow

#: Random kills in the suite. `make test-policies` makes 200.
KILLS = int(os.environ.get("RQTTL_TEST_KILLS", "20"))
#: Restarts of Redis in the suite, at random places of a change. `make test-policies` makes 40.
RESTARTS = int(os.environ.get("RQTTL_TEST_RESTARTS", "4"))


@pytest.fixture(autouse=True)
def no_patience_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reaper takes a name without a queue out of the registry after ten minutes, or here in its next pass."""
    monkeypatch.setattr("rqttl.reaper.queues.STALE", 0.0)


def check_after_a_pass(url: str) -> None:
    """One pass of a reaper puts all in order, and nothing is left for `reconcile`."""
    with connect(url) as broker:
        Reaper(broker).run_once()

        assert problems(broker) == []
        result = broker.reconcile()
        assert result.changed == {}
        keyspace, client = driver_of(broker).keyspace, redis_of(broker)
        assert [name for name in broker.queues() if not client.exists(keyspace.key(name, "meta"))] == []


def world(client: redis.Redis) -> Broker:
    """A broker with empty caches, and the queues and policies of `set_up`."""
    client.flushall()
    with Broker(client) as broker:
        set_up(broker)
    return Broker(client)


@pytest.mark.parametrize("call", CALLS)
def test_a_pass_mends_a_call_that_was_killed_at_any_of_its_steps(
    call: str, client: redis.Redis, redis_url: str
) -> None:
    send = 0
    while strike(world(client), redis_url, Blow(call, Place(send, "before"))):
        check_after_a_pass(redis_url)
        send += 1

    assert send >= 2
    check_after_a_pass(redis_url)


def test_a_pass_mends_any_kill_also_when_another_client_changes_policies(client: redis.Redis, redis_url: str) -> None:
    chance, kills, calls = random.Random(12), 0, Counter[str]()
    sends = {call: count_sends(client, call) for call in CALLS}
    while kills < KILLS:
        blow = random_blow(chance, sends)
        killed = strike(world(client), redis_url, blow)
        check_after_a_pass(redis_url)
        kills += killed
        calls[blow.call] += killed

    print(f"{kills} kills: {dict(calls)}")  # noqa: T201  # the figure of `make test-policies`


def count_sends(client: redis.Redis, call: str) -> int:
    """The number of sends of a call that is not disturbed."""
    broker = world(client)
    broker.policies()
    with Sends().counting() as sends:
        CALLS[call](broker)
    return sends.count


# Redis is killed


@pytest.fixture
def durable(start_server: Callable[..., Server]) -> Server:
    """A server that keeps all acknowledged writes after any end, with more queues than one round trip changes."""
    server = start_server(appendonly="yes", appendfsync="always", within=MEMORY)
    with connect(server.url) as broker:
        for number in range(PAGE + 10):
            broker.declare_queue(f"orders.{number}")
    return server


def begin_again(server: Server) -> None:
    """Undo a change, and fill some of the queues."""
    with connect(server.url) as broker:
        with suppress(PolicyNotFound):
            broker.delete_policy("p")
        for name in broker.queues():
            if name.startswith("EXP."):
                broker.queue(name).delete()
        for number in range(0, PAGE, 50):
            broker.queue(f"orders.{number}").enqueue_many([b"x"] * 3)


def change(broker: Broker) -> None:
    broker.set_policy("p", "orders.#", {"max_length": 2, "dead_letter_maxlen": "EXP.{queue}", "lease": "2m"})


def places(durable: Server) -> list[Place]:
    """Some places of a change of many queues, in random order."""
    begin_again(durable)
    with connect(durable.url) as broker, Sends().counting() as sends:
        change(broker)
    chance = random.Random(12)
    all_of_them = [Place(send, part, chance.random()) for send in range(sends.count) for part in PARTS]
    return chance.sample(all_of_them, min(RESTARTS, len(all_of_them)))


def test_a_change_of_many_queues_goes_on_after_a_restart_of_redis_at_any_place(
    durable: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a slow machine may need longer to start a server than a call is patient
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.02, *[0.1] * 300))

    def restart() -> None:
        durable.kill()
        durable.start()

    for place in places(durable):
        begin_again(durable)
        sends = Sends()
        sends.at(place, restart)
        with connect(durable.url) as broker:
            with sends.counting():
                change(broker)
            assert sends.done
            assert broker.reconcile().changed == {}
        # a lost reply may have named a queue that a dead letter created: reapers enter that one
        check_after_a_pass(durable.url)
