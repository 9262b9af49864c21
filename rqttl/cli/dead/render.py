"""Letters for people: a table of groups, and notes on letters that are missing, not ready, or in another queue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.inspector.letters import LetterGroups
from rqttl.options import REASONS
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.queue import Queue


def print_groups(groups: LetterGroups, now: datetime, *, utc: bool) -> None:
    """Print a table of groups, with totals if there are several."""
    ordered = groups.ordered()
    rows = [
        [
            text.escape(g.source or "-"),
            text.escape(g.reason or "(never died)"),
            text.format_count(g.count),
            text.format_time(g.oldest, now, utc=utc),
            text.format_time(g.newest, now, utc=utc),
            as_size(g.size),
        ]
        for g in ordered
    ]
    total = None
    if len(ordered) > 1:
        total = ["total", "", text.format_count(groups.total()), "", "", as_size(groups.total("size"))]
    output.print_table(["source", "reason", ">count", ">oldest", ">newest", ">bytes"], rows, total)


def format_not_ready(leased: int, delayed: int) -> str:
    """The numbers of letters that are not ready, in words; empty if all are ready."""
    states = ((leased, "leased"), (delayed, "delayed"))
    return " and ".join(f"{text.format_count(n)} {state}" for n, state in states if n)


def note_targets(queue: Queue) -> None:
    """Print a note with the queues that get the dead letters of `queue`: the user may have meant one of them."""
    options = queue.options()
    targets: dict[str, list[str]] = {}
    for reason in REASONS:
        target = options.target(reason)
        if target and target != queue.name:
            targets.setdefault(target, []).append(reason)
    if targets:
        names = (f"{target} ({', '.join(why)})" if len(targets) > 1 else target for target, why in targets.items())
        output.note(f"dead letters of {queue.name} go to {' and '.join(names)}")


def refuse_missing(queue: str, ids: Iterable[str]) -> None:
    """Raise `Refused` if a queue lacks letters with these ids."""
    if missing := sorted(ids):
        raise Refused(f"no such letter in {queue}: {', '.join(id or repr(id) for id in missing)}", "not_found")
