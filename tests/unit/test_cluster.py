"""Which node of a cluster gets a call, by what its nodes say. Without a server."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, ResponseError, TryAgainError

from rqttl.events import Events
from rqttl.flows.steps import Pipeline, Read, ReadEachNode
from rqttl.options import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.codec import Envelope
from rqttl.protocol.commands import Options, QueueConfig
from rqttl.protocol.keys import Keyspace, slot_of
from rqttl.store.cluster import Cluster, Seeds
from rqttl.store.exchanges import Exchanges
from tests.unit.test_nodes import drive, gone

KEYSPACE = Keyspace("rqttl", True)
#: Settings of connections that nobody opens.
POOL = redis.ConnectionPool(host="h", port=1)


def config(key: str) -> QueueConfig:
    """The options of the queue of a key."""
    name = key.split("{")[1].split("}", maxsplit=1)[0]
    return Options.plain(QueueOptions.read_stored(name, {})).config(KEYSPACE, b"v1")


class FakeNode:
    """A node that answers what `answer(node, call)` says. The ports of `cluster.dead` have lost their connections."""

    def __init__(self, port: int, cluster: "FakeCluster") -> None:
        self.port, self.cluster = port, cluster
        self.loaded: set[str] = set()
        self.left = 0

    def leave(self) -> None:
        self.left += 1

    def replies(self, calls: Any) -> Any:
        self.cluster.log.append((self.port, [call[0] for call in calls]))
        if self.port in self.cluster.dead:
            return gone()
        return [self.cluster.answer(self.port, call) for call in calls]


class FakeCluster:
    """A cluster of two nodes, on the ports 1 and 2 of the host h: the first has the lower half of the slots."""

    def __init__(self, *ports: int, remap: Any = None) -> None:
        self.log: list[Any] = []
        self.pauses: list[float] = []
        self.reply: Callable[[int, Any], Any] = self.usual
        self.dead: set[int] = set()
        self.slots: Any = [[0, 8191, [b"h", 1, b"id"]], [8192, 16383, [b"h", 2, b"id"]]]
        self.topology = Cluster(
            lambda _, port: FakeNode(port, self), Seeds(POOL, [("h", port) for port in ports or (1,)], remap)
        )
        self.exchanges = Exchanges(self.topology, KEYSPACE, Events(), lambda: 0.0)
        self.exchanges.patience = 30.0

    def answer(self, port: int, call: Any) -> Any:
        if call == ("CLUSTER", "SLOTS"):
            return self.slots
        return self.reply(port, call)

    def usual(self, port: int, call: Any) -> Any:
        if call[0] == "EVALSHA":
            return [b"ok", b"", b"%d" % port]
        return b"%d" % port

    def perform(self, exchange: Any) -> Any:
        return drive(exchange, self.note)

    def note(self, step: Any) -> None:
        if isinstance(step, float):
            self.pauses.append(step)
            assert len(self.pauses) < 100

    def get(self, *keys: str) -> Any:
        return self.perform(self.exchanges.read(Read([("GET", key) for key in keys])))


def key_in(slots: range, tail: str = "") -> str:
    return next(key for n in range(99) if slot_of(key := f"rqttl:{{k{n}}}{tail}:meta") in slots)


LOW, HIGH = key_in(range(8192)), key_in(range(8192, 16384))


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster whose map the client knows."""
    cluster = FakeCluster()
    cluster.get(LOW)
    return cluster


def test_slots_are_those_of_redis() -> None:
    for n in range(10_000):
        name = random.Random(n).choice(("q", "{tag%d}", "a/", "_.-", "ä")) * (n % 3 > 0) + f"{n:x}/{n}"
        key = KEYSPACE.key(name.replace("%d", str(n)), "meta")
        assert slot_of(key) == key_slot(key.encode()), key


def test_the_map_is_asked_once_and_each_call_goes_to_its_node() -> None:
    cluster = FakeCluster()

    assert cluster.get(LOW, HIGH, LOW) == [b"1", b"2", b"1"]
    assert cluster.get(HIGH) == [b"2"]
    assert cluster.log == [(1, ["CLUSTER"]), (1, ["GET", "GET"]), (2, ["GET"]), (2, ["GET"])]
    assert list(cluster.perform(cluster.exchanges.read_each_node(ReadEachNode([("INFO",)]))).values()) == [
        [b"1"],
        [b"2"],
    ]


def test_a_slot_that_has_moved_is_asked_for_once(cluster: FakeCluster) -> None:
    cluster.reply = lambda port, _: b"2" if port == 2 else MovedError(f"{slot_of(LOW)} h:2")

    assert [cluster.get(LOW), cluster.get(LOW)] == [[b"2"], [b"2"]]
    assert [port for port, _ in cluster.log] == [1, 1, 1, 1, 2, 2]  # the map, a call; then a redirect by itself
    assert cluster.pauses == [0.0]


def test_a_node_that_nobody_knew_brings_a_new_map(cluster: FakeCluster) -> None:
    cluster.slots = [[0, 16383, [b"", 3, b"id"]]]  # without a host: the one that was asked
    cluster.reply = lambda port, _: b"3" if port == 3 else MovedError(f"{slot_of(LOW)} h:3")

    assert cluster.get(LOW) == [b"3"]
    assert cluster.get(HIGH) == [b"3"]
    assert [node.port for node in cluster.topology.nodes] == [3]
    assert all(bool(node.left) == (node.port != 3) for node in cluster.topology.made)
    cluster.perform(cluster.topology.learn())
    assert [node.port for node in cluster.topology.made] == [1, 3]  # what the URL names, and what is there


def test_a_call_without_a_key_goes_to_any_node_and_one_that_takes_long_is_logged_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.exchanges.SILENCE", 0.0)
    cluster.slots = [[0, 16383, [b"h", 1, b"id"]]]
    cluster.dead.add(cluster.topology.node_of(KEYSPACE.registry).port)
    (there,) = {1, 2} - cluster.dead

    assert cluster.perform(cluster.exchanges.read(Read([("TIME",), ("ACL", "WHOAMI")]))) == [b"%d" % there] * 2
    assert [cluster.log[-1][0], caplog.messages] == [there, [f"h:{3 - there} is away; trying for 30 s"]]


@pytest.mark.parametrize("refusal", [TryAgainError("TRYAGAIN"), ClusterDownError("CLUSTERDOWN")])
def test_a_refusal_is_repeated_until_the_patience_ends(cluster: FakeCluster, refusal: Exception) -> None:
    times = 5

    def reply(port: int, _: Any) -> Any:
        nonlocal times
        times -= 1
        return refusal if times > 0 else b"%d" % port

    cluster.reply = reply

    assert cluster.get(LOW) == [b"1"]
    times = 10**9
    cluster.exchanges.patience = 0.01
    with pytest.raises(type(refusal)):
        cluster.get(LOW)


def test_after_a_lost_connection_another_node_is_asked_for_the_map() -> None:
    cluster = FakeCluster(1, 2)
    cluster.get(LOW)
    cluster.dead.add(1)
    cluster.slots = [[0, 16383, [b"h", 2, b"id"]]]

    assert cluster.get(LOW) == [b"2"]
    assert cluster.log[-3:] == [(1, ["GET"]), (2, ["CLUSTER"]), (2, ["GET"])]


def test_addresses_are_mapped_to_those_that_the_client_reaches() -> None:
    cluster = FakeCluster(remap=lambda place: (place[0], place[1] + 10))

    assert cluster.get(HIGH) == [b"12"]


def test_messages_of_one_slot_are_one_transaction(cluster: FakeCluster) -> None:

    def reply(port: int, call: Any) -> Any:
        return [[b"ok", b"", b"1"]] * 2 if call[0] == "EXEC" else b"QUEUED" if call[0] == "EVALSHA" else b"OK"

    cluster.reply = reply
    send = [(Envelope(), b"x")]
    batch = [commands.enqueue(config(key), send) for key in (LOW, HIGH, LOW, HIGH)]

    cluster.perform(cluster.exchanges.run_together(Pipeline(batch)))
    calls = ["SCRIPT", "MULTI", "EVALSHA", "EVALSHA", "EXEC"]
    assert sorted(cluster.log[-2:]) == [(1, calls), (2, calls)]


def test_a_transaction_goes_as_a_whole_to_the_node_to_which_its_slot_moves(cluster: FakeCluster) -> None:
    forgotten = [True]

    def reply(port: int, call: Any) -> Any:
        if call[0] == "EXEC":
            if port == 1:
                return ResponseError("EXECABORT")
            return [NoScriptError()] * 2 if forgotten.pop() else [b"OK", [b"ok", b"", b"1"], [b"ok", b"", b"2"]]
        return b"OK" if call[0] != "EVALSHA" else b"QUEUED" if port == 2 else AskError(f"{slot_of(LOW)} h:2")

    cluster.reply = reply
    forgotten.insert(0, False)
    batch = [commands.enqueue(config(LOW), [(Envelope(), b"x")]) for _ in range(2)]

    replies = cluster.perform(cluster.exchanges.run_together(Pipeline(batch)))

    assert [reply[2] for reply in replies] == [b"1", b"2"]
    assert [calls for port, calls in cluster.log if port == 2] == [
        ["SCRIPT", "ASKING", "MULTI", "EVALSHA", "EVALSHA", "EXEC"],
        ["ASKING", "MULTI", "SCRIPT", "EVALSHA", "EVALSHA", "EXEC"],
    ]


def test_a_step_between_slots_waits_for_the_replica_of_a_node_that_has_one() -> None:
    cluster = FakeCluster()
    cluster.slots[0].append([b"h", 3, b"id"])
    cluster.get(LOW)
    cluster.reply = lambda port, call: 0 if call[0] == "WAIT" else cluster.usual(port, call)

    accepts = [commands.accept(KEYSPACE, config(key).name, "source", (), number=1, token="t") for key in (LOW, HIGH)]
    notes = [cluster.perform(cluster.exchanges.run(accept))[1] for accept in accepts]  # goes on without an answer
    assert notes == [[b"unconfirmed", b"no replica in time"], b""]

    assert [(port, [name for name in calls if name != "SCRIPT"]) for port, calls in cluster.log[-2:]] == [
        (1, ["EVALSHA", "WAIT"]),
        (2, ["EVALSHA"]),
    ]
