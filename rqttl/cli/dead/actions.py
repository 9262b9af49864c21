"""`rqttl dead redrive` and `purge`: letters are counted first, then processed in batches, and no other letters."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.option_text import flag
from rqttl.cli.common.params import MESSAGE_ID, F, confirm, dry_run_flag, json_flag, queue_argument, utc_flag, yes_flag
from rqttl.cli.common.progress import Progress, read_messages
from rqttl.cli.common.queue_names import complete_queues
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.common.signals import Interrupted, SignalGuard, SignalReceived
from rqttl.cli.dead.letters import format_not_ready, letter_filters, note_targets, print_groups, refuse_missing
from rqttl.inspector.letters import LetterFilter, LetterGroups

if TYPE_CHECKING:
    from datetime import datetime

    from rqttl.broker import Broker
    from rqttl.queue import Queue
    from rqttl.types import RedriveResult

T = TypeVar("T")

#: Letters in one batch. A Ctrl-C waits for the end of a batch.
BATCH = 1_000
#: Groups that a question names.
NAMED = 3

#: The option and the flags of `selecting`, in the order of the help.
_ids_option = click.option(
    "--id", "ids", multiple=True, type=MESSAGE_ID, metavar="ID", help="Only this letter; may be repeated."
)
_OPTIONS = (queue_argument, _ids_option, letter_filters, utc_flag, yes_flag, dry_run_flag, json_flag, connecting)


@dataclass(frozen=True)
class Request:
    """The letters that a command line names, and the form of its answer."""

    queue: str
    letter_filter: LetterFilter
    utc: bool
    yes: bool
    dry_run: bool
    as_json: bool

    def print_result(self, done: str, participle: str, selection: Selection, number: int) -> None:
        """Print the number of processed letters."""
        if self.as_json:
            output.answer_json({"queue": self.queue, done: number, **selection.to_json()})
        else:
            output.answer(f"{text.plural(number, 'letter')} of {self.queue} {participle}")

    def report_skipped(self, selection: Selection, *, hint: str = "") -> None:
        """Print notes on letters that were left alone. Raises `Refused` for ids without a letter."""
        if not_ready := format_not_ready(selection.leased, selection.delayed):
            output.note(f"{not_ready}: not ready, left alone")
        if self.letter_filter.is_empty and selection.never_died:
            never = text.plural(selection.never_died, "message")
            output.note(f"{never} never died: left alone{hint}")
        refuse_missing(self.queue, selection.missing)


@dataclass(frozen=True)
class Action:
    """An action on selected letters. `name` and `done` are names in JSON, `participle` and `question` are for people.

    `question` takes the description of the letters. `run` processes a selection, and prints the result.
    """

    name: str
    done: str
    participle: str
    question: Callable[[str], str]
    run: Callable[[Queue, Selection], None]


def selecting(command: F) -> F:
    """Give a command the options that select letters of a queue, and pass it a `Request` and `settings`."""

    @functools.wraps(command)
    def selected(
        *args: Any,
        queue: str,
        ids: tuple[str, ...],
        letter_filter: LetterFilter,
        utc: bool,
        yes: bool,
        dry_run: bool,
        as_json: bool,
        **options: Any,
    ) -> Any:
        letter_filter = replace(letter_filter, ids=frozenset(ids))
        return command(*args, request=Request(queue, letter_filter, utc, yes, dry_run, as_json), **options)

    decorated: Any = selected
    for add_option in reversed(_OPTIONS):
        decorated = add_option(decorated)
    return decorated  # type: ignore[no-any-return]  # for click, the caller, it is the same


@dataclass
class Selection:
    """The ready letters that match a filter, and the numbers of letters that match and are not ready.

    `sequences` and `sources` are the letters and the queues where they died, `missing` the ids without a letter.
    """

    groups: LetterGroups = field(default_factory=LetterGroups)
    sequences: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    leased: int = 0
    delayed: int = 0
    never_died: int = 0

    def to_json(self) -> dict[str, Any]:
        """The counts, for `json_text.dump`."""
        return {
            "groups": self.groups.to_json(),
            "leased": self.leased,
            "delayed": self.delayed,
            "never_died": self.never_died,
        }


def select(queue: Queue, letter_filter: LetterFilter, now: datetime) -> Selection:
    """Read all letters of a queue, and select those that match."""
    selection, matches = Selection(missing=set(letter_filter.ids)), letter_filter.at(now)
    for message in read_messages(queue):
        selection.never_died += not message.deaths
        if not matches(message):
            continue
        selection.missing.discard(message.id)
        if message.state == "ready":
            selection.groups.add(message)
            selection.sequences.append(message.sequence)
            selection.sources.append(message.deaths[0].queue)
        selection.leased += message.state == "leased"
        selection.delayed += message.state == "delayed"
    return selection


def perform(broker: Broker, request: Request, action: Action) -> Selection:
    """Select letters, and ask before the action runs on them. Returns the selection.

    Without letters, and for `--dry-run`, the action does not run.
    """
    source, now = broker.queue(request.queue), broker.server_time()
    selection = select(source, request.letter_filter, now)
    if request.dry_run:
        _print_dry_run(request, action, selection, now)
    elif selection.sequences:
        confirm(action.question(_describe(request, selection)), yes=request.yes)
        action.run(source, selection)
    else:
        request.print_result(action.done, action.participle, selection, 0)
    if not selection.sequences:
        note_targets(source)
    return selection


def _describe(request: Request, selection: Selection) -> str:
    """The selected letters in words, for a question."""
    groups = selection.groups.ordered()
    parts = [f"{text.format_count(group.count)} {group.reason} in {group.source}" for group in groups[:NAMED]]
    if len(groups) > NAMED:
        others = sum(group.count for group in groups[NAMED:])
        parts.append(f"{text.format_count(others)} in {text.plural(len(groups) - NAMED, 'other group')}")
    every = "all " if request.letter_filter.is_empty else ""
    return f"{every}{text.plural(len(selection.sequences), 'letter')} of {request.queue} ({', '.join(parts)})"


def in_batches(
    letters: Sequence[T], process: Callable[[Sequence[T]], None], print_result: Callable[[], None]
) -> SignalReceived | None:
    """Process letters in batches, then print the result, also after an error. Returns a signal that ended it early."""
    try:
        with SignalGuard() as guard, Progress(len(letters), in_bytes=False) as progress:
            for start in range(0, len(letters), BATCH):
                batch = letters[start : start + BATCH]
                with guard.deferred():
                    process(batch)
                progress.advance(len(batch), len(batch))
            guard.finish()
    except SignalReceived as received:
        return received
    finally:
        print_result()
    return None


def _print_dry_run(request: Request, action: Action, selection: Selection, now: datetime) -> None:
    """Print the letters that would be processed."""
    if not request.as_json and selection.sequences:
        print_groups(selection.groups, now, utc=request.utc)
    done, participle = f"would_{action.name}", f"would be {action.participle}"
    request.print_result(done, participle, selection, len(selection.sequences))


#: The number of letters that stayed, by the queue that should get them, the outcome, and the limit if there was one.
Remaining = Counter[tuple[str, str, str]]

_REDRIVEN = ("redriven", "put back")


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
    action = Action("redrive", *_REDRIVEN, lambda letters: f"Put {letters} back {target}?", put_back)
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
        request.print_result(*_REDRIVEN, selection, moved)

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


_PURGED = ("purged", "removed")


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

    action = Action("purge", *_PURGED, lambda letters: f"Remove {letters}?", remove)
    with settings.using() as broker:
        selection = perform(broker, request, action)
    request.report_skipped(selection, hint=" (`rqttl queue purge` removes all)")


def _remove(request: Request, queue: Queue, selection: Selection) -> None:
    """Remove the letters in batches, and print the number of removed ones, also if a signal ends it early."""
    removed, unread = 0, request.letter_filter.is_age

    def remove(batch: Sequence[str]) -> None:
        nonlocal removed
        removed += queue.purge_many(batch, unread=unread)

    received = in_batches(selection.sequences, remove, lambda: request.print_result(*_PURGED, selection, removed))
    if received:
        left = len(selection.sequences) - removed
        raise Interrupted(received, f": {text.plural(left, 'letter')} left")
    if removed < len(selection.sequences):
        missed = text.plural(len(selection.sequences) - removed, "letter")
        output.note(f"{missed} gone or no longer ready meanwhile: left alone")
