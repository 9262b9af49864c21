"""One queue of the asyncio interface. Docstrings that are missing here are those of `Queue`: see `rqttl`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from rqttl import events as hook
from rqttl.aio.consumer import AsyncConsumer, AsyncDelivery, AsyncRunner, Handler
from rqttl.aio.driver import AsyncDriver
from rqttl.consuming import settling
from rqttl.delivery import Settler, delivered
from rqttl.errors import InvalidInput
from rqttl.flows import messages as message_flows
from rqttl.flows import policies, queues, reading, receive, sweeping
from rqttl.flows.receive import ReceiveResult
from rqttl.flows.steps import Flow
from rqttl.options import QueueOptions, UpdateResult
from rqttl.policies import Explanation
from rqttl.text import format_value
from rqttl.types import (
    Declared,
    Header,
    Message,
    MessageView,
    QueueStats,
    Receipt,
    RedriveResult,
    RunCounts,
    SweepResult,
)
from rqttl.units import Duration, Instant

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rqttl.errors import QueueFull
    from rqttl.options import OptionArguments


class AsyncQueue:
    """A handle on one queue. Every method that calls Redis raises `QueueNotFound` if the queue does not exist."""

    def __init__(self, driver: AsyncDriver, name: str, declared: Declared | None = None) -> None:
        #: The name of the queue.
        self.name = name
        #: `created`, `adopted` or `existing` on a handle from `declare_queue`, else `None`.
        self.declared = declared
        self._driver = driver

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r}>"

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
    ) -> Receipt:
        driver = self._driver
        flow = message_flows.send(
            driver.events, driver.configs.get(self.name), self.name, body, ttl, expires_at, headers, id, content_type
        )
        return await driver.perform(flow)

    async def enqueue_many(
        self, messages: Sequence[Message | object], *, duplicate_window: Duration | None = None
    ) -> list[Receipt | QueueFull]:
        return await self._driver.perform(
            message_flows.send_many(self._driver.events, self.name, messages, duplicate_window)
        )

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
        flow = receive.receive_many(self.name, count, wait, ms, auto_ack=auto_ack)
        observer, since = self._driver.events.observer, perf_counter()
        received = self._deliveries(await self._driver.perform(flow, self._give_back), ms)
        hook.received(observer, self.name, received, since)
        return received

    def _give_back(self, batches: list[ReceiveResult]) -> Flow[None]:
        """Give back messages that nobody waits for any more, uncounted. With `auto_ack` they are gone."""
        leased = [item for item in self._deliveries(batches, None) if not item.settled]
        return settling.give_back(self._driver.keyspace, self.name, leased)

    def _deliveries(self, batches: list[ReceiveResult], lease: int | None) -> list[AsyncDelivery]:
        settler = Settler(self._settle, self._driver.events, self._driver.keep)
        return [item for claimed in batches for item in delivered(AsyncDelivery, settler, claimed, lease)]

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
        runner = AsyncRunner(
            self._driver,
            self.name,
            handler,
            concurrency,
            prefetch=prefetch,
            lease=lease,
            wait=wait,
            raise_errors=raise_errors,
        )
        return await runner.run(stop)

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

    async def peek(self, limit: int = 20, after: str | None = None) -> list[MessageView]:
        return await self._driver.perform(message_flows.peek(self._driver.keyspace, self.name, limit, after))

    async def stats(self, *, sweep: bool = True) -> QueueStats:
        return await self._driver.perform(reading.stats(self._driver.keyspace, self.name, sweep=sweep))

    async def options(self, *, declared: bool = False) -> QueueOptions:
        return await self._driver.perform(reading.options(self._driver.keyspace, self.name, declared=declared))

    async def explain(self, ttl: Duration | None = None) -> Explanation:
        return await self._driver.perform(policies.explain(self._driver.keyspace, self.name, ttl))

    async def update(self, **changes: Unpack[OptionArguments]) -> UpdateResult:
        return await self._driver.perform(queues.update(self._driver.keyspace, self.name, changes))

    async def preview_update(self, **changes: Unpack[OptionArguments]) -> UpdateResult:
        return await self._driver.perform(queues.preview(self._driver.keyspace, self.name, changes))

    async def touch(self) -> None:
        await self._driver.perform(queues.touch(self._driver.keyspace, self.name))

    async def sweep(self) -> list[SweepResult]:
        return await self._driver.perform(sweeping.sweep(self.name))

    async def purge(self) -> int:
        return await self._driver.perform(message_flows.purge(self._driver.keyspace, self.name))

    async def purge_many(self, sequences: Iterable[str], *, unread: bool = False) -> int:
        flow = message_flows.purge_many(self._driver.keyspace, self.name, sequences, unread=unread)
        return await self._driver.perform(flow)

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
