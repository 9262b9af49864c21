"""Checks of one queue: its record, its options, where its dead letters go, and whether its parts agree."""

from __future__ import annotations

import json
from collections.abc import Iterator

from redis.exceptions import NoPermissionError

from rqttl.doctor import reader
from rqttl.doctor.audit import Audit, audit
from rqttl.doctor.findings import Finding, Repair, ok, problem, some, warning
from rqttl.errors import QueueNotFound
from rqttl.options import OPTIONS, REASONS, QueueOptions
from rqttl.protocol import commands, replies
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import Driver
from rqttl.text import plural
from rqttl.units import as_datetime, as_size

CHECK = "queue"
#: Fields that every record has, and what they hold.
TEXTS = ("options", "overflow", "option_set", "holds_dead_letters", "has_waiters")
NUMBERS = ("explicit", "ready_bytes", "lease_grants", "enqueued", "delivered")
_ADVICE = "`rqttl doctor --repair` mends it"
#: What each kind of fault means.
FAULTS = {
    "orphan:leases": "in leases without a message: too few count as ready",
    "orphan:delayed": "in delayed without a message: too few count as ready",
    "orphan:requeued": "in requeued without a message: consumers do not get past",
    "orphan:expiry": "in expiry without a message: the queue is due all the time",
    "orphan:failures": "in failures without a message: they take memory",
    "unreachable": "in the log, but nowhere else: no consumer would get them",
    "duplicate": "in two places: they would be delivered twice, or never",
    "deadline": "whose deadline is not what expiry says: they expire at the wrong time, or never by themselves",
    "header": "with a damaged header: they are delivered with what can be read of it",
    "foreign": "that rqttl did not write: scripts cannot read them",
}


def look(driver: Driver, queue: str, circles: set[frozenset[str]]) -> Iterator[Finding]:
    """Look at a queue. Says nothing if it has gone meanwhile. `circles` are those that were told of already."""
    try:
        found = driver.perform(audit(driver.keyspace, queue))
    except QueueNotFound:
        return
    except NoPermissionError:
        yield from reader.look(driver, queue)
        return
    mend = Repair("mend", queue, "put right what does not agree in it")
    wrong = [*_record(found, queue, driver.keyspace), *_faults(found, queue, mend), *_ends(found, queue, mend)]
    notes, around = _targets(driver, queue, found.record.get("options", ""), circles)
    yield from wrong
    yield from around
    if not any(one.level == "problem" for one in wrong):
        said = f"{plural(found.messages, 'message')}, {found.ready:,} ready ({as_size(found.size)})"
        said = said if found.messages else "empty"
        yield ok(CHECK, "; ".join([said, *notes]), queue=queue)


def _record(found: Audit, queue: str, keyspace: Keyspace) -> Iterator[Finding]:
    record = found.record
    missing = [name for name in TEXTS if name not in record]
    missing += [name for name in NUMBERS if not record.get(name, "").lstrip("-").isdigit() and name != "ready_bytes"]
    if missing:
        yield problem(
            CHECK,
            f"its record lacks {some(missing, 6)}: calls fail, or do the wrong thing",
            "restore a backup, or put the fields back with HSET: lua/README.md says what they hold",
            queue=queue,
        )
        return
    options = _options(queue, record["options"])
    if options is None:
        yield problem(
            CHECK,
            "its options cannot be read: every call fails",
            f"HSET {keyspace.key(queue, 'meta')} given {{}}, then set its options with `rqttl queue update`",
            queue=queue,
        )
        return
    command = commands.declare(keyspace, options)
    fields = command.words[1 + len(command.script.keys) + len(command.script.args) :]
    said = {str(name): str(value) for name, value in zip(fields[::2], fields[1::2], strict=True)}
    differing = sorted(name for name, value in said.items() if record.get(name) != value)
    if differing:
        yield problem(
            CHECK,
            f"scripts act on other options than declared: {some(differing)}",
            f"change one option and change it back: `rqttl queue update {queue} ...` writes them all",
            queue=queue,
        )


def _options(queue: str, given: str) -> QueueOptions | None:
    """The options as a record says them, None if it says something else."""
    try:
        found = json.loads(given)
        if isinstance(found, dict):
            # those of a later release are not for us to judge
            return QueueOptions.read_stored(queue, {name: value for name, value in found.items() if name in OPTIONS})
    except ValueError:  # InvalidInput is one too
        pass
    return None


def _faults(found: Audit, queue: str, mend: Repair) -> Iterator[Finding]:
    for kind, n in sorted(found.counts.items()):
        what = "entry" if kind == "foreign" else "id" if kind.startswith("orphan") else "message"
        said = f"{plural(n, what) if what != 'entry' else f'{n:,} entries'} {FAULTS[kind]}"
        shown = f" ({some(found.examples[kind], n if n <= 2 else 1)})"
        if kind == "foreign":
            yield problem(CHECK, said + shown, f"look at them, then XDEL them: {shown.strip(' ()')}", queue=queue)
        elif kind == "header":
            advice = f"`rqttl message show {queue} SEQUENCE` shows one; ack them, or send them anew"
            yield warning(CHECK, said + shown, advice, queue=queue)
        elif kind == "orphan:redelivered":
            yield warning(CHECK, said + shown, _ADVICE, queue=queue, repair=mend)
        else:
            yield problem(CHECK, said + shown, _ADVICE, queue=queue, repair=mend)


def _ends(found: Audit, queue: str, mend: Repair) -> Iterator[Finding]:
    """What the record says against what is there."""
    record, wrong = found.record, []
    if record.get("cursor") != found.cursor:
        wrong.append(f"cursor is {record.get('cursor', 'missing')}, should be {found.cursor}")
    if record.get("last_id") != found.last:
        wrong.append(f"last_id is {record.get('last_id', 'missing')}, below the highest id {found.last}")
    due = record.get("due_at", "")
    if found.due is not None and (not due.isdigit() or int(due) > found.due):
        wrong.append(f"due is {_moment(due)}, but something is due {_moment(str(found.due))}: reapers come too late")
    if found.still and record.get("ready_bytes") != str(found.size):
        wrong.append(
            f"ready_bytes is {record.get('ready_bytes', 'missing')}, but ready bodies have {found.size}: "
            "limits are wrong"
        )
    for said in wrong:
        yield problem(CHECK, said, _ADVICE, queue=queue, repair=mend)
    if not found.still:
        yield warning(
            CHECK, "too busy to check its bytes; all else was checked", "look again at a quieter time", queue=queue
        )


def _moment(due: str) -> str:
    """A due time of a record, as people read it."""
    return as_datetime(int(due)).isoformat(sep=" ", timespec="seconds")[:19] + "Z" if due.isdigit() else due or "empty"


def _targets(driver: Driver, queue: str, given: str, circles: set[frozenset[str]]) -> tuple[list[str], list[Finding]]:
    """Where its dead letters go: targets that are not there yet, and circles."""
    read = {queue: _edges(queue, given)}
    missing = [target for target in sorted(set(read[queue].values())) if _given(driver, target) is None]
    notes = [f"dead letters will make {some(missing)}"] if missing else []
    circle = _circle(driver, queue, read)
    if not circle or frozenset(circle) in circles:
        return notes, []
    circles.add(frozenset(circle))
    return notes, [warning("dead letters", f"go round: {' > '.join(circle)}; at the second time they are dropped",
        "let one of these queues have no target for this reason, or another one", queue=queue)]  # fmt: skip


def _given(driver: Driver, queue: str) -> str | None:
    key = driver.keyspace.key(queue, "meta")
    found = driver.store.call(replies.data_or_none, "HGET", key, "options")
    return None if found is None else found.decode("utf-8", "replace")


def _edges(queue: str, given: str | None) -> dict[str, str]:
    """The target for each reason. A rejection is somebody's will, so it makes no circle."""
    options = _options(queue, given or "{}")
    if options is None:
        return {}
    return {reason: target for reason in REASONS if reason != "rejected" and (target := options.target(reason))}


def _circle(driver: Driver, queue: str, read: dict[str, dict[str, str]]) -> list[str]:
    """A way from the queue back to itself that letters take by themselves, shortest first; empty if there is none."""
    ways = [[queue]]
    seen = {queue}
    for way in ways:
        name = way[-1]
        if name not in read:
            read[name] = _edges(name, _given(driver, name))
        for target in sorted(set(read[name].values())):
            if target == queue:
                return [*way, queue]
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []
