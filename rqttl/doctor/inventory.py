"""All keys of a namespace: which belong to a queue, which are left over, and whether the registry agrees.

The one place that uses SCAN. What looks wrong is looked at again, in one transaction, and after a moment: queues come
and go, and a client enters them into the registry in a step of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from rqttl.doctor.findings import Finding, Repair, ok, problem, some, warning
from rqttl.errors import RegistryDamaged
from rqttl.protocol import replies
from rqttl.protocol.keys import PARTS, TOMBSTONE, queue_name, queue_names
from rqttl.store.driver import Driver
from rqttl.text import plural, shown
from rqttl.units import as_size

if TYPE_CHECKING:
    pass

PAGE = 500
#: How often what looks wrong is looked at again, and the seconds in between.
LOOKS, PAUSE = 3, 0.1
TYPES = {
    "meta": "hash", "log": "stream", "detached": "hash", "expiry": "zset", "leases": "zset", "requeued": "zset",
    "delayed": "zset", "failures": "hash", "wakeup": "list", "waiters": "zset", "consumers": "zset", "dedup": "zset",
    "dedup_ids": "set", "dedup_windows": "zset", "tombstone": "hash",
}  # fmt: skip


@dataclass
class Stock:
    """What is there: queues with their next due time, and what was found on the way.

    `sound` are the queues all of whose keys have their right type.
    """

    dues: dict[str, int | None] = field(default_factory=dict)
    sound: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def take(driver: Driver, names: Sequence[str] = ()) -> Stock:
    """Look at all keys of the namespace, or at those of these queues."""
    stock = Stock()
    listed = set(names) if names else _registry(driver, stock)
    found, strange = ({name: set(PARTS) for name in names}, []) if names else _scan(driver)
    candidates = sorted(listed | found.keys())
    records = dict(zip(candidates, _records(driver, candidates), strict=True))
    missing = [name for name in candidates if not _is_there(records[name])]
    stock.dues = {name: _due(records[name]) for name in candidates if _is_there(records[name])}
    stock.findings += _remains(driver, [name for name in missing if name in found])
    readable = [name for name in stock.dues if not isinstance(records[name], RedisError)]
    stock.findings += _registered(driver, readable, sorted(listed & set(missing)))
    wrong = list(_types(driver, {name: found.get(name, set()) & set(PARTS) for name in stock.dues}))
    stock.findings += wrong
    stock.sound = sorted(stock.dues.keys() - {one.queue for one in wrong})
    stock.findings += _strange(
        strange + [driver.keyspace.key(name, part) for name, parts in found.items() for part in parts - set(PARTS)]
    )
    if not stock.findings:
        stock.findings.append(ok("keys", f"{plural(len(stock.dues), 'queue')}, all in the registry, no other keys"))
    return stock


def _registry(driver: Driver, stock: Stock) -> set[str]:
    """The names in the registry. What is wrong with the registry itself goes into the findings."""
    key = driver.keyspace.registry
    try:
        members = driver.members(key, PAGE)
    except RegistryDamaged as error:
        advice = f"look at it, then DEL {key}; `rqttl doctor --repair` enters all queues again"
        stock.findings.append(problem("registry", f"{error}; nothing can list the queues", advice))
        return set()
    for member in sorted(one for one in members if queue_name(one) is None):
        told = shown(member, bytes)
        stock.findings.append(
            warning(
                "registry",
                f"{told} is in the registry, and no queue can be called so",
                "a reaper takes it out in its next pass, `rqttl doctor --repair` now",
                repair=Repair("strike", told, "strike it out of the registry", member),
            )
        )
    return set(queue_names(members))


def _scan(driver: Driver) -> tuple[dict[str, set[str]], list[str]]:
    """The parts of each queue, and keys that are formed like none."""
    found: dict[str, set[str]] = {}
    strange: list[str] = []
    cursor, begun = 0, False
    while cursor or not begun:
        begun = True
        cursor, keys = driver.store.call(
            replies.page, "SCAN", cursor, "MATCH", driver.keyspace.everything, "COUNT", PAGE
        )
        for key in keys:
            name = driver.keyspace.split(key)
            if name is not None:
                found.setdefault(name[0], set()).add(name[1])
            elif key != driver.keyspace.registry.encode():
                strange.append(key.decode("utf-8", "backslashreplace"))
    return found, strange


def _ask(driver: Driver, calls: Sequence[tuple[Any, ...]], *, together: bool = False) -> list[Any]:
    """The answers to many calls, errors among them; as one transaction if `together`."""
    answers: list[Any] = []
    for start in range(0, len(calls), PAGE):
        page = calls[start : start + PAGE]
        if not together:
            answers += driver.store.ask(page)
            continue
        *queued, done = driver.store.ask([("MULTI",), *page, ("EXEC",)])
        if isinstance(done, Exception):
            raise next((one for one in queued if isinstance(one, Exception)), done)
        answers += done
    return answers


def _permitted(answers: list[Any]) -> list[Any]:
    """The answers. Raises where one of them is that this user may not ask, which says nothing about the keys."""
    for answer in answers:
        if isinstance(answer, NoPermissionError):
            raise answer
    return answers


def _records(driver: Driver, names: Iterable[str]) -> list[Any]:
    calls = [("HMGET", driver.keyspace.key(name, "meta"), "version", "due_at") for name in names]
    return _permitted(_ask(driver, calls))


def _is_there(record: Any) -> bool:
    """A queue exists while its record names a version; a record of another type is one that cannot be read."""
    return isinstance(record, RedisError) or record[0] is not None


def _due(record: Any) -> int | None:
    due = None if isinstance(record, RedisError) else record[1]
    return int(due) if due and due.isdigit() else None


def _again(names: Sequence[str], still: Callable[[str], bool]) -> list[str]:
    """Those of the names that go on being as they are."""
    names = list(names)
    for look in range(LOOKS):
        if names and look:
            time.sleep(PAUSE)
        names = [name for name in names if still(name)]
    return names


def _registered(driver: Driver, there: Sequence[str], missing: Sequence[str]) -> Iterator[Finding]:
    """Queues that are not in the registry, and names in it without a queue."""
    keyspace = driver.keyspace

    def state(name: str) -> tuple[bool, bool]:
        record, listed = _ask(
            driver,
            [
                ("HMGET", keyspace.key(name, "meta"), "version", "due_at"),
                ("SISMEMBER", keyspace.registry, name),
            ],
            together=True,
        )
        return _is_there(record), listed == 1

    members = _permitted(_ask(driver, [("SISMEMBER", keyspace.registry, name) for name in there]))
    unlisted = [name for name, listed in zip(there, members, strict=True) if listed == 0]
    for name in _again(unlisted, lambda name: state(name) == (True, False)):
        yield problem(
            "registry",
            "not in the registry: no reaper sweeps it, nothing lists it",
            "`rqttl doctor --repair` enters it",
            queue=name,
            repair=Repair("enter", name, "enter it into the registry"),
        )
    for name in _again(missing, lambda name: state(name) == (False, True)):
        yield warning(
            "registry",
            "in the registry, but there is no such queue",
            "a reaper takes it out after ten minutes, `rqttl doctor --repair` now",
            queue=name,
            repair=Repair("take_out", name, "take its name out of the registry"),
        )


def _remains(driver: Driver, names: Sequence[str]) -> Iterator[Finding]:
    """Keys of queues that are not there, but for the trace that a deleted one leaves."""
    for name in names:
        keys = {part: driver.keyspace.key(name, part) for part in PARTS if part != TOMBSTONE}
        record, *kinds = _ask(
            driver,
            [("HMGET", keys["meta"], "version", "due_at"), *[("TYPE", key) for key in keys.values()]],
            together=True,
        )
        left = [part for part, kind in zip(keys, kinds, strict=True) if kind != b"none"]
        if left and not _is_there(record):
            size, messages = _weigh(driver, keys, left)
            yield problem(
                "keys",
                f"{plural(len(left), 'key')} without a queue: {', '.join(left)}; {plural(messages, 'message')}, {size}",
                f"`rqttl queue declare {name}` first, and the messages are kept; `rqttl doctor --repair` deletes "
                "what has no queue",
                queue=name,
                repair=Repair(
                    "clear", name, f"delete its {plural(len(left), 'key')} and {plural(messages, 'message')}"
                ),
            )


def _weigh(driver: Driver, keys: dict[str, str], left: Sequence[str]) -> tuple[str, int]:
    sizes = _ask(driver, [("MEMORY", "USAGE", keys[part]) for part in left])
    known = [size for size in sizes if isinstance(size, int)]
    counts = _ask(driver, [("XLEN", keys["log"]), ("HLEN", keys["detached"])])
    messages = sum(count for count in counts if isinstance(count, int))
    return as_size(sum(known)) if len(known) == len(sizes) else "size unknown", messages


def _types(driver: Driver, parts: dict[str, set[str]]) -> Iterator[Finding]:
    """Keys of the wrong type: every script that meets one fails."""
    asked = [(name, part, driver.keyspace.key(name, part)) for name in sorted(parts) for part in sorted(parts[name])]
    kinds = _permitted(_ask(driver, [("TYPE", key) for _, _, key in asked]))
    for (name, part, key), kind in zip(asked, kinds, strict=True):
        if isinstance(kind, ResponseError) or kind.decode() not in (TYPES[part], "none"):
            what = "cannot be read" if isinstance(kind, ResponseError) else f"is a {kind.decode()}, not a {TYPES[part]}"
            yield problem("keys", f"{key} {what}: calls that need it fail", f"look at it, then DEL {key}", queue=name)


def _strange(keys: Sequence[str]) -> Iterator[Finding]:
    if keys:
        yield warning(
            "keys",
            f"{plural(len(keys), 'key')} that rqttl does not know: {some(sorted(keys))}",
            "look whose they are; of a later release of rqttl, or of nobody",
        )
