"""`preview`: the messages that other options would let die at once."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import QueueOptions
from rqttl.protocol import commands
from tests.lua.states import NOW, Lab, at, place, plain, token

READY: dict[str, Any] = {
    "log": {place(-30): (b"", b"four"), place(-20): (at(9), b"ab"), **plain(place(-10), place(-9, 1))},
    "detached": {place(-40): (b"", b"x")},
    "requeued": {place(-40): NOW - 40},
    "expiry": {place(-20): NOW + 9},
}


def preview(lab: Lab, **options: object) -> tuple[int, int]:
    """The counts of expired and trimmed messages, after as many calls as it takes."""
    after = QueueOptions.read_stored("orders", options)
    walk, more = commands.Walk(), 1
    while more:
        _, _, more, *state = lab.run(commands.preview(lab.known(), after, walk, now=NOW))
        walk = commands.Walk(*state)
    return int(walk.expired), int(walk.trimmed)


@pytest.mark.parametrize(
    "options, counts",
    [
        ({}, (0, 0)),
        ({"message_ttl": "41ms"}, (0, 0)),
        ({"message_ttl": "40ms"}, (1, 0)),
        ({"message_ttl": "20ms"}, (3, 0)),
        ({"message_ttl": 0}, (5, 0)),
        ({"max_length": 5}, (0, 0)),
        ({"max_length": 3}, (0, 2)),
        ({"max_length": 0}, (0, 5)),
        ({"max_length_bytes": 9}, (0, 0)),
        ({"max_length_bytes": 8}, (0, 1)),
        ({"max_length_bytes": 7}, (0, 2)),
        ({"max_length": 4, "max_length_bytes": 3}, (0, 3)),
        ({"message_ttl": "30ms", "max_length": 2}, (2, 1)),
        ({"message_ttl": "30ms", "max_length_bytes": 4}, (2, 0)),
        ({"max_length": 0, "overflow": "reject-publish"}, (0, 0)),
    ],
)
def test_the_first_messages_are_counted_by_what_they_would_die_of(
    lab: Lab, options: dict[str, object], counts: tuple[int, int]
) -> None:
    before = lab.seed(**READY)

    assert preview(lab, **options) == counts
    assert lab.snapshot() == before


def test_delayed_messages_are_counted_and_leased_ones_are_not(lab: Lab) -> None:
    lab.seed(
        log=plain(place(-30), place(-20), place(-10)),
        leases={place(-30): token(9)},
        delayed={place(-20): NOW + 9},
        meta={"cursor": place(-20)},
    )

    assert preview(lab, message_ttl="5ms") == (2, 0)
    assert preview(lab, max_length=0) == (0, 1)


@pytest.mark.parametrize("behind", [0, 100, 250, 400])
def test_a_walk_over_many_messages_takes_several_calls_and_misses_none(lab: Lab, behind: int) -> None:
    places = [place(-1000 + i) for i in range(700)]
    returned = {one: NOW - 1000 + i for i, one in enumerate(places[:behind])}
    parts: dict[str, Any] = {"requeued": returned, "meta": {"cursor": places[behind - 1]}} if behind else {}
    lab.seed(log=plain(*places), **parts)

    assert preview(lab, message_ttl="400ms") == (601, 0)
    assert preview(lab, max_length=1) == (0, 699)
    assert preview(lab, message_ttl="700ms", max_length=10) == (301, 389)


def test_other_options_than_the_caller_knows_are_stale(lab: Lab) -> None:
    lab.seed(meta={"version": "v2"})
    known = lab.known()

    reply = lab.run(commands.preview(known, known.options, commands.Walk(), now=NOW))

    assert reply == [b"refused", b"stale"]
