"""`rqttl dead redrive`: put letters back where they died, those that were counted before the question and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.option_text import flag
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.queue_names import complete_queues
from rqttl.cli.common.settings import Settings, connecting, json_flag, queue_argument, utc_flag
from rqttl.cli.common.signals import Stopped
from rqttl.cli.dead.filters import Wanted, letter_filters, note_targets, refuse_missing
from rqttl.cli.dead.purge import Chosen, choose, described, in_steps, note_rest, tell_dry

if TYPE_CHECKING:
    from rqttl.queue import Queue
    from rqttl.types import Redriven

#: How many letters stayed, by the queue that they should have gone to, the outcome, and the limit if there was one.
Staying = Counter[tuple[str, str, str]]


@click.command(epilog="\b\nExample: rqttl dead redrive orders.dead --reason expired --dry-run")
@queue_argument
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this letter; may be repeated.")
@click.option("--to", metavar="QUEUE", shell_complete=complete_queues, help="Put all into this queue instead.")
@letter_filters
@utc_flag
@yes_flag
@dry_run_flag
@json_flag
@connecting
def redrive(
    queue: str, ids: tuple[str, ...], to: str | None, wanted: Wanted, utc: bool, yes: bool, dry_run: bool,
    as_json: bool, settings: Settings,
) -> None:  # fmt: skip
    """Put letters of QUEUE back into the queues where they died.

    They go to the end, with their ids, headers and deaths, as if they had just
    been sent without a TTL: TTLs and limits of their queue act. What finds no
    room stays, as do leased and delayed letters and messages that never died.
    """
    wanted = replace(wanted, ids=frozenset(ids))
    staying: Staying = Counter()
    with settings.using() as broker:
        source, now = broker.queue(queue), broker.time()
        if to is not None:
            broker.queue(to).options()  # raises if it is not there
        chosen = choose(source, wanted, now)
        if dry_run:
            tell_dry(queue, chosen, now, utc=utc, as_json=as_json, key="would_redrive", done="put back")
        elif chosen.places:
            where = "where they died" if to is None else f"into {to}"
            confirm(f"Put {described(queue, chosen, everything=wanted.everything)} back {where}?", yes=yes)
            staying = _send(source, chosen, to, as_json=as_json)
        else:
            _tell(queue, chosen, 0, as_json=as_json)
        if not chosen.places:
            note_targets(source)
    note_rest(chosen, everything=wanted.everything, hint="")
    refuse_missing(queue, chosen.missing)
    _refuse_staying(staying)


def _send(queue: Queue, chosen: Chosen, to: str | None, *, as_json: bool) -> Staying:
    """Send them in steps, and say how many went, also when it is cut short. Returns what stayed."""
    told: list[Redriven] = []
    letters = [(place, to or source) for place, source in zip(chosen.places, chosen.sources, strict=True)]

    def send(some: Sequence[tuple[str, str]]) -> None:
        told.extend(queue.redrive_these(some))

    def tell() -> None:
        _tell(queue.name, chosen, sum(one.outcome == "moved" for one in told), as_json=as_json)

    stopped = in_steps(letters, send, tell)
    if stopped:
        raise Stopped(stopped, f": {text.plural(len(letters) - len(told), 'letter')} left")
    return Counter((one.origin, one.outcome, one.limit or "") for one in told if one.outcome != "moved")


def _refuse_staying(staying: Staying) -> None:
    """Say what has not gone and why; raise `Refused` if it could not."""
    words = {"no_origin": "{} is not there (see --to)", "same_queue": "{} is the queue that holds them (see --to)"}
    code = ""
    for (origin, outcome, limit), n in sorted(staying.items()):
        letters = text.plural(n, "letter")
        if outcome == "gone":
            output.note(f"{letters} gone or no longer ready meanwhile: left alone")
            continue
        why = f"{origin} has no room ({flag(limit)})" if outcome == "full" else words[outcome].format(origin)
        output.note(f"{letters} left alone: {why}")
        code = "queue_full" if outcome == "full" else code or "not_found"
    if code:
        raise Refused("not all letters could be put back", code)


def _tell(name: str, chosen: Chosen, moved: int, *, as_json: bool) -> None:
    if as_json:
        output.answer_json({"queue": name, "redriven": moved, **chosen.facts()})
    else:
        output.answer(f"{text.plural(moved, 'letter')} of {name} put back")
