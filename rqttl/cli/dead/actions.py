"""`rqttl dead redrive` and `purge`: letters are counted first, then processed in batches, and no other letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.option_flags import flag
from rqttl.cli.common.params import (
    MESSAGE_ID,
    F,
    complete_queues,
    dry_run_flag,
    json_flag,
    queue_argument,
    utc_flag,
    yes_flag,
)
from rqttl.cli.common.progress import Progress, read_messages
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.common.signals import Interrupted, SignalGuard, SignalReceived
from rqttl.cli.dead.letters import format_not_ready, letter_filters, note_targets, print_groups, refuse_missing
from rqttl.inspector.dead_letters import DeadLetterCounts, DeadLetterFilter

if TYPE_CHECKING:
    from datetime import datetime

    from rqttl.queue import Queue
    from rqttl.types import RedriveResult

#: Letters in one batch. A Ctrl-C waits for the end of a batch.
BATCH = 1_000
#: Groups that a question names.
NAMED = 3

#: The options that select letters, and those of a change, in the order of the help.
_OPTIONS = (
    queue_argument,
    click.option(
        "--id", "ids", multiple=True, type=MESSAGE_ID, metavar="ID", help="Only this letter; may be repeated."
    ),
    letter_filters,
    utc_flag,
    yes_flag,
    dry_run_flag,
    json_flag,
    connecting,
)


def _selecting(command: F) -> F:
    """Give a command the options that select letters; it gets those of `Request` and `settings`."""
    decorated: Any = command
    for add_option in reversed(_OPTIONS):
        decorated = add_option(decorated)
    return decorated  # type: ignore[no-any-return]  # for click, the caller, it is the same


@dataclass(frozen=True)
class Request:
    """The letters that a command line names, and the form of its answer."""

    queue: str
    letter_filter: DeadLetterFilter
    utc: bool
    yes: bool
    dry_run: bool
    as_json: bool


class Verb(NamedTuple):
    """An action on letters: its name and its participle in JSON, and the participle for people."""

    name: str
    done: str
    words: str


@dataclass
class Selection:
    """The ready letters that match, as sequences with the queues where they died; and what matches and is not ready."""

    letters: list[tuple[str, str]] = field(default_factory=list)
    groups: DeadLetterCounts = field(default_factory=DeadLetterCounts)
    missing: set[str] = field(default_factory=set)
    leased: int = 0
    delayed: int = 0
    never_died: int = 0


def _perform(
    source: Queue,
    now: datetime,
    request: Request,
    verb: Verb,
    question: Callable[[str], str],
    process: Callable[[Sequence[tuple[str, str]]], int],
) -> Selection:
    """Select letters, ask, and process them in batches. `process` returns how many of a batch are done."""
    selection, matches = Selection(missing=set(request.letter_filter.ids)), request.letter_filter.at(now)
    for message in read_messages(source):
        selection.never_died += not message.deaths
        if not matches(message):
            continue
        selection.missing.discard(message.id)
        if message.state == "ready":
            selection.groups.add(message)
            selection.letters.append((message.sequence, message.deaths[0].queue))
        selection.leased += message.state == "leased"
        selection.delayed += message.state == "delayed"
    if not selection.letters:
        _print_result(request, verb, selection, 0)
        note_targets(source)
    elif request.dry_run:
        if not request.as_json:
            print_groups(selection.groups, now, utc=request.utc)
        _print_result(request, verb, selection, len(selection.letters))
    else:
        output.confirm(question(_describe(request, selection)), yes=request.yes)
        _process(request, verb, selection, process)
    return selection


def _process(
    request: Request, verb: Verb, selection: Selection, process: Callable[[Sequence[tuple[str, str]]], int]
) -> None:
    """Process the letters, and print the number of those that are done, also if an error or a signal ends it early."""
    letters, left, done = selection.letters, len(selection.letters), 0
    try:
        with SignalGuard() as guard, Progress(left) as progress:
            for start in range(0, len(letters), BATCH):
                batch = letters[start : start + BATCH]
                with guard.deferred():
                    done += process(batch)
                    left -= len(batch)
                progress.advance(len(batch), len(batch))
            guard.finish()
    except SignalReceived as received:
        raise Interrupted(received, f": {text.plural(left, 'letter')} left") from None
    finally:
        _print_result(request, verb, selection, done)


def _print_result(request: Request, verb: Verb, selection: Selection, number: int) -> None:
    if request.as_json:
        output.answer_json(
            {
                "queue": request.queue,
                f"would_{verb.name}" if request.dry_run else verb.done: number,
                "groups": selection.groups.to_json(),
                "leased": selection.leased,
                "delayed": selection.delayed,
                "never_died": selection.never_died,
            }
        )
    else:
        would = "would be " if request.dry_run else ""
        output.answer(f"{text.plural(number, 'letter')} of {request.queue} {would}{verb.words}")


def _describe(request: Request, selection: Selection) -> str:
    """The selected letters in words, for a question."""
    groups = selection.groups.ordered()
    parts = [f"{text.format_count(group.count)} {group.reason} in {group.source}" for group in groups[:NAMED]]
    if len(groups) > NAMED:
        others = sum(group.count for group in groups[NAMED:])
        parts.append(f"{text.format_count(others)} in {text.plural(len(groups) - NAMED, 'other group')}")
    every = "all " if request.letter_filter.is_empty else ""
    return f"{every}{text.plural(len(selection.letters), 'letter')} of {request.queue} ({', '.join(parts)})"


def _note_skipped(request: Request, selection: Selection, *, hint: str = "") -> None:
    """Print notes on letters that were left alone. Raises `Refused` for ids without a letter."""
    if not_ready := format_not_ready(selection.leased, selection.delayed):
        output.note(f"{not_ready}: not ready, left alone")
    if request.letter_filter.is_empty and selection.never_died:
        never = text.plural(selection.never_died, "message")
        output.note(f"{never} never died: left alone{hint}")
    refuse_missing(request.queue, selection.missing)


@click.command(epilog="\b\nExample: rqttl dead redrive orders/dead --reason expired --dry-run")
@click.option("--to", metavar="QUEUE", shell_complete=complete_queues, help="Put all into this queue instead.")
@_selecting
def redrive(to: str | None, settings: Settings, **options: Any) -> None:
    """Put letters of QUEUE back into the queues where they died.

    They go to the end, with their ids, headers and deaths, as if they had just
    been sent without a TTL: TTLs and limits of their queue act. A letter stays
    if its queue has no room, as do leased and delayed letters and messages
    that never died.
    """
    request = Request(**options)
    results: list[RedriveResult] = []
    place = "where they died" if to is None else f"into {to}"
    with settings.using() as broker:
        if to is not None:
            broker.queue(to).options()  # raises if it does not exist
        source = broker.queue(request.queue)

        def put_back(batch: Sequence[tuple[str, str]]) -> int:
            moves = source.redrive_many([(sequence, to or origin) for sequence, origin in batch])
            results.extend(moves)
            return sum(result.outcome == "moved" for result in moves)

        verb = Verb("redrive", "redriven", "put back")
        selection = _perform(
            source, broker.server_time(), request, verb, lambda letters: f"Put {letters} back {place}?", put_back
        )
    _note_skipped(request, selection)
    _refuse_remaining(results)


def _refuse_remaining(results: Sequence[RedriveResult]) -> None:
    """Print a note for the letters that stayed, with the reason. Raises `Refused` if their queues did not take them."""
    remaining = Counter((r.origin, r.outcome, r.limit or "") for r in results if r.outcome != "moved")
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


@click.command(epilog="\b\nExample: rqttl dead purge orders/dead --older-than 7d --dry-run")
@_selecting
def purge(settings: Settings, **options: Any) -> None:
    """Remove letters of QUEUE, all or some.

    Only ready letters go. Leased and delayed letters stay, as do messages that
    never died, and letters that arrive after they were counted.

    Letters that --id, --source, --reason or --header chooses count as handled.
    Letters that only their age chooses, or nothing, count as lost: a stream of
    Spark that has not read them reports it.
    """
    request, missed = Request(**options), 0
    with settings.using() as broker:
        source = broker.queue(request.queue)

        def remove(batch: Sequence[tuple[str, str]]) -> int:
            nonlocal missed
            removed = source.purge_many([sequence for sequence, _ in batch], unread=request.letter_filter.is_age)
            missed += len(batch) - removed
            return removed

        verb = Verb("purge", "purged", "removed")
        selection = _perform(source, broker.server_time(), request, verb, lambda letters: f"Remove {letters}?", remove)
    if missed:
        output.note(f"{text.plural(missed, 'letter')} gone or no longer ready meanwhile: left alone")
    _note_skipped(request, selection, hint=" (`rqttl queue purge` removes all)")
