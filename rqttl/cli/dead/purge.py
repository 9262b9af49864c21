"""`rqttl dead purge`: remove letters. Letters that arrive after the question stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.settings import Settings
from rqttl.cli.common.signals import Interrupted
from rqttl.cli.dead.selection import Action, Request, Selection, in_batches, perform, selecting

if TYPE_CHECKING:
    from rqttl.queue import Queue

_DONE, _PARTICIPLE = "purged", "removed"


@click.command(epilog="\b\nExample: rqttl dead purge orders/dead --older-than 7d --dry-run")
@selecting
def purge(request: Request, settings: Settings) -> None:
    """Remove letters of QUEUE, all or some.

    Only ready letters go. Leased and delayed letters stay, as do messages that
    never died, and letters that arrive after they were counted.

    Letters that --id, --source, --reason or --header chooses count as handled.
    Letters that only their age chooses, or nothing, count as lost: a stream of
    Spark that has not read them reports it.
    """

    def remove(queue: Queue, selection: Selection) -> None:
        _remove(request, queue, selection)

    action = Action("purge", _DONE, _PARTICIPLE, lambda letters: f"Remove {letters}?", remove)
    with settings.using() as broker:
        selection = perform(broker, request, action)
    request.report_skipped(selection, hint=" (`rqttl queue purge` removes all)")


def _remove(request: Request, queue: Queue, selection: Selection) -> None:
    """Remove the letters in batches, and print the number of removed ones, also if a signal ends it early."""
    removed, unread = 0, request.letter_filter.is_age

    def remove(batch: Sequence[str]) -> None:
        nonlocal removed
        removed += queue.purge_many(batch, unread=unread)

    received = in_batches(
        selection.sequences, remove, lambda: request.print_result(_DONE, _PARTICIPLE, selection, removed)
    )
    if received:
        left = len(selection.sequences) - removed
        raise Interrupted(received, f": {text.plural(left, 'letter')} left")
    if removed < len(selection.sequences):
        missed = text.plural(len(selection.sequences) - removed, "letter")
        output.note(f"{missed} gone or no longer ready meanwhile: left alone")
