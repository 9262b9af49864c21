"""What the dashboard does: what each form says ahead, and what it does then. And the page with the jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response

from rqttl import checks, text, units
from rqttl.dashboard.access import Trouble
from rqttl.dashboard.forms import Plan, answer, entry_of
from rqttl.dashboard.jobs import Job, record
from rqttl.errors import MessageLeased, PolicyNotFound
from rqttl.inspector import effects, message_view
from rqttl.inspector.dead_letters import DeadLetterCounts, DeadLetters, count_within, read_filter
from rqttl.inspector.queues import living_consumers
from rqttl.options import OPTIONS, as_flags
from rqttl.policies import Policy
from rqttl.types import Message, Purged

if TYPE_CHECKING:
    from rqttl.dashboard.visit import Visit

#: Dead letters of a step of a job; messages and seconds of a dry run; bytes of a body that is sent here.
STEP, LOOKED, SECONDS, LONGEST = 250, 20_000, 2.0, 1 << 16
#: For actions on single messages: the method, its participle, and the field that it takes.
MESSAGES = {
    "move": ("move", "moved", "to"),
    "delete": ("delete_message", "deleted", ""),
    "expire": ("expire", "expired", ""),
    "dead-letter": ("dead_letter", "dead-lettered", "description"),
    "redeliver": ("redeliver_now", "redelivered", ""),
    "cancel": ("cancel", "cancelled", ""),
    "reschedule": ("reschedule", "rescheduled", "delay"),
}


def jobs(visit: Visit) -> Response:
    """`/jobs`: the jobs that run and those that ran."""
    every = visit.dashboard.jobs.all()
    return visit.page("jobs.html", title="Jobs", jobs=every, live=any(not job.ended for job in every))


def _stop(visit: Visit) -> Response:
    """`/job/stop`: let a job stop after the step at hand."""
    number = visit.needed("number")
    for job in visit.dashboard.jobs.all():
        if str(job.number) == number:
            job.stopping.set()
            entry = entry_of(visit, f"stop job {number}", job.entry["queue"], job.entry["filter"])
            record(entry, job.done, job.progress)
            return RedirectResponse(visit.link("/jobs"), 303)
    raise Trouble(404, f"this process knows no job {text.format_value(number)}")


def _options(visit: Visit) -> dict[str, Any]:
    if options := {name: one.parse(value) for name, one in OPTIONS.items() if (value := visit.text(name))}:
        return options
    raise Trouble(400, "nothing to change: give an option a value, or (none)")


def _flags(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [word for name, value in pairs for word in (f"--{name}", value)]


def _update(verb: str, visit: Visit) -> Plan:
    queue, paused = visit.queue(), {"pause": True, "resume": False}.get(verb)
    changes = _options(visit) if paused is None else {"paused": paused}
    targets = [target for name, target in changes.items() if OPTIONS[name].kind == "target" and target]
    visit.dashboard.refuse_hidden(*(str(target).replace("{queue}", queue.name) for target in targets))
    change = partial(queue.update, **changes) if paused is None else getattr(queue, verb)

    def look() -> list[str]:
        result, stats = queue.preview_update(**changes), queue.stats(sweep=False)
        if paused is not None and bool(result.after.paused) is not paused:
            raise Trouble(409, f"{queue.name} would stay as it is: {queue.explain()['paused'].source} decides")
        return [*effects.changes(result, ahead=True), f"{queue.name}: {effects.summary(stats)}"]

    def act() -> tuple[int, str]:
        result = change()
        return result.expired + result.trimmed, "; ".join(effects.changes(result, ahead=False))

    return Plan(verb, f"queue {verb}", queue.name, as_flags(changes, "--unset") if paused is None else [], look, act)


def _end(verb: str, visit: Visit) -> Plan:
    queue, state = visit.queue(), None
    if verb == "purge":
        state = checks.choice(visit.text("state", "ready"), "state", get_args(Purged))

    def work(job: Job) -> Generator[None, None, None]:
        job.done = queue.purge(state) if state else queue.delete()  # type: ignore[arg-type]  # it is one of them
        yield

    look = partial(effects.ending, visit.dashboard.broker, queue.name, state)  # type: ignore[arg-type]
    act, flags = partial(Job, *effects.ENDS[not state], work, single=True), ["--state", state] if state else []
    return Plan(verb, f"queue {verb}", queue.name, flags, look, act, typed=queue.name)


def _send(visit: Visit) -> Plan:
    queue, form = visit.queue(), checks.choice(visit.text("format", "text"), "format", ("text", "json"))
    written = visit.fields.get("body", "").replace("\r\n", "\n")
    if (size := len(written.encode())) > LONGEST:
        raise Trouble(400, f"body: expected at most {LONGEST:,} bytes, got {size:,}; `rqttl send` takes more")
    try:
        body = json.loads(written) if form == "json" else written
        body = body.encode() if isinstance(body, str) else body
    except (ValueError, RecursionError) as error:
        raise Trouble(400, f"body: not JSON: {error}") from error
    headers = [checks.key_and_value(line) for line in visit.text("headers").splitlines() if line.strip()]
    times: dict[str, Any] = {name: value for name in ("ttl", "delay") if (value := visit.text(name))}
    for name, value in times.items():
        units.duration(value, name)
    message_view.overhead(message := Message(body, headers=dict(headers) or None, **times))  # raises as sending would

    def look() -> list[str]:
        ttl, steps = queue.explain(times.get("ttl")).message
        life = "never expires" if ttl is None else f"expires after {units.as_text(ttl)}"
        return [f"{units.as_size(size)} would be stored in {queue.name}", f"the message {life}: {steps[-1].text}"]

    def act() -> tuple[int, str]:
        receipt = queue.enqueue(message)
        due = f", due {text.format_time(at, at, utc=True)}" if (at := receipt.deliver_at) else ""
        return 1, f"message {receipt.id} stored in {queue.name}{due}{', already expired' * receipt.expired}"

    flags = _flags([*(("header", f"{name}={value}") for name, value in headers), *times.items()])
    rest = ["--format", "json", "--file", "FILE"] if form == "json" else [text.escape(written, 100)]
    return Plan("send", "send", queue.name, flags, look, act, of="a message to ", rest=rest)


def _message(verb: str, visit: Visit) -> Plan:
    queue, id, (method, participle, more) = visit.queue("queue"), visit.needed("id"), MESSAGES[verb]
    broker, scheduled = visit.dashboard.broker, "scheduled " if verb in ("cancel", "reschedule") else ""
    value = visit.queue(more).name if verb == "move" else visit.text(more)
    if verb == "reschedule":
        units.duration(visit.needed(more), more)
    call: Callable[..., int] = partial(getattr(queue, method), id, **{more: value} if value else {})

    def told(n: int, words: str) -> str:
        if not n:
            raise Trouble(404, f"queue {queue.name!r} holds no {scheduled}message {text.format_value(id)}")
        return f"{text.plural(n, f'{scheduled}message')} of {queue.name} {words}"

    def look() -> list[str]:
        found, now = queue.messages(id), broker.server_time()
        lines = effects.listed(found, living_consumers(broker, queue.name) or (), now)
        try:
            n = sum(one.state == "scheduled" for one in found) if scheduled else call(dry_run=True)
        except MessageLeased as error:
            raise Trouble(409, f"{error}; {'; '.join(lines)}") from error
        if reason := {"expire": "expired", "dead-letter": "rejected"}.get(verb):
            lines.append(f"dead letters go to {queue.options().target(reason) or '(dropped)'}")
        return [told(n, f"would be {participle}"), *lines]

    def act() -> tuple[int, str]:
        return (n := call()), told(n, participle)

    flags = [id, value] if verb == "move" else [id, *_flags([(more, value)] if value else [])]
    return Plan(verb, verb if scheduled else f"message {verb}", queue.name, flags, look, act, of=f"message {id} of ")


def _letters(verb: str, visit: Visit) -> Plan:
    """Only the dead letters that are there at the time of the first form: `at` has it."""
    broker, queue = visit.dashboard.broker, visit.queue()
    to = visit.queue("to").name if verb == "move" else None
    words = parse_qsl(visit.fields.get("filter", ""), keep_blank_values=True)
    if not visit.dashboard.bodies and {"error", "header"} & dict(words).keys():
        raise Trouble(403, "this dashboard hides headers and descriptions: it has no filter by them")
    wanted, at = read_filter(words), visit.text("at")
    now = units.as_datetime(units.instant(at, "at")) if at else broker.server_time()
    oldest = now - wanted.older_than if isinstance(wanted.older_than, timedelta) else wanted.older_than
    latest = now + timedelta(milliseconds=1)
    wanted = replace(wanted, older_than=min(oldest or latest, latest))
    participle = {"redrive": "put back", "move": f"moved to {to}", "purge": "removed"}[verb]

    def check(counts: DeadLetterCounts) -> None:
        if verb == "redrive":
            visit.dashboard.refuse_hidden(*(one.source for one in counts.ordered() if one.source))

    def look() -> list[str]:
        if to:
            broker.queue(to).options()  # raises if it does not exist
        found = count_within(queue, wanted, now, most=LOOKED, seconds=SECONDS, errors=False)
        check(found.counts)
        if lines := effects.selected(broker, queue.name, found, participle, to, purge=verb == "purge"):
            return lines
        raise Trouble(404, f"{queue.name} has no such dead letters that are ready: nothing to do")

    def work(job: Job) -> Generator[None, None, None]:
        chosen = DeadLetters(queue, wanted, now, STEP)
        for _ in chosen.select():
            yield
        check(chosen.groups)
        try:
            for _ in chosen.purge() if verb == "purge" else chosen.redrive(to):
                job.done, job.left = chosen.done, chosen.left
                yield
        finally:
            job.done, job.left = chosen.done, chosen.left
            job.notes = effects.stayed(chosen.stayed)[0]
            job.notes += effects.left_alone(chosen.leased, chosen.delayed, chosen.missing)

    flags = _flags([*words, *([("to", to)] if to else [])])
    kept, act = {"at": str(round(now.timestamp() * 1000))}, partial(Job, "dead letter", participle, work)
    command = "dead purge" if verb == "purge" else "dead redrive"
    return Plan(verb, command, queue.name, flags, look, act, of="dead letters of ", kept=kept)


def _policy(verb: str, visit: Visit) -> Plan:
    if visit.dashboard.queues != "*":
        raise Trouble(403, f"policies act on all queues, and this dashboard shows {visit.dashboard.queues}")
    broker, name, operator = visit.dashboard.broker, visit.needed("name"), visit.text("operator") == "yes"
    kind, flags, wanted = "operator policy" if operator else "policy", list[str](), None
    if verb == "set":
        options, pattern, syntax = _options(visit), visit.needed("pattern"), visit.text("syntax", "wildcard")
        priority = OPTIONS["max_length"].parse(visit.text("priority", "0"))
        wanted = Policy.read(name, pattern, options, priority=priority, syntax=syntax, operator=operator)
        flags = [pattern, *as_flags(options | {"priority": priority}, "--none"), *["--regex"] * (syntax == "regex")]

    def look() -> list[str]:
        policy = wanted or next((one for one in broker.policies(operator=operator) if one.name == name), None)
        if policy is None:
            raise PolicyNotFound(name, operator=operator)
        warnings = [f"warning: {one}" for one in broker.check_policy(policy)] if wanted else []
        return [*effects.policy_changes(broker.preview_policy(policy, delete=not wanted), ahead=True), *warnings]

    def act() -> tuple[int, str]:
        if wanted:
            result = broker.set_policy(name, **wanted.as_arguments(), operator=operator)  # type: ignore[arg-type]
        else:
            result = broker.delete_policy(name, operator=operator)
        return len(result.changed), "; ".join(effects.policy_changes(result, ahead=False))

    return Plan(verb, f"{kind.replace(' ', '-')} {verb}", name, flags, look, act, of=f"{kind} ")


PLANS: dict[str, Callable[[Visit], Plan]] = {
    **{f"/queue/{verb}": partial(_update, verb) for verb in ("pause", "resume", "update")},
    **{f"/queue/{verb}": partial(_end, verb) for verb in ("purge", "delete")},
    "/queue/send": _send,
    **{f"/message/{verb}": partial(_message, verb) for verb in MESSAGES},
    **{f"/dead/{verb}": partial(_letters, verb) for verb in ("redrive", "move", "purge")},
    **{f"/policy/{verb}": partial(_policy, verb) for verb in ("set", "delete")},
}
ACTS: dict[str, Callable[[Visit], Response]] = {path: partial(answer, make) for path, make in PLANS.items()}
ACTS["/job/stop"] = _stop
