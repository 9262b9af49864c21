"""Letters: pages, filters, groups and counts, without a command."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
import redis

from rqttl import Broker, Message
from rqttl.inspector import letters
from rqttl.inspector.letters import LetterCounts, LetterFilter, LetterGroups, died_at, pages
from rqttl.types import Death, MessageView

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


def letter(id: str, *deaths: tuple[str, str, datetime], state: Any = "ready", **headers: Any) -> MessageView:
    """A message with these deaths (queue, reason, time), the latest first."""
    history = tuple(
        Death(
            queue=queue,
            reason=reason,
            count=1,
            first_at=at,
            last_at=at,
            enqueued_at=at,
            expires_at=None,
            delivery_count=0,
            description="",
        )
        for queue, reason, at in deaths
    )
    return MessageView(
        queue="dead",
        sequence=f"1-{id}",
        id=id,
        body=b"xy",
        content_type="",
        headers=MappingProxyType(headers),
        enqueued_at=NOON,
        expires_at=None,
        delivery_count=0,
        deaths=history,
        state=state,
        until=None,
        description="",
    )


ALIVE = letter("alive", region="eu")
EXPIRED = letter("expired", ("orders", "expired", NOON), ("mails", "rejected", NOON), region="eu", attempt=3)
REJECTED = letter("rejected", ("mails", "rejected", NOON - timedelta(hours=1)), state="leased")


@pytest.mark.parametrize(
    "letter_filter, ids",
    [
        (LetterFilter(), ["expired", "rejected"]),
        (LetterFilter(sources=frozenset({"mails"})), ["rejected"]),
        (LetterFilter(reasons=frozenset({"expired", "rejected"})), ["expired", "rejected"]),
        (LetterFilter(ids=frozenset({"expired", "alive"})), ["expired"]),
        (LetterFilter(older_than=timedelta(minutes=30)), ["rejected"]),
        (LetterFilter(newer_than=timedelta(minutes=30)), ["expired"]),
        (LetterFilter(older_than=NOON), ["rejected"]),
        (LetterFilter(newer_than=NOON), ["expired"]),
        (LetterFilter(headers=(("region", "eu"), ("attempt", "3"))), ["expired"]),
        (LetterFilter(headers=(("region", "us"),)), []),
    ],
)
def test_a_filter_matches_the_latest_death_and_never_a_message_without_one(
    letter_filter: LetterFilter, ids: list[str]
) -> None:
    matches = letter_filter.at(NOON)

    assert [message.id for message in (ALIVE, EXPIRED, REJECTED) if matches(message)] == ids
    assert letter_filter.is_empty == (letter_filter == LetterFilter())


def test_groups_are_by_source_and_reason_the_largest_first_and_the_living_last() -> None:
    groups = LetterGroups()
    for message in (ALIVE, ALIVE, ALIVE, REJECTED, EXPIRED, EXPIRED):
        groups.add(message)

    assert [(g["source"], g["reason"], g["count"], g["leased"], g["bytes"]) for g in groups.to_json()] == [
        ("orders", "expired", 2, 0, 4),
        ("mails", "rejected", 1, 1, 2),
        (None, None, 3, 0, 6),
    ]
    assert (groups.total(), groups.total("leased"), groups.total("size")) == (6, 1, 12)
    assert (died_at(ALIVE), died_at(REJECTED)) == (ALIVE.enqueued_at, NOON - timedelta(hours=1))


def test_counts_by_hour_are_of_the_hours_of_utc_in_which_letters_died() -> None:
    counts = LetterCounts()
    for message in (EXPIRED, REJECTED, letter("late", ("mails", "expired", NOON + timedelta(minutes=59)))):
        counts.add(message)

    document = counts.to_json(["dead"], ["hour", "source"])

    assert document["by"]["hour"] == [{"hour": NOON - timedelta(hours=1), "count": 1}, {"hour": NOON, "count": 2}]
    assert document["by"]["source"] == [{"source": "mails", "count": 2}, {"source": "orders", "count": 1}]
    assert counts.not_ready == (1, 0)


def test_pages_have_every_message_once_and_shrink_for_large_bodies(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "PAGE_BYTES", 10_000)
    queue = broker.declare_queue("dead")
    queue.enqueue_many([Message(b"x" * 1_000, id=str(n)) for n in range(50)])

    sizes = [len(page) for page in pages(queue)]

    assert sum(sizes) == 50
    assert (sizes[0], set(sizes[1:])) == (20, {10})
    assert [message.id for page in pages(queue) for message in page] == [str(n) for n in range(50)]
