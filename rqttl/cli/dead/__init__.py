"""`rqttl dead`: look at dead letters, put them back, remove them."""

from __future__ import annotations

import heapq
from datetime import datetime

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.output import read_messages
from rqttl.cli.common.params import MESSAGE_ID, json_flag, queue_argument, utc_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.dead.actions import purge, redrive
from rqttl.cli.dead.letters import format_not_ready, letter_filters, note_targets, print_groups, refuse_missing
from rqttl.cli.dead.reports import report
from rqttl.inspector import message_view
from rqttl.inspector.dead_letters import DeadLetterCounts, DeadLetterFilter, died_at
from rqttl.types import Death, MessageView
from rqttl.units import as_size

#: Letters without `--limit`, and the longest texts of a body and of a header.
LETTERS, BODY, HEADER = 10, 300, 100


@click.group(epilog="\b\nExample: rqttl dead ls orders/dead")
def dead() -> None:
    """Look at dead letters, put them back, remove them.

    Each command takes the queue that holds them.
    """


for command in (redrive, purge, report):
    dead.add_command(command)


@dead.command("ls", epilog="\b\nExample: rqttl dead ls orders/dead")
@queue_argument
@utc_flag
@json_flag
@connecting
def list_groups(queue: str, utc: bool, as_json: bool, settings: Settings) -> None:
    """Count the dead letters in QUEUE by where and why they died.

    Oldest and newest are the times of their latest deaths. The command leases
    and changes nothing.
    """
    counts = DeadLetterCounts()
    with settings.using() as broker:
        source = broker.queue(queue)
        for message in read_messages(source):
            counts.add(message)
        now = broker.server_time()
        note_targets(source)
    if as_json:
        output.answer_json(counts.to_json())
        return
    if not counts.total():
        output.note(f"no dead letters in {queue}")
        return
    print_groups(counts, now, utc=utc)
    if not_ready := format_not_ready(counts.total("leased"), counts.total("delayed")):
        output.note(f"of these, {not_ready}")


@dead.command(epilog="\b\nExample: rqttl dead show orders/dead --reason rejected --limit 3")
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1, type=MESSAGE_ID)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of dead letters at most.  [default: 10; with IDs all]",
)
@letter_filters
@utc_flag
@json_flag
@connecting
def show(
    queue: str, limit: int | None, letter_filter: DeadLetterFilter, utc: bool, as_json: bool, settings: Settings
) -> None:
    """Show dead letters in QUEUE with their histories.

    Those that died last come first. The command leases and changes
    nothing. --json prints whole bodies and all facts.
    """
    limit = limit or (None if letter_filter.ids else LETTERS)
    missing, count = set(letter_filter.ids), 0
    newest: list[tuple[datetime, str, MessageView]] = []  # a heap of those that died last
    with settings.using() as broker:
        source, now = broker.queue(queue), broker.server_time()
        for letter in filter(letter_filter.at(now), read_messages(source)):
            count += 1
            missing.discard(letter.id)
            heapq.heappush(newest, (died_at(letter), letter.sequence, letter))
            if limit and len(newest) > limit:
                heapq.heappop(newest)
        if not count:
            note_targets(source)
    letters = [letter for _, _, letter in sorted(newest, reverse=True)]
    if as_json:
        output.answer_json([message_view.to_json(letter) for letter in letters])
    for i, letter in enumerate(() if as_json else letters):
        if i:
            output.answer("")
        output.print_pairs(_pairs(letter, now, utc=utc))
    refuse_missing(queue, missing)
    if not count:
        output.note(f"no {'' if letter_filter.is_empty else 'such '}dead letters in {queue}")
    elif count > len(newest):
        output.note(f"{text.format_count(len(newest))} of {text.plural(count, 'letter')}; --limit shows more")


def _pairs(letter: MessageView, now: datetime, *, utc: bool) -> list[tuple[str, str]]:
    pairs = [("id", text.escape(letter.id))]
    if letter.state != "ready":
        pairs.append(("state", message_view.state_text(letter, now, utc=utc)))
    if letter.expires_at:
        pairs.append(("expires", text.format_time(letter.expires_at, now, utc=utc)))
    if letter.headers:
        headers = (
            f"{text.escape(name)}={message_view.header_text(value, HEADER)}" for name, value in letter.headers.items()
        )
        pairs.append(("headers", ", ".join(headers)))
    kind = f"{text.escape(letter.content_type)}, " if letter.content_type else ""
    pairs.append(("body", f"{message_view.body_text(letter, BODY)}\n({kind}{as_size(len(letter.body))})"))
    if letter.description:
        pairs.append(("last failure", text.escape(letter.description, text.LONGEST)))
    return pairs + [("died", _format_death(death, now, utc=utc)) for death in letter.deaths]


def _format_death(death: Death, now: datetime, *, utc: bool) -> str:
    def time(at: datetime) -> str:
        return text.format_time(at, now, utc=utc)

    place = f"{time(death.last_at)} in {death.queue}: {death.reason}"
    if death.count > 1:
        place += f", {text.format_count(death.count)} times, first {time(death.first_at)}"
    deadline = f"deadline {time(death.expires_at)}" if death.expires_at else "no deadline"
    n = death.delivery_count
    deliveries = {0: "never delivered", 1: "delivered once"}.get(n, f"delivered {text.format_count(n)} times")
    lines = [place, f"enqueued {time(death.enqueued_at)}, {deadline}, {deliveries}"]
    if death.description:
        lines.append(f"because: {text.escape(death.description)}")
    return "\n".join(lines)
