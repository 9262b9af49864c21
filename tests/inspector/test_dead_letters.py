"""Letters: pages, filters, groups and counts, without a command."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

import rqttl
from rqttl import Broker, Message
from rqttl.checks import is_pattern
from rqttl.errors import InvalidName, QueueNotFound
from rqttl.inspector import dead_letters
from rqttl.inspector.dead_letters import DeadLetterCounts, DeadLetterFilter, died_at, pages
from rqttl.inspector.queues import existing_names, plain_names, running_reapers, select_names, take_snapshot
from rqttl.types import Death, MessageView

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


def letter(id: str, *deaths: tuple[str, str, datetime], state: Any = "ready", **headers: Any) -> MessageView:
    """A message with these deaths (queue, reason, time), the latest first."""
    return MessageView(
        id,
        f"1-{id}",
        "dead",
        state,
        None,
        b"xy",
        headers,
        "",
        enqueued_at=NOON,
        expires_at=None,
        delivery_count=0,
        deaths=tuple(Death(queue, reason, 1, at, at, at, None, 0, "") for queue, reason, at in deaths),
    )


ALIVE = letter("alive", region="eu")
EXPIRED = letter("expired", ("orders", "expired", NOON), ("mails", "rejected", NOON), region="eu", attempt=3)
REJECTED = letter("rejected", ("mails", "rejected", NOON - timedelta(hours=1)), state="leased")


@pytest.mark.parametrize(
    "letter_filter, ids",
    [
        (DeadLetterFilter(), ["expired", "rejected"]),
        (DeadLetterFilter(sources=frozenset({"mails"})), ["rejected"]),
        (DeadLetterFilter(reasons=frozenset({"expired", "rejected"})), ["expired", "rejected"]),
        (DeadLetterFilter(ids=frozenset({"expired", "alive"})), ["expired"]),
        (DeadLetterFilter(older_than=timedelta(minutes=30)), ["rejected"]),
        (DeadLetterFilter(newer_than=timedelta(minutes=30)), ["expired"]),
        (DeadLetterFilter(older_than=NOON), ["rejected"]),
        (DeadLetterFilter(newer_than=NOON), ["expired"]),
        (DeadLetterFilter(headers=(("region", "eu"), ("attempt", "3"))), ["expired"]),
        (DeadLetterFilter(headers=(("region", "us"),)), []),
    ],
)
def test_a_filter_matches_the_latest_death_and_never_a_message_without_one(
    letter_filter: DeadLetterFilter, ids: list[str]
) -> None:
    matches = letter_filter.at(NOON)

    assert [message.id for message in (ALIVE, EXPIRED, REJECTED) if matches(message)] == ids
    assert letter_filter.is_empty == (letter_filter == DeadLetterFilter())


def test_groups_are_by_source_and_reason_the_largest_first_and_the_living_last() -> None:
    groups = DeadLetterCounts()
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
    counts = DeadLetterCounts()
    for message in (EXPIRED, REJECTED, letter("late", ("mails", "expired", NOON + timedelta(minutes=59)))):
        counts.add(message)

    assert list(counts.hours.items()) == [(NOON - timedelta(hours=1), 1), (NOON, 2)]
    assert counts.by("source") == [("mails", 2), ("orders", 1)]
    assert counts.span == (NOON - timedelta(hours=1), NOON + timedelta(minutes=59))


def test_pages_have_every_message_once_and_shrink_for_large_bodies(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE_BYTES", 10_000)
    queue = broker.declare_queue("dead")
    queue.enqueue_many([Message(b"x" * 1_000, id=str(n)) for n in range(50)])

    sizes = [len(page) for page in pages(queue)]

    assert sum(sizes) == 50
    assert (sizes[0], set(sizes[1:])) == (20, {10})
    assert [message.id for page in pages(queue) for message in page] == [str(n) for n in range(50)]


NAMES = ("mails", "orders.eu", "orders.us")


@pytest.fixture
def queues(broker: Broker) -> Broker:
    for name in NAMES:
        broker.declare_queue(name)
    return broker


def test_only_stars_question_marks_and_brackets_make_a_pattern() -> None:
    assert [text for text in ("orders.*", "order?", "[om]*", "orders", "a/b-c:d") if is_pattern(text)] == [
        "orders.*",
        "order?",
        "[om]*",
    ]
    assert plain_names(["b", "a*", "b", "a"]) == ["b", "a"]


def test_a_star_stands_for_dots_and_slashes_too(broker: Broker) -> None:
    for name in ("orders", "orders/dead", "orders/dead/late", "orders.dead", "shop.orders/dead", "shop/eu/dead"):
        broker.declare_queue(name)

    assert select_names(broker, ["*/dead"]) == ["orders/dead", "shop.orders/dead", "shop/eu/dead"]
    assert select_names(broker, ["orders/*"]) == ["orders/dead", "orders/dead/late"]
    assert select_names(broker, ["*.dead"]) == ["orders.dead"]
    assert select_names(broker, ["shop*"]) == ["shop.orders/dead", "shop/eu/dead"]


@pytest.mark.parametrize(
    "patterns, names",
    [
        ((), NAMES),
        (("orders.*",), ("orders.eu", "orders.us")),
        (("[m]ails", "orders.u?"), ("mails", "orders.us")),
        (("ghost",), ("ghost",)),
        (("ghost", "orders.us", "orders.*"), ("ghost", "orders.us", "orders.eu")),
        (("nothing.*",), ()),
    ],
)
def test_names_are_selected_as_they_are_and_patterns_by_their_matches(
    queues: Broker, patterns: Sequence[str], names: Sequence[str]
) -> None:
    assert sorted(select_names(queues, patterns)) == sorted(names)
    assert len(select_names(queues, [*patterns, *patterns])) == len(names)


def test_a_selection_of_existing_queues_refuses_a_name_without_one(queues: Broker) -> None:
    assert existing_names(queues, ["orders.us", "mails", "orders.*", "nothing.*"]) == sorted(NAMES)

    with pytest.raises(QueueNotFound) as caught:
        existing_names(queues, ["mails", "ghost"])
    assert caught.value.queue == "ghost"
    with pytest.raises(InvalidName):
        existing_names(queues, ["or ders"])


def test_a_snapshot_leaves_missing_queues_out(queues: Broker) -> None:
    queues.queue("mails").enqueue(b"x")

    snapshot = take_snapshot(queues, ["mails", "ghost"])

    assert (list(snapshot.queues), snapshot.queues["mails"].ready) == (["mails"], 1)
    assert snapshot.reapers == 0


def test_the_number_of_reapers_is_unknown_without_the_right_to_ask(
    queues: Broker, client: redis.Redis, redis_url: str
) -> None:
    assert running_reapers(queues) == 0

    client.execute_command("ACL", "SETUSER", "watcher", "on", "nopass", "~*", "&*", "+@all", "-pubsub")
    try:
        with rqttl.connect(redis_url.replace("://", "://watcher:x@", 1)) as watcher:
            assert running_reapers(watcher) is None
    finally:
        client.execute_command("ACL", "DELUSER", "watcher")
