"""`rqttl dead redrive`: put letters back where they died. Letters that arrive after the question stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.option_text import flag
from rqttl.cli.common.params import json_flag, queue_argument, utc_flag
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.queue_names import complete_queues
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.common.signals import Interrupted
from rqttl.cli.dead.filters import letter_filters
from rqttl.cli.dead.render import note_targets, refuse_missing
from rqttl.cli.dead.selection import Selection, describe, ids_option, in_batches, note_skipped, print_dry_run, select
from rqttl.inspector.letters import LetterFilter

if TYPE_CHECKING:
    from rqttl.queue import Queue
    from rqttl.types import RedriveResult

#: The number of letters that stayed, by the queue that should get them, the outcome, and the limit if there was one.
Remaining = Counter[tuple[str, str, str]]


@click.command(epilog="\b\nExample: rqttl dead redrive orders.dead --reason expired --dry-run")
@queue_argument
@ids_option
@click.option("--to", metavar="QUEUE", shell_complete=complete_queues, help="Put all into this queue instead.")
@letter_filters
@utc_flag
@yes_flag
@dry_run_flag
@json_flag
@connecting
def redrive(
    queue: str,
    ids: tuple[str, ...],
    to: str | None,
    letter_filter: LetterFilter,
    utc: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Put letters of QUEUE back into the queues where they died.

    They go to the end, with their ids, headers and deaths, as if they had just
    been sent without a TTL: TTLs and limits of their queue act. A letter stays
    if its queue has no room, as do leased and delayed letters and messages
    that never died.
    """
    letter_filter = replace(letter_filter, ids=frozenset(ids))
    everything = letter_filter.is_empty
    remaining: Remaining = Counter()
    with settings.using() as broker:
        source, now = broker.queue(queue), broker.server_time()
        if to is not None:
            broker.queue(to).options()  # raises if it does not exist
        selection = select(source, letter_filter, now)
        if dry_run:
            print_dry_run(queue, selection, now, utc=utc, as_json=as_json, key="would_redrive", verb="put back")
        elif selection.sequences:
            target = "where they died" if to is None else f"into {to}"
            confirm(f"Put {describe(queue, selection, everything=everything)} back {target}?", yes=yes)
            remaining = _redrive(source, selection, to, as_json=as_json)
        else:
            _print_result(queue, selection, 0, as_json=as_json)
        if not selection.sequences:
            note_targets(source)
    note_skipped(selection, everything=everything)
    refuse_missing(queue, selection.missing)
    _refuse_remaining(remaining)


def _redrive(queue: Queue, selection: Selection, to: str | None, *, as_json: bool) -> Remaining:
    """Redrive the letters in batches, and print the number of moved ones, also if a signal ends it early."""
    results: list[RedriveResult] = []
    letters = [
        (sequence, to or source) for sequence, source in zip(selection.sequences, selection.sources, strict=True)
    ]

    def send(batch: Sequence[tuple[str, str]]) -> None:
        results.extend(queue.redrive_many(batch))

    def print_result() -> None:
        _print_result(queue.name, selection, sum(result.outcome == "moved" for result in results), as_json=as_json)

    received = in_batches(letters, send, print_result)
    if received:
        raise Interrupted(received, f": {text.plural(len(letters) - len(results), 'letter')} left")
    return Counter(
        (result.origin, result.outcome, result.limit or "") for result in results if result.outcome != "moved"
    )


def _refuse_remaining(remaining: Remaining) -> None:
    """Print a note for the letters that stayed, with the reason. Raises `Refused` if their queues did not take them."""
    words = {"no_origin": "{} does not exist (see --to)", "same_queue": "{} is the queue that holds them (see --to)"}
    code = ""
    for (origin, outcome, limit), n in sorted(remaining.items()):
        letters = text.plural(n, "letter")
        if outcome == "unavailable":
            output.note(f"{letters} gone or no longer ready meanwhile: left alone")
            continue
        why = f"{origin} has no room ({flag(limit)})" if outcome == "full" else words[outcome].format(origin)
        output.note(f"{letters} left alone: {why}")
        code = "queue_full" if outcome == "full" else code or "not_found"
    if code:
        raise Refused("not all letters could be put back", code)


def _print_result(queue: str, selection: Selection, moved: int, *, as_json: bool) -> None:
    if as_json:
        output.answer_json({"queue": queue, "redriven": moved, **selection.to_json()})
    else:
        output.answer(f"{text.plural(moved, 'letter')} of {queue} put back")
