"""`rqttl dead`: look at dead letters, put them back, remove them.

They are counted first, then processed in batches, and no others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output, params, running
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.output import read_messages
from rqttl.cli.common.params import json_flag, queue_argument, utc_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.dead import reports
from rqttl.inspector import effects, message_view
from rqttl.inspector.dead_letters import DeadLetterCounts, DeadLetterFilter, DeadLetters, died_at
from rqttl.types import Death, MessageView
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: Dead letters without `--limit`, and the longest texts of a body and of a header.
SHOWN, BODY, HEADER = 10, 300, 100
#: Groups that a question names.
NAMED = 3


@click.group(epilog="\b\nExample: rqttl dead ls orders/dead")
def dead() -> None:
    """Look at dead letters, put them back, remove them.

    Each command takes the queue that holds them.
    """


dead.add_command(reports.report)


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
    with settings.looking() as broker:
        source = broker.queue(queue)
        for message in read_messages(source):
            counts.add(message)
        now = broker.server_time()
        reports.note_targets(source)
    if as_json:
        output.answer_json(counts.to_json())
        return
    if not counts.total():
        output.note(f"no dead letters in {queue}")
        return
    reports.print_groups(counts, now, utc=utc)
    if not_ready := reports.format_not_ready(counts.total("leased"), counts.total("delayed")):
        output.note(f"of these, {not_ready}")


@dead.command(epilog="\b\nExample: rqttl dead show orders/dead --reason rejected --limit 3")
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1, type=params.MESSAGE_ID)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of dead letters at most.  [default: 10; with IDs all]",
)
@reports.filters
@utc_flag
@json_flag
@connecting
def show(queue: str, limit: int | None, wanted: DeadLetterFilter, utc: bool, as_json: bool, settings: Settings) -> None:
    """Show dead letters in QUEUE with their histories.

    Those that died last come first. The command leases and changes
    nothing. --json prints whole bodies and all facts.
    """
    limit = limit or (None if wanted.ids else SHOWN)
    missing, count = set(wanted.ids), 0
    newest: list[tuple[datetime, str, MessageView]] = []  # a heap of those that died last
    with settings.looking() as broker:
        source, now = broker.queue(queue), broker.server_time()
        for message in filter(wanted.at(now), read_messages(source)):
            count += 1
            missing.discard(message.id)
            heapq.heappush(newest, (died_at(message), message.sequence, message))
            if limit and len(newest) > limit:
                heapq.heappop(newest)
        if not count:
            reports.note_targets(source)
    messages = [message for _, _, message in sorted(newest, reverse=True)]
    if as_json:
        output.answer_json([message_view.to_json(message) for message in messages])
    for i, message in enumerate(() if as_json else messages):
        if i:
            output.answer("")
        output.print_pairs(_pairs(message, now, utc=utc))
    reports.refuse_missing(queue, missing)
    if not count:
        output.note(f"no {'' if wanted.is_empty else 'such '}dead letters in {queue}")
    elif count > len(newest):
        output.note(f"{text.format_count(len(newest))} of {text.plural(count, 'dead letter')}; --limit shows more")


def _pairs(message: MessageView, now: datetime, *, utc: bool) -> list[tuple[str, str]]:
    pairs = [("id", text.escape(message.id))]
    if message.state != "ready":
        pairs.append(("state", message_view.state_text(message, now, utc=utc)))
    if message.expires_at:
        pairs.append(("expires", text.format_time(message.expires_at, now, utc=utc)))
    if message.headers:
        headers = (
            f"{text.escape(name)}={message_view.header_text(value, HEADER)}" for name, value in message.headers.items()
        )
        pairs.append(("headers", ", ".join(headers)))
    kind = f"{text.escape(message.content_type)}, " if message.content_type else ""
    pairs.append(("body", f"{message_view.body_text(message, BODY)}\n({kind}{as_size(len(message.body))})"))
    if message.description:
        pairs.append(("last failure", text.escape(message.description, text.LONGEST)))
    return pairs + [("died", _format_death(death, now, utc=utc)) for death in message.deaths]


def _format_death(death: Death, now: datetime, *, utc: bool) -> str:
    time = partial(text.format_time, now=now, utc=utc)
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


# Actions

#: Gives a command the options of an `Action`, and `settings`.
_selecting = params.with_options(
    queue_argument,
    click.option(
        "--id",
        "ids",
        multiple=True,
        type=params.MESSAGE_ID,
        metavar="ID",
        help="Only this dead letter; may be repeated.",
    ),
    reports.filters,
    utc_flag,
    params.yes_flag,
    params.dry_run_flag,
    json_flag,
    connecting,
)


@dataclass
class Action:
    """What a command line does to dead letters.

    `name` and `done` are words in JSON, `words` is the participle for people.
    """

    name: str
    done: str
    words: str
    queue: str
    wanted: DeadLetterFilter
    utc: bool
    yes: bool
    dry_run: bool
    as_json: bool

    def perform(
        self, broker: Broker, act: Callable[[DeadLetters], Iterator[int]], question: Callable[[str], str]
    ) -> DeadLetters:
        """Select dead letters, ask, and act on them in batches. `question` gets them in words."""
        source, now = broker.queue(self.queue), broker.server_time()
        letters = DeadLetters(source, self.wanted, now)
        with output.Progress() as progress:
            for size in letters.select():
                progress.advance(0, size)
        if not letters.left:
            self._print_result(letters, 0)
            reports.note_targets(source)
        elif self.dry_run:
            if not self.as_json:
                reports.print_groups(letters.groups, now, utc=self.utc)
            self._print_result(letters, letters.left)
        else:
            if not self.yes:
                output.confirm(question(self._describe(letters)))
            self._process(letters, act(letters))
        return letters

    def _process(self, letters: DeadLetters, batches: Iterator[int]) -> None:
        """Print the number of dead letters that are done also if an error or a signal ends it early."""
        try:
            with running.SignalGuard() as guard, output.Progress(letters.left) as progress:
                while letters.left:
                    with guard.deferred():
                        size = next(batches)
                    progress.advance(size, size)
                guard.finish()
        except running.SignalReceived as received:
            received.position = f": {text.plural(letters.left, 'dead letter')} left"
            raise
        finally:
            self._print_result(letters, letters.done)

    def _print_result(self, letters: DeadLetters, number: int) -> None:
        document = {
            "queue": self.queue,
            f"would_{self.name}" if self.dry_run else self.done: number,
            "groups": letters.groups.to_json(),
            "leased": letters.leased,
            "delayed": letters.delayed,
            "never_died": letters.never_died,
        }
        would = "would be " if self.dry_run else ""
        line = f"{text.plural(number, 'dead letter')} of {self.queue} {would}{self.words}"
        output.answer_either(document, line, as_json=self.as_json)

    def _describe(self, letters: DeadLetters) -> str:
        groups = letters.groups.ordered()
        parts = [f"{text.format_count(group.count)} {group.reason} in {group.source}" for group in groups[:NAMED]]
        if len(groups) > NAMED:
            others = sum(group.count for group in groups[NAMED:])
            parts.append(f"{text.format_count(others)} in {text.plural(len(groups) - NAMED, 'other group')}")
        every = "all " if self.wanted.is_empty else ""
        return f"{every}{text.plural(letters.left, 'dead letter')} of {self.queue} ({', '.join(parts)})"

    def note_skipped(self, letters: DeadLetters, *, hint: str = "") -> None:
        """Print notes on dead letters that were left alone. Raises `Refused` for ids without one."""
        if not_ready := reports.format_not_ready(letters.leased, letters.delayed):
            output.note(f"{not_ready}: not ready, left alone")
        if self.wanted.is_empty and letters.never_died:
            output.note(f"{text.plural(letters.never_died, 'message')} never died: left alone{hint}")
        reports.refuse_missing(self.queue, letters.missing)


@dead.command(epilog="\b\nExample: rqttl dead redrive orders/dead --reason expired --dry-run")
@click.option("--to", metavar="QUEUE", shell_complete=params.complete_queues, help="Put all into this queue instead.")
@_selecting
def redrive(to: str | None, settings: Settings, **options: Any) -> None:
    """Put dead letters of QUEUE back into the queues where they died.

    They go to the end, with their ids, headers and deaths, as if they had just
    been sent without a TTL: TTLs and limits of their queue act. A dead letter stays
    if its queue has no room, as do leased and delayed ones and messages
    that never died.
    """
    action = Action("redrive", "redriven", "put back", **options)
    place = "where they died" if to is None else f"into {to}"
    with settings.using() as broker:
        if to is not None:
            broker.queue(to).options()  # raises if it does not exist
        letters = action.perform(
            broker, lambda letters: letters.redrive(to), lambda chosen: f"Put {chosen} back {place}?"
        )
    action.note_skipped(letters)
    lines, code = effects.stayed(letters.stayed)
    for line in lines:
        output.note(line)
    if code:
        raise Refused("not all dead letters could be put back", code)


@dead.command(epilog="\b\nExample: rqttl dead purge orders/dead --older-than 7d --dry-run")
@_selecting
def purge(settings: Settings, **options: Any) -> None:
    """Remove dead letters of QUEUE, all or some.

    Only ready ones go. Leased and delayed ones stay, as do messages that
    never died, and those that arrive after the count.

    Those that --id, --source, --reason, --header or --error chooses count as
    handled. Those that only their age chooses, or nothing, count as lost: a
    stream of Spark that has not read them reports it.
    """
    action = Action("purge", "purged", "removed", **options)
    with settings.using() as broker:
        letters = action.perform(broker, DeadLetters.purge, lambda chosen: f"Remove {chosen}?")
    if missed := letters.groups.total() - letters.left - letters.done:
        output.note(f"{text.plural(missed, 'dead letter')} gone or no longer ready meanwhile: left alone")
    action.note_skipped(letters, hint=" (`rqttl queue purge` removes all)")
