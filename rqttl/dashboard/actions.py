"""What the dashboard does: each form first shows a dry run, then acts, once. And the page with the jobs.

A form has everything in its fields, so any process can take it. Outcomes and jobs are those of one process.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response

from rqttl import text, units
from rqttl.checks import choice, key_and_value
from rqttl.dashboard.jobs import Job, record
from rqttl.dashboard.visit import Trouble
from rqttl.errors import MessageLeased, PolicyNotFound, QueueNotFound
from rqttl.inspector import effects, message_view
from rqttl.inspector.dead_letters import DeadLetters, read_filter
from rqttl.inspector.queues import living_consumers
from rqttl.options import OPTIONS, as_flags
from rqttl.policies import Policy
from rqttl.types import Message, Purged

if TYPE_CHECKING:
    from rqttl.dashboard.visit import Visit
    from rqttl.queue import Queue

#: Dead letters of a step of a job; letters and seconds of a dry run; its lines; bytes of a body that is sent here.
STEP, LOOKED, PATIENCE, LINES, LONGEST = 250, 20_000, 2.0, 20, 1 << 16
#: For actions on single messages: the method, the participle, the command, and the field that it takes.
MESSAGES = {
    "move": ("move", "moved", "message move", "to"),
    "delete": ("delete_message", "deleted", "message delete", ""),
    "expire": ("expire", "expired", "message expire", ""),
    "dead-letter": ("dead_letter", "dead-lettered", "message dead-letter", "description"),
    "redeliver": ("redeliver_now", "redelivered", "message redeliver", ""),
    "cancel": ("cancel", "cancelled", "cancel", ""),
    "reschedule": ("reschedule", "rescheduled", "reschedule", "delay"),
}


@dataclass(frozen=True)
class Plan:
    """What a form asks for: `look` is the dry run in words; `act` does it and tells a number and words, or makes a job.

    `of` and `filter` tell what of the queue is meant, `typed` has to be typed, `kept` is for the second form.
    """

    verb: str
    queue: str
    command: Sequence[str]
    look: Callable[[], Iterable[str]]
    act: Callable[[], tuple[int, str] | Job]
    of: str = ""
    filter: Sequence[str] = ()
    typed: str = ""
    kept: dict[str, str] = field(default_factory=dict)


def _answer(make: Callable[[Visit], Plan], visit: Visit) -> Response:
    """The page with the dry run of a form; for a confirmed one, the outcome."""
    plan, fields = make(visit), dict(visit.fields)
    title, id = f"{plan.verb.capitalize()} {plan.of}{plan.queue}", fields.get("confirm", "")
    page = partial(visit.page, "action.html", command=shlex.join(["rqttl", *plan.command]), plan=plan)
    if not id:
        return page(title=f"{title}?", lines=[*plan.look()], fields=fields | plan.kept, id=secrets.token_urlsafe(16))
    if plan.typed and fields.get("typed", "").strip() != plan.typed:
        got = text.format_value(fields.get("typed", ""))
        raise Trouble(400, f"typed: expected the name {plan.typed!r}, got {got}: nothing was done")
    outcome = visit.dashboard.outcomes.once(id, partial(_carry_out, visit, plan))
    return page(title=title, lines=[outcome], id="") if outcome else RedirectResponse(visit.link("/jobs"), 303)


def _carry_out(visit: Visit, plan: Plan) -> str:
    """Do what a plan says, and log it. Returns the outcome in words, which are empty for a job."""
    who, filter = visit.visitor, shlex.join(plan.filter)
    entry = {"user": who.user, "address": who.address, "action": plan.verb, "queue": plan.queue, "filter": filter}
    try:
        done = plan.act()
        if isinstance(done, Job) and not visit.dashboard.jobs.start(done, entry):
            raise Trouble(409, "four jobs run already: wait for one or stop one, then send this form again")
    except Exception as error:
        record(entry, None, text.without_secrets(str(error)))
        raise
    record(entry, *((None, f"job {done.number} began") if isinstance(done, Job) else done))
    return "" if isinstance(done, Job) else done[1]


def jobs(visit: Visit) -> Response:
    """`/jobs`: the jobs that run and those that ran."""
    every = visit.dashboard.jobs.all()
    return visit.page("jobs.html", title="Jobs", jobs=every, live=any(not job.ended for job in every))


def _stop(visit: Visit) -> Response:
    """`/job/stop`: let a job stop after the step at hand."""
    number, who = _needed(visit, "number"), visit.visitor
    job = next((one for one in visit.dashboard.jobs.all() if str(one.number) == number), None)
    if job is None:
        raise Trouble(404, f"this process knows no job {text.format_value(number)}")
    job.stopping.set()
    entry = {**job.entry, "user": who.user, "address": who.address, "action": f"stop job {number}"}
    record(entry, job.done, job.progress)
    return RedirectResponse(visit.link("/jobs"), 303)


def _needed(visit: Visit, name: str) -> str:
    if not (value := visit.fields.get(name, "").strip()):
        raise Trouble(400, f"{name}: the form needs a value for it")
    return value


def _queue(visit: Visit, name: str = "name") -> Queue:
    """The queue that a field names. Raises `QueueNotFound` for one that this dashboard hides."""
    queue = visit.dashboard.broker.queue(_needed(visit, name))
    if not fnmatchcase(queue.name, visit.dashboard.queues):
        raise QueueNotFound(queue.name)
    return queue


def _options(visit: Visit) -> dict[str, Any]:
    values = {name: visit.fields.get(name, "").strip() for name in OPTIONS}
    if options := {name: OPTIONS[name].parse(value) for name, value in values.items() if value}:
        return options
    raise Trouble(400, "nothing to change: give an option a value, or (none)")


def _flags(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [word for name, value in pairs for word in (f"--{name}", value)]


# What is planned for each form


def _update(verb: str, visit: Visit) -> Plan:
    queue, paused = _queue(visit), {"pause": True, "resume": False}.get(verb)
    changes = _options(visit) if paused is None else {"paused": paused}
    flags = as_flags(changes, "--unset") if paused is None else []
    change = partial(queue.update, **changes) if paused is None else getattr(queue, verb)

    def look() -> list[str]:
        result, stats = queue.preview_update(**changes), queue.stats(sweep=False)
        if paused is not None and bool(result.after.paused) is not paused:
            raise Trouble(409, f"{queue.name} would stay as it is: {queue.explain()['paused'].source} decides")
        return [*effects.changes(result, ahead=True), f"{queue.name} holds {effects.summary(stats)}"]

    def act() -> tuple[int, str]:
        result = change()
        return result.expired + result.trimmed, "; ".join(effects.changes(result, ahead=False))

    return Plan(verb, queue.name, ["queue", verb, queue.name, *flags], look, act, filter=flags)


def _end(verb: str, visit: Visit) -> Plan:
    queue, broker = _queue(visit), visit.dashboard.broker
    state: Purged = choice(visit.fields.get("state", "ready"), "state", get_args(Purged))  # type: ignore[assignment]
    flags = ["--state", state] if verb == "purge" else []
    words = ("message", "removed") if verb == "purge" else ("ready message", "deleted with the queue")

    def look() -> Iterator[str]:
        if not (stats := broker.stats([queue.name])):
            raise QueueNotFound(queue.name)
        of = [one for one in ("ready", "scheduled") if state in (one, "all") or verb == "delete"]
        number = sum(getattr(stats[queue.name], one) for one in of[: 1 if verb == "delete" else 2])
        yield f"{text.plural(number, words[0])} would be {words[1]}"
        subscriptions = effects.subscriptions(broker, stats) if verb == "delete" else {}
        yield f"{queue.name} holds {effects.deleted(stats[queue.name], subscriptions.get(queue.name))}"

    def work(job: Job) -> Generator[None, None, None]:
        job.done = queue.purge(state) if verb == "purge" else queue.delete()
        yield

    act = partial(Job, *words, work, single=True)
    return Plan(verb, queue.name, ["queue", verb, queue.name, *flags], look, act, filter=flags, typed=queue.name)


def _send(visit: Visit) -> Plan:
    queue, form = _queue(visit), choice(visit.fields.get("format", "text"), "format", ("text", "json"))
    written = visit.fields.get("body", "").replace("\r\n", "\n")
    if (size := len(written.encode())) > LONGEST:
        raise Trouble(400, f"body: expected at most {LONGEST:,} bytes, got {size:,}; `rqttl send` takes more")
    try:
        body = json.loads(written) if form == "json" else written
        body = body.encode() if isinstance(body, str) else body
    except (ValueError, RecursionError) as error:
        raise Trouble(400, f"body: not JSON: {error}") from error
    headers = [key_and_value(line) for line in visit.fields.get("headers", "").splitlines() if line.strip()]
    times: dict[str, Any] = {name: value for name in ("ttl", "delay") if (value := visit.fields.get(name, "").strip())}
    for name, value in times.items():
        units.duration(value, name)
    message = Message(body, headers=dict(headers) or None, **times)
    message_view.overhead(message)  # raises what sending would raise

    def look() -> Iterator[str]:
        explained = queue.explain(times.get("ttl")).message
        yield f"a message of {units.as_size(size)} would be stored in {queue.name}"
        life = "never expires" if explained.ttl is None else f"expires after {units.as_text(explained.ttl)}"
        yield f"it {life}: {explained.steps[-1].text}"

    def act() -> tuple[int, str]:
        receipt = queue.enqueue(message)
        due = f", due {text.format_time(at, at, utc=True)}" if (at := receipt.deliver_at) else ""
        return 1, f"message {receipt.id} stored in {queue.name}{due}{', already expired' * receipt.expired}"

    words = ["--format", "json", "--file", "FILE"] if form == "json" else [text.escape(written, 100)]
    flags = _flags([*(("header", f"{name}={value}") for name, value in headers), *times.items()])
    return Plan("send", queue.name, ["send", queue.name, *words, *flags], look, act, of="a message to ", filter=flags)


def _message(verb: str, visit: Visit) -> Plan:
    queue, id, (method, participle, command, more) = _queue(visit, "queue"), _needed(visit, "id"), MESSAGES[verb]
    scheduled, broker = verb in ("cancel", "reschedule"), visit.dashboard.broker
    given = {more: _needed(visit, more)} if more and (verb != "dead-letter" or visit.fields.get(more)) else {}
    if verb == "move":
        _queue(visit, more)
    elif verb == "reschedule":
        units.duration(given[more], more)
    call: Callable[..., int] = partial(getattr(queue, method), id, **given)

    def some(n: int) -> int:
        if not n:
            kind = "scheduled message" if scheduled else "message"
            raise Trouble(404, f"queue {queue.name!r} holds no {kind} {text.format_value(id)}")
        return n

    def look() -> Iterator[str]:
        found, now = queue.messages(id), broker.server_time()
        try:
            n = some(sum(one.state == "scheduled" for one in found) if scheduled else call(dry_run=True))
        except MessageLeased as error:
            leased = next((one for one in found if one.state == "leased"), None)
            holder = message_view.holder(leased, living_consumers(broker, queue.name) or ()) if leased else None
            held = f"; held by {message_view.holder_text(leased, holder, now)}" if leased else ""
            raise Trouble(409, f"{error}{held}") from error
        yield f"{text.plural(n, 'message')} of {queue.name} would be {participle}"
        if reason := {"expire": "expired", "dead-letter": "rejected"}.get(verb):
            yield f"dead letters go to {queue.options().target(reason) or '(dropped)'}"
        for one in found[:LINES]:
            yield f"{one.id}: {message_view.state_text(one, now)}, {units.as_size(len(one.body))}"

    def act() -> tuple[int, str]:
        n = some(call())
        return n, f"{text.plural(n, 'message')} of {queue.name} {participle}"

    words = [id, *([given[more]] if verb == "move" else _flags(given.items()))]
    return Plan(
        verb, queue.name, [*command.split(), queue.name, *words], look, act, of=f"message {id} of ", filter=words
    )


def _letters(verb: str, visit: Visit) -> Plan:
    """Only the dead letters that are there at the time of the first form: `at` has it."""
    broker, queue = visit.dashboard.broker, _queue(visit)
    to = _queue(visit, "to").name if verb == "move" else None
    pairs = parse_qsl(visit.fields.get("filter", ""), keep_blank_values=True)
    if not visit.dashboard.bodies and {"error", "header"} & dict(pairs).keys():
        raise Trouble(403, "this dashboard hides headers and descriptions: it has no filter by them")
    wanted, at = read_filter(pairs), visit.fields.get("at", "")
    now = units.as_datetime(units.instant(at, "at")) if at else broker.server_time()
    oldest = now - wanted.older_than if isinstance(wanted.older_than, timedelta) else wanted.older_than
    latest = now + timedelta(milliseconds=1)
    wanted = replace(wanted, older_than=min(oldest or latest, latest))
    participle = {"redrive": "put back", "move": f"moved to {to}", "purge": "removed"}[verb]

    def look() -> Iterator[str]:
        chosen, began, looked = DeadLetters(queue, wanted, now), monotonic(), 0
        for size in chosen.select():
            looked += size
            if looked >= LOOKED or monotonic() - began > PATIENCE:
                break
        stats, groups = queue.stats(sweep=False), chosen.groups.ordered()
        n, lines = (chosen.left, []) if verb == "purge" else effects.forecast(broker, queue.name, groups, to)
        part = looked < stats.depth - stats.scheduled
        if not chosen.left and not part:
            raise Trouble(404, f"no such dead letters in {queue.name} that are ready: nothing to do")
        yield f"{'at least ' * part}{text.plural(n, 'dead letter')} of {queue.name} would be {participle}"
        yield from [f"{one.count:,} {one.reason} in {one.source}" for one in groups[:LINES]]
        yield from [f"and {len(groups) - LINES:,} more groups"] * (len(groups) > LINES)
        yield from [*lines, *effects.left_alone(chosen)]

    def work(job: Job) -> Generator[None, None, None]:
        chosen = DeadLetters(queue, wanted, now, STEP)
        yield from (None for _ in chosen.select())
        try:
            for _ in chosen.purge() if verb == "purge" else chosen.redrive(to):
                job.done, job.left = chosen.done, chosen.left
                yield
        finally:
            job.done, job.left = chosen.done, chosen.left
            job.notes = [*effects.stayed(chosen.stayed)[0], *effects.left_alone(chosen)]

    flags = _flags([*pairs, *([("to", to)] if to else [])])
    command = ["dead", "purge" if verb == "purge" else "redrive", queue.name, *flags]
    kept, act = {"at": str(round(now.timestamp() * 1000))}, partial(Job, "dead letter", participle, work)
    return Plan(verb, queue.name, command, look, act, of="dead letters of ", filter=flags, kept=kept)


def _policy(verb: str, visit: Visit) -> Plan:
    if visit.dashboard.queues != "*":
        raise Trouble(403, f"policies act on all queues, and this dashboard shows {visit.dashboard.queues}")
    broker, name, operator = visit.dashboard.broker, _needed(visit, "name"), visit.fields.get("operator") == "yes"
    flags: list[str] = []
    if verb == "set":
        options, pattern = _options(visit), _needed(visit, "pattern")
        syntax, priority = visit.fields.get("syntax") or "wildcard", visit.fields.get("priority", "").strip() or "0"
        number = OPTIONS["max_length"].parse(priority)
        wanted = Policy.read(name, pattern, options, priority=number, syntax=syntax, operator=operator)
        flags = [pattern, *as_flags(options, "--none"), "--priority", priority, *["--regex"] * (syntax == "regex")]
        change = partial(broker.set_policy, name, **wanted.as_arguments(), operator=operator)  # type: ignore[arg-type]
    else:
        wanted = next((one for one in broker.policies(operator=operator) if one.name == name), None)  # type: ignore[assignment]
        if wanted is None:
            raise PolicyNotFound(name, operator=operator)
        change = partial(broker.delete_policy, name, operator=operator)

    def look() -> list[str]:
        warnings = [f"warning: {one}" for one in broker.check_policy(wanted)] if verb == "set" else []
        return [*effects.policy_changes(broker.preview_policy(wanted, delete=verb == "delete"), ahead=True), *warnings]

    def act() -> tuple[int, str]:
        result = change()
        return len(result.changed), "; ".join(effects.policy_changes(result, ahead=False))

    kind = "operator-policy" if operator else "policy"
    return Plan(verb, name, [kind, verb, name, *flags], look, act, of=f"{kind.replace('-', ' ')} ", filter=flags)


_PLANS: dict[str, Callable[[Visit], Plan]] = {
    **{f"/queue/{verb}": partial(_update, verb) for verb in ("pause", "resume", "update")},
    **{f"/queue/{verb}": partial(_end, verb) for verb in ("purge", "delete")},
    "/queue/send": _send,
    **{f"/message/{verb}": partial(_message, verb) for verb in MESSAGES},
    **{f"/dead/{verb}": partial(_letters, verb) for verb in ("redrive", "move", "purge")},
    **{f"/policy/{verb}": partial(_policy, verb) for verb in ("set", "delete")},
}
#: The addresses of all forms.
ACTS: dict[str, Callable[[Visit], Response]] = {path: partial(_answer, make) for path, make in _PLANS.items()} | {
    "/job/stop": _stop
}
