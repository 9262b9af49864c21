"""Selections of letters for `purge` and `redrive`: counted first, then processed in batches, and no other letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import MESSAGE_ID
from rqttl.cli.common.progress import Progress, read_messages
from rqttl.cli.common.signals import SignalGuard, SignalReceived
from rqttl.cli.dead.render import format_not_ready, print_groups
from rqttl.inspector.letters import LetterFilter, LetterGroups

if TYPE_CHECKING:
    from datetime import datetime

    from rqttl.queue import Queue

T = TypeVar("T")

#: Letters in one batch. A Ctrl-C waits for the end of a batch.
BATCH = 1_000
#: Groups that a question names.
NAMED = 3

ids_option = click.option(
    "--id", "ids", multiple=True, type=MESSAGE_ID, metavar="ID", help="Only this letter; may be repeated."
)


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


def describe(queue: str, selection: Selection, *, everything: bool) -> str:
    """The selected letters in words, for a question."""
    groups = selection.groups.ordered()
    parts = [f"{text.format_count(group.count)} {group.reason} in {group.source}" for group in groups[:NAMED]]
    if len(groups) > NAMED:
        others = sum(group.count for group in groups[NAMED:])
        parts.append(f"{text.format_count(others)} in {text.plural(len(groups) - NAMED, 'other group')}")
    every = "all " if everything else ""
    return f"{every}{text.plural(len(selection.sequences), 'letter')} of {queue} ({', '.join(parts)})"


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


def print_dry_run(
    queue: str,
    selection: Selection,
    now: datetime,
    *,
    utc: bool,
    as_json: bool,
    key: str,
    verb: str,
) -> None:
    """Print the letters that would be processed, for `--dry-run`. `key` is their name in JSON, `verb` is for people."""
    if as_json:
        output.answer_json({"queue": queue, key: len(selection.sequences), **selection.to_json()})
        return
    if selection.sequences:
        print_groups(selection.groups, now, utc=utc)
    output.answer(f"{text.plural(len(selection.sequences), 'letter')} of {queue} would be {verb}")


def note_skipped(selection: Selection, *, everything: bool, hint: str = "") -> None:
    """Print notes on letters that were left alone: not ready, or never died."""
    if not_ready := format_not_ready(selection.leased, selection.delayed):
        output.note(f"{not_ready}: not ready, left alone")
    if everything and selection.never_died:
        never = text.plural(selection.never_died, "message")
        output.note(f"{never} never died: left alone{hint}")
