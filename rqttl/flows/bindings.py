"""Flows about the bindings of topics: which queues get messages, and by which filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rqttl.checks import check_queue_name, check_subscription_name
from rqttl.errors import InvalidInput, QueueMismatch, QueueNotFound
from rqttl.filters import MOST_BINDINGS, Filter, Rule, canonical_json, check_filter
from rqttl.flows import queues, reading
from rqttl.flows.steps import Flow
from rqttl.flows.sweeping import config_if_exists
from rqttl.flows.topics import comes_back, rebind, slot_fault, unbind_gone
from rqttl.options import QueueOptions, by_name, written
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.text import format_value
from rqttl.types import Declared


def subscription(topic: str, name: object) -> str:
    """The queue of a subscription. Raises `InvalidName`."""
    return check_queue_name(f"{topic}/{check_subscription_name(name)}", "name")


def subscribe(
    keyspace: Keyspace, topic: str, name: str, filter: Filter, options: Mapping[str, object]
) -> Flow[tuple[str, Declared]]:
    """See `Topic.subscribe`. Returns the queue, and the outcome of its declaration."""
    queue, rules, arguments = subscription(topic, name), check_filter(filter), by_name(options)
    QueueOptions.read(queue, arguments)
    config = yield from _topic(keyspace, topic)
    _check_room(config, queue)
    known = yield from config_if_exists(keyspace, queue)
    if known is None:
        yield from unbind_gone(keyspace, topic, [queue])  # else the filter of an older queue of this name would stay
    if arguments.keys().isdisjoint(("expires", "auto_delete_on_idle")):
        inherited = config.options if known is None else known.declared
        arguments["auto_delete_on_idle"] = written("auto_delete_on_idle", inherited.auto_delete_on_idle)
    wanted = QueueOptions.read(queue, arguments)
    if wanted.forward_to:
        yield from _check_way(topic, queue, [wanted.forwards_to])
    declared = yield from queues.declare(keyspace, wanted)
    yield from _bind(keyspace, topic, queue, rules)
    return queue, declared


def unsubscribe(keyspace: Keyspace, topic: str, name: str) -> Flow[int]:
    """See `Topic.unsubscribe`."""
    queue = subscription(topic, name)
    yield from _topic(keyspace, topic)
    try:  # first, as a user may lack the right; it unbinds the queue
        return (yield from queues.delete(keyspace, queue, if_unused=False, if_empty=False))
    except QueueNotFound:
        if not (yield from unbind(keyspace, topic, queue)):
            raise
        return 0


def bind(keyspace: Keyspace, topic: str, queue: str, filter: Filter) -> Flow[None]:
    """See `Topic.bind`."""
    queue, rules = check_queue_name(queue, "queue"), check_filter(filter)
    check_place(keyspace, topic, queue)
    yield from _bind(keyspace, topic, queue, rules)


def check_place(keyspace: Keyspace, topic: str, queue: str) -> None:
    """Raise `InvalidInput` for a queue that cannot be bound to a topic: the topic itself, or one in another slot."""
    if queue == topic:
        raise InvalidInput(f"queue: expected another queue than the topic, got {queue!r}")
    if fault := slot_fault(keyspace, topic, queue):
        raise InvalidInput(f"queue: {fault}")


def _bind(keyspace: Keyspace, topic: str, queue: str, rules: list[Rule]) -> Flow[None]:
    while True:
        config = yield from _topic(keyspace, topic)
        bound = yield from config_if_exists(keyspace, queue)
        if bound is None:
            raise QueueNotFound(queue)
        if bound.passes_on:
            yield from _check_way(topic, queue, bound.options.passes_to or ())
        _check_room(config, queue)
        bindings = config.declared.bindings or {}
        ours, theirs = canonical_json(rules), canonical_json(bindings.get(queue, rules))
        if ours != theirs:
            text = f"queue {queue!r} is bound to {topic!r} with another filter ({theirs}, not {ours}): use set_filter()"
            raise QueueMismatch(queue, {"filter": (rules, bindings[queue])}, text=text)
        # a new version also for what is there: see `unbind_gone`
        if (yield from rebind(keyspace, config, {**bindings, queue: rules})):
            return


def _check_way(topic: str, by: str, to: Iterable[str]) -> Flow[None]:
    """Raise `InvalidInput` if messages of the topic would come back by this queue, which passes them on to others."""
    if way := (yield from comes_back(topic, to, by=by)):
        raise InvalidInput(f"queue: messages would come back: {way}; unbind one of them first")


def set_filter(keyspace: Keyspace, topic: str, name: str, filter: Filter) -> Flow[None]:
    """See `Topic.set_filter`."""
    rules = check_filter(filter)
    while True:
        config = yield from _topic(keyspace, topic)
        bindings = config.declared.bindings or {}
        queue = name if isinstance(name, str) and name in bindings else f"{topic}/{name}"
        if queue not in bindings:
            raise InvalidInput(f"name: expected a queue or a subscription of {topic!r}, got {format_value(name)}")
        if (yield from rebind(keyspace, config, {**bindings, queue: rules})):
            return


def unbind(keyspace: Keyspace, topic: str, queue: str) -> Flow[bool]:
    """See `Topic.unbind`."""
    queue = check_queue_name(queue, "queue")
    config = yield from _topic(keyspace, topic)
    was_bound = queue in (config.declared.bindings or {})
    yield from change(keyspace, topic, {queue: None} if was_bound else {})
    return was_bound


def change(keyspace: Keyspace, topic: str, changes: Mapping[str, list[Rule] | None]) -> Flow[None]:
    """Bind queues with these filters, and unbind those without one. Other bindings stay as they are.

    Raises `QueueNotFound`. Whether messages would come back is for the caller to know.
    """
    while changes:
        config = yield from _topic(keyspace, topic)
        bound = {name: rules for name, rules in changes.items() if rules is not None}
        yield from reading.check_existing(keyspace, list(bound))
        kept = {name: rules for name, rules in (config.declared.bindings or {}).items() if name not in changes}
        if (yield from rebind(keyspace, config, {**kept, **bound})):
            return


def bindings(keyspace: Keyspace, topic: str) -> Flow[dict[str, list[Rule]]]:
    """See `Topic.bindings`."""
    return dict((yield from _topic(keyspace, topic)).declared.bindings or {})


def _topic(keyspace: Keyspace, name: str) -> Flow[QueueConfig]:
    """The record of a topic. Raises `QueueNotFound`, and `QueueMismatch` for a queue that is none."""
    config = yield from config_if_exists(keyspace, name)
    if config is None:
        raise QueueNotFound(name)
    if not config.declared.is_topic:
        raise queues.other_kind(name, is_topic=False)
    return config


def _check_room(config: QueueConfig, queue: str) -> None:
    bindings = config.declared.bindings or {}
    if queue not in bindings and len(bindings) >= MOST_BINDINGS:
        raise InvalidInput(
            f"queue: {config.name!r} has {len(bindings):,} bound queues, and takes no more than {MOST_BINDINGS:,}"
        )
