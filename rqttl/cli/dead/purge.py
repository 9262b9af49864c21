"""`rqttl dead purge`: remove letters. Letters that arrive after the question stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import json_flag, queue_argument, utc_flag
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.common.signals import Interrupted
from rqttl.cli.dead.filters import letter_filters
from rqttl.cli.dead.render import note_targets, refuse_missing
from rqttl.cli.dead.selection import Selection, describe, ids_option, in_batches, note_skipped, print_dry_run, select
from rqttl.inspector.letters import LetterFilter

if TYPE_CHECKING:
    from rqttl.queue import Queue


@click.command(epilog="\b\nExample: rqttl dead purge orders.dead --older-than 7d --dry-run")
@queue_argument
@ids_option
@letter_filters
@utc_flag
@yes_flag
@dry_run_flag
@json_flag
@connecting
def purge(
    queue: str,
    ids: tuple[str, ...],
    letter_filter: LetterFilter,
    utc: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Remove letters of QUEUE, all or some.

    Only ready letters go. Leased and delayed letters stay, as do messages that
    never died, and letters that arrive after they were counted.
    """
    letter_filter = replace(letter_filter, ids=frozenset(ids))
    everything = letter_filter.is_empty
    with settings.using() as broker:
        source, now = broker.queue(queue), broker.server_time()
        selection = select(source, letter_filter, now)
        if dry_run:
            print_dry_run(queue, selection, now, utc=utc, as_json=as_json, key="would_purge", verb="removed")
        elif selection.sequences:
            confirm(f"Remove {describe(queue, selection, everything=everything)}?", yes=yes)
            _remove(source, selection, as_json=as_json)
        else:
            _print_result(queue, selection, 0, as_json=as_json)
        if not selection.sequences:
            note_targets(source)
    note_skipped(selection, everything=everything, hint=" (`rqttl queue purge` removes all)")
    refuse_missing(queue, selection.missing)


def _remove(queue: Queue, selection: Selection, *, as_json: bool) -> None:
    """Remove the letters in batches, and print the number of removed ones, also if a signal ends it early."""
    removed = 0

    def remove(batch: Sequence[str]) -> None:
        nonlocal removed
        removed += queue.purge_many(batch)

    received = in_batches(
        selection.sequences, remove, lambda: _print_result(queue.name, selection, removed, as_json=as_json)
    )
    if received:
        left = len(selection.sequences) - removed
        raise Interrupted(received, f": {text.plural(left, 'letter')} left")
    if removed < len(selection.sequences):
        missed = text.plural(len(selection.sequences) - removed, "letter")
        output.note(f"{missed} gone or no longer ready meanwhile: left alone")


def _print_result(queue: str, selection: Selection, removed: int, *, as_json: bool) -> None:
    if as_json:
        output.answer_json({"queue": queue, "purged": removed, **selection.to_json()})
    else:
        output.answer(f"{text.plural(removed, 'letter')} of {queue} removed")
