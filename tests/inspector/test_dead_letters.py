"""Letters: pages, filters, groups and counts, without a command."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from itertools import chain, repeat

import pytest
import redis

from rqttl import Broker, Message
from rqttl.checks import is_pattern
from rqttl.errors import InvalidInput, InvalidName, QueueNotFound
from rqttl.inspector import dead_letters
from rqttl.inspector.dead_letters import (
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetters,
    count_within,
    error_of,
    pages,
    read_filter,
)
from rqttl.inspector.queues import existing_names, plain_names, running_reapers, select_names, take_snapshot
from rqttl.types import Death, MessageView


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


def test_who_stops_between_two_batches_goes_on_there_and_what_came_later_stays(broker: Broker) -> None:
    source, dead = broker.declare_queue("q", dead_letter="dead"), broker.declare_queue("dead")
    source.enqueue_many([b"%d" % n for n in range(5)])
    source.reject_many(source.receive_many(5))
    letters = DeadLetters(dead, DeadLetterFilter(), broker.server_time(), batch=2)
    assert (sum(letters.select()), letters.left, letters.groups.total()) == (5, 5, 5)
    source.enqueue(b"late")
    source.reject_many(source.receive_many(1))

    assert next(letters.redrive()) == 2
    assert (letters.left, letters.done) == (3, 2)
    dead.purge_many([dead.peek(1)[0].sequence])  # another client was faster

    assert list(letters.purge()) == [2, 1]
    assert (letters.left, letters.done) == (0, 4)
    assert [message.body for message in source.peek()] == [b"0", b"1"]
    assert [message.body for message in dead.peek()] == [b"late"]


#: Descriptions, with their errors.
ERRORS = {
    None: "",
    " \n ": "",
    "\n  ValueError: no order\nTraceback": "ValueError: no order",
    "ValueError: order 17 has no price": "ValueError: order … has no price",
    "no 'a b', \"c\" or `d` in order-12": "no …, … or … in order-…",
    "can't open it's 'unclosed": "can't open it's 'unclosed",
    "[Errno 111] 10.0.0.1:6379 after 3.5s": "[Errno …] … after …s",
    "<Sink at 0x7f3cAB> deadbeef1 01ARZ3NDEKTSV4RRFF": "<Sink at …> … …",
    "550e8400-e29b-41d4-abcd-abcdefabcdef": "…",
    "S3UploadError: facade": "S…UploadError: facade",
    "2 * 3": "… … …",
    "x" * 300: "x" * 200,
}


def dead_letter(description: str | None) -> MessageView:
    at = datetime.fromtimestamp(0, timezone.utc)
    death = Death("q", "rejected", 1, at, at, at, None, 1, description)
    return MessageView("a", "1-1", "dead", "ready", None, b"", {}, "", at, None, 0, (death,))


@pytest.mark.parametrize("description", ERRORS)
def test_an_error_is_alike_for_deaths_of_one_cause_and_selects_them(description: str | None) -> None:
    letter = dead_letter(description)
    error = error_of(letter)

    assert error == ERRORS[description]
    assert DeadLetterFilter(error=error).at(letter.enqueued_at)(letter)


@pytest.mark.parametrize("text", ["E: [a?] 5\\", "E: [a?] …\\", "*[a?]*", "*"])
def test_a_filter_takes_an_error_whole_or_with_stars(text: str) -> None:
    letter = dead_letter("E: [a?] 5\\\nmore")
    assert DeadLetterFilter(error=text).at(letter.enqueued_at)(letter)
    for other in ("E: [a?] 6\\", "E:", "e: *", "E: ?a??*", "*more", "", "*a" * 2_000):
        assert not DeadLetterFilter(error=other).at(letter.enqueued_at)(letter)


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
    queues: Broker, restricted: Callable[..., redis.Redis]
) -> None:
    assert running_reapers(queues) == 0
    assert running_reapers(Broker(restricted("-hgetall"))) is None


def test_counts_of_errors_have_a_group_for_each_of_them_with_the_newest_as_its_sample(broker: Broker) -> None:
    source, dead = broker.declare_queue("q", dead_letter="dead"), broker.declare_queue("dead")
    source.enqueue_many([Message(b"", id=str(n)) for n in range(5)])
    for delivery, why in zip(source.receive_many(5), ["no 1", "gone", "no 2", None, "no 3"], strict=True):
        delivery.reject(why)
    counts, plain = DeadLetterCounts(errors=True), DeadLetterCounts()
    for message in (message for page in pages(dead) for message in page):
        counts.add(message)
        plain.add(message)

    ids = {message.sequence: message.id for message in dead.peek()}

    groups = [(group.error, group.count, ids[group.sample]) for group in counts.ordered()]
    assert groups == [("no …", 3, "4"), ("", 1, "3"), ("gone", 1, "1")]
    assert counts.by("error") == [("no …", 3), ("", 1), ("gone", 1)]
    assert (counts.by("source"), counts.total()) == ([("q", 5)], 5)
    assert [(group.error, group.count) for group in plain.ordered()] == [(None, 5)]


@pytest.mark.parametrize(
    "most, times, read, is_all",
    [(50, [0, 1], 50, True), (30, [0, 1], 30, False), (20, [0, 1], 20, False), (50, [0, 9], 20, False)],
)
def test_a_count_within_bounds_says_how_far_it_came(
    broker: Broker, most: int, times: list[float], read: int, is_all: bool
) -> None:
    source, dead = broker.declare_queue("q", dead_letter="dead"), broker.declare_queue("dead")
    source.enqueue_many([b""] * 50)
    source.reject_many(source.receive_many(50))
    clock = chain(times, repeat(times[-1]))

    found = count_within(
        dead, DeadLetterFilter(), broker.server_time(), most=most, seconds=5, clock=lambda: next(clock)
    )

    assert (found.read, found.counts.total(), found.is_all) == (read, read, is_all)
    assert found.until == dead.peek(read)[-1].enqueued_at


def test_a_filter_is_made_of_the_words_of_the_command() -> None:
    words = [("source", "a"), ("source", "b"), ("reason", "Delivery-Limit"), ("error", ""), ("id", "1")]
    words += [("older-than", "1h"), ("newer-than", "2026-11-21T10:00Z"), ("header", "a=b=c")]

    assert read_filter([]) == DeadLetterFilter()
    assert read_filter(words) == DeadLetterFilter(
        frozenset("ab"),
        frozenset({"delivery_limit"}),
        timedelta(hours=1),
        datetime(2026, 11, 21, 10, tzinfo=timezone.utc),
        (("a", "b=c"),),
        frozenset("1"),
        "",
    )


@pytest.mark.parametrize(
    "word, value, line",
    [
        ("source", "a b", "source: "),
        ("reason", "expird", "reason: no such reason 'expird'; did you mean expired?"),
        ("older-than", "soon", "older-than: expected an age such as 7d, or a time"),
        ("header", "a", "header: expected KEY=VALUE, got 'a'"),
        ("id", "", "id: expected 1 to 255 bytes of printable text"),
        ("error", "\ud800", "error: expected text, got '\\ud800'"),
        ("queue", "a", "filter: no such condition 'queue'; expected one of source, reason"),
    ],
)
def test_a_wrong_word_of_a_filter_is_named(word: str, value: str, line: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(line)):
        read_filter([(word, value)])
