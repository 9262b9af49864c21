"""Redis Cluster: which node has which slot, and what a client of redis-py says of a cluster.

The nodes themselves tell: `CLUSTER SLOTS` has all slots, a redirect has one. redis-py's own client for clusters makes
no call: after a lost reply it runs a script again, whatever the script does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import redis
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ConnectionError, MovedError, RedisError, TimeoutError
from redis.retry import Retry

from rqttl import units
from rqttl.errors import InvalidInput
from rqttl.flows.steps import drive
from rqttl.protocol.contract import Packer
from rqttl.protocol.keys import SLOTS, slot_of
from rqttl.store import sentinel
from rqttl.store.addresses import SSL, Address, Place
from rqttl.store.connections import TIME_OUTS, UNLIMITED, Pool, RedisNode, pool_for
from rqttl.store.exchanges import FAIL_FAST, FAILURES, NotSent
from rqttl.store.sentinel import PATIENCE, is_service, pool_of_service
from rqttl.store.topology import Exchange, Trip
from rqttl.types import Duration

N = TypeVar("N")

#: Seconds without a reply after which another node is asked if the one that owes it is still in use.
STALL = 1.0


_slot_of = lru_cache(1 << 14)(slot_of)


class Cluster(Generic[N]):
    """The `Topology` of a Redis Cluster. `make` makes the node at a place.

    A node stays the same one while it is in the cluster, and until the map after the first one without it.
    """

    def __init__(self, make: Callable[[str, int], N], seeds: Seeds) -> None:
        self._make = make
        self._remap = seeds.remap
        self._made: dict[Place, N] = {}
        self._places = WeakKeyDictionary[N, Place]()  # a call may still be under way to a node that is gone
        self._seeds = [self._at(place) for place in seeds.places]
        #: Where it was asked first.
        self.address = seeds.address
        self._owners = self._seeds[:1] * SLOTS
        self._replicated: set[N] = set()
        self.nodes: tuple[N, ...] = tuple(self._seeds)
        self.is_known = False

    @property
    def made(self) -> Sequence[N]:
        """See `Topology`."""
        return list(self._made.values())

    def node_of(self, key: str) -> N:
        """See `Topology`."""
        return self._owners[_slot_of(key)]

    def slot_of(self, key: str) -> int:
        """See `Topology`."""
        return _slot_of(key)

    def is_replicated(self, node: N) -> bool:
        """See `Topology`."""
        return node in self._replicated

    def name_of(self, node: N) -> str:
        """See `Topology`."""
        return "{}:{}".format(*self._places[node])

    def learn(self, doubted: N | None = None) -> Exchange[None]:
        """See `Topology`."""
        others = list(dict.fromkeys([*self.nodes, *self._seeds]))
        random.shuffle(others)  # no secret: clients must not ask the same one all at once
        others.sort(key=lambda node: node is doubted)
        failure: Exception = ConnectionError("no node of the cluster is known")
        for node in others:
            try:
                (reply,) = yield Trip(node, [("CLUSTER", "SLOTS")], brief=True)
            except (NotSent, ConnectionError, TimeoutError) as error:
                failure = error
                continue
            if isinstance(reply, list) and reply:
                self._replace(reply, node)
                return
            if "cluster support disabled" in str(reply):
                raise InvalidInput("url: this server is not a node of a Redis Cluster: use redis:// for it")
            failure = reply if isinstance(reply, RedisError) else ConnectionError("no node has slots yet")
        raise failure

    def _replace(self, ranges: Sequence[Any], asked: N) -> None:
        owners, before = list(self._owners), set(self.nodes)
        replicated = set()
        for first, last, primary, *replicas in ranges:
            node = self._announced(primary[0], primary[1], asked)
            owners[first : last + 1] = [node] * (last + 1 - first)
            replicated |= {node} if replicas else set()
        self._replicated = replicated
        self._owners = owners
        self.nodes = tuple(dict.fromkeys(owners))
        self.is_known = True
        for place, gone in list(self._made.items()):
            if gone not in self.nodes:
                cast("Any", gone).leave()
                if gone not in before and gone not in self._seeds:
                    self._made.pop(place, None)

    def redirect(self, node: N, error: AskError) -> N:
        """See `Topology`. The next calls to a slot that has moved go to its new node."""
        target = self._announced(error.host, error.port, node)
        if isinstance(error, MovedError):
            self.is_known = self.is_known and target in self.nodes
            self._owners[error.slot_id] = target
        return target

    def _announced(self, host: bytes | str | None, port: int, asked: N) -> N:
        """The node at an address that the node `asked` has told. Without a host it is on the same machine."""
        name = host.decode() if isinstance(host, bytes) else host
        place = name or self._places[asked][0], port
        return self._at(self._remap(place) if self._remap and name else place)

    def _at(self, place: Place) -> N:
        node = self._made.get(place)
        if node is None:
            node = self._made.setdefault(place, self._make(*place))
            self._places[node] = place
        return node


class Seeds(NamedTuple):
    """What a client of a cluster knows at first: nodes to ask, and a pool whose class and settings all nodes have.

    `remap` maps the address that a node announces to the one at which this client reaches it.
    """

    pool: Any
    places: Sequence[Place]
    remap: Callable[[Place], Place] | None = None

    @property
    def address(self) -> Address:
        """The address of the first node."""
        first = Address.of(self.pool)
        return replace(first, scheme=f"{first.scheme}+cluster")

    def pool_at(self, host: str, port: int) -> Any:
        """The pool of one node."""
        settings = {**self.pool.connection_kwargs, "host": host, "port": port}
        return type(self.pool)(self.pool.connection_class, max_connections=self.pool.max_connections, **settings)


def cluster_for_threads(seeds: Seeds) -> Cluster[RedisNode]:
    """The cluster, for threads. Its connections time out after `STALL` seconds, and see if their node is in use."""
    cluster: Cluster[RedisNode]

    def make(host: str, port: int) -> RedisNode:
        node = RedisNode(client(host, port, STALL), lambda: is_in_use(node))
        node.fast = RedisNode(client(host, port, FAIL_FAST, "socket_timeout", "socket_connect_timeout"))
        return node

    def client(host: str, port: int, seconds: float, *limited: str) -> redis.Redis:
        pool = seeds.pool_at(host, port)
        for name in limited or ("socket_timeout",):
            pool.connection_kwargs[name] = min(seconds, pool.connection_kwargs.get(name) or seconds)
        return redis.Redis(connection_pool=pool)

    def is_in_use(node: RedisNode) -> bool:
        def perform(trip: Any) -> Any:
            return trip.node.round_trip(trip.calls, waits=False)

        with suppress(*FAILURES):  # nobody says otherwise
            drive(cluster.learn(node), perform)
        return node in cluster.nodes

    cluster = Cluster(make, seeds)
    return cluster


def open_client(address: Address) -> redis.Redis | Seeds:
    """A client for an address, with time-outs, without hidden retries. Raises `InvalidInput`."""
    pool = pool_for(address, command_packer=Packer(), retry=Retry(NoBackoff(), 0))
    if address.is_cluster:
        return Seeds(pool, address.places)
    return redis.Redis(connection_pool=pool_of_service(pool, address) if address.service else pool)


def taken_over(client: redis.Redis | redis.RedisCluster | Seeds) -> redis.Redis | Seeds:
    """The client of redis-py itself, one that asks its Sentinels, or what it knows of a cluster."""
    if isinstance(client, Seeds):
        return client
    return borrowed(client) if isinstance(client, redis.RedisCluster) else sentinel.taken_over(client)


def patience_of(client: object, patience: Duration | None) -> float | None:
    """Seconds for which calls are made again: `patience`, else more than a failover takes; `None` for one server."""
    if patience is not None:
        return units.duration(patience, "patience") / 1000
    return PATIENCE if isinstance(client, Seeds) or is_service(client) else None


def borrowed(client: Any) -> Seeds:
    """What is borrowed from a client of redis-py for clusters: its nodes and settings. Raises `InvalidInput`."""
    theirs: Mapping[str, Any] = client.get_connection_kwargs()
    if theirs.get("decode_responses"):
        raise InvalidInput("client: decode_responses=True is not supported, bodies are bytes")
    manager = client.nodes_manager
    nodes = [*manager.startup_nodes.values(), *manager.nodes_cache.values()]
    places = list(dict.fromkeys((node.host, int(node.port)) for node in nodes))
    has_tls = bool(theirs.get("ssl")) or issubclass(theirs.get("connection_class", object), SSL)
    kept = {name: value for name, value in theirs.items() if name in _BORROWED or name.startswith("ssl_")}
    if isinstance(client, redis.RedisCluster):
        retry: Any = Retry(NoBackoff(), 0)
        pool: Any = Pool
        kinds: Any = redis.Connection, redis.SSLConnection
    else:
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        pool, kinds = redis.asyncio.ConnectionPool, (redis.asyncio.Connection, redis.asyncio.SSLConnection)
    host, port = places[0]
    settings = {"max_connections": UNLIMITED, **TIME_OUTS, **kept, "retry": retry, "host": host, "port": port}
    return Seeds(pool(kinds[has_tls], **settings), places, manager.address_remap)


#: The settings of redis-py's client for clusters that its connections take.
_BORROWED = {
    *("client_name", "credential_provider", "max_connections", "password", "protocol", "username"),
    *("socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_timeout"),
}
