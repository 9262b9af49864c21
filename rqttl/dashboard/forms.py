"""Forms: the first one shows what would happen, the second one does it, once.

A form has everything in its fields, so any process can take it. Outcomes and jobs are those of one process.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from rqttl import text
from rqttl.dashboard.access import Trouble
from rqttl.dashboard.jobs import Job, record

if TYPE_CHECKING:
    from rqttl.dashboard.visit import Visit


@dataclass(frozen=True)
class Plan:
    """What a form asks for: `look` is the dry run in words; `act` does it and tells a number and words, or makes a job.

    The command line that does the same is `command`, the queue, `flags`, and `rest`, which the log leaves out. `of`
    tells what of the queue is meant, `typed` has to be typed, `kept` is for the second form.
    """

    verb: str
    command: str
    queue: str
    flags: Sequence[str]
    look: Callable[[], list[str]]
    act: Callable[[], tuple[int, str] | Job]
    of: str = ""
    rest: Sequence[str] = ()
    typed: str = ""
    kept: dict[str, str] = field(default_factory=dict)


def answer(make: Callable[[Visit], Plan], visit: Visit) -> Response:
    """The page with the dry run of a form, also where the name was mistyped; for a confirmed one, the outcome."""
    plan = make(visit)
    title, id, typed = f"{plan.verb.capitalize()} {plan.of}{plan.queue}", visit.text("confirm"), visit.text("typed")
    command = shlex.join(["rqttl", *plan.command.split(), plan.queue, *plan.flags, *plan.rest])
    page = partial(visit.page, "action.html", command=command, plan=plan)
    if not id or (plan.typed and typed != plan.typed):
        got = f"typed: expected the name {plan.typed!r}, got {text.format_value(typed)}: nothing was done"
        fields = {name: value for name, value in visit.fields.items() if name not in ("confirm", "typed")} | plan.kept
        lines, status = [got] * bool(id) + plan.look(), 400 if id else 200
        return page(title=f"{title}?", lines=lines, fields=fields, id=secrets.token_urlsafe(16), status=status)
    outcome = visit.dashboard.outcomes.once(f"{title} {id[:99]}", partial(_carry_out, visit, plan))
    return page(title=title, lines=[outcome], id="") if outcome else RedirectResponse(visit.link("/jobs"), 303)


def _carry_out(visit: Visit, plan: Plan) -> str:
    """Do what a plan says, and log it. Returns the outcome in words, which are empty for a job."""
    entry = entry_of(visit, plan.verb, plan.queue, shlex.join(plan.flags))
    try:
        done = plan.act()
        if isinstance(done, Job) and not visit.dashboard.jobs.start(done, entry):
            raise Trouble(409, "four jobs run already: wait for one or stop one, then send this form again")
    except Exception as error:
        record(entry, None, text.without_secrets(str(error)))
        raise
    record(entry, *((None, f"job {done.number} began") if isinstance(done, Job) else done))
    return "" if isinstance(done, Job) else done[1]


def entry_of(visit: Visit, action: str, queue: str, filter: str) -> dict[str, str]:
    """What the log says of an action."""
    who = visit.visitor
    return {"user": who.user or "somebody", "address": who.address, "action": action, "queue": queue, "filter": filter}
