"""All checks, one after the other, and the repairs. A check that Redis refuses is a finding, not an error.

The checks are flows that return findings, or functions of values that a flow has read. This module performs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl import flows
from rqttl.broker import Broker
from rqttl.doctor import (
    audit,
    key_inventory,
    memory,
    persistence,
    policies,
    queues,
    reader,
    rights,
    runtime,
    server,
    server_info,
)
from rqttl.doctor.findings import Finding, Repair, problem, warning
from rqttl.doctor.key_inventory import KeyInventory
from rqttl.doctor.server_info import ServerInfo
from rqttl.errors import QueueNotFound
from rqttl.flows import Driver, Flow
from rqttl.names import check_queue_name
from rqttl.protocol.commands import repair as repair_commands
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import driver_of
from rqttl.text import plural

#: Checks of the server by its own answers, in the order of the report.
SERVER: tuple[Callable[[ServerInfo], Iterator[Finding]], ...] = (
    server.kind,
    server.role,
    memory.policy,
    memory.left,
    persistence.durability,
    persistence.writing,
    server.replicas,
    server.patience,
)
#: Name of a queue for checks that need one, where no queue exists.
NO_QUEUE = "rqttl.doctor"


def examine(broker: Broker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Check the server and the named queues, or all queues of the namespace. Changes nothing.

    Yields the findings of each check at once. A question that the user has no right to ask, or that the server does not
    answer, is a warning. Raises `InvalidName`, `QueueNotFound` for a name that has neither a key nor an entry in the
    registry, and redis-py's errors of the connection.
    """
    for name in names:
        check_queue_name(name)
    driver = driver_of(broker)
    keyspace = driver.keyspace
    inventory = driver.perform(_take_inventory(keyspace, names)) if names else None
    info = driver.perform(server_info.read())
    for check in SERVER:
        yield from check(info)
    yield from driver.perform(_guarded("clock", server.clock()))
    if info.hidden:
        yield warning(
            "settings",
            f"cannot be read: {info.why_hidden}",
            f"not checked: {', '.join(dict.fromkeys(info.hidden))}; see them where the server is managed",
        )
    if info.text("redis_mode") == "sentinel":
        return
    inventory = inventory or driver.perform(_take_inventory(keyspace, names))
    queue = min(inventory.dues, default=min(names, default=NO_QUEUE))
    yield from driver.perform(_guarded("rights", rights.rights(keyspace, queue)))
    yield from driver.perform(_guarded("scripts", runtime.scripts(keyspace, queue)))
    yield from driver.perform(_guarded("reaper", runtime.reapers(keyspace, inventory.dues)))
    yield from _queues(driver, inventory)


def examine_queues(broker: Broker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """The part of `examine` that looks at queues."""
    driver = driver_of(broker)
    yield from _queues(driver, driver.perform(_take_inventory(driver.keyspace, names)))


def _queues(driver: Driver, inventory: KeyInventory) -> Iterator[Finding]:
    yield from inventory.findings
    yield from driver.perform(_guarded(policies.CHECK, policies.check_policies(driver.keyspace, inventory.sound)))
    circles: set[frozenset[str]] = set()
    for name in inventory.sound:
        check = queues.check_queue(driver.keyspace, name, circles)
        yield from driver.perform(_guarded("queue", check, queue=name))


def repair(broker: Broker, planned: Repair) -> str:
    """Perform a repair, safely while the queue is in use. Returns a text about the changes.

    A repair changes only damage that still exists, so a second run does no harm.
    """
    driver = driver_of(broker)
    return driver.perform(_repair(driver.keyspace, planned))


# Flows


def _guarded(check: str, flow: Flow[list[Finding]], *, queue: str | None = None) -> Flow[list[Finding]]:
    """The findings of a check, or one finding that Redis refused the check."""
    try:
        return (yield from flow)
    except (ConnectionError, TimeoutError):
        raise
    except ResponseError as error:
        level = warning if "permission" in str(error).lower() else problem
        return [level(check, f"cannot be checked: {error}", "", queue=queue)]


def _take_inventory(keyspace: Keyspace, names: Sequence[str]) -> Flow[KeyInventory]:
    try:
        inventory = yield from key_inventory.take(keyspace, names)
    except ResponseError as error:
        return (yield from reader.take(keyspace, names, error))
    missing = set(names) - inventory.dues.keys() - {finding.queue for finding in inventory.findings}
    if missing:
        raise QueueNotFound(min(missing))
    return inventory


def _repair(keyspace: Keyspace, planned: Repair) -> Flow[str]:
    name = planned.queue
    if planned.kind == "register":
        return "added to the registry" if (yield flows.Register(name)) else "is in the registry already"
    if planned.kind == "unregister":
        return (yield from _unregister(keyspace, name))
    if planned.kind == "remove_member":
        (removed,) = yield from flows.remove_members(keyspace, [planned.member])
        if isinstance(removed, Exception):
            raise removed
        return "removed from the registry" if removed else "left alone: it is not in the registry any more"
    if planned.kind == "clear":
        cleared = yield from flows.run(repair_commands.clear(keyspace, name))
        return "its keys are deleted" if cleared.cleared else "left alone: the queue exists now"
    if planned.kind == "reconcile":
        return (yield from policies.reconcile(keyspace, name))
    if planned.kind == "remove_policy":
        return (yield from policies.remove_policy(keyspace, planned.member))
    if planned.kind == "reset_version":
        return (yield from policies.reset_version(keyspace))
    try:
        done = yield from audit.repair_queue(keyspace, name)
    except QueueNotFound:
        return "left alone: the queue does not exist any more"
    lines = [DONE[word].format(*(plural(n, noun) for noun in NOUNS)) for word, n in sorted(done.items())]
    return "; ".join(lines) or "left alone: nothing is wrong any more"


#: Texts about repairs, by kind. The placeholders are numbers with these nouns.
NOUNS = ("sequence", "message", "deadline")
DONE = {
    "orphan": "{0} without a message removed",
    "unreachable": "{1} made ready again",
    "duplicate": "{1} left in one place",
    "deadline": "{2} corrected",
    "cursor": "cursor corrected",
    "last": "last sequence corrected",
    "bytes": "bytes counted again",
    "busy": "too busy to count its bytes: try again",
}


def _unregister(keyspace: Keyspace, name: str) -> Flow[str]:
    yield flows.Unregister(name)
    if name in (yield from key_inventory.take(keyspace, [name])).dues:
        # a client declares it just now: clients register a queue before they make it
        yield flows.Register(name)
        return "left in the registry: the queue exists now"
    return "removed from the registry"
