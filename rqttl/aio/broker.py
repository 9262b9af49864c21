"""Brokers and queues of asyncio. Text between marks is written from the sync ones; missing docstrings are theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from redis.asyncio import Redis, RedisCluster

from rqttl.aio.consumer import AsyncConsumer, AsyncDelivery, AsyncRunner, Handler
from rqttl.aio.driver import AsyncDriver
from rqttl.aio.sentinel import open_client, taken_over
from rqttl.delivery import Settler, delivered
from rqttl.embedded.folder import locate, url_in_use
from rqttl.store.addresses import read_url

# isort: split
# <!-- imports -->
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from rqttl import events as hook
from rqttl import units
from rqttl.checks import check_queue_name, whole
from rqttl.consuming import settling, several
from rqttl.consuming.handling import check_sizes
from rqttl.deployments import Deployment, Plan
from rqttl.errors import InvalidInput, QueueFull
from rqttl.events import Events, Observer
from rqttl.flows import bindings, deployment, policies, queues, reading, receive, roster, single, steps, sweeping
from rqttl.flows import messages as message_flows
from rqttl.flows.receive import ReceiveResult, lease_ms
from rqttl.options import QueueOptions, UpdateResult
from rqttl.policies import Explanation, Policy
from rqttl.policies.patterns import Syntax
from rqttl.protocol.keys import META
from rqttl.store.addresses import Address
from rqttl.store.cluster import Seeds
from rqttl.store.topology import node_info
from rqttl.text import format_value
from rqttl.types import (
    ConsumerInfo,
    Declared,
    Duration,
    Effect,
    Header,
    Instant,
    Message,
    MessageView,
    NodeInfo,
    PolicyResult,
    Purged,
    QueueStats,
    Receipt,
    RedriveResult,
    RunCounts,
    State,
    SweepResult,
    WorkerInfo,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from rqttl.embedded.server import EmbeddedServer
    from rqttl.filters import Filter
    from rqttl.options import OptionArguments
# <!-- /imports -->


class AsyncQueue:
    """A handle on one queue. Every method that calls Redis raises `QueueNotFound` if the queue does not exist."""

    # <!-- queue -->
    def __init__(self, driver: AsyncDriver, name: str, declared: Declared | None = None) -> None:
        #: The name of the queue.
        self.name = name
        #: `created`, `adopted` or `existing` on a handle from `declare_queue`, else `None`.
        self.declared = declared
        self._driver = driver

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Sending

    async def enqueue(
        self,
        body: Message | object,
        *,
        ttl: Duration | None = None,
        expires_at: Instant | None = None,
        headers: Mapping[str, Header] | None = None,
        id: str | None = None,
        content_type: str | None = None,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        subject: str | None = None,
    ) -> Receipt:
        driver = self._driver
        flow = message_flows.send(
            driver,
            self.name,
            body,
            ttl,
            expires_at,
            headers,
            id,
            content_type,
            delay,
            deliver_at,
            subject,
        )
        return await driver.perform(flow)

    async def enqueue_many(
        self, messages: Sequence[Message | object], *, duplicate_window: Duration | None = None
    ) -> list[Receipt | QueueFull]:
        return await self._driver.perform(
            message_flows.send_many(self._driver.events, self.name, messages, duplicate_window)
        )

    # Scheduled messages

    async def scheduled(self, limit: int = 20, after: str | None = None) -> list[MessageView]:
        return await self.peek(limit, after, state="scheduled")

    async def cancel(self, id: str) -> int:
        return await self._driver.perform(message_flows.cancel(self._driver.keyspace, self.name, id))

    async def reschedule(self, id: str, *, delay: Duration | None = None, deliver_at: Instant | None = None) -> int:
        return await self._driver.perform(
            message_flows.reschedule(self._driver.keyspace, self.name, id, delay, deliver_at)
        )

    # Single messages

    async def message(self, id: str, *, scan: int | None = single.SCAN) -> MessageView | None:
        return await self._driver.perform(single.message(self._driver.keyspace, self.name, id, scan))

    async def messages(self, id: str, *, scan: int | None = None) -> list[MessageView]:
        most = None if scan is None else whole(scan, "scan")
        return await self._driver.perform(single.messages(self._driver.keyspace, self.name, id, most))

    async def move(self, id: str, to: str, *, dry_run: bool = False) -> int:
        return await self._driver.perform(single.move(self._driver.keyspace, self.name, id, to, dry_run=dry_run))

    async def delete_message(self, id: str, *, dry_run: bool = False) -> int:
        return await self._intervene("delete", id, dry_run=dry_run)

    async def expire(self, id: str, *, dry_run: bool = False) -> int:
        return await self._intervene("expired", id, dry_run=dry_run)

    async def dead_letter(self, id: str, description: str | None = None, *, dry_run: bool = False) -> int:
        return await self._intervene("rejected", id, description, dry_run=dry_run)

    async def redeliver_now(self, id: str, *, dry_run: bool = False) -> int:
        return await self._intervene("redeliver", id, dry_run=dry_run)

    async def _intervene(self, what: str, id: str, description: str | None = None, *, dry_run: bool) -> int:
        flow = single.intervene(self._driver.keyspace, self.name, what, id, description, dry_run=dry_run)
        return await self._driver.perform(flow)

    # Receiving

    async def receive(
        self, wait: Duration | None = None, lease: Duration | None = None, *, auto_ack: bool = False
    ) -> AsyncDelivery | None:
        deliveries = await self.receive_many(1, wait, lease, auto_ack=auto_ack)
        return deliveries[0] if deliveries else None

    async def receive_many(
        self, count: int, wait: Duration | None = None, lease: Duration | None = None, *, auto_ack: bool = False
    ) -> list[AsyncDelivery]:
        ms = receive.lease_ms(lease)
        driver, since = self._driver, perf_counter()
        config = driver.configs.get(self.name)
        batches = await driver.perform(
            receive.receive_many(self.name, count, wait, ms, auto_ack=auto_ack, config=config)
        )
        return self.hand_out(batches, ms, since)

    # Settling

    async def _settle(
        self,
        how: str,
        deliveries: Sequence[AsyncDelivery],
        time: Duration | None = None,
        description: str | None = None,
    ) -> None:
        driver = self._driver
        await driver.perform(settling.settle(driver.keyspace, self.name, how, deliveries, time, description))

    async def ack_many(self, deliveries: Sequence[AsyncDelivery]) -> None:
        await self._settle("ack", deliveries)

    async def nack_many(
        self,
        deliveries: Sequence[AsyncDelivery],
        delay: Duration | None = None,
        description: str | None = None,
        *,
        counted: bool = True,
    ) -> None:
        await self._settle("nack" if counted else "release", deliveries, delay, description)

    async def reject_many(self, deliveries: Sequence[AsyncDelivery], description: str | None = None) -> None:
        await self._settle("reject", deliveries, None, description)

    async def renew_many(self, deliveries: Sequence[AsyncDelivery], lease: Duration | None = None) -> None:
        await self._settle("renew", deliveries, lease)

    # Looking and changing

    async def peek(self, limit: int = 20, after: str | None = None, *, state: State | None = None) -> list[MessageView]:
        return await self._driver.perform(message_flows.peek(self._driver.keyspace, self.name, limit, after, state))

    async def stats(self, *, sweep: bool = True) -> QueueStats:
        return await self._driver.perform(reading.stats(self._driver.keyspace, self.name, sweep=sweep))

    async def consumers(self) -> list[ConsumerInfo]:
        return await self._driver.perform(roster.consumers(self._driver.keyspace, self.name))

    async def options(self, *, declared: bool = False) -> QueueOptions:
        return await self._driver.perform(reading.options(self._driver.keyspace, self.name, declared=declared))

    async def explain(self, ttl: Duration | None = None) -> Explanation:
        return await self._driver.perform(policies.explain(self._driver.keyspace, self.name, ttl))

    async def update(self, **changes: Unpack[OptionArguments]) -> UpdateResult:
        return await self._driver.perform(queues.update(self._driver.keyspace, self.name, changes))

    async def preview_update(self, **changes: Unpack[OptionArguments]) -> UpdateResult:
        return await self._driver.perform(queues.preview(self._driver.keyspace, self.name, changes))

    async def pause(self) -> UpdateResult:
        return await self._driver.perform(queues.pause(self._driver.keyspace, self.name, paused=True))

    async def resume(self) -> UpdateResult:
        return await self._driver.perform(queues.pause(self._driver.keyspace, self.name, paused=False))

    async def touch(self) -> None:
        await self._driver.perform(queues.touch(self._driver.keyspace, self.name))

    async def sweep(self) -> list[SweepResult]:
        return await self._driver.perform(sweeping.sweep(self.name))

    async def purge(self, state: Purged = "ready") -> int:
        return await self._driver.perform(message_flows.purge(self._driver.keyspace, self.name, state))

    async def purge_many(self, sequences: Iterable[str], *, unread: bool = False) -> int:
        return await self._driver.perform(
            message_flows.purge_many(self._driver.keyspace, self.name, sequences, unread=unread)
        )

    async def redrive(
        self, limit: int | None = None, reason: str | None = None, source: str | None = None, to: str | None = None
    ) -> int:
        flow = message_flows.redrive(self._driver.keyspace, self.name, limit, reason, source, to)
        return await self._driver.perform(message_flows.observed(self._driver.events, self.name, flow))

    async def redrive_many(self, letters: Iterable[tuple[str, str]]) -> list[RedriveResult]:
        flow = message_flows.redrive_many(self._driver.keyspace, self.name, letters)
        return await self._driver.perform(message_flows.observed(self._driver.events, self.name, flow))

    async def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        flow = queues.delete(self._driver.keyspace, self.name, if_unused=if_unused, if_empty=if_empty)
        return await self._driver.perform(flow)

    # <!-- /queue -->

    def hand_out(self, batches: Sequence[ReceiveResult], lease: int | None, since: float) -> list[AsyncDelivery]:
        events = self._driver.events
        settler = Settler(self._settle, events, self._driver.keep)
        received = [item for claimed in batches for item in delivered(AsyncDelivery, settler, claimed, lease)]
        hook.received(events.observer, self.name, received, since)
        return received

    def consume(
        self, prefetch: int = 100, *, lease: Duration | None = None, wait: Duration | None = None
    ) -> AsyncConsumer:
        """Iterate over deliveries. Lease up to `prefetch` at a time; a task renews the leases. See `AsyncConsumer`."""
        return AsyncConsumer(self._driver, self.name, prefetch, lease=lease, wait=wait)

    async def run(
        self,
        handler: Handler,
        concurrency: int = 1,
        *,
        prefetch: int | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        stop: asyncio.Event | None = None,
        raise_errors: bool = False,
    ) -> RunCounts:
        """`Queue.run` for an event loop: see its docstring for failures, `wait`, signals, `stop` and `raise_errors`.

        `handler` is an `async def`. `concurrency` tasks call it, each with one message at a time. Up to `prefetch`
        messages (10 for each task) are fetched at a time. Their leases are renewed while handlers work. A plain `def`
        ends the run at its first message, which goes back. `stop` is an `asyncio.Event`. A cancelled run cancels its
        handlers, and their messages go back.
        """
        if stop is not None and not callable(getattr(stop, "wait", None)):
            raise InvalidInput(f"stop: expected an asyncio.Event, got {format_value(stop)}")
        concurrency, fetched = check_sizes(concurrency, prefetch, "concurrency")
        deliveries = self.consume(fetched, lease=lease, wait=wait)
        return await AsyncRunner(self._driver, deliveries, handler, concurrency, raise_errors=raise_errors).run(stop)


class AsyncTopic(AsyncQueue):
    """A handle on one topic: a `Topic` for an event loop."""

    # <!-- topic -->
    async def subscribe(self, name: str, filter: Filter = None, **options: Unpack[OptionArguments]) -> AsyncQueue:
        flow = bindings.subscribe(self._driver.keyspace, self.name, name, filter, options)
        return AsyncQueue(self._driver, *await self._driver.perform(flow))

    async def unsubscribe(self, name: str) -> int:
        return await self._driver.perform(bindings.unsubscribe(self._driver.keyspace, self.name, name))

    async def bind(self, queue: str, filter: Filter = None) -> None:
        await self._driver.perform(bindings.bind(self._driver.keyspace, self.name, queue, filter))

    async def unbind(self, queue: str) -> bool:
        return await self._driver.perform(bindings.unbind(self._driver.keyspace, self.name, queue))

    async def set_filter(self, name: str, filter: Filter) -> None:
        await self._driver.perform(bindings.set_filter(self._driver.keyspace, self.name, name, filter))

    async def bindings(self) -> dict[str, list[dict[str, Any]]]:
        return await self._driver.perform(bindings.bindings(self._driver.keyspace, self.name))

    # <!-- /topic -->


def connect_async(
    url: str | None = None, *, namespace: str = "rqttl", patience: Duration | None = None, slotted: bool = False
) -> AsyncBroker:
    address = read_url(url_in_use(url))
    client, folder = (None, locate(address.path)) if address.is_embedded else (open_client(address), None)
    return AsyncBroker(client, namespace, folder=folder, patience=patience, slotted=address.slotted or slotted)


class AsyncBroker:
    """All queues of one namespace of one Redis server, for one event loop: the one that uses the broker first.

    `client` is an existing `redis.asyncio.Redis` (with `decode_responses=False`). rqttl borrows its settings and its
    `max_connections`, not its connections and retries; from a client of `sentinel.master_for` its Sentinels and service
    as well, from a `redis.asyncio.RedisCluster` its nodes. `patience`, `slotted`: see `connect`. All calls share one
    connection, and each wait has one of its own. A call that has begun is carried out to its end, also if its caller is
    cancelled: messages that nobody waits for any more go back at once, uncounted. `folder` and `driver` are for
    `connect_async` and `rqttl.testing`: the folder of an embedded server, and the function that makes the driver.
    """

    def __init__(
        self,
        client: Redis | RedisCluster | Seeds | None,
        namespace: str = "rqttl",
        *,
        folder: Path | None = None,
        driver: Callable[..., AsyncDriver] = AsyncDriver,
        patience: Duration | None = None,
        slotted: bool = False,
    ) -> None:
        self._folder = folder
        self._server: EmbeddedServer | None = None
        self._client: Any = None if client is None and folder is not None else taken_over(client)
        self._driver = driver(self._client or self._open, namespace, patience=patience, slotted=slotted)
        self._fast = self._driver.failing_fast()
        self.observer = hook.observer_of_new(self)

    async def _open(self) -> Any:
        """Start the embedded server, in a thread. Returns a client of it."""
        from rqttl.embedded import server as embedded

        self._server = await asyncio.get_running_loop().run_in_executor(None, embedded.acquire, self._folder)
        self._client = open_client(read_url(self._server.url))
        return self._client

    @property
    def address(self) -> Address | None:
        client = self._client
        return client.address if isinstance(client, Seeds) else client and Address.of(client.connection_pool)

    @property
    def namespace(self) -> str:
        return self._driver.keyspace.namespace

    def __repr__(self) -> str:
        at = self.address or f"embedded://{self._folder}"
        return f"<AsyncBroker {at} namespace {self.namespace!r}>"

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

    # <!-- broker -->
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
        return AsyncQueue(
            self._driver, read.queue, await self._driver.perform(queues.declare(self._driver.keyspace, read))
        )

    async def preview_declaration(self, name: str, **options: Unpack[OptionArguments]) -> UpdateResult | None:
        return await self._driver.perform(
            queues.preview_declaration(self._driver.keyspace, QueueOptions.read(name, options))
        )

    def queue(self, name: str) -> AsyncQueue:
        self._driver.check_open()
        return AsyncQueue(self._driver, check_queue_name(name))

    async def declare_topic(self, name: str, **options: Unpack[OptionArguments]) -> AsyncTopic:
        read = QueueOptions.read(name, options).as_topic()
        return AsyncTopic(
            self._driver, read.queue, await self._driver.perform(queues.declare(self._driver.keyspace, read))
        )

    def topic(self, name: str) -> AsyncTopic:
        self._driver.check_open()
        return AsyncTopic(self._driver, check_queue_name(name))

    async def queues(self) -> list[str]:
        return await self._driver.perform(reading.names(self._driver.keyspace))

    async def stats(self, names: Iterable[str] | None = None, *, sweep: bool = True) -> dict[str, QueueStats]:
        return await self._driver.perform(reading.stats_of(self._driver.keyspace, names, sweep=sweep))

    async def options(self, names: Iterable[str] | None = None) -> dict[str, QueueOptions]:
        return await self._driver.perform(reading.options_of(self._driver.keyspace, names))

    async def held_back(self, names: Sequence[str]) -> list[str]:
        return await self._fast.perform(reading.held_back(self._driver.keyspace, names))

    # Several queues

    async def receive(
        self,
        queues: Iterable[str],
        max: int = 1,  # noqa: A002  # as `--max` of the command line
        wait: Duration | None = None,
        lease: Duration | None = None,
        *,
        auto_ack: bool = False,
    ) -> list[AsyncDelivery]:
        names, ms, since = list(several.read_weights(queues)), lease_ms(lease), perf_counter()
        batches = await self._fast.perform(several.receive(self._fast, names, max, wait, ms, auto_ack=auto_ack))
        received: list[AsyncDelivery] = []
        for claimed in batches:
            queue = AsyncQueue(self._driver, claimed.config.name)
            received += queue.hand_out([claimed], ms, since)
        return received

    def consume(
        self,
        queues: Iterable[str],
        *,
        weights: Mapping[str, int] | None = None,
        prefetch: int = 100,
        lease: Duration | None = None,
        wait: Duration | None = None,
    ) -> AsyncConsumer:
        return AsyncConsumer(self._driver, several.read_weights(queues, weights), prefetch, lease=lease, wait=wait)

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

    # Deployments

    async def deployment(self) -> Deployment:
        return await self._driver.perform(deployment.present(self._driver.keyspace))

    async def preview_plan(self, plan: Plan) -> Effect:
        return await self._driver.perform(deployment.preview(self._driver.keyspace, plan))

    async def apply_plan(self, plan: Plan) -> Effect:
        return await self._driver.perform(deployment.carry_out(self._driver.keyspace, plan))

    def node_of(self, queue: str) -> NodeInfo | None:
        return node_info(self._driver.store.topology, self._driver.keyspace.key(queue, META))

    async def reaper_count(self) -> int:
        return await self._driver.perform(roster.reaper_count(self._driver.keyspace))

    async def workers(self, *, consumers: bool = False) -> list[WorkerInfo]:
        return await self._driver.perform(roster.workers(self._driver.keyspace, consumers=consumers))

    async def server_time(self) -> datetime:
        return units.as_datetime(await self._driver.perform(steps.server_time()))

    def interrupt(self) -> None:
        self._driver.interrupt()

    # <!-- /broker -->
