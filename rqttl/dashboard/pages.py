"""The pages for looking: the overview, queues and their messages, and who works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from starlette.responses import Response

from rqttl import checks, outages, text
from rqttl.dashboard.access import Trouble
from rqttl.dashboard.sampler import ATTENTION, SORTS, SPANS, paged
from rqttl.dashboard.visit import looking_at_messages, quoted
from rqttl.inspector import message_view
from rqttl.inspector import queues as views
from rqttl.types import State

if TYPE_CHECKING:
    from rqttl.dashboard.sampler import Sample
    from rqttl.dashboard.visit import Visit
    from rqttl.queue import Queue
    from rqttl.types import ConsumerInfo, MessageView

#: Characters of a body in a list, bytes of one that are shown, and messages among which one is searched by its id.
PREVIEW, LONGEST, SEARCHED = 300, 1 << 16, 100_000
#: Names or patterns by which queues are chosen, at most: hundreds take seconds for many names.
PATTERNS = 20
#: What needs attention, by the order of the sampler that has it: words, and the command that mends it.
ALARMS: Mapping[str, tuple[str, str]] = {
    "paused": ("is paused, and holds {depth}", "rqttl queue resume {name}"),
    "unconsumed": ("has {ready}{full}, and no consumer", "rqttl worker {name} --call MODULE:FUNCTION"),
    "full": ("is full, with {ready}", "rqttl queue update {name} {room}"),
}
#: Queues that an alarm names, and queues in a list of the overview.
NAMED, LISTED = 5, 10


class Alarm(NamedTuple):
    """Words about a queue, an order of queues, or all; and the command that helps."""

    words: str
    command: str = ""
    queue: str = ""
    sort: str = ""


def overview(visit: Visit) -> Response:
    """`/`: what needs attention, totals, and the busiest queues."""
    sample, span = visit.dashboard.sampler.sample, checks.choice(visit.text("span", "10m"), "span", SPANS)
    lived, (seconds, slots) = sample.now - sample.since, SPANS[span]
    values: dict[str, Any] = {
        "span": span,
        "lived": timedelta(seconds=lived) if lived < seconds * slots else None,
        "spans": SPANS,
        "points": sample.history("", span),
        "alarms": list(_alarms(sample)),
        "roles": None if sample.workers is None else Counter(one.role for one in sample.workers),
        "busiest": [row for row in sample.rows("rate", size=LISTED).rows if row.rate("in", "out")],
        "dying": sample.rows("dying", size=LISTED).rows,
    }
    return visit.page("overview.html", title="Overview", command="rqttl stats", live=True, **values)


def _alarms(sample: Sample) -> Iterator[Alarm]:
    """What needs attention, the worst first."""
    for one in sample.troubles:
        if one.queues:
            verb = "is" if len(one.queues) == 1 else "are"
            yield Alarm(f"{text.first_few(list(one.queues))} {verb} away: {one.text}", "rqttl doctor")
    if sample.late:
        yield Alarm(sample.late.advice, "" if sample.reapers else "rqttl reaper", sort="overdue")
    elif sample.reapers == 0 and sample.names:
        yield Alarm("no reaper runs: what expires or comes back waits for a call on its queue", "rqttl reaper")
    told, targets = set[str](), {target for row in sample.queues.values() for target in row.targets}
    for sort, (words, command) in ALARMS.items():
        names = [n for n in sample.orders.get(sort, ()) if n not in told and (sort != "unconsumed" or n not in targets)]
        told.update(names)
        for row in filter(None, map(sample.row, names[:NAMED])):
            stats, most = row.stats, row.max_length
            by_count = most is not None and stats.ready >= most
            room = f"--max-length {2 * (most or 1)}" if by_count else f"--max-length-bytes {2 * stats.ready_bytes}"
            ready, depth = text.plural(stats.ready, "ready message"), text.plural(stats.depth, "message")
            said = words.format(ready=ready, depth=depth, full=", so it is full" if row.full() else "")
            yield Alarm(said, command.format(name=row.name, room=room), row.name)
        if len(names) > NAMED:
            yield Alarm(f"{text.plural(len(names) - NAMED, 'more queue')} like these ({sort})", sort=sort)


def queues(visit: Visit) -> Response:
    """`/queues`: the numbers of all queues, by pages."""
    sample, patterns = visit.dashboard.sampler.sample, visit.text("q").split()
    if len(patterns) > PATTERNS:
        raise Trouble(400, f"q: expected at most {PATTERNS} names or patterns")
    sort = checks.choice(visit.text("sort", "name"), "sort", ("name", *SORTS, *ATTENTION))
    page = sample.rows(sort, patterns, visit.number("page"))
    near = sample.nearest(patterns[0]) if patterns and not page.found else None
    values: dict[str, Any] = {"listed": page, "sort": sort, "q": visit.text("q"), "near": near}
    command = f"rqttl stats {quoted(*patterns)}".rstrip()
    return visit.page("queues.html", title="Queues", command=command, live=True, **values)


def workers(visit: Visit) -> Response:
    """`/workers`: who works, and on what."""
    sample, every = visit.dashboard.sampler.sample, visit.dashboard.sampler.sample.workers or ()
    versions = Counter(one.version for one in every)
    values: dict[str, Any] = {
        "listed": paged(every, visit.number("page")),
        "usual": max(versions, key=versions.__getitem__, default=""),
        "ago": partial(text.format_time, now=sample.at or datetime.now(timezone.utc)),
    }
    return visit.page("workers.html", title="Workers", command="rqttl worker ls", live=True, **values)


def queue(visit: Visit) -> Response:
    """`/queue`: what is in a queue, who uses it, and the options in force."""
    handle, sample = visit.queue(), visit.dashboard.sampler.sample
    name, after = handle.name, visit.text("after")
    state: State = checks.choice(visit.text("state", "ready"), "state", get_args(State))  # type: ignore[assignment]
    row = sample.row(name)
    values: dict[str, Any] = {"name": name, "state": state, "after": after, "states": get_args(State)}
    values["sources"] = [one for one, other in sample.queues.items() if name in other.targets]
    values["points"] = sample.history(name)
    try:
        values |= _read(visit, handle, state, after)
    except outages.TEMPORARY as error:
        if outages.is_denied(error) or row is None:
            raise
        values |= {"stats": row.stats, "explanation": None, "age": row.age}
    return visit.page("queue.html", title=f"Queue {name}", command=f"rqttl queue show {name}", **values)


def _read(visit: Visit, handle: Queue, state: State, after: str) -> dict[str, Any]:
    """What Redis says of a queue, and one page of its messages."""
    broker, name = visit.dashboard.sampler.broker, handle.name
    stats, explanation, now = handle.stats(sweep=False), handle.explain(), broker.server_time()
    consumers = views.living_consumers(broker, name)
    messages: list[MessageView] = []
    following = refused = ""
    try:
        with looking_at_messages():
            messages, following = views.page_of(handle, stats, state, after)
    except Trouble as error:
        refused = str(error)
    reapers = visit.dashboard.sampler.sample.reapers
    bindings = explanation.options.bindings
    return {
        "stats": stats,
        "explanation": explanation,
        "facts": views.facts(name, stats, explanation, now, utc=False)[1:],
        "late": views.LateWork(stats.overdue, reapers) if stats.overdue >= views.LATE else None,
        "node": broker.node_of(name),
        "bindings": None if bindings is None else [(one, views.format_filter(bindings[one])) for one in bindings],
        "consumers": consumers,
        "columns": views.CONSUMERS,
        "consumer_rows": [views.consumer_row(one, now, utc=False) for one in consumers or ()],
        "deaths": views.death_rows(stats, explanation.options),
        "options": views.option_rows(explanation),
        "messages": [_row(visit, one, consumers or (), now) for one in messages],
        "following": following,
        "refused": refused,
    }


def _row(visit: Visit, message: MessageView, consumers: Sequence[ConsumerInfo], now: datetime) -> dict[str, Any]:
    """A message of a list."""
    holder = message_view.holder(message, consumers)
    return {
        "message": message,
        "state": message_view.state_text(message, now),
        "held": message_view.holder_text(message, holder, now) if holder else "",
        "enqueued": text.format_time(message.enqueued_at, now),
        "expires": text.format_time(message.expires_at, now) if message.expires_at else "never",
        "preview": message_view.body_text(message, PREVIEW) if visit.dashboard.bodies else "",
        "failure": text.escape(message.description or "", PREVIEW) if visit.dashboard.bodies else "",
    }


def message(visit: Visit) -> Response:
    """`/message`: everything about a message; a list, if several have the id."""
    handle, id, found = _found(visit)
    broker = visit.dashboard.sampler.broker
    now, explanation = broker.server_time(), handle.explain()
    leased = any(one.state == "leased" for one in found)
    consumers = views.living_consumers(broker, handle.name) if leased else None
    rows = [_row(visit, one, consumers or (), now) for one in found]
    values: dict[str, Any] = {"name": handle.name, "id": id, "rows": rows, "message": None}
    if len(found) == 1:
        values |= _details(visit, found[0], rows[0]["held"] if consumers is not None else None, now)
        values["rule"] = message_view.deadline_rule(found[0], explanation)
    command = f"rqttl message show {handle.name} {quoted(id)}"
    return visit.page("message.html", title=f"Message {text.escape(id)}", command=command, **values)


def _found(visit: Visit) -> tuple[Queue, str, list[MessageView]]:
    """The queue, and the messages that a request names. Raises `Trouble`."""
    handle, id = visit.queue("queue"), visit.needed("id")
    with looking_at_messages():
        found = handle.messages(id, scan=SEARCHED)
    if not found:
        raise Trouble(404, f"queue {handle.name!r} holds no message {text.format_value(id)}")
    return handle, id, found


def _details(visit: Visit, message: MessageView, held: str | None, now: datetime) -> dict[str, Any]:
    shows = visit.dashboard.bodies
    facts = message_view.facts(message, held, now, LONGEST)
    kind, body = message_view.readable_body(message, LONGEST) if shows else ("hidden", "")
    return {
        "message": message,
        "facts": [pair for pair in facts if shows or pair[0] != "last failure"],
        "headers": [(one, message_view.header_text(value, LONGEST)) for one, value in message.headers.items()],
        "died": [text.format_time(death.last_at, now) for death in message.deaths],
        "kind": kind,
        "body": body,
        "cut": "64 KB" if len(message.body) > LONGEST else "",
    }


def message_body(visit: Visit) -> Response:
    """`/message/body`: the bytes of a body, as a file."""
    if not visit.dashboard.bodies:
        raise Trouble(403, "this dashboard hides the bodies of messages")
    handle, id, found = _found(visit)
    if len(found) > 1:
        raise Trouble(409, f"{len(found)} messages of {handle.name} have the id {text.format_value(id)}")
    named = {"Content-Disposition": f'attachment; filename="{found[0].sequence}"'}
    return Response(found[0].body, media_type="application/octet-stream", headers=named)
