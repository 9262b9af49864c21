"""Enqueue calls that become one: which ones may, the words of the one call, and the reply to each of them."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Message, QueueOptions
from rqttl.errors import ContractError
from rqttl.protocol import commands
from rqttl.protocol.commands import BATCH, Command, Joined, Options, QueueConfig
from rqttl.protocol.keys import Keyspace


def known(queue: str = "orders", version: bytes = b"v1", **options: object) -> QueueConfig:
    return Options.plain(QueueOptions.read_stored(queue, options)).config(Keyspace("ns"), version)


def enqueue(*messages: object, config: QueueConfig | None = None) -> Command:
    return commands.enqueue(config or known(), [commands.pack(message) for message in messages])


@pytest.mark.parametrize(
    "calls",
    [
        [(b"a",), (b"b", b"c"), (b"",)],
        [({"v": 1},), ("x", "y")],
        [(Message(b"a", id="1"),), (Message(b"b", id="2"), Message(b"c", id="30"))],
        [(Message(b"a", id="1", ttl="5s"), b"b"), (Message(b"c", id="1", ttl="6s"),)],
        [(Message(b"a", ttl="5s"),)] * 2,
    ],
    ids=["bodies", "values", "ids", "any", "one TTL"],
)
def test_the_one_call_is_that_of_all_messages(calls: list[tuple[object, ...]]) -> None:
    first, *others = (enqueue(*messages) for messages in calls)
    joined = Joined(first)

    assert Joined.can_begin(first)
    assert all(joined.take(other) for other in others)

    assert joined.words == enqueue(*[message for messages in calls for message in messages]).words


def test_each_call_gets_the_results_of_its_own_messages_and_the_first_one_the_notes() -> None:
    joined = Joined(enqueue(b"a"))
    assert joined.take(enqueue(b"b", b"c"))
    assert joined.take(enqueue(b"d"))

    assert joined.replies([b"ok", [b"note"], [b"1", b"2", b"!max_length", b"="]]) == [
        [b"ok", [b"note"], [b"1"]],
        [b"ok", b"", [b"2", b"!max_length"]],
        [b"ok", b"", [b"="]],
    ]


@pytest.mark.parametrize("reply", [[b"refused", b"stale"], [b"refused", b"retry"], ConnectionError("lost"), b"odd"])
def test_any_other_reply_is_the_reply_to_all(reply: Any) -> None:
    joined = Joined(enqueue(b"a"))
    assert joined.take(enqueue(b"b"))

    assert joined.replies(reply) == [reply, reply]


@pytest.mark.parametrize(
    "place,told", [(1, [1, None, None]), (2, [None, 1, None]), (3, [None, 2, None]), (4, [None, None, 1])]
)
def test_a_malformed_message_is_the_fault_of_its_own_call(place: int, told: list[int | None]) -> None:
    ids = [Message(b"x", id=str(i)) for i in range(4)]
    joined = Joined(enqueue(ids[0]))
    assert joined.take(enqueue(ids[1], ids[2]))
    assert joined.take(enqueue(ids[3]))

    assert joined.replies([b"refused", b"malformed", place]) == [
        one and [b"refused", b"malformed", one] for one in told
    ]


def test_a_reply_with_another_number_of_results_is_no_reply_to_any_call() -> None:
    joined = Joined(enqueue(b"a"))
    assert joined.take(enqueue(b"b"))

    replies = joined.replies([b"ok", b"", [b"1"]])

    assert {type(reply) for reply in replies} == {ContractError}


@pytest.mark.parametrize(
    "other",
    [
        enqueue(b"x", config=known("others")),
        enqueue(b"x", config=known(version=b"v2")),
        enqueue({"v": 1}),
        enqueue(Message(b"x", id="1")),
        enqueue(Message(b"x", ttl="5s")),
        enqueue(b"x", config=known(max_length=5)),
        commands.receive(known(), 1, 1),
        enqueue(*[b"x"] * BATCH),
        enqueue(b"x" * (commands.BATCH_BYTES + 1)),
    ],
    ids=["queue", "options", "value", "id", "TTL", "limit", "script", "too many", "too large"],
)
def test_other_calls_do_not_join(other: Command) -> None:
    joined = Joined(enqueue(b"a"))
    before = joined.words

    assert not joined.take(other)

    assert joined.words == before
    assert joined.replies([b"ok", b"", [b"1"]]) == [[b"ok", b"", [b"1"]]]


def test_a_call_that_may_be_repeated_joins_none_that_may_not() -> None:
    config = known(duplicate_window=5)
    joined = Joined(enqueue(Message(b"a", id="1"), Message(b"b", id="2", ttl="5s"), config=config))

    assert not joined.take(enqueue(Message(b"c", id="3", ttl="5s"), b"d", config=config))


def test_no_other_call_can_begin() -> None:
    assert not Joined.can_begin(None)
    assert not Joined.can_begin(commands.receive(known(), 1, 1))
