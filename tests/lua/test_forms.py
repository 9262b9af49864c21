"""`enqueue`: the forms of a batch say nothing that the batch does not, and what a call must do again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Message
from rqttl.protocol import commands
from rqttl.protocol.codec import Envelope
from rqttl.protocol.commands import Command, Reply
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, State, place, plain

WINDOW = 9
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "window": {"duplicate_window": WINDOW},
    "retention": {"message_ttl": 5},
    "TTL": {"default_ttl": 5},
    "at once": {"message_ttl": 0},
    "limit": {"max_length": 4},
    "strict": {"max_length": 4, "overflow": "reject-publish"},
    "strict window": {"max_length": 4, "overflow": "reject-publish", "duplicate_window": WINDOW},
    "expiring": {"expires": "1h"},
}


def as_any(command: Command) -> Command:
    """The same call, saying nothing of the form of its batch."""
    form, start = command.word("form"), 1 + int(command.words[0]) + len(command.script.args)
    batch = command.words[start:]
    if form != "ids":
        common = b"" if form == "bodies" else form
        batch = tuple(word for body in batch for word in (common, body))
    assert form != ""
    return command._replace(words=(*command.words[:start], *batch)).with_word("form", "")


def batches(chance: random.Random) -> list[list[tuple[Envelope, bytes]]]:
    """Batches of few ids, so that some come again, in the same batch too; their last digits run over."""
    ids = [f"{i:0{1 + i % 12}d}" for i in range(200)]
    sent = [
        [Message(b"x" * chance.randrange(4), id=chance.choice(ids)) for _ in range(chance.choice((1, 3, 12, 25)))]
        for _ in range(4)
    ]
    return [[commands.pack(message) for message in batch] for batch in sent]


def settled(lab: Lab, command: Command) -> Reply:
    """The reply to a call that is made again for as long as the script says so."""
    while (reply := lab.run(command)) == [b"refused", b"retry"]:
        pass
    return reply


def of_one_envelope(chance: random.Random) -> list[list[tuple[Envelope, bytes]]]:
    """Batches of messages that differ in their bodies only; some have a TTL."""
    kinds: list[dict[str, Any]] = [
        {},
        {"ttl": "2ms"},
        {"ttl": 0},
        {"content_type": "text/plain"},
        {"ttl": "4ms", "headers": {"a": 1}},
    ]
    sent = [
        (chance.choice(kinds), [b"x" * chance.randrange(4) for _ in range(chance.choice((1, 3, 12, 25)))])
        for _ in range(4)
    ]
    return [[commands.pack(Message(body, **fields)) for body in bodies] for fields, bodies in sent]


@pytest.mark.parametrize("make", [batches, of_one_envelope])
@pytest.mark.parametrize("window", [0, WINDOW])
@pytest.mark.parametrize("way", OPTIONS)
def test_a_batch_with_a_form_is_stored_as_any_other(
    lab: Lab, way: str, window: int, make: Callable[[random.Random], list[list[tuple[Envelope, bytes]]]]
) -> None:
    duplicates = 0
    for seed in range(5):
        found: list[tuple[list[Reply], State]] = []
        for known_form in (True, False):
            lab.client.flushall()
            lab.seed(options=OPTIONS[way], log=plain(place(-9)), meta={"last_id": f"{NOW}-100093"})
            replies = []
            for i, packed in enumerate(make(random.Random(seed))):
                command = commands.enqueue(lab.known(), packed, window=window, now=NOW + 3 * i)
                replies.append(settled(lab, command if known_form else as_any(command)))
            found.append((replies, lab.snapshot()))
        assert found[0] == found[1]
        duplicates += sum(reply[2].count(b"=") for reply in found[0][0])
    assert (duplicates > 0) == (make is batches and (window > 0 or "window" in way))


def test_names_whose_time_is_over_go_before_one_of_them_is_taken_for_known(lab: Lab) -> None:
    lab.seed(dedup_ids=[";1;;a", ";1;;b", ";3;;old"], dedup_windows={";1;;a\n;1;;b": NOW - 1, ";3;;old": NOW})
    command = enqueue_encoded(lab.known(), [(b";3;;old", b"x"), (b";3;;new", b"x")], window=WINDOW, now=NOW)

    assert lab.run(command) == [b"refused", b"retry"]
    left = lab.snapshot()["orders"]
    assert "dedup_ids" not in left
    assert "log" not in left
    assert lab.run(command)[0] == b"ok"
    state = lab.snapshot()["orders"]
    assert (state["dedup_ids"], state["dedup_windows"]) == ([";3;;new", ";3;;old"], {";3;;old\n;3;;new": NOW + WINDOW})


def test_forgetting_beforehand_is_refused_too_while_memory_is_full(lab: Lab) -> None:
    lab.seed(dedup_ids=[";3;;old"], dedup_windows={";3;;old": NOW})
    command = enqueue_encoded(lab.known(), [(b";3;;old", b"x")], window=WINDOW, now=NOW)
    before = lab.dump()
    lab.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.ResponseError):
            lab.run(command)
    finally:
        lab.client.config_set("maxmemory", 0)

    assert lab.dump() == before
