"""`rqttl dead`: look at dead letters, put them back, remove them."""

from __future__ import annotations

import heapq
from dataclasses import replace
from datetime import datetime

import click

from rqttl import text
from rqttl.cli.common import messages, output, terminal
from rqttl.cli.common.params import MESSAGE_ID, json_flag, queue_argument, utc_flag
from rqttl.cli.common.progress import read_messages
from rqttl.cli.common.settings import Settings, command_group, connecting
from rqttl.cli.dead.actions import purge, redrive
from rqttl.cli.dead.letters import format_not_ready, letter_filters, note_targets, print_groups, refuse_missing
from rqttl.cli.dead.report import report
from rqttl.inspector import message_view
from rqttl.inspector.letters import LetterFilter, LetterGroups, died_at
from rqttl.types import Death, MessageView
from rqttl.units import as_size

#: Letters without `--limit`, and the longest texts of a body and of a header.
LETTERS, BODY, HEADER = 10, 300, 100


@click.command(epilog="\b\nExample: rqttl dead show orders/dead --reason rejected --limit 3")
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1, type=MESSAGE_ID)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Number of letters at most.  [default: 10; with IDs all]"
)
@letter_filters
@utc_flag
@json_flag
@connecting
def show(
    queue: str,
    ids: tuple[str, ...],
    limit: int | None,
    letter_filter: LetterFilter,
    utc: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show letters in QUEUE with their histories.

    The letters that died last come first. The command leases and changes
    nothing. --json prints whole bodies and all facts.
    """
    letter_filter = replace(letter_filter, ids=frozenset(ids))
    with settings.using() as broker:
        source, now = broker.queue(queue), broker.server_time()
        newest = _Newest(limit or (None if ids else LETTERS), letter_filter.ids)
        matches = letter_filter.at(now)
        for message in read_messages(source):
            if matches(message):
                newest.add(message)
        if not newest.count:
            note_targets(source)
    letters = newest.letters()
    _print_letters(letters, now, utc=utc, as_json=as_json)
    refuse_missing(queue, newest.missing)
    if not newest.count:
        output.note(f"no {'' if letter_filter.is_empty else 'such '}dead letters in {queue}")
    elif newest.count > len(letters):
        output.note(f"{text.format_count(len(letters))} of {text.plural(newest.count, 'letter')}; --limit shows more")


class _Newest:
    """The `limit` letters that died last, or all; and the ids without a letter."""

    def __init__(self, limit: int | None, ids: frozenset[str]) -> None:
        self._limit = limit
        self.missing = set(ids)
        self._heap: list[tuple[datetime, str, MessageView]] = []
        self.count = 0

    def add(self, letter: MessageView) -> None:
        """Add a letter; no more than `limit` stay in memory."""
        self.count += 1
        self.missing.discard(letter.id)
        heapq.heappush(self._heap, (died_at(letter), letter.sequence, letter))
        if self._limit and len(self._heap) > self._limit:
            heapq.heappop(self._heap)

    def letters(self) -> list[MessageView]:
        """The letters, the newest first."""
        return [letter for _, _, letter in sorted(self._heap, reverse=True)]


def _print_letters(letters: list[MessageView], now: datetime, *, utc: bool, as_json: bool) -> None:
    if as_json:
        output.answer_json([message_view.to_json(letter) for letter in letters])
        return
    for i, letter in enumerate(letters):
        if i:
            output.answer("")
        output.print_pairs(_pairs(letter, now, utc=utc))


def _pairs(letter: MessageView, now: datetime, *, utc: bool) -> list[tuple[str, str]]:
    pairs = [("id", text.escape(letter.id))]
    if letter.state != "ready":
        pairs.append(("state", messages.format_state(letter, now, utc=utc)))
    if letter.expires_at:
        pairs.append(("expires", text.format_time(letter.expires_at, now, utc=utc)))
    headers = (
        f"{text.escape(name)}={terminal.truncate(message_view.header_text(value), HEADER)}"
        for name, value in letter.headers.items()
    )
    if line := ", ".join(headers):
        pairs.append(("headers", line))
    kind = f"{text.escape(letter.content_type)}, " if letter.content_type else ""
    pairs.append(("body", f"{message_view.body_text(letter, BODY)}\n({kind}{as_size(len(letter.body))})"))
    if letter.description:
        pairs.append(("last failure", text.escape(letter.description, text.LONGEST)))
    return pairs + [("died", _format_death(death, now, utc=utc)) for death in letter.deaths]


def _format_death(death: Death, now: datetime, *, utc: bool) -> str:
    """A death in a few lines."""

    def time(at: datetime) -> str:
        return text.format_time(at, now, utc=utc)

    place = f"{time(death.last_at)} in {death.queue}: {death.reason}"
    if death.count > 1:
        place += f", {text.format_count(death.count)} times, first {time(death.first_at)}"
    deadline = f"deadline {time(death.expires_at)}" if death.expires_at else "no deadline"
    lines = [place, f"enqueued {time(death.enqueued_at)}, {deadline}, {_format_deliveries(death.delivery_count)}"]
    if death.description:
        lines.append(f"because: {text.escape(death.description)}")
    return "\n".join(lines)


def _format_deliveries(n: int) -> str:
    return {0: "never delivered", 1: "delivered once"}.get(n, f"delivered {text.format_count(n)} times")


@command_group("rqttl dead ls orders/dead")
def dead() -> None:
    """Look at dead letters, put them back, remove them.

    Each command takes the queue that holds them.
    """


@dead.command("ls", epilog="\b\nExample: rqttl dead ls orders/dead")
@queue_argument
@utc_flag
@json_flag
@connecting
def list_groups(queue: str, utc: bool, as_json: bool, settings: Settings) -> None:
    """Count the letters in QUEUE by where and why they died.

    Oldest and newest are the times of their latest deaths. The command leases
    and changes nothing.
    """
    groups = LetterGroups()
    with settings.using() as broker:
        source = broker.queue(queue)
        for message in read_messages(source):
            groups.add(message)
        now = broker.server_time()
        note_targets(source)
    if as_json:
        output.answer_json(groups.to_json())
        return
    if not groups.total():
        output.note(f"no dead letters in {queue}")
        return
    print_groups(groups, now, utc=utc)
    if not_ready := format_not_ready(groups.total("leased"), groups.total("delayed")):
        output.note(f"of these, {not_ready}")


for command in (show, redrive, purge, report):
    dead.add_command(command)
