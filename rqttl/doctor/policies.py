"""Checks of policies, as flows: damage of the stored ones, and queues whose options in force do not follow them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from rqttl import flows
from rqttl.doctor.findings import Finding, Repair, ok, problem
from rqttl.doctor.key_inventory import LOOKS, PAUSE
from rqttl.doctor.queues import stored_options
from rqttl.errors import QueueDamaged
from rqttl.flows import Flow
from rqttl.flows.following import Change
from rqttl.options import Value, written
from rqttl.policies import PolicySet
from rqttl.policies.damage import Damage
from rqttl.policies.policy_set import VERSION
from rqttl.protocol import commands, replies
from rqttl.protocol.commands import Refused
from rqttl.protocol.keys import Keyspace
from rqttl.text import escape, plural

CHECK = "policies"
#: A new version after damage lies below. A version has at most 16 digits, which leaves room for later changes.
FIRST_VERSIONS = 10**15


def check_policies(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[Finding]]:
    """Find damaged policies; without damage, the queues whose options in force do not follow the policies."""
    (fields,) = yield flows.Read([("HGETALL", keyspace.policies)], keep_errors=True)
    if isinstance(fields, Exception) and "WRONGTYPE" in str(fields):
        text = f"the key {keyspace.policies} has another type than rqttl gave it; no policy can be read"
        advice = f"look at it, then DEL {keyspace.policies}, and set the policies again"
        return [problem(CHECK, text, advice)]
    if isinstance(fields, Exception):
        raise fields
    stored = dict(flows.policies.pairs(fields))
    # the version comes first: without it, no other repair can write
    damages = sorted(_damages(stored).items(), key=lambda item: (item[0] != VERSION, item[0]))
    damaged = [_damage(keyspace, field, damage) for field, damage in damages]
    if damaged:
        return damaged
    outdated = yield from _outdated(keyspace, queues)
    findings = yield from _unreadable(keyspace, queues)
    findings += [_difference(name, change) for name, change in outdated.items()]
    count = len(stored.keys() - {VERSION})
    if count and not findings:
        findings.append(ok(CHECK, f"{count:,} stored, and {plural(len(queues), 'queue')} with the options that follow"))
    return findings


def _damages(fields: Mapping[bytes, bytes]) -> dict[bytes, Damage]:
    """The damage of each field that cannot be read."""
    by_name = {damage.field: damage for damage in PolicySet.from_fields(fields).damaged}
    names = {*fields, VERSION} if fields else set()
    return {field: by_name[name] for field in names if (name := escape(field, 200)) in by_name}


def _damage(keyspace: Keyspace, field: bytes, damage: Damage) -> Finding:
    name = escape(field, 200)
    text = str(damage.error)
    if not damage.is_total:  # nobody but a person knows if a newer rqttl uses it
        advice = "options that it gives stay in force, and new queues lack them: use the newer rqttl that has set it"
        advice += ", or set or delete this policy" if damage.stand_in else ""
        return problem(CHECK, text, advice)
    if field == VERSION:
        repair = Repair("reset_version", name, "store a new version of the policies, and reconcile all queues", field)
        advice = "no policy can be changed until `rqttl doctor --repair` stores a new version"
    else:
        repair = Repair("remove_policy", name, f"remove the field {name!r} from {keyspace.policies}", field)
        advice = (
            f"new queues lack its options, and no other policy can be changed: look at it (HGET {keyspace.policies}), "
            "let `rqttl doctor --repair` remove it, and set that policy again"
        )
    return problem(CHECK, text, advice, repair=repair)


def _outdated(keyspace: Keyspace, queues: Sequence[str]) -> Flow[dict[str, Change]]:
    """Queues with other options in force over several looks: a client may be in the midst of a change of policies."""
    changes: dict[str, Change] = {}
    names = list(queues)
    for look in range(LOOKS):
        if names and look:
            yield flows.Sleep(PAUSE)
        changes = {}
        for start in range(0, len(names), flows.policies.PAGE):
            changes |= yield from flows.policies.outdated(keyspace, names[start : start + flows.policies.PAGE])
        names = list(changes)
    # the check of a queue reports options that cannot be read
    return {name: change for name, change in changes.items() if _is_readable(change)}


def _unreadable(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[Finding]]:
    """Find queues whose declared options cannot be read. The check of a queue reports options in force."""
    damaged: dict[str, QueueDamaged] = {}
    for start in range(0, len(queues), flows.policies.PAGE):
        yield from flows.policies.records(keyspace, queues[start : start + flows.policies.PAGE], damaged)
    findings = []
    for queue in damaged:
        key = keyspace.key(queue, "meta")
        (options,) = yield flows.Read([("HGET", key, "options")], keep_errors=True)
        in_force = stored_options(queue, options.decode("utf-8", "replace")) if isinstance(options, bytes) else None
        if in_force is not None:
            text = "its declared options, or the version of its policies, cannot be read: policies do not act on it"
            fields = f"declared '{in_force.as_json()}' policies 0"
            advice = f"to declare the options in force: HSET '{key}' {fields}; then run `rqttl doctor --repair`"
            findings.append(problem(CHECK, text, advice, queue=queue))
    return findings


def _is_readable(change: Change) -> bool:
    options = change.config.options
    return stored_options(options.queue, options.as_json()) is not None


def _difference(queue: str, change: Change) -> Finding:
    texts = [
        f"{name} is {_text(name, was)} in force, should be {_text(name, should)}"
        for name, (was, should) in change.differences.items()
    ]
    return problem(
        CHECK,
        f"its options in force do not follow its declared options and policies: {'; '.join(texts)}",
        "a client may have died in the midst of a change: `rqttl doctor --repair` corrects them now, a reaper soon",
        queue=queue,
        repair=Repair("reconcile", queue, "put the options in force that follow from declared options and policies"),
    )


def _text(name: str, value: Value | None) -> object:
    return "not set" if value is None else written(name, value)


# Repairs


def reconcile(keyspace: Keyspace, queue: str) -> Flow[str]:
    """Put the options in force that follow."""
    result = yield from flows.policies.reconcile(keyspace, [queue])
    changed = result.changed.get(queue)
    return f"{', '.join(changed)} changed" if changed else "left alone: nothing is wrong any more"


def remove_policy(keyspace: Keyspace, field: bytes) -> Flow[str]:
    """Remove a field of the stored policies if it is damaged, and reconcile all queues."""
    (fields,) = yield flows.Read([("HGETALL", keyspace.policies)])
    stored = dict(flows.policies.pairs(fields))
    damages = _damages(stored)
    damage = damages.get(field)
    if VERSION in damages:
        return "left alone: the version of the policies is damaged, too"
    if field == VERSION or damage is None or not damage.is_total:
        return "left alone: it is not damaged any more"
    command = commands.change_policies(keyspace, int(stored[VERSION]), {}, [field])
    answer = yield from flows.dispatch(command, ("stale",))
    if type(answer) is Refused:
        return "left alone: the policies changed just now, try again"
    return (yield from _reconcile_all(keyspace, "removed"))


def reset_version(keyspace: Keyspace) -> Flow[str]:
    """Store a version that no record of a queue has: by chance, since the last version is not known."""
    (fields,) = yield flows.Read([("HGETALL", keyspace.policies)])
    if VERSION not in _damages(dict(flows.policies.pairs(fields))):
        return "left alone: it is not damaged any more"
    version = secrets.randbelow(FIRST_VERSIONS)
    yield from flows.execute(replies.number, "HSET", keyspace.policies, VERSION, version)
    return (yield from _reconcile_all(keyspace, "a new version is stored"))


def _reconcile_all(keyspace: Keyspace, done: str) -> Flow[str]:
    changed = (yield from flows.policies.reconcile_all(keyspace)).changed
    return f"{done}; {plural(len(changed), 'queue')} got other options"
