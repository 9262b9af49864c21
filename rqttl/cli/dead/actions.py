"""`rqttl dead redrive` and `purge`: letters are counted first, then processed in batches, and no other letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.output import Progress, read_messages
from rqttl.cli.common.params import (
    MESSAGE_ID,
    complete_queues,
    dry_run_flag,
    flag,
    json_flag,
    queue_argument,
    utc_flag,
    with_options,
    yes_flag,
)
from rqttl.cli.common.running import SignalGuard, SignalReceived
from rqttl.cli.common.settings import Settings, connecting
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
#: Processes a batch of letters, and returns how many are done.
Process = Callable[[Sequence[tuple[str, str]]], int]

#: Gives a command the options of an `Action`, and `settings`.
_selecting = with_options(
    queue_argument,
    click.option(
        "--id", "ids", multiple=True, type=MESSAGE_ID, metavar="ID", help="Only this dead letter; may be repeated."
    ),
    letter_filters,
    utc_flag,
    yes_flag,
    dry_run_flag,
    json_flag,
    connecting,
)


@dataclass
class Action:
    """What a command line does to letters.

    `name` and `done` are words in JSON, `words` is the participle for people. `letters` are the ready letters that
    match, as sequences with the queues where they died.
    """

    name: str
    done: str
    words: str
    queue: str
    letter_filter: DeadLetterFilter
    utc: bool
    yes: bool
    dry_run: bool
    as_json: bool
    letters: list[tuple[str, str]] = field(default_factory=list)
    groups: DeadLetterCounts = field(default_factory=DeadLetterCounts)
    missing: set[str] = field(default_factory=set)
    leased: int = 0
    delayed: int = 0
    never_died: int = 0

    def perform(self, source: Queue, now: datetime, question: Callable[[str], str], process: Process) -> None:
        """Select letters, ask, and process them in batches. `question` gets the letters in words."""
        self.missing, matches = set(self.letter_filter.ids), self.letter_filter.at(now)
        for message in read_messages(source):
            self.never_died += not message.deaths
            if not matches(message):
                continue
            self.missing.discard(message.id)
            if message.state == "ready":
                self.groups.add(message)
                self.letters.append((message.sequence, message.deaths[0].queue))
            self.leased += message.state == "leased"
            self.delayed += message.state == "delayed"
        if not self.letters:
            self._print_result(0)
            note_targets(source)
        elif self.dry_run:
            if not self.as_json:
                print_groups(self.groups, now, utc=self.utc)
            self._print_result(len(self.letters))
        else:
            output.confirm(question(self._describe()), yes=self.yes)
            self._process(process)

    def _process(self, process: Process) -> None:
        """Print the number of letters that are done also if an error or a signal ends it early."""
        left, done = len(self.letters), 0
        try:
            with SignalGuard() as guard, Progress(left) as progress:
                for start in range(0, len(self.letters), BATCH):
                    batch = self.letters[start : start + BATCH]
                    with guard.deferred():
                        done += process(batch)
                        left -= len(batch)
                    progress.advance(len(batch), len(batch))
                guard.finish()
        except SignalReceived as received:
            received.position = f": {text.plural(left, 'letter')} left"
            raise
        finally:
            self._print_result(done)

    def _print_result(self, number: int) -> None:
        if self.as_json:
            output.answer_json(
                {
                    "queue": self.queue,
                    f"would_{self.name}" if self.dry_run else self.done: number,
                    "groups": self.groups.to_json(),
                    "leased": self.leased,
                    "delayed": self.delayed,
                    "never_died": self.never_died,
                }
            )
        else:
            would = "would be " if self.dry_run else ""
            output.answer(f"{text.plural(number, 'letter')} of {self.queue} {would}{self.words}")

    def _describe(self) -> str:
        groups = self.groups.ordered()
        parts = [f"{text.format_count(group.count)} {group.reason} in {group.source}" for group in groups[:NAMED]]
        if len(groups) > NAMED:
            others = sum(group.count for group in groups[NAMED:])
            parts.append(f"{text.format_count(others)} in {text.plural(len(groups) - NAMED, 'other group')}")
        every = "all " if self.letter_filter.is_empty else ""
        return f"{every}{text.plural(len(self.letters), 'letter')} of {self.queue} ({', '.join(parts)})"

    def note_skipped(self, *, hint: str = "") -> None:
        """Print notes on letters that were left alone. Raises `Refused` for ids without a letter."""
        if not_ready := format_not_ready(self.leased, self.delayed):
            output.note(f"{not_ready}: not ready, left alone")
        if self.letter_filter.is_empty and self.never_died:
            output.note(f"{text.plural(self.never_died, 'message')} never died: left alone{hint}")
        refuse_missing(self.queue, self.missing)


@click.command(epilog="\b\nExample: rqttl dead redrive orders/dead --reason expired --dry-run")
@click.option("--to", metavar="QUEUE", shell_complete=complete_queues, help="Put all into this queue instead.")
@_selecting
def redrive(to: str | None, settings: Settings, **options: Any) -> None:
    """Put dead letters of QUEUE back into the queues where they died.

    They go to the end, with their ids, headers and deaths, as if they had just
    been sent without a TTL: TTLs and limits of their queue act. A dead letter stays
    if its queue has no room, as do leased and delayed ones and messages
    that never died.
    """
    action = Action("redrive", "redriven", "put back", **options)
    results: list[RedriveResult] = []
    place = "where they died" if to is None else f"into {to}"
    with settings.using() as broker:
        if to is not None:
            broker.queue(to).options()  # raises if it does not exist
        source = broker.queue(action.queue)

        def put_back(batch: Sequence[tuple[str, str]]) -> int:
            moves = source.redrive_many([(sequence, to or origin) for sequence, origin in batch])
            results.extend(moves)
            return sum(result.outcome == "moved" for result in moves)

        action.perform(source, broker.server_time(), lambda letters: f"Put {letters} back {place}?", put_back)
    action.note_skipped()
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
    """Remove dead letters of QUEUE, all or some.

    Only ready ones go. Leased and delayed ones stay, as do messages that
    never died, and those that arrive after the count.

    Letters that --id, --source, --reason or --header chooses count as handled.
    Letters that only their age chooses, or nothing, count as lost: a stream of
    Spark that has not read them reports it.
    """
    action, missed = Action("purge", "purged", "removed", **options), 0
    with settings.using() as broker:
        source = broker.queue(action.queue)

        def remove(batch: Sequence[tuple[str, str]]) -> int:
            nonlocal missed
            removed = source.purge_many([sequence for sequence, _ in batch], unread=action.letter_filter.is_age)
            missed += len(batch) - removed
            return removed

        action.perform(source, broker.server_time(), lambda letters: f"Remove {letters}?", remove)
    if missed:
        output.note(f"{text.plural(missed, 'letter')} gone or no longer ready meanwhile: left alone")
    action.note_skipped(hint=" (`rqttl queue purge` removes all)")
