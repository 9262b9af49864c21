"""`rqttl dead`: look at dead letters, put them back, remove them.

They are counted first, then processed in batches, and no others.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output, params, running
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.output import read_messages
from rqttl.cli.common.params import json_flag, queue_argument, utc_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.dead import reports
from rqttl.inspector import message_view
from rqttl.inspector.dead_letters import DeadLetterCounts, DeadLetterFilter, died_at
from rqttl.types import Death, MessageView
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.queue import Queue
    from rqttl.types import RedriveResult

#: Dead letters without `--limit`, and the longest texts of a body and of a header.
SHOWN, BODY, HEADER = 10, 300, 100
#: Dead letters in one batch. A Ctrl-C waits for the end of a batch.
BATCH = 1_000
#: Groups that a question names.
NAMED = 3
#: Processes a batch of dead letters, and returns how many are done.
Process = Callable[[Sequence[tuple[str, str]]], int]


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
    with settings.using() as broker:
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
    with settings.using() as broker:
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

    `name` and `done` are words in JSON, `words` is the participle for people. `chosen` are the ready ones that
    match, as sequences with the queues where they died.
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
    chosen: list[tuple[str, str]] = field(default_factory=list)
    groups: DeadLetterCounts = field(default_factory=DeadLetterCounts)
    missing: set[str] = field(default_factory=set)
    leased: int = 0
    delayed: int = 0
    never_died: int = 0

    def perform(self, source: Queue, now: datetime, question: Callable[[str], str], process: Process) -> None:
        """Select dead letters, ask, and process them in batches. `question` gets them in words."""
        self.missing, matches = set(self.wanted.ids), self.wanted.at(now)
        for message in read_messages(source):
            self.never_died += not message.deaths
            if not matches(message):
                continue
            self.missing.discard(message.id)
            if message.state == "ready":
                self.groups.add(message)
                self.chosen.append((message.sequence, message.deaths[0].queue))
            self.leased += message.state == "leased"
            self.delayed += message.state == "delayed"
        if not self.chosen:
            self._print_result(0)
            reports.note_targets(source)
        elif self.dry_run:
            if not self.as_json:
                reports.print_groups(self.groups, now, utc=self.utc)
            self._print_result(len(self.chosen))
        else:
            output.confirm(question(self._describe()), yes=self.yes)
            self._process(process)

    def _process(self, process: Process) -> None:
        """Print the number of dead letters that are done also if an error or a signal ends it early."""
        left, done = len(self.chosen), 0
        try:
            with running.SignalGuard() as guard, output.Progress(left) as progress:
                for start in range(0, len(self.chosen), BATCH):
                    batch = self.chosen[start : start + BATCH]
                    with guard.deferred():
                        done += process(batch)
                        left -= len(batch)
                    progress.advance(len(batch), len(batch))
                guard.finish()
        except running.SignalReceived as received:
            received.position = f": {text.plural(left, 'dead letter')} left"
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
            output.answer(f"{text.plural(number, 'dead letter')} of {self.queue} {would}{self.words}")

    def _describe(self) -> str:
        groups = self.groups.ordered()
        parts = [f"{text.format_count(group.count)} {group.reason} in {group.source}" for group in groups[:NAMED]]
        if len(groups) > NAMED:
            others = sum(group.count for group in groups[NAMED:])
            parts.append(f"{text.format_count(others)} in {text.plural(len(groups) - NAMED, 'other group')}")
        every = "all " if self.wanted.is_empty else ""
        return f"{every}{text.plural(len(self.chosen), 'dead letter')} of {self.queue} ({', '.join(parts)})"

    def note_skipped(self, *, hint: str = "") -> None:
        """Print notes on dead letters that were left alone. Raises `Refused` for ids without one."""
        if not_ready := reports.format_not_ready(self.leased, self.delayed):
            output.note(f"{not_ready}: not ready, left alone")
        if self.wanted.is_empty and self.never_died:
            output.note(f"{text.plural(self.never_died, 'message')} never died: left alone{hint}")
        reports.refuse_missing(self.queue, self.missing)


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

        action.perform(source, broker.server_time(), lambda chosen: f"Put {chosen} back {place}?", put_back)
    action.note_skipped()
    _refuse_remaining(results)


def _refuse_remaining(results: Sequence[RedriveResult]) -> None:
    """Print a note for those that stayed, with the reason. Raises `Refused` if their queues did not take them."""
    remaining = Counter((r.origin, r.outcome, r.limit or "") for r in results if r.outcome != "moved")
    words = {"no_origin": "{} does not exist (see --to)", "same_queue": "{} is the queue that holds them (see --to)"}
    code = ""
    for (origin, outcome, limit), n in sorted(remaining.items()):
        stayed = text.plural(n, "dead letter")
        if outcome == "unavailable":
            output.note(f"{stayed} gone or no longer ready meanwhile: left alone")
            continue
        why = f"{origin} has no room ({params.flag(limit)})" if outcome == "full" else words[outcome].format(origin)
        output.note(f"{stayed} left alone: {why}")
        code = "queue_full" if outcome == "full" else code or "not_found"
    if code:
        raise Refused("not all dead letters could be put back", code)


@dead.command(epilog="\b\nExample: rqttl dead purge orders/dead --older-than 7d --dry-run")
@_selecting
def purge(settings: Settings, **options: Any) -> None:
    """Remove dead letters of QUEUE, all or some.

    Only ready ones go. Leased and delayed ones stay, as do messages that
    never died, and those that arrive after the count.

    Those that --id, --source, --reason or --header chooses count as handled.
    Those that only their age chooses, or nothing, count as lost: a stream of
    Spark that has not read them reports it.
    """
    action, missed = Action("purge", "purged", "removed", **options), 0
    with settings.using() as broker:
        source = broker.queue(action.queue)

        def remove(batch: Sequence[tuple[str, str]]) -> int:
            nonlocal missed
            removed = source.purge_many([sequence for sequence, _ in batch], unread=action.wanted.is_age)
            missed += len(batch) - removed
            return removed

        action.perform(source, broker.server_time(), lambda chosen: f"Remove {chosen}?", remove)
    if missed:
        output.note(f"{text.plural(missed, 'dead letter')} gone or no longer ready meanwhile: left alone")
    action.note_skipped(hint=" (`rqttl queue purge` removes all)")
