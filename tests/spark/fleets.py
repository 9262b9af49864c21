"""Several servers of a test, under one `url`."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rqttl import Message
from spark_connectors.options.options import Options
from spark_connectors.stream.reader import RqttlStreamReader, StreamPartition
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.reading import copied


class Fleet:
    """Servers with names. Each has a broker whose time stands still until the test moves it."""

    def __init__(self, start_server: Callable[..., Server], *names: str) -> None:
        self.servers = {name: start_server() for name in names}
        self.clients = {name: server.client() for name, server in self.servers.items()}
        self.brokers = {name: Clocked(client) for name, client in self.clients.items()}

    def empty(self) -> None:
        """Remove all data."""
        for client in self.clients.values():
            client.flushall()

    @property
    def url(self) -> str:
        return self.url_of(*self.servers)

    def url_of(self, *names: str) -> str:
        """Return the list of these servers, in this order."""
        return ",".join(f"{name}={self.servers[name].url}" for name in names)

    def restart(self, name: str) -> None:
        """Start a killed server again, without its data."""
        self.servers[name].start()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()
        for client in self.clients.values():
            client.close()


@contextmanager
def fleet_of(start_server: Callable[..., Server], *names: str) -> Iterator[Fleet]:
    fleet = Fleet(start_server, *names)
    try:
        yield fleet
    finally:
        fleet.close()


@contextmanager
def own_port() -> Iterator[int]:
    """A port of this machine that nobody else gets before a Redis server of the test listens at it."""
    with socket.socket() as held:
        # Redis sets the same option: so it can bind too, as long as nobody listens
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


#: The names of the servers of `fleet_of_three`.
THREE = ("eu", "us", "zz")

#: A server that keeps its data over a kill.
DURABLE = {"appendonly": "yes", "appendfsync": "always"}

Row = tuple[str, str, str]


class Query:
    """A streaming query without Spark: its reader, its checkpoint, and the rows of each batch."""

    def __init__(self, url: str, **options: object) -> None:
        self.options = {"url": url, "retryBackoff": "1ms", "connectRetries": "1"}
        self.options |= {name: str(value) for name, value in options.items()}
        self.checkpoint: dict[str, Any] | None = None
        self.before: dict[str, Any] = {}
        self.batches: list[list[Row]] = []
        self.restart()

    def restart(self, **changed: object) -> None:
        """Begin anew from the checkpoint, with these changes of options."""
        self.options |= {name: str(value) for name, value in changed.items()}
        columns = ("server", "queue", "sequence")
        self.reader = copied(RqttlStreamReader(Options.parse("stream", self.options), columns))

    def plan(self) -> dict[str, Any] | None:
        """Plan the next batch. Returns its end, or `None` if nothing is new."""
        if self.checkpoint is None:
            self.checkpoint = self.reader.initialOffset()
        end = self.reader.latestOffset(self.checkpoint, self.reader.getDefaultReadLimit())
        return None if end == self.checkpoint else end

    def read(self, end: dict[str, Any]) -> list[Row]:
        """Read the batch that ends there, as its tasks do."""
        assert self.checkpoint is not None
        return self._rows(self.checkpoint, end)

    def repeat(self) -> list[Row]:
        """Read the last batch once more, as a restart does."""
        assert self.checkpoint is not None
        return self._rows(self.before, self.checkpoint)

    def step(self) -> list[Row] | None:
        """Run one batch. Returns its rows, or `None` if nothing is new."""
        end = self.plan()
        if end is None:
            return None
        rows = self.read(end)
        assert self.checkpoint is not None
        self.before, self.checkpoint = self.checkpoint, copied(end)
        self.batches.append(rows)
        return rows

    def drain(self) -> list[Row]:
        """Run batches until nothing is new. Returns all their rows."""
        rows: list[Row] = []
        while (of_batch := self.step()) is not None:
            rows += of_batch
        return rows

    def _rows(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Row]:
        partitions = [part for part in self.reader.partitions(copied(start), copied(end)) if part is not None]
        assert all(isinstance(part, StreamPartition) for part in partitions)
        return [
            (row["server"], row["queue"], row["sequence"])
            for partition in copied(partitions)
            for batch in self.reader.read(partition)
            for row in batch.to_pylist()
        ]


def counted(rows: list[Row]) -> Counter[tuple[str, str]]:
    """Count rows by server and queue."""
    return Counter((server, queue) for server, queue, _ in rows)


def send(fleet: Fleet, server: str, count: int, queue: str = "a") -> None:
    """Send so many messages to a queue of a server."""
    fleet.brokers[server].queue(queue).enqueue_many([Message(b"x")] * count)


def query(fleet: Fleet, *names: str, **options: object) -> Query:
    """Make a query over these servers, or all, that reads queue `a`."""
    return Query(fleet.url_of(*(names or fleet.servers)), **{"queues": "a", **options})
