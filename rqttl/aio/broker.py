"""The broker of the asyncio interface. Docstrings that are missing here are those of `Broker`: see `rqttl`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rqttl import events as hook
from rqttl import units
from rqttl.aio.driver import AsyncDriver
from rqttl.aio.queue import AsyncQueue
from rqttl.checks import check_queue_name
from rqttl.embedded.folder import SCHEME, folder_of, locate, url_in_use
from rqttl.events import Events, Observer
from rqttl.flows import policies, queues, reading, registry, steps
from rqttl.options import QueueOptions
from rqttl.policies import Explanation, Policy
from rqttl.policies.patterns import Syntax
from rqttl.store.connections import TIME_OUTS, UNLIMITED, address, checked_client, pool_for
from rqttl.types import PolicyResult, QueueStats, WorkerInfo
from rqttl.units import Duration

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from rqttl.embedded.server import EmbeddedServer
    from rqttl.options import OptionArguments


def connect_async(url: str | None = None, *, namespace: str = "rqttl") -> AsyncBroker:
    used = url_in_use(url)
    if not isinstance(used, str) or not used.startswith(SCHEME):
        return AsyncBroker(open_client(used), namespace)
    return AsyncBroker(None, namespace, folder=locate(folder_of(used)))


def open_client(url: str) -> Redis:
    """A client for a URL, with time-outs, without hidden retries. Raises `InvalidInput`, which never shows the URL."""
    settings = {"retry": Retry(NoBackoff(), 0), "max_connections": UNLIMITED, **TIME_OUTS}
    return Redis(connection_pool=pool_for(url, lambda url: ConnectionPool.from_url(url, **settings)))


class AsyncBroker:
    """All queues of one namespace of one Redis server, for one event loop: the one that uses the broker first.

    `client` is an existing `redis.asyncio.Redis` (with `decode_responses=False`); its connection pool is used, its
    retries are not. All calls share one connection, and each wait has one of its own. A call that has begun is carried
    out to its end, also if its caller is cancelled: messages that nobody waits for any more go back at once,
    uncounted. `folder` and `driver` are for `connect_async` and `rqttl.testing`: the folder of an embedded server, and
    the function that makes the driver.
    """

    def __init__(
        self,
        client: Redis | None,
        namespace: str = "rqttl",
        *,
        folder: Path | None = None,
        driver: Callable[[Callable[[], Awaitable[Redis]], str], AsyncDriver] = AsyncDriver,
    ) -> None:
        self._client = client if client is None and folder is not None else checked_client(client, Redis)
        self._folder = folder
        self._server: EmbeddedServer | None = None
        self._driver = driver(self._open, namespace)
        self.observer = hook.observer_of_new(self)

    async def _open(self) -> Redis:
        """The client, for the first call. The embedded server starts in a thread."""
        if self._client is None:
            from rqttl.embedded import server as embedded

            self._server = await asyncio.get_running_loop().run_in_executor(None, embedded.acquire, self._folder)
            self._client = open_client(self._server.url)
        return self._client

    def __repr__(self) -> str:
        at = f"embedded://{self._folder}" if self._client is None else address(self._client.connection_pool)
        return f"<AsyncBroker {at} namespace {self._driver.keyspace.namespace!r}>"

    @property
    def events(self) -> Events:
        return self._driver.events

    @property
    def observer(self) -> Observer | None:
        return self._driver.events.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._driver.events.observer = observer

    async def declare_queue(self, name: str, **options: Unpack[OptionArguments]) -> AsyncQueue:
        read = QueueOptions.read(name, options)
        declared = await self._driver.perform(queues.declare(self._driver.keyspace, read))
        return AsyncQueue(self._driver, read.queue, declared)

    def queue(self, name: str) -> AsyncQueue:
        self._driver.check_open()
        return AsyncQueue(self._driver, check_queue_name(name))

    async def queues(self) -> list[str]:
        return await self._driver.perform(reading.names(self._driver.keyspace))

    async def stats(self, names: Iterable[str] | None = None, *, sweep: bool = True) -> dict[str, QueueStats]:
        return await self._driver.perform(reading.stats_of(self._driver.keyspace, names, sweep=sweep))

    async def options(self, names: Iterable[str] | None = None) -> dict[str, QueueOptions]:
        return await self._driver.perform(reading.options_of(self._driver.keyspace, names))

    # Policies

    async def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, object],
        *,
        priority: int = 0,
        apply_to: str = "queues",
        syntax: Syntax = "wildcard",
        operator: bool = False,
    ) -> PolicyResult:
        arguments = {"priority": priority, "apply_to": apply_to, "syntax": syntax}
        policy = Policy.read(name, pattern, definition, **arguments, operator=operator)
        return await self._driver.perform(policies.change(self._driver.keyspace, [policy]))

    async def delete_policy(self, name: str, *, operator: bool = False) -> PolicyResult:
        return await self._driver.perform(policies.delete(self._driver.keyspace, name, operator=operator))

    async def policies(self, *, operator: bool = False) -> list[Policy]:
        stored = (await self._driver.perform(policies.current(self._driver.keyspace))).policies
        return [policy for policy in stored if policy.operator is operator]

    async def preview_policy(self, policy: Policy, *, delete: bool = False) -> PolicyResult:
        stored, removed = ([], [policy]) if delete else ([policy], [])
        return await self._driver.perform(policies.preview(self._driver.keyspace, stored, removed))

    async def check_policy(self, policy: Policy) -> list[str]:
        return await self._driver.perform(policies.check(self._driver.keyspace, policy))

    async def reconcile(self) -> PolicyResult:
        return await self._driver.perform(policies.reconcile_all(self._driver.keyspace))

    async def explain(self, name: str, ttl: Duration | None = None) -> Explanation:
        return await self._driver.perform(policies.explain(self._driver.keyspace, name, ttl, name_only=True))

    async def reaper_count(self) -> int:
        return await self._driver.perform(steps.reaper_count(self._driver.keyspace))

    async def workers(self) -> list[WorkerInfo]:
        return await self._driver.perform(registry.workers(self._driver.keyspace))

    async def server_time(self) -> datetime:
        return units.as_datetime(await self._driver.perform(steps.server_time()))

    def interrupt(self) -> None:
        """End every wait of this broker, from now on, as if its time were over.

        It is for the end of a process. Any thread and any signal handler may call it, and no message that was handed
        out gets lost.
        """
        self._driver.interrupt()

    async def aclose(self) -> None:
        """End all waits, carry out all calls that have begun, close the connections, and leave an embedded server.

        No task and no connection is left. Every later call of the broker, its queues, consumers and deliveries raises
        `BrokerClosed`. So does a call that waits in another task. A second `aclose` has no effect.
        """
        await self._driver.aclose()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.get_running_loop().run_in_executor(None, server.close)

    async def __aenter__(self) -> Self:
        self._driver.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
