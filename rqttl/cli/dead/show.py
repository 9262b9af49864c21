"""`rqttl dead show`: letters one by one, each with its history."""

from __future__ import annotations

import heapq
from dataclasses import replace
from datetime import datetime

import click

from rqttl.cli.common import messages, output, text
from rqttl.cli.common.settings import Settings, connecting, json_flag, queue_argument, utc_flag
from rqttl.cli.dead.filters import Wanted, died_at, letter_filters, note_targets, read, refuse_missing
from rqttl.types import Death, Peeked

#: How many letters are shown if nothing is said, and how much of a body and of a header.
LETTERS, BODY, HEADER = 10, 300, 100


@click.command(epilog="\b\nExample: rqttl dead show orders.dead --reason rejected --limit 3")
@queue_argument
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="How many at most.  [default: 10; with IDs all]")
@letter_filters
@utc_flag
@json_flag
@connecting
def show(
    queue: str, ids: tuple[str, ...], limit: int | None, wanted: Wanted, utc: bool, as_json: bool, settings: Settings
) -> None:
    """Show letters in QUEUE with their histories.

    Those that died last come first. Nothing is leased or changed. --json
    prints whole bodies and all facts.
    """
    wanted = replace(wanted, ids=frozenset(ids))
    with settings.using() as broker:
        source, now = broker.queue(queue), broker.time()
        found = _Found(limit or (None if ids else LETTERS), wanted.ids)
        meant = wanted.at(now)
        for message in read(source):
            if meant(message):
                found.add(message)
        if not found.count:
            note_targets(source)
    letters = found.newest_first()
    _print(letters, now, utc=utc, as_json=as_json)
    refuse_missing(queue, found.missing)
    if not found.count:
        output.note(f"no {'' if wanted.everything else 'such '}dead letters in {queue}")
    elif found.count > len(letters):
        output.note(f"{text.count(len(letters))} of {text.plural(found.count, 'letter')}; --limit shows more")


class _Found:
    """The `limit` letters that died last, or all; and which of the wanted ids are missing."""

    def __init__(self, limit: int | None, ids: frozenset[str]) -> None:
        self._limit = limit
        self.missing = set(ids)
        self._kept: list[tuple[datetime, str, Peeked]] = []
        self.count = 0

    def add(self, letter: Peeked) -> None:
        """One more; no more than `limit` are kept."""
        self.count += 1
        self.missing.discard(letter.id)
        heapq.heappush(self._kept, (died_at(letter), letter.sequence, letter))
        if self._limit and len(self._kept) > self._limit:
            heapq.heappop(self._kept)

    def newest_first(self) -> list[Peeked]:
        return [letter for _, _, letter in sorted(self._kept, reverse=True)]


def _print(letters: list[Peeked], now: datetime, *, utc: bool, as_json: bool) -> None:
    if as_json:
        output.answer_json([messages.facts(letter) for letter in letters])
        return
    for i, letter in enumerate(letters):
        if i:
            output.answer("")
        output.facts(_shown(letter, now, utc=utc))


def _shown(letter: Peeked, now: datetime, *, utc: bool) -> list[tuple[str, str]]:
    pairs = [("id", text.visible(letter.id))]
    if letter.state != "ready":
        pairs.append(("state", messages.state(letter, now, utc=utc)))
    if letter.expires_at:
        pairs.append(("expires", text.moment(letter.expires_at, now, utc=utc)))
    headers = (
        f"{text.visible(name)}={text.fitted(messages.header(value), HEADER)}" for name, value in letter.headers.items()
    )
    if said := ", ".join(headers):
        pairs.append(("headers", said))
    kind = f"{text.visible(letter.content_type)}, " if letter.content_type else ""
    pairs.append(("body", f"{messages.body(letter, BODY)}\n({kind}{text.size(len(letter.body))})"))
    if letter.description:
        pairs.append(("last failure", text.visible(letter.description, text.LONGEST)))
    return pairs + [("died", _told(death, now, utc=utc)) for death in letter.deaths]


def _told(death: Death, now: datetime, *, utc: bool) -> str:
    """A death in a few lines."""

    def moment(at: datetime) -> str:
        return text.moment(at, now, utc=utc)

    where = f"{moment(death.last_at)} in {death.queue}: {death.reason}"
    if death.count > 1:
        where += f", {text.count(death.count)} times, first {moment(death.first_at)}"
    deadline = f"deadline {moment(death.expires_at)}" if death.expires_at else "no deadline"
    lines = [where, f"enqueued {moment(death.enqueued_at)}, {deadline}, {_delivered(death.delivery_count)}"]
    if death.description:
        lines.append(f"because: {text.visible(death.description)}")
    return "\n".join(lines)


def _delivered(times: int) -> str:
    return {0: "never delivered", 1: "delivered once"}.get(times, f"delivered {text.count(times)} times")
