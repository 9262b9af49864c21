"""The pages for looking: the overview, queues and their messages, and who works."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, get_args

from starlette.responses import Response

from rqttl import checks, outages, text
from rqttl.dashboard import charts
from rqttl.dashboard.visit import Trouble, looking_at_messages
from rqttl.inspector import message_view
from rqttl.inspector import queues as views
from rqttl.options import OPTIONS
from rqttl.types import State

if TYPE_CHECKING:
    from datetime import datetime

    from rqttl.dashboard.visit import Visit
    from rqttl.policies import Explanation
    from rqttl.queue import Queue
    from rqttl.types import ConsumerInfo, MessageView, QueueStats

#: Messages in a page of a queue, and how many at most each call for them looks at: others may stand between them.
PAGE, LOOKS = 50, (51, 250, 250, 250)
#: Characters of a body in a list; bytes of one that are shown; bytes of the largest one that is decoded.
PREVIEW, LONGEST, DECODED = 300, 1 << 16, 1 << 20


def overview(visit: Visit) -> Response:
    """`/`: what needs attention, totals, and the busiest queues."""
    return visit.page("overview.html", title="Overview", command="rqttl stats", live=True)


def queue(visit: Visit) -> Response:
    """`/queue`: what is in a queue, who uses it, and the options in force."""
    handle, sample = visit.queue(), visit.dashboard.sampler.sample
    name, after = handle.name, visit.text("after")
    state: State = checks.choice(visit.text("state", "ready"), "state", get_args(State))  # type: ignore[assignment]
    points, row = sample.history(name), sample.row(name)
    values: dict[str, Any] = {
        "name": name,
        "state": state,
        "after": after,
        "states": get_args(State),
        "sources": sample.sources(name),
        "depth": points and charts.chart(points, "depth"),
        "rates": points and charts.chart(points, "in", "acked", "dead"),
    }
    try:
        values |= _read(visit, handle, state, after)
    except outages.TEMPORARY as error:
        if outages.is_denied(error) or row is None:
            raise
        values |= {"stats": row.stats, "explanation": None}
    return visit.page("queue.html", title=f"Queue {name}", command=f"rqttl queue show {name}", **values)


def _read(visit: Visit, handle: Queue, state: State, after: str) -> dict[str, Any]:
    """What Redis says of a queue, and one page of its messages."""
    broker, name = visit.dashboard.looking, handle.name
    stats, explanation, now = handle.stats(sweep=False), handle.explain(), broker.server_time()
    consumers = views.living_consumers(broker, name)
    messages: list[MessageView] = []
    following = refused = ""
    try:
        with looking_at_messages():
            messages, following = _listed(handle, stats, state, after)
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
        "options": _options(explanation),
        "messages": [_row(visit, one, consumers or (), now) for one in messages],
        "following": following,
        "refused": refused,
    }


def _listed(handle: Queue, stats: QueueStats, state: State, after: str) -> tuple[list[MessageView], str]:
    """One page of the messages in a state, and the place where the next one begins, if there is more.

    Messages in other states stand between them: a few calls look at some hundreds, and the next page goes on there.
    """
    if state == "scheduled":
        found = handle.peek(PAGE + 1, after or None, state=state) if stats.scheduled else []
        return found[:PAGE], found[PAGE - 1].sequence if len(found) > PAGE else ""
    found, left, total = [], stats.depth - stats.scheduled, None if after else getattr(stats, state)
    for most in LOOKS:
        if left <= 0 or len(found) == total:
            return found, ""
        looked = handle.peek(min(most, left), after or None)
        found += [message for message in looked if message.state == state]
        if len(found) > PAGE:
            return found[:PAGE], found[PAGE - 1].sequence
        if len(looked) < min(most, left):
            return found, ""
        left, after = left - len(looked), looked[-1].sequence
    return found, after if left and len(found) != total else ""


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


def _options(explanation: Explanation) -> list[tuple[str, str, str]]:
    """The options that are set or not up to date: the name, the value in force, and its source."""
    rows = []
    for name, one in explanation.items():
        value = explanation.outdated.get(name, one.value)
        if one.source != "default" or name in explanation.outdated:
            late = " (not in force yet: a reaper brings it there)" if name in explanation.outdated else ""
            rows.append((name.replace("_", "-"), OPTIONS[name].format(value), f"{one.source}{late}"))  # type: ignore[arg-type]  # the value of an option
    return rows


def message(visit: Visit) -> Response:
    """`/message`: everything about a message; a list, if several have the id."""
    handle, id, found = _found(visit)
    broker = visit.dashboard.looking
    now, explanation = broker.server_time(), handle.explain()
    leased = any(one.state == "leased" for one in found)
    consumers = views.living_consumers(broker, handle.name) if leased else None
    rows = [_row(visit, one, consumers or (), now) for one in found]
    values: dict[str, Any] = {"name": handle.name, "id": id, "rows": rows, "message": None}
    if len(found) == 1:
        values |= _details(visit, found[0], rows[0]["held"] if consumers is not None else None, now)
        values["rule"] = message_view.deadline_rule(found[0], explanation)
    command = f"rqttl message show {handle.name} {quote(id)}"
    return visit.page("message.html", title=f"Message {text.escape(id)}", command=command, **values)


def _found(visit: Visit) -> tuple[Queue, str, list[MessageView]]:
    """The queue, and the messages that a request names. Raises `Trouble`."""
    handle, id = visit.queue("queue"), visit.needed("id")
    with looking_at_messages():
        found = handle.messages(id)
    if not found:
        raise Trouble(404, f"queue {handle.name!r} holds no message {text.format_value(id)}")
    return handle, id, found


def _details(visit: Visit, message: MessageView, held: str | None, now: datetime) -> dict[str, Any]:
    shows = visit.dashboard.bodies
    facts = message_view.facts(message, held, now, LONGEST)
    kind, body = _body(message) if shows else ("hidden", "")
    return {
        "message": message,
        "facts": [pair for pair in facts if shows or pair[0] != "last failure"],
        "headers": [(one, message_view.header_text(value, LONGEST)) for one, value in message.headers.items()],
        "died": [text.format_time(death.last_at, now) for death in message.deaths],
        "kind": kind,
        "body": body,
        "cut": "64 KB" if len(message.body) > LONGEST else "",
    }


def _body(message: MessageView) -> tuple[str, str]:
    """A body as JSON, as text, or as bytes; the name of the form, and the first 64 KB of it."""
    value = message_view.body_value(message) if len(message.body) <= DECODED else message.body
    if not isinstance(value, bytes):
        return "JSON", json.dumps(json.loads(text.dump_readable_json(value)), indent=2, ensure_ascii=False)[:LONGEST]
    try:  # without the beginning of a character at the end
        shown = codecs.getincrementaldecoder("utf-8")().decode(value[:LONGEST])
    except UnicodeDecodeError:
        return "bytes", _hex(value[:LONGEST])
    with suppress(ValueError, RecursionError):
        if shown[:1] in ("{", "[") and len(value) <= LONGEST:
            return "JSON", json.dumps(json.loads(shown), indent=2, ensure_ascii=False)[:LONGEST]
    return "text", shown


def _hex(data: bytes) -> str:
    """Lines of 16 bytes: the place, hexadecimal numbers, and ASCII."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):47}  {shown}")
    return "\n".join(lines)


def message_body(visit: Visit) -> Response:
    """`/message/body`: the bytes of a body, as a file."""
    if not visit.dashboard.bodies:
        raise Trouble(403, "this dashboard hides the bodies of messages")
    handle, id, found = _found(visit)
    if len(found) > 1:
        raise Trouble(409, f"{len(found)} messages of {handle.name} have the id {text.format_value(id)}")
    named = {"Content-Disposition": f'attachment; filename="{found[0].sequence}"'}
    return Response(found[0].body, media_type="application/octet-stream", headers=named)
