"""Calls while their slot moves from one node of a cluster to another: they wait, and have their usual effect."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, get_args

import pytest
import redis

import rqttl
from rqttl import CommandEvent, Message
from rqttl.demo.stage import clean
from rqttl.flows.steps import Read, pipeline
from rqttl.flows.sweeping import config_if_exists
from rqttl.protocol import commands, scripts
from rqttl.store.cluster import borrowed
from rqttl.store.driver import driver_of
from rqttl.store.exchanges import FAST
from rqttl.types import State
from spark_connectors.ranges import FIRST
from tests.cluster.conftest import INTERFACES, connect_by
from tests.cluster_servers import ClusterServers
from tests.process.proxy import Proxy
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.once

#: All keys of the queues `q` and `q/…` have this tag.
TAG = "{q}"
#: The keys of a queue that have moved.
STATES: dict[str, Callable[[Sequence[bytes]], Sequence[bytes]]] = {
    "nothing moved yet": lambda keys: [],
    "one key moved": lambda keys: [key for key in keys if key.endswith(b":meta")],
    "half of the keys moved": lambda keys: keys[::2],
    "all moved, not handed over": lambda keys: keys,
}


@pytest.fixture(params=INTERFACES)
def broker(request: pytest.FixtureRequest, cluster: ClusterServers) -> Iterator[Any]:
    with closing(connect_by(request.param, cluster.url())) as broker:
        yield broker


class Errors:
    """The errors that the nodes have sent since the begin, by their codes."""

    def __init__(self, cluster: ClusterServers) -> None:
        self._cluster = cluster
        for server in cluster.servers:
            cluster.ask(server, "CONFIG", "RESETSTAT")

    def count(self, code: str) -> int:
        stats = [self._cluster.ask(server, "INFO", "errorstats") for server in self._cluster.servers]
        return sum(stat.get(f"errorstat_{code}", {}).get("count", 0) for stat in stats)


class Scene:
    """A queue with messages in all states and its dead-letter queue, both with the one tag, and one in another slot."""

    def __init__(self, broker: Any, name: str) -> None:
        self.broker, self.name = broker, f"q/{name}"
        self.dead = broker.declare_queue(f"{self.name}/dead")
        self.q = broker.declare_queue(self.name, dead_letter="{queue}/dead", duplicate_window="1h")
        self.q.enqueue_many([Message(b"%d" % n, id=f"m{n}", ttl="1h") for n in range(8)])
        self.q.enqueue(b"later", id="later", delay="1h")
        self.delivery, again, delayed, rejected = self.q.receive_many(4)
        again.nack(description="not yet")
        delayed.nack(delay="1h")
        rejected.reject("no")
        self.topic = broker.declare_topic(f"{self.name}/news")
        self.topic.subscribe("eu")
        self.far = broker.declare_queue(f"far/{name}")
        origin = broker.declare_queue(f"far/{name}/origin", dead_letter=self.far.name)
        origin.enqueue(b"far")
        origin.reject_many(origin.receive_many(1))

    def discard(self) -> Any:
        """Only Spark does it, after a commit."""
        driver, last = driver_of(self.q), self.q.peek()[-1].sequence
        ((created,),) = driver.perform(reading(Read([("HMGET", driver.keyspace.key(self.name, "meta"), "created_at")])))
        return driver.perform(pipeline([commands.discard(driver.keyspace, self.name, int(created), FIRST, last)], ()))


def reading(step: Read) -> Any:
    return (yield step)


#: A call for each script.
CALLS: dict[str, Callable[[Scene], Any]] = {
    "ack": lambda s: s.delivery.ack(),
    "cancel": lambda s: s.q.cancel("later"),
    "declare": lambda s: s.broker.declare_queue(f"{s.name}/new").declared,
    "delete": lambda s: s.q.delete(),
    "discard": Scene.discard,
    "enqueue": lambda s: s.q.enqueue(b"new").duplicate,
    "intervene": lambda s: s.q.delete_message("m5"),
    "lookup": lambda s: s.broker.stats([s.name])[s.name].ready,
    "move": lambda s: s.q.move("m5", s.dead.name),
    "nack": lambda s: s.delivery.nack(),
    "peek": lambda s: [view.body for view in s.q.peek()],
    "preview": lambda s: s.q.preview_update(max_length=2),
    "publish": lambda s: s.topic.enqueue(b"new").duplicate,
    "purge": lambda s: s.q.purge(),
    "receive": lambda s: [delivery.body for delivery in s.q.receive_many(2)],
    "redrive": lambda s: s.dead.redrive(),
    "redrive_in": lambda s: s.far.redrive(to=s.name),
    "redrive_out": lambda s: s.dead.redrive(to=s.far.name),
    "reject": lambda s: s.delivery.reject("no"),
    "renew": lambda s: s.delivery.renew() and None,
    "reschedule": lambda s: s.q.reschedule("later", delay="2h"),
    "schedule": lambda s: s.q.enqueue(b"new", delay="1h").duplicate,
    "stats": lambda s: s.q.stats().ready,
    "sweep": lambda s: [done.more for done in s.q.sweep()],
    "touch": lambda s: s.q.touch(),
    "update": lambda s: s.q.update(max_length=50),
}


def picture(cluster: ClusterServers) -> Any:
    """All queues, without times."""
    found: dict[str, Any] = {}
    with rqttl.connect(cluster.url()) as broker:
        for name, stats in broker.stats(sweep=False).items():
            numbers = {field: getattr(stats, field) for field in stats.__slots__}
            timeless = {field: n for field, n in numbers.items() if not isinstance(n, datetime | timedelta)}
            views = [view for state in get_args(State) for view in broker.queue(name).peek(1000, state=state)]
            shown = [(v.body, v.state, v.delivery_count, [death.reason for death in v.deaths]) for v in views]
            found[name] = timeless, shown
    return found


@contextmanager
def moving(cluster: ClusterServers, moved: Callable[[Sequence[bytes]], Sequence[bytes]]) -> Iterator[Errors]:
    """Within the block `moved` keys of each queue are at the new node, which knows no script; then the move ends."""
    source, target = cluster.owner(TAG), cluster.elsewhere(TAG)
    port = cluster.ports[cluster.servers.index(target)]
    cluster.ask(target, "SCRIPT", "FLUSH")
    cluster.begin_move(TAG, target)
    with source.client() as client:
        keys = sorted(client.scan_iter(f"*{TAG}*", 10_000))
        for _, own in groupby(keys, lambda key: key.rpartition(b":")[0]):
            if chosen := moved(list(own)):
                client.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 60_000, "KEYS", *chosen)
    try:
        yield Errors(cluster)
    finally:
        while cluster.move_keys(TAG, target):
            pass
        cluster.end_move(TAG, target)


def test_the_table_has_all_scripts_of_one_slot_that_wait_for_it(cluster: ClusterServers) -> None:
    heard: list[str] = []
    with rqttl.connect(cluster.url()) as broker:
        scenes = {name: Scene(broker, name) for name in CALLS}
        broker.events.subscribe(lambda event: heard.append(event.name), CommandEvent)
        for name, scene in scenes.items():
            heard.clear()
            CALLS[name](scene)
            assert name in heard
    assert set(CALLS) == set(scripts.names()) - {"change_policies", *FAST}


@pytest.mark.parametrize("state", STATES)
def test_each_script_has_its_usual_effect(state: str, broker: Any, cluster: ClusterServers) -> None:
    scenes = {name: Scene(broker, name) for name in CALLS}
    usual = {name: CALLS[name](scene) for name, scene in scenes.items()}, picture(cluster)
    cluster.flush()
    scenes = {name: Scene(broker, name) for name in CALLS}
    with ThreadPoolExecutor(len(CALLS)) as pool:
        with moving(cluster, STATES[state]) as errors:
            calls = {name: pool.submit(CALLS[name], scene) for name, scene in scenes.items()}
            until(lambda: errors.count("TRYAGAIN") >= 3 * sum(not call.done() for call in calls.values()))
            if state.startswith("all"):
                assert errors.count("ASK") >= len(CALLS)
            assert errors.count("MOVED") == 0  # each call at the new node stands behind ASKING
        results = {name: call.result(PATIENCE) for name, call in calls.items()}
    assert (results, picture(cluster)) == usual


@pytest.mark.parametrize("state", STATES)
def test_a_transaction_is_stored_once_and_in_order(
    state: str, broker: Any, cluster: ClusterServers, pool: ThreadPoolExecutor
) -> None:
    queue = Scene(broker, "many").q
    queue.purge()
    bodies = [b"%d" % n for n in range(600)]
    with moving(cluster, STATES[state]) as errors:
        call = pool.submit(queue.enqueue_many, bodies)
        until(lambda: call.done() or errors.count("TRYAGAIN") >= 3)

    assert len(call.result(PATIENCE)) == 600
    assert [view.body for view in queue.peek(1000, state="ready")] == bodies


def test_queues_of_several_slots_have_a_transaction_each(cluster: ClusterServers) -> None:
    names = ["a", "b", "c", "d"]  # some of them on one node
    with rqttl.connect(cluster.url()) as broker:
        for name in names:
            broker.declare_queue(name)
        driver = driver_of(broker)
        configs: list[Any] = [driver.perform(config_if_exists(driver.keyspace, name)) for name in names]
        errors = Errors(cluster)
        calls = [commands.enqueue_alike(config, [body]) for body in (b"1", b"2", b"3") for config in configs]
        driver.perform(pipeline(calls, ()))

        stats = [cluster.ask(server, "INFO", "commandstats") for server in cluster.servers]
        assert sum(stat.get("cmdstat_exec", {"calls": 0})["calls"] for stat in stats) == len(names)
        assert errors.count("CROSSSLOT") == 0
        assert [[view.body for view in broker.queue(name).peek()] for name in names] == [[b"1", b"2", b"3"]] * 4


def test_a_move_costs_one_redirect(broker: Any, cluster: ClusterServers) -> None:
    queue = Scene(broker, "one").q
    cluster.move(TAG, cluster.elsewhere(TAG))
    errors = Errors(cluster)

    for n in range(100):
        queue.enqueue(b"%d" % n)
    assert errors.count("MOVED") == 1


# Clients of redis-py


@pytest.fixture
def line(cluster: ClusterServers) -> Iterator[Proxy]:
    """A bad line to the node that has the tag."""
    proxy = Proxy(cluster.owner(TAG).socket)
    yield proxy
    proxy.stop_listening()


@pytest.fixture
def behind_line(cluster: ClusterServers, line: Proxy) -> Iterator[redis.RedisCluster]:
    """A client of redis-py, with its usual retries, that reaches one node by the bad line."""
    port = cluster.ports[cluster.servers.index(cluster.owner(TAG))]
    with cluster.client(address_remap=lambda at: ("127.0.0.1", line.port) if at[1] == port else at) as client:
        yield client


def test_redis_py_runs_a_script_again_after_a_lost_reply(
    cluster: ClusterServers, line: Proxy, behind_line: redis.RedisCluster
) -> None:
    sha = cluster.ask(cluster.owner(TAG), "SCRIPT", "LOAD", "return redis.call('INCR', KEYS[1])").decode()
    line.spoil("cut", command="EVALSHA")

    assert behind_line.evalsha(sha, 1, TAG) == 2


def test_rqttl_runs_only_a_repeatable_script_again(line: Proxy, behind_line: redis.RedisCluster) -> None:
    with rqttl.Broker(behind_line) as broker:
        queue = broker.declare_queue("q", duplicate_window="1h")
        queue.enqueue(b"first")
        before = line.executed
        line.spoil("cut", script="enqueue")
        with pytest.raises(rqttl.OutcomeUnknown):
            queue.enqueue(b"once")
        assert line.executed == before + 1

        line.spoil("cut", script="enqueue")
        queue.enqueue(b"with an id", id="a")
        assert line.executed == before + 3
        assert [view.body for view in queue.peek()] == [b"first", b"once", b"with an id"]


def test_clients_lend_their_nodes_and_settings(cluster: ClusterServers) -> None:
    for server in cluster.servers:
        cluster.ask(server, "ACL", "SETUSER", "lender", "on", ">secret", "~*", "&*", "+@all")
    settings: Any = {"username": "lender", "password": "secret", "max_connections": 7, "socket_timeout": 3}
    host: Any = {"host": "127.0.0.1", "port": cluster.ports[0]}
    with cluster.client(**settings) as client, rqttl.Broker(client) as broker:
        assert broker.declare_queue("q").enqueue(b"x").id
        seeds = borrowed(client)
    lazy = redis.asyncio.RedisCluster(**host, **settings, ssl=True)  # it connects to nobody yet
    over_tls = borrowed(lazy)

    assert {port for _, port in seeds.places} == set(cluster.ports)
    assert over_tls.places == [("127.0.0.1", cluster.ports[0])]
    assert (seeds.pool.connection_class, over_tls.pool.connection_class) == (
        redis.Connection,
        redis.asyncio.SSLConnection,
    )
    for pool in (seeds.pool_at("h", 1), over_tls.pool_at("h", 1)):
        kept = {**pool.connection_kwargs, "max_connections": pool.max_connections}
        assert {name: kept[name] for name in settings} == settings
    for server in cluster.servers:
        cluster.ask(server, "ACL", "DELUSER", "lender")


def test_the_demo_empties_all_nodes(cluster: ClusterServers) -> None:
    with rqttl.connect(cluster.url()) as broker:
        for number in range(9):
            broker.declare_queue(f"q{number}").enqueue(b"x")

        with clean(broker):
            assert [cluster.ask(server, "DBSIZE") for server in cluster.servers] == [0, 0, 0]
