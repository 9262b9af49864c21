"""The broker: a thin synchronous shell that performs the steps of flows."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from rqttl import flows, units
from rqttl._redis import Store, open_client
from rqttl.commands import Command, Known
from rqttl.errors import QueueNotFound
from rqttl.events import Events
from rqttl.flows import Clock, Enter, Flow, Follow, Listen, Look, Together
from rqttl.keys import Keyspace, check_namespace, check_queue_name
from rqttl.options import QueueOptions
from rqttl.queue import Queue
from rqttl.types import QueueStats

if TYPE_CHECKING:
    from rqttl.embedded import EmbeddedServer

T = TypeVar("T")

logger = logging.getLogger("rqttl")


def connect(url: str | None = None, *, namespace: str = "rqttl") -> Broker:
    """Connect to Redis: the given URL, else `$RQTTL_URL`, else an embedded server that all processes of the user share.

    URLs: `redis://`, `rediss://`, `unix://`, and `embedded:///folder` for an embedded server with data of its own.
    Connections are opened when they are needed. Raises `InvalidInput`, and `EmbeddedUnavailable` where there is no
    redis-server to start.
    """
    url = url or os.environ.get("RQTTL_URL") or "embedded://"
    if not isinstance(url, str) or not url.startswith("embedded://"):
        return Broker(open_client(url), namespace)
    from rqttl import embedded

    server = embedded.acquire(url.removeprefix("embedded://") or None)
    try:
        return Broker(open_client(server.url), namespace, server=server)
    except BaseException:
        server.close()
        raise


class Broker:
    """All queues of one namespace of one Redis server. Safe to share between threads.

    `client` is an existing `redis.Redis` (with `decode_responses=False`); its connection pool is used, its retries
    are not.
    """

    def __init__(self, client: redis.Redis, namespace: str = "rqttl", *, server: EmbeddedServer | None = None) -> None:
        self.keyspace = Keyspace(check_namespace(namespace))
        self.events = Events()
        self.store = Store(client, self.events)
        self._server = server
        self._known: dict[str, Known] = {}

    def declare_queue(self, name: str, **options: object) -> Queue:
        """Make a queue, or find it with the same options. Options: see the table in the README.

        Declaring again with equal options changes nothing (DEC-01); a queue that only a dead letter has made is
        adopted. Raises `QueueMismatch`, `InvalidName`, `InvalidOption`, `InvalidDuration`.
        """
        self.perform(flows.declare(self.keyspace, QueueOptions.read(check_queue_name(name), options)))
        return Queue(self, name)

    def queue(self, name: str) -> Queue:
        """A handle on a queue, without asking Redis whether it exists. Raises `InvalidName`."""
        return Queue(self, check_queue_name(name))

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        members: Any = self.store.run_plain(lambda client: client.smembers(self.keyspace.registry))
        names = sorted(name.decode() for name in members)
        kinds: dict[str, bytes | Exception | None] = {}
        for start in range(0, len(names), 1000):
            part = names[start : start + 1000]
            pipeline = self.store.client.pipeline(transaction=False)
            for name in part:
                pipeline.hget(self.keyspace.key(name, "meta"), "plain")
            kinds |= zip(part, pipeline.execute(raise_on_error=False), strict=True)
        living = set(self.perform(flows.living(self.keyspace, [name for name in names if kinds[name] == b"mortal"])))
        return [name for name in names if (name in living if kinds[name] == b"mortal" else kinds[name] is not None)]

    def stats(self, names: Iterable[str] | None = None) -> dict[str, QueueStats]:
        """`Queue.stats` of many queues (without names: of all), in few round trips.

        Queues that are not there are left out. Raises `InvalidName`.
        """
        return self.perform(flows.stats_of(self.keyspace, self._wanted(names)))

    def options(self, names: Iterable[str] | None = None) -> dict[str, QueueOptions]:
        """`Queue.options` of many queues (without names: of all), in few round trips; see `stats`."""
        return self.perform(flows.options_of(self.keyspace, self._wanted(names)))

    def _wanted(self, names: Iterable[str] | None) -> list[str]:
        return self.queues() if names is None else [check_queue_name(name) for name in dict.fromkeys(names)]

    def reapers(self) -> int:
        """How many reapers run for this namespace: those that listen for what becomes due.

        One that is just connecting is not counted, nor is `run_once`. Redis may forbid to ask (`PUBSUB`).
        """
        found: Any = self.store.run_plain(lambda client: client.pubsub_numsub(self.keyspace.due_channel))
        return int(found[0][1])

    def time(self) -> datetime:
        """The time by the clock of Redis, which is the one that counts."""
        seconds, micros = self.store.run_plain(lambda client: client.time())
        return units.as_datetime(seconds * 1000 + micros // 1000)

    def interrupt(self) -> None:
        """End every wait of this broker, in all threads and from now on, as if its time were over.

        For the end of a process: it may be called from a signal handler, and nothing that was handed out gets lost.
        """
        self.store.interrupt()

    def require_server(self, what: str) -> None:
        """Do nothing, since a server is there that can do `what`; the fake broker of `rqttl.testing` raises."""

    def close(self) -> None:
        """Close the connections, and leave the embedded server if this broker uses one."""
        self.store.close()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def perform(self, flow: Flow[T]) -> T:
        """Carry out a flow: perform each step and send its answer back."""
        answer: Any = None
        try:
            while True:
                answer = self.step(flow.send(answer))
        except StopIteration as done:
            result: T = done.value
            return result

    def step(self, step: flows.Step) -> Any:
        """Carry out one step of a flow."""
        if type(step) is Command:
            return self.store.run(step)
        if type(step) is Look:
            return self._look(step)
        if type(step) is Together:
            return self.store.run_together(step.commands)
        if type(step) is Clock:
            return int(time.monotonic() * 1000)
        if type(step) is Listen:
            for listener in self.events.on_waiting:
                listener(step.queue)
            return self.store.listen(self.keyspace.key(step.queue, "bell"), step.ms, step.interrupt)
        if type(step) is Enter:
            return self._enter(step.queue, step.gone)
        if type(step) is Follow:
            return self._follow(step.notes)
        raise TypeError(f"not a step of a flow: {step!r}")

    def _enter(self, queue: str, gone: bool) -> Any:
        registry = self.keyspace.registry
        if gone:
            self._known.pop(queue, None)
            removed = self.store.run_plain(lambda c: c.srem(registry, queue))
            if not self.store.run_plain(lambda c: c.exists(self.keyspace.key(queue, "meta"))):
                return removed
            # somebody has made it again after it ended and before it was taken out
        return self.store.run_plain(lambda c: c.sadd(registry, queue))

    def _follow(self, notes: Sequence[bytes]) -> None:
        """The caller's own call has succeeded and must not seem to have failed: what fails here is left to reapers."""
        for i in range(0, len(notes), 2):
            try:
                self.perform(flows.follow(notes[i : i + 2]))
            except QueueNotFound:
                continue  # deleted meanwhile, so there is nothing left to do
            except redis.RedisError as error:
                what, queue = (note.decode() for note in notes[i : i + 2])
                logger.warning("queue %s: %s was not followed up, a reaper will: %s", queue, what, error)

    def _look(self, step: Look) -> Known:
        known = None if step.fresh else self._known.get(step.queue)
        if known is None:
            try:
                known = self.perform(flows.known_options(self.keyspace, step.queue))
            except QueueNotFound:
                self._known.pop(step.queue, None)
                raise
            self._known[step.queue] = known
        return known
