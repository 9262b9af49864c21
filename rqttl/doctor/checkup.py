"""All checks, one after the other, and the repairs. No check can fail: what it could not see is what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl import flows
from rqttl.broker import Broker
from rqttl.doctor import audit, inventory, memory, persistence, queues, reader, rights, server, work
from rqttl.doctor.facts import Facts
from rqttl.doctor.findings import Finding, Repair, problem, warning
from rqttl.errors import QueueNotFound
from rqttl.names import check_queue_name
from rqttl.protocol.commands import repair as calls
from rqttl.store.driver import Driver, driver_of
from rqttl.text import plural

#: What is asked of the server, in the order in which it is told.
SERVER: tuple[tuple[str, Callable[[Facts], Iterator[Finding]]], ...] = (
    ("server", server.kind), ("role", server.role), ("memory policy", memory.policy), ("memory", memory.left),
    ("persistence", persistence.durability), ("disk", persistence.writing), ("replicas", server.replicas),
    ("connections", server.patience), ("clock", server.clock),
)  # fmt: skip
#: For questions about the keys of a queue, where there is none.
NOBODY = "rqttl.doctor"


def examine(broker: Broker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Look at the server, and at all queues of the namespace, or at these. Changes nothing.

    Findings come as they are made. What a user may not ask, or a server does not tell, is a warning. Raises
    `InvalidName`, `QueueNotFound` for a name of which there is no key and no entry in the registry, and redis-py's
    errors of the connection.
    """
    for name in names:
        check_queue_name(name)
    driver = driver_of(broker)
    stock = _take(driver, names) if names else None
    facts = Facts(driver)
    for check, look in SERVER:
        yield from _guarded(check, lambda look=look: look(facts))  # type: ignore[misc]  # bound at once
    if facts.hidden:
        yield warning(
            "settings",
            f"cannot be read: {facts.why_hidden}",
            f"not checked: {', '.join(dict.fromkeys(facts.hidden))}; see them where the server is managed",
        )
    if facts.text("redis_mode") == "sentinel":
        return
    stock = stock or _take(driver, names)
    queue = min(stock.dues, default=min(names, default=NOBODY))
    yield from _guarded("rights", lambda: rights.rights(facts, queue))
    yield from _guarded("scripts", lambda: work.scripts(facts, queue))
    yield from _guarded("reaper", lambda: work.reapers(facts, stock.dues))
    yield from _queues(driver, stock)


def examine_queues(broker: Broker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """The part of `examine` that looks at queues."""
    driver = driver_of(broker)
    yield from _queues(driver, _take(driver, names))


def _take(driver: Driver, names: Sequence[str]) -> inventory.Stock:
    try:
        stock = inventory.take(driver, names)
    except ResponseError as error:
        return reader.take(driver, names, error)
    missing = set(names) - stock.dues.keys() - {one.queue for one in stock.findings}
    if missing:
        raise QueueNotFound(min(missing))
    return stock


def _queues(driver: Driver, stock: inventory.Stock) -> Iterator[Finding]:
    yield from stock.findings
    circles: set[frozenset[str]] = set()
    for name in stock.sound:
        yield from _guarded("queue", lambda name=name: queues.look(driver, name, circles), queue=name)  # type: ignore[misc]  # bound at once


def repair(broker: Broker, wanted: Repair) -> str:
    """Carry out a repair, safely while the queue is in use, and say what was done.

    Whatever is right by now is left as it is. Doing it twice does no harm.
    """
    driver = driver_of(broker)
    keyspace, name = driver.keyspace, wanted.queue
    if wanted.kind == "enter":
        return "entered into the registry" if driver.step(flows.Enter(name)) else "was in the registry already"
    if wanted.kind == "take_out":
        return _take_out(driver, name)
    if wanted.kind == "strike":
        (gone,) = driver.store.ask([("SREM", keyspace.registry, wanted.member)])
        if isinstance(gone, Exception):
            raise gone
        return "struck out of the registry" if gone else "left alone: it is not there any more"
    if wanted.kind == "clear":
        gone = driver.store.run(calls.clear(keyspace, name))[2]
        return "its keys are deleted" if gone else "left alone: the queue is there now"
    try:
        done = driver.perform(audit.mend(keyspace, name))
    except QueueNotFound:
        return "left alone: the queue is gone"
    said = [DONE[word].format(*(plural(n, noun) for noun in NOUNS)) for word, n in sorted(done.items())]
    return "; ".join(said) or "left alone: all agrees by now"


#: What a repair says of each thing that it has done; how many comes in with the noun.
NOUNS = ("id", "message", "deadline")
DONE = {
    "orphan": "{0} without a message taken out",
    "unreachable": "{1} made ready again",
    "duplicate": "{1} left in one place",
    "deadline": "{2} put right",
    "cursor": "cursor put right",
    "last": "last id put right",
    "bytes": "bytes counted anew",
    "busy": "too busy to count its bytes: try again",
}


def _take_out(driver: Driver, name: str) -> str:
    driver.step(flows.Enter(name, gone=True))
    if name in inventory.take(driver, [name]).dues:
        # it was declared just now: its client entered it before it made it
        driver.step(flows.Enter(name))
        return "left in the registry: the queue is there now"
    return "taken out of the registry"


def _guarded(check: str, look: Callable[[], Iterator[Finding]], *, queue: str | None = None) -> Iterator[Finding]:
    """The findings of a check; where Redis refuses it, that it was refused."""
    try:
        yield from look()
    except (ConnectionError, TimeoutError):
        raise
    except ResponseError as error:
        level = warning if "permission" in str(error).lower() else problem
        yield level(check, f"cannot be checked: {error}", "", queue=queue)
