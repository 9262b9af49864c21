"""All keys of a namespace, as flows: keys of queues, keys without a queue, and the registry.

Only this module uses SCAN. It checks each suspicion again, in one transaction and after a moment: queues come and
go, and a client registers them in a separate step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from rqttl import flows
from rqttl.doctor.findings import Finding, Repair, first_few, ok, problem, warning
from rqttl.errors import RegistryDamaged
from rqttl.flows import Flow
from rqttl.protocol import replies
from rqttl.protocol.keys import PARTS, WAKEUP, Keyspace, queue_name, queue_names
from rqttl.text import format_value, plural
from rqttl.units import as_size

PAGE = 500
#: Checks of a suspicion, and the ms in between.
LOOKS, PAUSE = 3, 100
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


def take(keyspace: Keyspace, names: Sequence[str] = ()) -> Flow[KeyInventory]:
    """Look at all keys of the namespace, or at the keys of the named queues."""
    inventory = KeyInventory()
    listed = set(names) if names else (yield from _registry(keyspace, inventory))
    parts, strange = ({name: set(PARTS) for name in names}, []) if names else (yield from _scan(keyspace))
    candidates = sorted(listed | parts.keys())
    records = dict(zip(candidates, (yield from _records(keyspace, candidates)), strict=True))
    missing = [name for name in candidates if not _is_there(records[name])]
    inventory.dues = {name: _due(records[name]) for name in candidates if _is_there(records[name])}
    inventory.findings += yield from _remains(keyspace, [name for name in missing if name in parts])
    readable = [name for name in inventory.dues if not isinstance(records[name], RedisError)]
    inventory.findings += yield from _registered(keyspace, readable, sorted(listed & set(missing)))
    own = {name: parts.get(name, set()) & set(PARTS) for name in inventory.dues}
    wrong = yield from _types(keyspace, own)
    inventory.findings += wrong
    inventory.sound = sorted(inventory.dues.keys() - {finding.queue for finding in wrong})
    inventory.findings += _strange(
        strange + [keyspace.key(name, part) for name, all_parts in parts.items() for part in all_parts - set(PARTS)]
    )
    if not inventory.findings:
        inventory.findings.append(
            ok("keys", f"{plural(len(inventory.dues), 'queue')}, all in the registry, no other keys")
        )
    return inventory


def _registry(keyspace: Keyspace, inventory: KeyInventory) -> Flow[set[str]]:
    """The names in the registry. Damage of the registry itself goes into the findings."""
    key = keyspace.registry
    try:
        members = yield from flows.members(keyspace, PAGE)
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


def _scan(keyspace: Keyspace) -> Flow[tuple[dict[str, set[str]], list[str]]]:
    """The parts of each queue, and the keys that do not have the form of a part."""
    parts: dict[str, set[str]] = {}
    strange: list[str] = []
    shared = (keyspace.registry, keyspace.policies, keyspace.workers, keyspace.birth)
    cursor, begun = 0, False
    while cursor or not begun:
        begun = True
        scan = flows.execute(replies.page, "SCAN", cursor, "MATCH", keyspace.everything, "COUNT", PAGE)
        cursor, keys = yield from scan
        for key in keys:
            name = keyspace.split(key)
            if name is not None:
                parts.setdefault(name[0], set()).add(name[1])
            elif key.decode("utf-8", "replace") not in shared:
                strange.append(key.decode("utf-8", "backslashreplace"))
    return parts, strange


def _ask(calls: Sequence[tuple[Any, ...]], *, together: bool = False) -> Flow[list[Any]]:
    """The answers to many calls, errors included; `together` makes each page one transaction."""
    answers: list[Any] = []
    for start in range(0, len(calls), PAGE):
        page = calls[start : start + PAGE]
        if not together:
            answers += yield flows.Read(page, keep_errors=True)
            continue
        *queued, done = yield flows.Read([("MULTI",), *page, ("EXEC",)], keep_errors=True)
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


def _record(keyspace: Keyspace, name: str) -> tuple[str, ...]:
    """The command that reads the fields of a queue that `_is_there` and `_due` judge."""
    return "HMGET", keyspace.key(name, "meta"), "version", "due_at"


def _records(keyspace: Keyspace, names: Iterable[str]) -> Flow[list[Any]]:
    calls = [_record(keyspace, name) for name in names]
    return _permitted((yield from _ask(calls)))


def _is_there(record: Any) -> bool:
    """Tell whether a queue exists: its record has a version, or has the wrong type and cannot be read."""
    return isinstance(record, RedisError) or record[0] is not None


def _due(record: Any) -> int | None:
    due = None if isinstance(record, RedisError) else record[1]
    return int(due) if due and due.isdigit() else None


def _persistent(keyspace: Keyspace, names: Sequence[str], state: tuple[bool, bool]) -> Flow[list[str]]:
    """Names that keep a state over several looks; see `_states`."""
    names = list(names)
    for look in range(LOOKS):
        if names and look:
            yield flows.Sleep(PAUSE)
        states = yield from _states(keyspace, names)
        names = [name for name in names if states[name] == state]
    return names


def _states(keyspace: Keyspace, names: Sequence[str]) -> Flow[dict[str, tuple[bool, bool]]]:
    """The state of each name, in one transaction for each page: the queue exists, the name is in the registry."""
    looks = [_record(keyspace, name) for name in names]
    calls = [
        call for name, look in zip(names, looks, strict=True) for call in (look, ("SISMEMBER", keyspace.registry, name))
    ]
    answers = yield from _ask(calls, together=True)
    pairs = zip(names, answers[::2], answers[1::2], strict=True)
    return {name: (_is_there(record), listed == 1) for name, record, listed in pairs}


def _registered(keyspace: Keyspace, existing: Sequence[str], missing: Sequence[str]) -> Flow[list[Finding]]:
    """Findings about queues that are not in the registry, and names in it without a queue."""
    members = _permitted((yield from _ask([("SISMEMBER", keyspace.registry, name) for name in existing])))
    unlisted = [name for name, listed in zip(existing, members, strict=True) if listed == 0]
    findings = [
        problem(
            "registry",
            "not in the registry: no reaper sweeps it, nothing lists it",
            "`rqttl doctor --repair` adds it",
            queue=name,
            repair=Repair("register", name, "add it to the registry"),
        )
        for name in (yield from _persistent(keyspace, unlisted, (True, False)))
    ]
    findings += [
        warning(
            "registry",
            "in the registry, but the queue does not exist",
            "a reaper removes it after ten minutes, `rqttl doctor --repair` now",
            queue=name,
            repair=Repair("unregister", name, "remove its name from the registry"),
        )
        for name in (yield from _persistent(keyspace, missing, (False, True)))
    ]
    return findings


def _remains(keyspace: Keyspace, names: Sequence[str]) -> Flow[list[Finding]]:
    """Findings about keys without a queue, except the trace of a deleted queue."""
    findings = []
    for name in names:
        keys = {part.name: keyspace.key(name, part.name) for part in PARTS.values() if not part.outlives}
        calls = [_record(keyspace, name), ("PTTL", keys[WAKEUP]), *[("TYPE", key) for key in keys.values()]]
        record, life, *kinds = yield from _ask(calls, together=True)
        left = [part for part, kind in zip(keys, kinds, strict=True) if kind != b"none"]
        if WAKEUP in left and life >= 0:
            left.remove(WAKEUP)  # hints for consumers of a deleted queue: Redis removes them
        if left and not _is_there(record):
            size, messages = yield from _content(keys, left)
            findings.append(_left_over(name, left, size, messages))
    return findings


def _left_over(name: str, left: Sequence[str], size: str, messages: int) -> Finding:
    keys, content = plural(len(left), "key"), plural(messages, "message")
    return problem(
        "keys",
        f"{keys} without a queue: {', '.join(left)}; {content}, {size}",
        f"`rqttl queue declare {name}` first keeps the messages; `rqttl doctor --repair` deletes keys without a queue",
        queue=name,
        repair=Repair("clear", name, f"delete its {keys} and {content}"),
    )


def _content(keys: dict[str, str], left: Sequence[str]) -> Flow[tuple[str, int]]:
    sizes = yield from _ask([("MEMORY", "USAGE", keys[part]) for part in left])
    known = [size for size in sizes if isinstance(size, int)]
    contents = [part for part in PARTS.values() if part.has_messages]
    counts = yield from _ask([(_COUNTING[part.type], keys[part.name]) for part in contents])
    messages = sum(count for count in counts if isinstance(count, int))
    return as_size(sum(known)) if len(known) == len(sizes) else "size unknown", messages


def _types(keyspace: Keyspace, parts: dict[str, set[str]]) -> Flow[list[Finding]]:
    """Findings about keys of the wrong type: every script that needs one fails."""
    findings = []
    asked = [(name, part, keyspace.key(name, part)) for name in sorted(parts) for part in sorted(parts[name])]
    kinds = _permitted((yield from _ask([("TYPE", key) for _, _, key in asked])))
    for (name, part, key), kind in zip(asked, kinds, strict=True):
        if isinstance(kind, ResponseError) or kind.decode() not in (PARTS[part].type, "none"):
            state = (
                "cannot be read"
                if isinstance(kind, ResponseError)
                else f"is a {kind.decode()}, not a {PARTS[part].type}"
            )
            advice = f"look at it, then DEL {key}"
            findings.append(problem("keys", f"{key} {state}: calls that need it fail", advice, queue=name))
    return findings


def _strange(keys: Sequence[str]) -> Iterator[Finding]:
    if keys:
        yield warning(
            "keys",
            f"{plural(len(keys), 'key')} that rqttl does not know: {first_few(sorted(keys))}",
            "look for their owner: a later release of rqttl, or another program",
        )
