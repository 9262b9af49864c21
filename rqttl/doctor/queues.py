"""Checks of one queue: its record, its options, the targets of its dead letters, and the agreement of its parts."""

from __future__ import annotations

import json
from collections.abc import Iterator

from redis.exceptions import NoPermissionError

from rqttl import flows
from rqttl.doctor import reader
from rqttl.doctor.audit import Audit, audit
from rqttl.doctor.findings import Finding, Repair, first_few, ok, problem, warning
from rqttl.errors import QueueNotFound
from rqttl.flows import Flow
from rqttl.options import OPTIONS, REASONS, QueueOptions
from rqttl.protocol import replies
from rqttl.protocol.keys import HARM, Keyspace
from rqttl.text import plural
from rqttl.units import as_datetime, as_size

CHECK = "queue"
#: Fields that every record has: texts and numbers.
TEXTS = ("options", "overflow", "option_set", "holds_dead_letters", "has_waiters")
NUMBERS = ("explicit", "ready_bytes", "lease_grants", "enqueued", "delivered")
_ADVICE = "`rqttl doctor --repair` repairs it"
#: Effects of each kind of fault.
FAULTS = {
    **{f"orphan:{part}": f"in {part} without a message: {harm}" for part, harm in HARM.items()},
    "unreachable": "in the log, but nowhere else: no consumer would get them",
    "duplicate": "in two places: they would be delivered twice, or never",
    "deadline": "whose deadline differs from expiry: they expire at the wrong time, or never by themselves",
    "header": "with a damaged header: they are delivered with its readable parts",
    "foreign": "that rqttl did not write: scripts cannot read them",
}


def check_queue(keyspace: Keyspace, queue: str, circles: set[frozenset[str]]) -> Flow[list[Finding]]:
    """Check a queue. Returns nothing if it was deleted meanwhile. `circles` has those that were reported before."""
    try:
        result = yield from audit(keyspace, queue)
    except QueueNotFound:
        return []
    except NoPermissionError:
        return (yield from reader.check_queue(keyspace, queue))
    planned = Repair("repair", queue, "repair the parts that do not agree")
    wrong = [*_record(result, queue, keyspace), *_faults(result, queue, planned), *_ends(result, queue, planned)]
    notes, around = yield from _targets(keyspace, queue, result.record.get("options", ""), circles)
    findings = [*wrong, *around]
    if not any(finding.level == "problem" for finding in wrong):
        content = f"{plural(result.messages, 'message')}, {result.ready:,} ready ({as_size(result.size)})"
        content = content if result.messages else "empty"
        findings.append(ok(CHECK, "; ".join([content, *notes]), queue=queue))
    return findings


def _record(result: Audit, queue: str, keyspace: Keyspace) -> Iterator[Finding]:
    record = result.record
    missing = [name for name in TEXTS if name not in record]
    missing += [name for name in NUMBERS if not record.get(name, "").lstrip("-").isdigit() and name != "ready_bytes"]
    if missing:
        yield problem(
            CHECK,
            f"its record lacks {first_few(missing, 6)}: calls fail, or do the wrong thing",
            "restore a backup, or put the fields back with HSET: lua/README.md explains them",
            queue=queue,
        )
        return
    options = stored_options(queue, record["options"])
    if options is None:
        yield problem(
            CHECK,
            "its options cannot be read: every call fails",
            f"HSET {keyspace.key(queue, 'meta')} options {{}}, then set its options with `rqttl queue update`",
            queue=queue,
        )
        return
    fields = options.fields()
    declared = {str(name): str(value) for name, value in zip(fields[::2], fields[1::2], strict=True)}
    differing = sorted(name for name, value in declared.items() if record.get(name) != value)
    if differing:
        yield problem(
            CHECK,
            f"scripts act on other options than declared: {first_few(differing)}",
            f"change one option and change it back: `rqttl queue update {queue} ...` writes them all",
            queue=queue,
        )


def stored_options(queue: str, declared: str) -> QueueOptions | None:
    """The options of a record; `None` if they cannot be read."""
    try:
        options = json.loads(declared)
        if isinstance(options, dict):
            # options of a later release are left out: this release cannot check them
            return QueueOptions.read_stored(queue, {name: value for name, value in options.items() if name in OPTIONS})
    except ValueError:  # InvalidInput is one too
        pass
    return None


def _faults(result: Audit, queue: str, planned: Repair) -> Iterator[Finding]:
    for kind, n in sorted(result.counts.items()):
        noun = "entry" if kind == "foreign" else "id" if kind.startswith("orphan") else "message"
        fault = f"{plural(n, noun) if noun != 'entry' else f'{n:,} entries'} {FAULTS[kind]}"
        examples = f" ({first_few(result.examples[kind], n if n <= 2 else 1)})"
        if kind == "foreign":
            yield problem(
                CHECK, fault + examples, f"look at them, then XDEL them: {examples.strip(' ()')}", queue=queue
            )
        elif kind == "header":
            advice = f"`rqttl message show {queue} SEQUENCE` shows one; ack them, or send them anew"
            yield warning(CHECK, fault + examples, advice, queue=queue)
        elif kind == "orphan:failures":
            yield warning(CHECK, fault + examples, _ADVICE, queue=queue, repair=planned)
        else:
            yield problem(CHECK, fault + examples, _ADVICE, queue=queue, repair=planned)


def _ends(result: Audit, queue: str, planned: Repair) -> Iterator[Finding]:
    """Compare the record with the keys."""
    record, wrong = result.record, []
    if record.get("cursor") != result.cursor:
        wrong.append(f"cursor is {record.get('cursor', 'missing')}, should be {result.cursor}")
    if record.get("last_id") != result.last:
        wrong.append(f"last_id is {record.get('last_id', 'missing')}, below the highest id {result.last}")
    due = record.get("due_at", "")
    if result.due is not None and (not due.isdigit() or int(due) > result.due):
        wrong.append(f"due is {_moment(due)}, but something is due {_moment(str(result.due))}: reapers come too late")
    if result.still and record.get("ready_bytes") != str(result.size):
        counted = record.get("ready_bytes", "missing")
        wrong.append(f"ready_bytes is {counted}, but ready bodies have {result.size}: limits are wrong")
    for fault in wrong:
        yield problem(CHECK, fault, _ADVICE, queue=queue, repair=planned)
    if not result.still:
        yield warning(
            CHECK,
            "too busy to check its bytes; everything else was checked",
            "check again at a quieter time",
            queue=queue,
        )


def _moment(due: str) -> str:
    """A due time of a record as text for people."""
    return as_datetime(int(due)).isoformat(sep=" ", timespec="seconds")[:19] + "Z" if due.isdigit() else due or "empty"


def _targets(
    keyspace: Keyspace, queue: str, declared: str, circles: set[frozenset[str]]
) -> Flow[tuple[list[str], list[Finding]]]:
    """Notes about targets of dead letters that do not exist yet, and findings about circles."""
    read = {queue: _edges(queue, declared)}
    texts: dict[str, str | None] = {}
    for target in sorted(set(read[queue].values())):
        texts[target] = yield from _declared_text(keyspace, target)
    missing = [target for target, text in texts.items() if text is None]
    notes = [f"dead letters will make {first_few(missing)}"] if missing else []
    circle = yield from _circle(keyspace, queue, read)
    if not circle or frozenset(circle) in circles:
        return notes, []
    circles.add(frozenset(circle))
    return notes, [
        warning(
            "dead letters",
            f"go round: {' > '.join(circle)}; at the second time they are dropped",
            "let one of these queues have no target for this reason, or another one",
            queue=queue,
        )
    ]


def _declared_text(keyspace: Keyspace, queue: str) -> Flow[str | None]:
    options = yield from flows.execute(replies.data_or_none, "HGET", keyspace.key(queue, "meta"), "options")
    return None if options is None else options.decode("utf-8", "replace")


def _edges(queue: str, declared: str | None) -> dict[str, str]:
    """The target for each reason. A rejection is a decision of a program, so it makes no circle."""
    options = stored_options(queue, declared or "{}")
    if options is None:
        return {}
    return {reason: target for reason in REASONS if reason != "rejected" and (target := options.target(reason))}


def _circle(keyspace: Keyspace, queue: str, read: dict[str, dict[str, str]]) -> Flow[list[str]]:
    """The shortest way that letters take from the queue back to itself; empty if there is none."""
    paths = [[queue]]
    seen = {queue}
    for path in paths:
        name = path[-1]
        if name not in read:
            read[name] = _edges(name, (yield from _declared_text(keyspace, name)))
        for target in sorted(set(read[name].values())):
            if target == queue:
                return [*path, queue]
            if target not in seen:
                seen.add(target)
                paths.append([*path, target])
    return []
