"""Checks of queues by plain reads: records, keys, the registry, the policies in force, and work that is overdue."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from rqttl.checks import is_queue_name, queue_name
from rqttl.doctor import rights
from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.errors import DataDamaged, QueueNotFound, RqttlError
from rqttl.flows import moving, policies, reading, registry, roster, steps
from rqttl.flows.policies import Change
from rqttl.flows.queues import durability_fault
from rqttl.flows.steps import Flow
from rqttl.options import BINDINGS, OPTIONS, QueueOptions, written
from rqttl.protocol.keys import OUTBOX, OUTGOING, PARTS, SCHEDULED, UPCOMING, WAKEUP, Keyspace
from rqttl.text import first_few, plural
from rqttl.types import QueueStats
from rqttl.units import as_datetime, as_size, as_text

PAGE = 500
#: Milliseconds after which due work counts as overdue: no reaper keeps up with it.
OVERDUE = 5_000
#: The time for which a full queue may hold scheduled messages back without a finding.
HELD = timedelta(minutes=1)
#: Messages of a cluster, and the part of them at one node, from which on that node is a finding.
MANY, MOST = 10_000, 0.8
#: The age of the oldest message from which a paused queue, or one with a rate, gives a finding.
PAUSED, SLOW = timedelta(days=1), timedelta(hours=1)
#: Checks of a suspicion, and the ms in between: a client may be in the midst of its steps.
LOOKS, PAUSE = 3, 100
#: Fields that every record has, in the order in which they are read.
FIELDS = ("version", "due_at", "options", "overflow", "option_set", "holds_dead_letters", "has_waiters", "lease_grants")
#: Parts that a deleted queue may leave: Redis removes them by itself.
_LEFT = {WAKEUP, *(part.name for part in PARTS.values() if part.outlives)}


@dataclass
class Queues:
    """The existing queues with their next due times, those whose node is away, and statistics of the readable ones.

    `outgoing` has the dead letters on their way from each queue, also from a deleted one; see `moving.lines`.
    `durable` has the sound ones with a durability that Redis confirms, `passing` those whose messages go on to others.
    """

    dues: dict[str, int | None] = field(default_factory=dict)
    away: list[str] = field(default_factory=list)
    looks: Mapping[str, QueueStats] = field(default_factory=dict)
    outgoing: dict[str, dict[str, list[bytes] | None]] = field(default_factory=dict)
    durable: dict[str, list[str]] = field(default_factory=dict)
    passing: set[str] = field(default_factory=set)


def check(keyspace: Keyspace, names: Sequence[str], seen: Queues) -> Flow[list[Finding]]:
    """Check the named queues, or all. Raises `QueueNotFound` for a name of which nothing is there."""
    try:
        return (yield from _check(keyspace, names, seen))
    except NoPermissionError as denied:
        advice = "the role reader may look at them (`rqttl acl generate`)"
        level = warning if (yield from rights.may_write(keyspace, "rqttl.doctor")) else problem
        return [level("queues", f"cannot be read: {denied}", advice)]


def _check(keyspace: Keyspace, names: Sequence[str], seen: Queues) -> Flow[list[Finding]]:
    findings, listed = yield from _registry(keyspace)
    found: set[str] = set()
    try:
        found = set(names) or (yield from _with_keys(keyspace))
    except NoPermissionError as error:
        advice = "only queues of the registry are checked; a user with the role admin sees all keys"
        findings.append(warning("queues", f"keys cannot be listed: {error}", advice))
    wanted = sorted(names or listed | found)
    faults = {name: list[Finding]() for name in wanted}
    for look in range(LOOKS):
        suspects = [name for name in wanted if not look or faults[name]]
        if suspects and look:
            yield steps.Sleep(PAUSE)
            listed = (yield from _registry(keyspace))[1]
        for start in range(0, len(suspects), PAGE):
            faults |= yield from _look(keyspace, suspects[start : start + PAGE], listed, seen)
    for name in names:
        if name not in seen.dues and not faults[name] and name not in seen.away:
            raise QueueNotFound(name)
    sound = [name for name in wanted if name in seen.dues and not faults[name]]
    findings += [finding for name in wanted for finding in faults[name]]
    away: reading.Away = {}
    looks = yield from reading.look_closely(keyspace, sound, (), away, ends=True)
    seen.looks = {name: look.stats for name, look in looks.items()}
    for name, damage in away.items():
        if isinstance(damage, DataDamaged):
            findings.append(problem("queue", str(damage), "look at the key, then DEL it", queue=name))
    findings += _summary(seen)
    return findings or [ok("queues", "none yet")]


def _summary(seen: Queues) -> Iterator[Finding]:
    if seen.away:
        whose = "its node does" if len(seen.away) == 1 else "their nodes do"
        text = f"{plural(len(seen.away), 'queue')} cannot be read, {whose} not answer: {first_few(seen.away)}"
        yield problem("queues", text, "start the node again, or let a replica take over")
    if seen.looks:
        stats = seen.looks.values()
        ready, size = sum(one.ready for one in stats), as_size(sum(one.ready_bytes for one in stats))
        messages = plural(sum(one.depth for one in stats), "message")
        yield ok("queues", f"{plural(len(stats), 'sound queue')}, {messages}, {ready:,} ready ({size})")


def _registry(keyspace: Keyspace) -> Flow[tuple[list[Finding], set[str]]]:
    """Findings about the registry, and the names in it."""
    (members,) = yield steps.Read([("SMEMBERS", keyspace.registry)], keep_errors=True)
    if isinstance(members, Exception):
        if "WRONGTYPE" not in str(members):
            raise members
        advice = f"look at it, then DEL {keyspace.registry}; the remedy of each queue below enters it again"
        text = f"{keyspace.registry} is not a set of queue names: another program wrote it; nothing lists the queues"
        return [problem("registry", text, advice)], set()
    return [], {name for member in members if (name := queue_name(member)) is not None}


def _with_keys(keyspace: Keyspace) -> Flow[set[str]]:
    """The queues that have keys, without deleted ones."""
    names: set[str] = set()

    def see(keys: list[bytes]) -> None:
        parts = filter(None, map(keyspace.split, keys))
        names.update(name for name, part in parts if part in PARTS and part not in _LEFT and is_queue_name(name))

    yield from registry.scan(keyspace, see)
    return names


def _look(keyspace: Keyspace, names: Sequence[str], listed: set[str], seen: Queues) -> Flow[dict[str, list[Finding]]]:
    """The faults of each queue now. Notes the due times of those that exist."""
    calls: list[tuple[Any, ...]] = []
    for name in names:
        calls += [("HMGET", keyspace.key(name, "meta"), *FIELDS)]
        calls += [("ZCARD", keyspace.key(name, SCHEDULED)), ("HLEN", keyspace.key(name, UPCOMING))]
        calls += [("HGETALL", keyspace.key(name, OUTGOING))]
        calls += [("TYPE", keyspace.key(name, part)) for part in PARTS]
    answers = yield steps.Read(calls, keep_errors=True)
    faults: dict[str, list[Finding]] = {}
    size = 4 + len(PARTS)
    for start, name in zip(range(0, len(answers), size), names, strict=True):
        record, *halves, outgoing = answers[start : start + 4]
        types = answers[start + 4 : start + size]
        if isinstance(record, NoPermissionError):
            raise record
        seen.dues.pop(name, None)
        seen.outgoing[name] = {} if isinstance(outgoing, Exception) else moving.lines(outgoing)
        faults[name] = []
        if isinstance(record, Exception) and not isinstance(record, ResponseError):
            if name not in seen.away:
                seen.away.append(name)
            continue
        if isinstance(record, ResponseError) or record[0] is not None:
            due = b"" if isinstance(record, ResponseError) else record[1] or b""
            seen.dues[name] = int(due) if due.isdigit() else None
        kinds = {part: kind.decode() for part, kind in zip(PARTS, types, strict=True) if isinstance(kind, bytes)}
        faults[name] = list(_faults(keyspace, name, record, kinds, is_listed=name in listed))
        faults[name] += _of_lines(keyspace, name, seen.outgoing[name])
        if all(type(count) is int for count in halves) and halves[0] != halves[1]:
            faults[name].append(_of_halves(keyspace, name, *halves))
        if name in seen.dues and not faults[name]:
            _note(seen, name, json.loads(record[FIELDS.index("options")]))
    return faults


def _note(seen: Queues, name: str, options: Mapping[str, Any]) -> None:
    """Note what further checks ask about a sound queue."""
    if "durability" in options:
        seen.durable.setdefault(options["durability"], []).append(name)
    if not options.keys().isdisjoint((BINDINGS, "forward_to")):
        seen.passing.add(name)


def _of_lines(keyspace: Keyspace, name: str, lines: Mapping[str, list[bytes] | None]) -> Iterator[Finding]:
    key = keyspace.key(name, OUTGOING)
    for target in [target for target, words in lines.items() if words is None]:
        text = f"the line of {target} in {key} has a wrong form: dead letters wait"
        yield problem("keys", text, f"HSET {key} {target} '1 0 - - 0 0': a reaper sends them again", queue=name)


def _of_halves(keyspace: Keyspace, name: str, due_times: int, contents: int) -> Finding:
    scheduled, upcoming = (keyspace.key(name, part) for part in (SCHEDULED, UPCOMING))
    text = f"scheduled messages are in halves: {due_times:,} due times, {contents:,} contents"
    advice = f"`rqttl cancel` those that only HKEYS {upcoming} has; a sweep drops what only ZRANGE {scheduled} 0 -1 has"
    return problem("keys", text, advice, queue=name)


def _faults(
    keyspace: Keyspace, name: str, record: Any, kinds: Mapping[str, str], *, is_listed: bool
) -> Iterator[Finding]:
    wrong = [part for part, kind in kinds.items() if kind not in ("none", PARTS[part].type)]
    for part in wrong:
        key = keyspace.key(name, part)
        text = f"{key} is a {kinds[part]}, not a {PARTS[part].type}: calls that need it fail"
        yield problem("keys", text, f"look at it, then DEL {key}", queue=name)
    if isinstance(record, ResponseError):
        return
    if record[0] is None:
        yield from _without_record(name, [part for part, kind in kinds.items() if kind != "none"], is_listed=is_listed)
        return
    if not is_listed:
        text = "not in the registry: no reaper sweeps it, nothing lists it"
        yield problem("registry", text, f"SADD {keyspace.registry} {name}", queue=name)
    lacking = [field for field, value in zip(FIELDS, record, strict=True) if value is None]
    if lacking:
        text = f"its record lacks {first_few(lacking, 6)}: calls fail, or do the wrong thing"
        advice = "restore a backup, or put the fields back with HSET: lua/README.md explains them"
        yield problem("queue", text, advice, queue=name)
    elif not _is_readable(name, record[FIELDS.index("options")]):
        advice = f"HSET {keyspace.key(name, 'meta')} options {{}}, then set its options with `rqttl queue update`"
        yield problem("queue", "its options cannot be read: every call fails", advice, queue=name)


def _without_record(name: str, parts: Sequence[str], *, is_listed: bool) -> Iterator[Finding]:
    left = [part for part in parts if part not in _LEFT]
    if left:
        text = f"its record is missing, and these keys are left: {', '.join(left)}"
        advice = f"`rqttl queue declare {name}` makes a queue of them again; or delete them"
        yield problem("keys", text, advice, queue=name)
    elif is_listed and OUTGOING not in parts:  # else it is listed until its dead letters have arrived
        text = "in the registry, but the queue does not exist"
        yield warning("registry", text, "a reaper removes it after ten minutes", queue=name)


def _is_readable(queue: str, options: bytes) -> bool:
    try:
        # options of a later release are left out: this release cannot check them
        known = {name: value for name, value in json.loads(options).items() if name in OPTIONS}
        QueueOptions.read_stored(queue, known)
    except (ValueError, AttributeError):  # InvalidInput is a ValueError, too
        return False
    return True


def check_policies(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[Finding]]:
    """Find unreadable policies, and queues whose options in force do not follow them for several looks."""
    names = list(queues)
    changes: dict[str, Change] = {}
    try:
        stored = yield from policies.read(keyspace)
        for look in range(LOOKS):
            if names and look:
                yield steps.Sleep(PAUSE)
            changes = {}
            for start in range(0, len(names), PAGE):
                changes |= yield from policies.outdated(keyspace, names[start : start + PAGE])
            names = list(changes)
    except RqttlError as error:
        advice = f"another program or a newer rqttl has written it: look at HGETALL {keyspace.policies}"
        return [problem("policies", str(error), advice)]
    findings = [_difference(name, change) for name, change in changes.items()]
    if stored.policies and not findings:
        findings.append(ok("policies", f"{len(stored.policies):,} stored, {plural(len(queues), 'queue')} up to date"))
    return findings


def _difference(queue: str, change: Change) -> Finding:
    texts = []
    for name, values in change.differences.items():
        was, should = ("not set" if value is None else written(name, value) for value in values)
        texts.append(f"{name} is {was} in force, should be {should}")
    text = f"its options in force do not follow its declared options and policies: {'; '.join(texts)}"
    advice = "a client may have died in the midst of a change: a reaper corrects them, or `rqttl reaper --once` now"
    return problem("policies", text, advice, queue=queue)


def check_reapers(keyspace: Keyspace, seen: Queues) -> Flow[list[Finding]]:
    """Check that due work gets done."""
    now = yield from steps.server_time()
    waits = {name: stats.overdue // timedelta(milliseconds=1) for name, stats in seen.looks.items()}
    # a queue without statistics is past its lifetime, and nobody has deleted it
    waits |= {name: now - due for name, due in seen.dues.items() if due and name not in seen.looks}
    late = {name: ms for name, ms in waits.items() if ms > OVERDUE}
    try:
        count: int | None = yield from roster.reaper_count(keyspace)
    except ResponseError:
        count = None
    running = "no reaper runs" if count == 0 else f"{plural(count or 0, 'reaper')} run{'s' * (count == 1)}"
    running = "it cannot be seen whether a reaper runs" if count is None else running
    if not late:
        return [ok("reaper", f"{running}; nothing is overdue")]
    names = sorted(late, key=lambda name: -late[name])
    state = f"{running}; overdue by up to {as_text(late[names[0]] // 1000 * 1000)}: {first_few(names)}"
    if count:
        return [warning("reaper", state, "its log says why it does not keep up; another one may be started beside it")]
    return [warning("reaper", state, "start one: `rqttl reaper`, as a service; or `rqttl reaper --once` from cron")]


def check_controls(seen: Queues) -> Flow[list[Finding]]:
    """Find queues that hold their messages back for long: by a pause that was forgotten, or a rate that is too low."""
    now = as_datetime((yield from steps.server_time()))
    findings = []
    for name, stats in seen.looks.items():
        age = stats.oldest_ready_age or timedelta(0)
        waits = f"its oldest message waits for {as_text(age // timedelta(minutes=1) * 60_000)}"
        if stats.paused and age >= PAUSED:
            advice = f"`rqttl queue resume {name}`, or purge it; `rqttl explain {name}` names a policy that pauses it"
            findings.append(warning("queue", f"paused, and {waits}", advice, queue=name))
        elif not stats.paused and age >= SLOW and stats.next_by_rate and stats.next_by_rate > now:
            advice = f"raise its rate, or send less: `rqttl explain {name}` names a policy that sets it"
            findings.append(warning("queue", f"its rate is below its arrivals: {waits}", advice, queue=name))
    return findings


def check_durability(seen: Queues) -> Flow[list[Finding]]:
    """Find queues with a durability that a server cannot keep."""
    findings = []
    for durability, names in seen.durable.items():
        if fault := (yield from durability_fault(durability)):
            text = f"{durability} cannot be kept ({fault}): each enqueue raises NotReplicated: {first_few(names)}"
            advice = "turn appendonly on, with Redis 7.2 or later" if durability == "disk" else "start a replica"
            findings.append(problem("durability", text, f"{advice}; or choose another durability"))
    return findings


def check_spread(seen: Queues, homes: Mapping[str, str]) -> Iterator[Finding]:
    """Find the node of a cluster that has most of the messages. `homes` has the node of each queue."""
    depths = Counter[str]()
    for name, stats in seen.looks.items():
        depths[homes[name]] += stats.depth
    (home, most), total = depths.most_common(1)[0] if depths else ("", 0), depths.total()
    if total >= MANY and most > MOST * total:
        largest = sorted((name for name in seen.looks if homes[name] == home), key=lambda name: -seen.looks[name].depth)
        text = f"{home} has {most:,} of all {total:,} messages: {first_few(largest)}"
        yield warning("cluster", text, "split a busy queue; names that differ before the first / spread over the nodes")


def check_schedules(seen: Queues) -> Flow[list[Finding]]:
    """Find queues whose scheduled messages are due and do not arrive, because the queue is full."""
    now = as_datetime((yield from steps.server_time()))
    findings = []
    for name, stats in seen.looks.items():
        late = now - (stats.next_scheduled or now)
        if late > HELD and stats.overdue <= timedelta(milliseconds=OVERDUE):
            for_long = as_text(late // timedelta(seconds=1) * 1000)
            text = f"full: it holds scheduled messages back, the first one for {for_long}"
            advice = "consume or purge its messages, raise its limit, or choose another overflow"
            findings.append(warning("queue", text, advice, queue=name))
    return findings


def check_outgoing(keyspace: Keyspace, seen: Queues) -> Flow[list[Finding]]:
    """Find dead letters that wait for long on their way to queues in other slots."""
    lines = [
        (name, to, words)
        for name, found in seen.outgoing.items()
        for to, words in sorted(found.items())
        if words and int(words[0])
    ]
    # the name of the outbox for a redrive is that of its line
    keys = [keyspace.key(name, to if ">" in to else f"{OUTBOX}>{to}") for name, to, _ in lines]
    calls = [("XRANGE", key, "-", "+", "COUNT", 1) for key in keys]
    heads, times = (yield steps.Read(calls, keep_errors=True, timed=True)) if calls else ((), ())
    advice = (
        "a reaper sends them again and again, and its log says what is wrong: the node of the target is away or has no "
        "memory, its user has no rights there, or a key has a wrong type"
    )
    findings = []
    for (name, to, words), head, now in zip(lines, heads, times, strict=True):
        if isinstance(head, Exception) or not head:
            continue
        hold, ends = int(words[5]), int(words[4])
        # dead letters of a redrive keep their sequences; each of its movers has twice the time of the one before
        since = ends - 2 * hold + moving.HOLD if ">" in to else int(head[0][0].partition(b"-")[0])
        if now - since > OVERDUE:
            target, age = to.rpartition(">")[2], as_text((now - since) // 1000 * 1000)
            text = f"{plural(int(words[0]), 'dead letter')} on the way to {target}, the oldest for {age}"
            findings.append(warning("queue", text, advice, queue=name))
    return findings
