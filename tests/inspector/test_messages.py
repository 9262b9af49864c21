"""Messages as fronts show them: pages of those in a state, bodies as what they are, what made a deadline."""

from itertools import chain
from typing import Any

import pytest

from rqttl import Broker, Queue
from rqttl.inspector import message_view
from rqttl.inspector import queues as views
from rqttl.types import State


@pytest.mark.parametrize("state", ["ready", "leased", "delayed", "scheduled"])
def test_messages_of_a_state_are_found_among_many_by_a_few_calls(queue: Queue, state: State, monkeypatch: Any) -> None:
    monkeypatch.setattr(views, "LOOKS", (51, 20, 20))
    queue.enqueue_many([b"x"] * 300)
    for number, delivery in enumerate(queue.receive_many(200)):
        if number % 3:
            delivery.nack(delay="1h")
    for _ in range(60):
        queue.enqueue(b"x", delay="1h")
    stats, pages, after = queue.stats(), list[list[str]](), "first"
    expected = [
        one.sequence for one in queue.peek(300, state=None if state != "scheduled" else state) if one.state == state
    ]

    while after:
        page, after = views.page_of(queue, stats, state, "" if after == "first" else after)
        pages.append([message.sequence for message in page])

    assert list(chain(*pages)) == expected
    assert max(map(len, pages)) <= 50


def test_a_page_of_large_bodies_is_short(queue: Queue, monkeypatch: Any) -> None:
    monkeypatch.setattr(views, "LOOK_BYTES", 1_000)
    queue.enqueue_many([b"x" * 500] * 10)

    page, after = views.page_of(queue, queue.stats(), "ready", "")

    assert [one.sequence for one in page] == [one.sequence for one in queue.peek(6)]
    assert after == page[-1].sequence


@pytest.mark.parametrize(
    "body, kind, shown",
    [
        ({"a": [1]}, "JSON", '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a": 1}', "JSON", '{\n  "a": 1\n}'),
        (b"two\nlines", "text", "two\nlines"),
        (b"{" * 99, "text", "{" * 99),
        (b"[" * 50_000, "text", "[" * 50_000),
        (b"\x00\xff" * 9, "bytes", f"000000  {'00 ff ' * 8} ................\n000010  00 ff{' ' * 42}  .."),
        ("ä".encode() * 40_000, "text", "ä" * 32_768),
        (b"x" + "ä".encode() * 40_000, "text", "x" + "ä" * 32_767),
    ],
)
def test_a_body_is_shown_as_what_it_is(queue: Queue, body: Any, kind: str, shown: str) -> None:
    queue.enqueue(body)

    assert message_view.readable_body(queue.peek()[0], 1 << 16) == (kind, shown)


@pytest.mark.parametrize(
    "options, sent, rule",
    [
        ({}, {}, "no rule gives it a deadline"),
        ({}, {"ttl": "5m"}, "its own TTL, 5m"),
        ({"message_ttl": "1m"}, {"ttl": "5m"}, "message-ttl 1m (declared)"),
        ({"default_ttl": "2m"}, {}, "default-ttl 2m (declared)"),
        ({"message_ttl": "1h"}, {"delay": "5m"}, "message-ttl 1h (declared)"),
    ],
)
def test_a_message_says_which_rule_made_its_deadline(broker: Broker, options: Any, sent: Any, rule: str) -> None:
    queue = broker.declare_queue("q", **options)
    [found] = queue.messages(queue.enqueue(b"x", **sent).id)

    assert message_view.deadline_rule(found, queue.explain()) == rule
