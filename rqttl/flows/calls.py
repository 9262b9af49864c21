"""Checked flows: the arguments of public methods are checked here, once for the sync and the asyncio interface."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from rqttl import checks, units
from rqttl import events as hook
from rqttl.errors import InvalidInput, QueueFull
from rqttl.events import Events, Observer
from rqttl.flows import arriving, looking, messages, policies, queues, statistics
from rqttl.flows.steps import Flow
from rqttl.names import check_queue_name
from rqttl.options import QueueOptions
from rqttl.policies import Explanation
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.text import format_value
from rqttl.types import Header, Message, MessageView, PerQueue, QueueStats, Receipt
from rqttl.units import Duration, Instant

T = TypeVar("T")


def enqueue(
    events: Events,
    known: QueueConfig | None,
    queue: str,
    body: Message | object,
    *,
    ttl: Duration | None,
    expires_at: Instant | None,
    headers: Mapping[str, Header] | None,
    id: str | None,
    content_type: str | None,
) -> Flow[Receipt | QueueFull]:
    """See `Queue.enqueue`. `known` is from the cache of the driver. The answer goes through `stored`."""
    if ttl is None and expires_at is None and headers is None and id is None and content_type is None:
        message: object = body
    elif isinstance(body, Message):
        raise InvalidInput("body: a Message has all fields itself; give no further arguments with it")
    else:
        message = Message(body, ttl, expires_at, headers, id, content_type)
    if events.observer is not None:
        return _observed(events.observer, queue, message)
    return arriving.enqueue_one(queue, message, known)


def _observed(observer: Observer, queue: str, message: object) -> Flow[Receipt | QueueFull]:
    with hook.Watch(observer, hook.Operation("enqueue", queue, [message])) as sent:
        result = yield from arriving.enqueue_one(queue, sent.messages[0])
        sent.results = [result]
    return result


def stored(result: Receipt | QueueFull) -> Receipt:
    """Return the receipt of one message; raise the refusal."""
    if isinstance(result, QueueFull):
        raise result
    return result


def enqueue_many(
    events: Events, queue: str, sent: Sequence[Message | object], duplicate_window: Duration | None
) -> Flow[list[Receipt | QueueFull]]:
    """See `Queue.enqueue_many`."""
    if isinstance(sent, Mapping):
        raise InvalidInput(f"messages: expected a sequence of messages, got {format_value(sent)}")
    items = checks.items(sent, "messages", "a sequence of messages")
    window = 0 if duplicate_window is None else units.duration(duplicate_window, "duplicate_window", least=1)
    if events.observer is not None and items:
        return _all_observed(events.observer, queue, items, int(window))
    return arriving.enqueue(queue, items, int(window))


def _all_observed(
    observer: Observer, queue: str, items: Sequence[object], window: int
) -> Flow[list[Receipt | QueueFull]]:
    with hook.Watch(observer, hook.Operation("enqueue", queue, items)) as sent:
        sent.results = results = yield from arriving.enqueue(queue, sent.messages, window)
    return results


def redriving(events: Events, queue: str, flow: Flow[T]) -> Flow[T]:
    """Return a flow that redrives letters of a queue, with an observer around it if there is one."""
    return flow if events.observer is None else hook.settled(events.observer, queue, "redrive", (), flow)


def receive_many(
    queue: str, count: int, wait: Duration | None, lease: int | None, *, auto_ack: bool
) -> Flow[list[messages.ReceiveResult]]:
    """See `Queue.receive_many`. `lease` is in ms."""
    count = checks.whole(count, "count")
    patience = 0 if wait is None else int(units.duration(wait, "wait"))
    consumer = secrets.token_hex(8) if patience else ""
    return messages.receive_many(queue, count, lease, patience, auto_ack=auto_ack, consumer=consumer)


def lease_ms(lease: Duration | None) -> int | None:
    """Check the length of a lease, and return it in ms."""
    return None if lease is None else int(units.duration(lease, "lease", least=1))


def peek(keyspace: Keyspace, queue: str, limit: int, after: str | None) -> Flow[list[MessageView]]:
    """See `Queue.peek`."""
    return queues.peek(keyspace, queue, checks.whole(limit, "limit"), after)


def stats(keyspace: Keyspace, queue: str, *, sweep: bool) -> Flow[QueueStats]:
    """See `Queue.stats`."""
    if sweep:
        return statistics.stats(queue)
    return looking.only(queue, looking.look(keyspace, [queue], ends=True))


def explain(keyspace: Keyspace, queue: str, ttl: Duration | None, *, name_only: bool = False) -> Flow[Explanation]:
    """See `Queue.explain` and, with `name_only`, `Broker.explain`."""
    ms = None if ttl is None else int(units.duration(ttl, "ttl"))
    return policies.explain(keyspace, check_queue_name(queue) if name_only else queue, ms, name_only=name_only)


def stats_of(keyspace: Keyspace, names: Iterable[str] | None, *, sweep: bool) -> Flow[PerQueue[QueueStats]]:
    """See `Broker.stats`."""
    if not sweep:
        return (yield from looking.look(keyspace, (yield from _checked_names(keyspace, names))))
    # the sweep ends queues whose lifetime is over, so they are among them
    every = yield from looking.registered(keyspace) if names is None else _checked_names(keyspace, names)
    return (yield from statistics.stats_of(keyspace, every))


def options_of(keyspace: Keyspace, names: Iterable[str] | None) -> Flow[PerQueue[QueueOptions]]:
    """See `Broker.options`."""
    queues_read = yield from _checked_names(keyspace, names)
    return (yield from looking.options_of(keyspace, queues_read))


def _checked_names(keyspace: Keyspace, names: Iterable[str] | None) -> Flow[list[str]]:
    """Check names, and return each once; without names, those of all queues."""
    if names is None:
        return (yield from looking.names(keyspace))
    items = checks.items(names, "names", "names of queues")
    return list(dict.fromkeys(check_queue_name(name) for name in items))
