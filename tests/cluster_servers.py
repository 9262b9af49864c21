"""A Redis Cluster of our own, on ports of 127.0.0.1."""

import signal
import socket
from collections.abc import Callable
from functools import cache
from typing import Any

import redis
from redis.crc import key_slot

from tests.ports import free_port
from tests.servers import Server, role_of
from tests.waiting import PATIENCE, until

SLOTS = 16384


def _free_pair() -> int:
    """A port that is free together with the one of the bus, which is 10,000 higher."""
    while True:
        port = free_port()
        with socket.socket() as bus:
            try:
                bus.bind(("127.0.0.1", port + 10_000))
            except (OSError, OverflowError):
                continue
        return port


class ClusterClient(redis.RedisCluster):
    """redis-py's client of a cluster. What concerns a server as a whole, it does at each primary."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] in ("ACL", "CONFIG SET", "KEYS", "INFO"):
            options.setdefault("target_nodes", self.PRIMARIES)
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's

    def info(self, section: str | None = None, *args: Any, **options: Any) -> dict[str, Any]:
        """The counts of all primaries, added up. Other facts are those of one of them."""
        told: dict[str, Any] = {}
        for facts in super().info(section, *args, **options).values():
            _add(told, facts)
        return told


def _add(sums: dict[str, Any], facts: dict[str, Any]) -> None:
    for name, fact in facts.items():
        if isinstance(fact, dict):
            _add(sums.setdefault(name, {}), fact)
        else:
            sums[name] = sums[name] + fact if isinstance(fact, int) and name in sums else fact


@cache
def shared_client(port: int) -> ClusterClient:
    """A client of the cluster that has a node at this port. It is never closed: making one takes 20 ms."""
    return ClusterClient(host="127.0.0.1", port=port, socket_timeout=PATIENCE)


class ClusterServers:
    """Nodes with equal shares of the slots, and `replicas` for each of them. Reads as the list of all servers."""

    def __init__(
        self, launch: Callable[..., Server], nodes: int = 3, replicas: int = 0, node_timeout: int = 1000, **config: Any
    ) -> None:
        self.servers: list[Server] = []
        self.ports: list[int] = []
        self._shards = nodes
        settings = {"cluster_enabled": "yes", "cluster_require_full_coverage": "no", "repl_diskless_sync_delay": 0}
        try:
            for _ in range(nodes * (1 + replicas)):
                port = _free_pair()
                here = {"bind": "127.0.0.1", "cluster_node_timeout": node_timeout, **settings, **config}
                self.servers.append(launch(**{"tls_port" if "tls_cluster" in config else "port": port}, **here))
                self.ports.append(port)
            self._join(nodes)
        except BaseException:
            self.remove()
            raise

    def _join(self, nodes: int) -> None:
        bounds = [SLOTS * n // nodes for n in range(nodes + 1)]
        for n, server in enumerate(self.servers):
            self.ask(server, "CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            if n < nodes:
                self.ask(server, "CLUSTER", "ADDSLOTS", *range(bounds[n], bounds[n + 1]))
            self.ask(server, "CLUSTER", "MEET", "127.0.0.1", self.ports[0])
        until(lambda: all(len(self._known(server)) == len(self.servers) for server in self.servers))
        for n, server in enumerate(self.servers[nodes:]):
            self.ask(server, "CLUSTER", "REPLICATE", self.id_of(self.servers[n % nodes]))
        until(self.agrees)

    def url(self, scheme: str = "redis+cluster") -> str:
        return f"{scheme}://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def client(self, **options: Any) -> ClusterClient:
        """redis-py's own client of the cluster."""
        return ClusterClient(host="127.0.0.1", port=self.ports[0], **options)

    def ask(self, server: Server, *words: Any) -> Any:
        """The reply of one node."""
        with server.client() as client:
            return client.execute_command(*words)

    def primaries(self) -> list[Server]:
        """The nodes that have slots, in the eyes of the first node that runs."""
        owners = {owner for _, _, owner in self._slots(self._running()[0])}
        return [server for server, port in zip(self.servers, self.ports, strict=True) if port in owners]

    def owner(self, key: str) -> Server:
        """The primary that has the slot of a key."""
        slot = key_slot(key.encode())
        for first, last, port in self._slots(self._running()[0]):
            if first <= slot <= last:
                return self.servers[self.ports.index(port)]
        raise AssertionError(f"nobody has slot {slot}")

    def elsewhere(self, key: str) -> Server:
        """Another primary."""
        return next(server for server in self.primaries() if server is not self.owner(key))

    def replicas(self, primary: Server) -> list[Server]:
        """The other nodes of the same shard."""
        shard = self.servers[self.servers.index(primary) % self._shards :: self._shards]
        return [one for one in shard if one is not primary]

    def is_replaced(self, primary: Server) -> bool:
        """Return True if a replica has taken over."""
        return any(role_of(replica) == "master" for replica in self.replicas(primary))

    def fail_over(self, primary: Server) -> None:
        """Let a replica take over."""
        self.ask(self.replicas(primary)[0], "CLUSTER", "FAILOVER")

    def settle(self) -> None:
        """Wait until all nodes agree, and all replicas follow."""
        until(self.agrees)

    def id_of(self, server: Server) -> str:
        name: bytes = self.ask(server, "CLUSTER", "MYID")
        return name.decode()

    def agrees(self) -> bool:
        """Return True if all running nodes are up, and have the same picture of the slots."""
        running = self._running()
        states = [self.ask(server, "CLUSTER", "INFO") for server in running]
        is_up = all(b"cluster_state:ok" in state for state in states)
        return is_up and len({tuple(self._slots(server)) for server in running}) == 1 and self._has_replicas()

    def _has_replicas(self) -> bool:
        for server in self._running():
            with server.client() as client:
                info = client.info("replication")
            if info["role"] == "slave" and info["master_link_status"] != "up":
                return False
        return True

    # A slot that moves: `begin_move`, `move_keys` until it has none left, `end_move`

    def begin_move(self, key: str, target: Server) -> None:
        slot, source = key_slot(key.encode()), self.owner(key)
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_keys(self, key: str, target: Server, count: int = SLOTS) -> list[str]:
        """Move up to `count` keys of the slot. Returns them."""
        slot, source = key_slot(key.encode()), self.owner(key)
        port = self.ports[self.servers.index(target)]
        moved = self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, count)
        for name in moved:
            self.ask(source, "MIGRATE", "127.0.0.1", port, name, 0, 60_000)
        return [name.decode() for name in moved]

    def end_move(self, key: str, target: Server) -> None:
        slot, name = key_slot(key.encode()), self.id_of(target)
        for server in dict.fromkeys([target, *self.primaries()]):
            self.ask(server, "CLUSTER", "SETSLOT", slot, "NODE", name)
        until(self.agrees)

    def move(self, key: str, target: Server) -> None:
        """Move the slot of a key, with all that is in it."""
        self.begin_move(key, target)
        while self.move_keys(key, target):
            pass
        self.end_move(key, target)

    def flush(self) -> None:
        """Empty all nodes."""
        for server in self.primaries():
            self.ask(server, "FLUSHALL")

    def remove(self) -> None:
        """End all processes, also those that are paused, and delete their folders."""
        for server in self.servers:
            server.process.send_signal(signal.SIGCONT)
            server.remove()

    def _running(self) -> list[Server]:
        return [server for server in self.servers if server.process.poll() is None]

    def _known(self, server: Server) -> list[bytes]:
        nodes: bytes = self.ask(server, "CLUSTER", "NODES")
        return [line for line in nodes.splitlines() if b"handshake" not in line]

    def _slots(self, server: Server) -> list[tuple[int, int, int]]:
        """First and last slot, and the port of the owner."""
        return sorted((first, last, owner[1]) for first, last, owner, *_ in self.ask(server, "CLUSTER", "SLOTS"))
