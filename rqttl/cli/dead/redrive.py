"""`rqttl dead redrive`: put letters back where they died. Letters that arrive after the question stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.option_text import flag
from rqttl.cli.common.queue_names import complete_queues
from rqttl.cli.common.settings import Settings
from rqttl.cli.common.signals import Interrupted
from rqttl.cli.dead.selection import Action, Request, Selection, in_batches, perform, selecting

if TYPE_CHECKING:
    from rqttl.queue import Queue
    from rqttl.types import RedriveResult

#: The number of letters that stayed, by the queue that should get them, the outcome, and the limit if there was one.
Remaining = Counter[tuple[str, str, str]]

_DONE, _PARTICIPLE = "redriven", "put back"


@click.command(epilog="\b\nExample: rqttl dead redrive orders/dead --reason expired --dry-run")
@click.option("--to", metavar="QUEUE", shell_complete=complete_queues, help="Put all into this queue instead.")
@selecting
def redrive(request: Request, to: str | None, settings: Settings) -> None:
    """Put letters of QUEUE back into the queues where they died.

    They go to the end, with their ids, headers and deaths, as if they had just
    been sent without a TTL: TTLs and limits of their queue act. A letter stays
    if its queue has no room, as do leased and delayed letters and messages
    that never died.
    """
    remaining: Remaining = Counter()

    def put_back(queue: Queue, selection: Selection) -> None:
        remaining.update(_redrive(request, queue, selection, to))

    target = "where they died" if to is None else f"into {to}"
    action = Action("redrive", _DONE, _PARTICIPLE, lambda letters: f"Put {letters} back {target}?", put_back)
    with settings.using() as broker:
        if to is not None:
            broker.queue(to).options()  # raises if it does not exist
        selection = perform(broker, request, action)
    request.report_skipped(selection)
    _refuse_remaining(remaining)


def _redrive(request: Request, queue: Queue, selection: Selection, to: str | None) -> Remaining:
    """Redrive the letters in batches, and print the number of moved ones, also if a signal ends it early."""
    results: list[RedriveResult] = []
    letters = [
        (sequence, to or source) for sequence, source in zip(selection.sequences, selection.sources, strict=True)
    ]

    def send(batch: Sequence[tuple[str, str]]) -> None:
        results.extend(queue.redrive_many(batch))

    def print_moved() -> None:
        moved = sum(result.outcome == "moved" for result in results)
        request.print_result(_DONE, _PARTICIPLE, selection, moved)

    received = in_batches(letters, send, print_moved)
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
