"""All keys of a namespace: keys of queues, keys without a queue, and the registry.

Only this module uses SCAN. It checks each suspicion again, in one transaction and after a moment: queues come and
go, and a client registers them in a separate step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from rqttl import flows
from rqttl.doctor.findings import Finding, Repair, first_few, ok, problem, warning
from rqttl.errors import RegistryDamaged
from rqttl.flows import Driver
from rqttl.protocol import replies
from rqttl.protocol.keys import PARTS, queue_name, queue_names
from rqttl.text import format_value, plural
from rqttl.units import as_size

PAGE = 500
#: Checks of a suspicion, and the seconds in between.
LOOKS, PAUSE = 3, 0.1
#: The command that counts the messages of a part, by its type.
_COUNTING = {"stream": "XLEN", "hash": "HLEN"}


@dataclass
class KeyInventory:
    """Queues with their next due times, and findings about keys.

    All keys of the queues in `sound` have the right types.
    """

    dues: dict[str, int | None] = field(default_factory=dict)
    sound: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def take(driver: Driver, names: Sequence[str] = ()) -> KeyInventory:
    """Look at all keys of the namespace, or at the keys of the named queues."""
    inventory = KeyInventory()
    listed = set(names) if names else _registry(driver, inventory)
    parts, strange = ({name: set(PARTS) for name in names}, []) if names else _scan(driver)
    candidates = sorted(listed | parts.keys())
    records = dict(zip(candidates, _records(driver, candidates), strict=True))
    missing = [name for name in candidates if not _is_there(records[name])]
    inventory.dues = {name: _due(records[name]) for name in candidates if _is_there(records[name])}
    inventory.findings += _remains(driver, [name for name in missing if name in parts])
    readable = [name for name in inventory.dues if not isinstance(records[name], RedisError)]
    inventory.findings += _registered(driver, readable, sorted(listed & set(missing)))
    wrong = list(_types(driver, {name: parts.get(name, set()) & set(PARTS) for name in inventory.dues}))
    inventory.findings += wrong
    inventory.sound = sorted(inventory.dues.keys() - {finding.queue for finding in wrong})
    inventory.findings += _strange(
        strange + [driver.keyspace.key(name, part) for name, own in parts.items() for part in own - set(PARTS)]
    )
    if not inventory.findings:
        inventory.findings.append(
            ok("keys", f"{plural(len(inventory.dues), 'queue')}, all in the registry, no other keys")
        )
    return inventory


def _registry(driver: Driver, inventory: KeyInventory) -> set[str]:
    """The names in the registry. Damage of the registry itself goes into the findings."""
    key = driver.keyspace.registry
    try:
        members = driver.perform(flows.members(driver.keyspace, PAGE))
    except RegistryDamaged as error:
        advice = f"look at it, then DEL {key}; `rqttl doctor --repair` adds all queues to it again"
        inventory.findings.append(problem("registry", f"{error}; nothing can list the queues", advice))
        return set()
    for member in sorted(entry for entry in members if queue_name(entry) is None):
        name = format_value(member, bytes)
        inventory.findings.append(
            warning(
                "registry",
                f"{name} is in the registry, but is no valid name of a queue",
                "a reaper removes it in its next pass, `rqttl doctor --repair` now",
                repair=Repair("remove_member", name, "remove it from the registry", member),
            )
        )
    return set(queue_names(members))


def _scan(driver: Driver) -> tuple[dict[str, set[str]], list[str]]:
    """The parts of each queue, and the keys that do not have the form of a part."""
    parts: dict[str, set[str]] = {}
    strange: list[str] = []
    cursor, begun = 0, False
    while cursor or not begun:
        begun = True
        scan = flows.execute(replies.page, "SCAN", cursor, "MATCH", driver.keyspace.everything, "COUNT", PAGE)
        cursor, keys = driver.perform(scan)
        for key in keys:
            name = driver.keyspace.split(key)
            if name is not None:
                parts.setdefault(name[0], set()).add(name[1])
            elif key != driver.keyspace.registry.encode():
                strange.append(key.decode("utf-8", "backslashreplace"))
    return parts, strange


def _ask(driver: Driver, calls: Sequence[tuple[Any, ...]], *, together: bool = False) -> list[Any]:
    """The answers to many calls, errors included; `together` makes each page one transaction."""
    answers: list[Any] = []
    for start in range(0, len(calls), PAGE):
        page = calls[start : start + PAGE]
        if not together:
            answers += driver.step(flows.Read(page, keep_errors=True))
            continue
        *queued, done = driver.step(flows.Read([("MULTI",), *page, ("EXEC",)], keep_errors=True))
        if isinstance(done, Exception):
            raise next((reply for reply in queued if isinstance(reply, Exception)), done)
        answers += done
    return answers


def _permitted(answers: list[Any]) -> list[Any]:
    """The answers. Raises the first refusal for want of rights: it says nothing about the keys."""
    for answer in answers:
        if isinstance(answer, NoPermissionError):
            raise answer
    return answers


def _records(driver: Driver, names: Iterable[str]) -> list[Any]:
    calls = [("HMGET", driver.keyspace.key(name, "meta"), "version", "due_at") for name in names]
    return _permitted(_ask(driver, calls))


def _is_there(record: Any) -> bool:
    """Tell whether a queue exists: its record has a version, or has the wrong type and cannot be read."""
    return isinstance(record, RedisError) or record[0] is not None


def _due(record: Any) -> int | None:
    due = None if isinstance(record, RedisError) else record[1]
    return int(due) if due and due.isdigit() else None


def _persistent(names: Sequence[str], still: Callable[[str], bool]) -> list[str]:
    """Names for which `still` keeps holding over several looks."""
    names = list(names)
    for look in range(LOOKS):
        if names and look:
            time.sleep(PAUSE)
        names = [name for name in names if still(name)]
    return names


def _registered(driver: Driver, existing: Sequence[str], missing: Sequence[str]) -> Iterator[Finding]:
    """Findings about queues that are not in the registry, and names in it without a queue."""
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

    members = _permitted(_ask(driver, [("SISMEMBER", keyspace.registry, name) for name in existing]))
    unlisted = [name for name, listed in zip(existing, members, strict=True) if listed == 0]
    for name in _persistent(unlisted, lambda name: state(name) == (True, False)):
        yield problem(
            "registry",
            "not in the registry: no reaper sweeps it, nothing lists it",
            "`rqttl doctor --repair` adds it",
            queue=name,
            repair=Repair("register", name, "add it to the registry"),
        )
    for name in _persistent(missing, lambda name: state(name) == (False, True)):
        yield warning(
            "registry",
            "in the registry, but the queue does not exist",
            "a reaper removes it after ten minutes, `rqttl doctor --repair` now",
            queue=name,
            repair=Repair("unregister", name, "remove its name from the registry"),
        )


def _remains(driver: Driver, names: Sequence[str]) -> Iterator[Finding]:
    """Findings about keys without a queue, except the trace of a deleted queue."""
    for name in names:
        keys = {part.name: driver.keyspace.key(name, part.name) for part in PARTS.values() if not part.outlives}
        record, *kinds = _ask(
            driver,
            [("HMGET", keys["meta"], "version", "due_at"), *[("TYPE", key) for key in keys.values()]],
            together=True,
        )
        left = [part for part, kind in zip(keys, kinds, strict=True) if kind != b"none"]
        if left and not _is_there(record):
            size, messages = _content(driver, keys, left)
            yield problem(
                "keys",
                f"{plural(len(left), 'key')} without a queue: {', '.join(left)}; {plural(messages, 'message')}, {size}",
                f"`rqttl queue declare {name}` first keeps the messages; `rqttl doctor --repair` deletes "
                "keys without a queue",
                queue=name,
                repair=Repair(
                    "clear", name, f"delete its {plural(len(left), 'key')} and {plural(messages, 'message')}"
                ),
            )


def _content(driver: Driver, keys: dict[str, str], left: Sequence[str]) -> tuple[str, int]:
    sizes = _ask(driver, [("MEMORY", "USAGE", keys[part]) for part in left])
    known = [size for size in sizes if isinstance(size, int)]
    contents = [part for part in PARTS.values() if part.has_messages]
    counts = _ask(driver, [(_COUNTING[part.type], keys[part.name]) for part in contents])
    messages = sum(count for count in counts if isinstance(count, int))
    return as_size(sum(known)) if len(known) == len(sizes) else "size unknown", messages


def _types(driver: Driver, parts: dict[str, set[str]]) -> Iterator[Finding]:
    """Findings about keys of the wrong type: every script that needs one fails."""
    asked = [(name, part, driver.keyspace.key(name, part)) for name in sorted(parts) for part in sorted(parts[name])]
    kinds = _permitted(_ask(driver, [("TYPE", key) for _, _, key in asked]))
    for (name, part, key), kind in zip(asked, kinds, strict=True):
        if isinstance(kind, ResponseError) or kind.decode() not in (PARTS[part].type, "none"):
            state = (
                "cannot be read"
                if isinstance(kind, ResponseError)
                else f"is a {kind.decode()}, not a {PARTS[part].type}"
            )
            yield problem("keys", f"{key} {state}: calls that need it fail", f"look at it, then DEL {key}", queue=name)


def _strange(keys: Sequence[str]) -> Iterator[Finding]:
    if keys:
        yield warning(
            "keys",
            f"{plural(len(keys), 'key')} that rqttl does not know: {first_few(sorted(keys))}",
            "look for their owner: a later release of rqttl, or another program",
        )
