"""All checks, one after the other, and the repairs. A check that Redis refuses is a finding, not an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl import flows
from rqttl.broker import Broker
from rqttl.doctor import audit, key_inventory, memory, persistence, queues, reader, rights, runtime, server
from rqttl.doctor.findings import Finding, Repair, problem, warning
from rqttl.doctor.key_inventory import KeyInventory
from rqttl.doctor.server_info import ServerInfo
from rqttl.errors import QueueNotFound
from rqttl.flows import Driver
from rqttl.names import check_queue_name
from rqttl.protocol.commands import repair as repair_commands
from rqttl.store.driver import driver_of
from rqttl.text import plural

#: Checks of the server, in the order in which they are printed.
SERVER: tuple[tuple[str, Callable[[ServerInfo], Iterator[Finding]]], ...] = (
    ("server", server.kind), ("role", server.role), ("memory policy", memory.policy), ("memory", memory.left),
    ("persistence", persistence.durability), ("disk", persistence.writing), ("replicas", server.replicas),
    ("connections", server.patience), ("clock", server.clock),
)  # fmt: skip
#: Name of a queue for checks that need one, where no queue exists.
NO_QUEUE = "rqttl.doctor"


def examine(broker: Broker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Check the server and the named queues, or all queues of the namespace. Changes nothing.

    Yields each finding at once. A question that the user has no right to ask, or that the server does not answer, is a
    warning. Raises `InvalidName`, `QueueNotFound` for a name that has neither a key nor an entry in the registry, and
    redis-py's errors of the connection.
    """
    for name in names:
        check_queue_name(name)
    driver = driver_of(broker)
    inventory = _take_inventory(driver, names) if names else None
    info = ServerInfo(driver)
    for check, run in SERVER:
        yield from _guarded(check, lambda run=run: run(info))  # type: ignore[misc]  # bound at once
    if info.hidden:
        yield warning(
            "settings",
            f"cannot be read: {info.why_hidden}",
            f"not checked: {', '.join(dict.fromkeys(info.hidden))}; see them where the server is managed",
        )
    if info.text("redis_mode") == "sentinel":
        return
    inventory = inventory or _take_inventory(driver, names)
    queue = min(inventory.dues, default=min(names, default=NO_QUEUE))
    yield from _guarded("rights", lambda: rights.rights(info, queue))
    yield from _guarded("scripts", lambda: runtime.scripts(info, queue))
    yield from _guarded("reaper", lambda: runtime.reapers(info, inventory.dues))
    yield from _queues(driver, inventory)


def examine_queues(broker: Broker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """The part of `examine` that looks at queues."""
    driver = driver_of(broker)
    yield from _queues(driver, _take_inventory(driver, names))


def _take_inventory(driver: Driver, names: Sequence[str]) -> KeyInventory:
    try:
        inventory = key_inventory.take(driver, names)
    except ResponseError as error:
        return reader.take(driver, names, error)
    missing = set(names) - inventory.dues.keys() - {finding.queue for finding in inventory.findings}
    if missing:
        raise QueueNotFound(min(missing))
    return inventory


def _queues(driver: Driver, inventory: KeyInventory) -> Iterator[Finding]:
    yield from inventory.findings
    circles: set[frozenset[str]] = set()
    for name in inventory.sound:
        yield from _guarded("queue", lambda name=name: queues.check_queue(driver, name, circles), queue=name)  # type: ignore[misc]  # bound at once


def repair(broker: Broker, planned: Repair) -> str:
    """Perform a repair, safely while the queue is in use. Returns a text about the changes.

    A repair changes only damage that still exists, so a second run does no harm.
    """
    driver = driver_of(broker)
    keyspace, name = driver.keyspace, planned.queue
    if planned.kind == "register":
        return "added to the registry" if driver.step(flows.Register(name)) else "is in the registry already"
    if planned.kind == "unregister":
        return _unregister(driver, name)
    if planned.kind == "remove_member":
        (removed,) = driver.perform(flows.remove_members(keyspace, [planned.member]))
        if isinstance(removed, Exception):
            raise removed
        return "removed from the registry" if removed else "left alone: it is not in the registry any more"
    if planned.kind == "clear":
        deleted = driver.perform(flows.run(repair_commands.clear(keyspace, name))).cleared
        return "its keys are deleted" if deleted else "left alone: the queue exists now"
    try:
        done = driver.perform(audit.repair_queue(keyspace, name))
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


def _unregister(driver: Driver, name: str) -> str:
    driver.step(flows.Unregister(name))
    if name in key_inventory.take(driver, [name]).dues:
        # a client declares it just now: clients register a queue before they make it
        driver.step(flows.Register(name))
        return "left in the registry: the queue exists now"
    return "removed from the registry"


def _guarded(check: str, run: Callable[[], Iterator[Finding]], *, queue: str | None = None) -> Iterator[Finding]:
    """The findings of a check, or one finding that Redis refused the check."""
    try:
        yield from run()
    except (ConnectionError, TimeoutError):
        raise
    except ResponseError as error:
        level = warning if "permission" in str(error).lower() else problem
        yield level(check, f"cannot be checked: {error}", "", queue=queue)
