"""The TTL of a message: the whole truth table, at the boundary of each rule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqttl import Receipt
from tests.contract.clocked import START, Clocked, at, ms
from tests.contract.looks import dead, one, ready

HOUR = 3_600_000
PAST, SOON, LATER = -5_000, 50, 5_000  # expires_at, in ms from now
NEVER = None


def resolve(clocked: Clocked, options: dict[str, Any], own: int | None) -> int | None:
    """The deadline, in ms from now, of a message that says `own` as an absolute time."""
    queue = clocked.declare_queue("q", **options)
    receipt = queue.enqueue(b"x", expires_at=None if own is None else START + own)
    if receipt.expires_at is None:
        return None
    return (receipt.expires_at - at(0)) // timedelta(milliseconds=1)


@pytest.mark.spec("A-009")
@pytest.mark.parametrize("others", [{}, {"default_ttl": "10ms"}, {"min_ttl": "10ms"}, {"max_ttl": "10ms"}], ids=str)
@pytest.mark.parametrize("own", [NEVER, PAST, SOON, LATER])
def test_never_expire_beats_everything(clocked: Clocked, others: dict[str, object], own: int | None) -> None:
    assert resolve(clocked, {"never_expire": True, **others}, own) is NEVER


@pytest.mark.spec("A-010a", "S-002")
@pytest.mark.parametrize("own", [NEVER, PAST, SOON, LATER])
def test_without_any_rule_a_message_keeps_what_it_says(clocked: Clocked, own: int | None) -> None:
    assert resolve(clocked, {}, own) == own


@pytest.mark.spec("A-010b", "S-003")
@pytest.mark.parametrize("default", [0, 1, 500])
@pytest.mark.parametrize(
    "others", [{}, {"min_ttl": "700ms"}, {"max_ttl": "100ms"}, {"min_ttl": "1ms", "max_ttl": "2ms"}], ids=str
)
def test_the_default_is_for_messages_that_say_nothing(
    clocked: Clocked, default: int, others: dict[str, object]
) -> None:
    assert resolve(clocked, {"default_ttl": ms(default), **others}, NEVER) == default


@pytest.mark.spec("A-010c")
@pytest.mark.parametrize("own", [PAST, SOON, LATER])
def test_while_there_is_a_default_the_clamps_do_not_act(clocked: Clocked, own: int) -> None:
    assert resolve(clocked, {"default_ttl": "300ms", "min_ttl": "100ms", "max_ttl": "1s"}, own) == own


@pytest.mark.spec("A-011a", "A-011b")
@pytest.mark.parametrize(
    "clamps, deadline",
    [({"max_ttl": "900ms"}, 900), ({"min_ttl": "100ms", "max_ttl": "900ms"}, 900), ({"min_ttl": "100ms"}, 100)],
    ids=str,
)
def test_a_message_that_says_nothing_gets_the_ceiling_else_the_floor(
    clocked: Clocked, clamps: dict[str, object], deadline: int
) -> None:
    assert resolve(clocked, clamps, NEVER) == deadline


@pytest.mark.spec("A-012a", "A-012b", "A-012c")
@pytest.mark.parametrize(
    "own, deadline", [(PAST, 100), (0, 100), (99, 100), (100, 100), (500, 500), (900, 900), (901, 900)]
)
def test_between_floor_and_ceiling_a_message_keeps_what_it_says(clocked: Clocked, own: int, deadline: int) -> None:
    assert resolve(clocked, {"min_ttl": "100ms", "max_ttl": "900ms"}, own) == deadline


@pytest.mark.spec("A-012b", "A-012d")
@pytest.mark.parametrize("own, deadline", [(PAST, 100), (99, 100), (HOUR, HOUR)])
def test_a_floor_alone_lifts_and_sets_no_ceiling(clocked: Clocked, own: int, deadline: int) -> None:
    assert resolve(clocked, {"min_ttl": "100ms"}, own) == deadline


@pytest.mark.spec("A-012a", "A-012e")
@pytest.mark.parametrize("own, deadline", [(PAST, PAST), (0, 0), (900, 900), (HOUR, 900)])
def test_a_ceiling_alone_lowers_and_sets_no_floor(clocked: Clocked, own: int, deadline: int) -> None:
    assert resolve(clocked, {"max_ttl": "900ms"}, own) == deadline


@pytest.mark.spec("A-013")
@pytest.mark.parametrize("own", [NEVER, SOON, LATER])
def test_a_ceiling_of_zero_lets_every_message_expire_at_once(clocked: Clocked, own: int | None) -> None:
    assert resolve(clocked, {"max_ttl": 0}, own) == 0
    assert dead(clocked.queue("q")) == {"expired": 1}


@pytest.mark.spec("A-014")
def test_a_floor_of_zero_lets_messages_that_say_nothing_expire_at_once(clocked: Clocked) -> None:
    assert resolve(clocked, {"min_ttl": 0}, NEVER) == 0
    assert dead(clocked.queue("q")) == {"expired": 1}


@pytest.mark.spec("TTL-09", "S-003", "S-004")
@pytest.mark.parametrize("own, deadline", [(NEVER, 1_000), (999, 999), (1_000, 1_000), (1_001, 1_000), (HOUR, 1_000)])
def test_retention_is_default_and_ceiling(clocked: Clocked, own: int | None, deadline: int) -> None:
    assert resolve(clocked, {"message_ttl": "1s"}, own) == deadline


@pytest.mark.spec("TTL-09")
@pytest.mark.parametrize(
    "rules, own, deadline",
    [
        ({"never_expire": True}, SOON, 1_000),
        ({"default_ttl": "300ms"}, NEVER, 300),
        ({"default_ttl": "3s"}, NEVER, 1_000),
        ({"min_ttl": "3s"}, SOON, 1_000),
        ({"min_ttl": "100ms"}, SOON, 100),
        ({"max_ttl": "20ms"}, SOON, 20),
    ],
    ids=str,
)
def test_retention_stands_above_every_other_rule(
    clocked: Clocked, rules: dict[str, object], own: int | None, deadline: int
) -> None:
    assert resolve(clocked, {"message_ttl": "1s", **rules}, own) == deadline


@pytest.mark.spec("A-005", "S-007")
@pytest.mark.parametrize("ttl", [2**31 - 1, 2**32 - 1, 2**32, 315_360_000_000])
def test_long_ttls_are_taken_exactly(clocked: Clocked, ttl: int) -> None:
    queue = clocked.declare_queue("q")

    receipt = queue.enqueue(b"x", ttl=ms(ttl))

    assert receipt.expires_at == at(ttl)
    assert ready(queue) == [b"x"]


@pytest.mark.spec("A-002", "S-001")
def test_a_relative_ttl_counts_on_the_servers_clock(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    clocked.advance(-HOUR)  # the server is an hour behind the clock of this process

    assert queue.enqueue(b"x", ttl="1m").expires_at == at(60_000 - HOUR)


@pytest.mark.spec("A-001")
def test_an_absolute_deadline_may_be_a_datetime(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")

    assert queue.enqueue(b"x", expires_at=at(70)).expires_at == at(70)


@pytest.mark.spec("A-003", "TTL-22", "TTL-21")
def test_a_deadline_in_the_past_is_accepted_and_dies_at_once_through_the_normal_path(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    receipt = queue.enqueue(b"x", expires_at=START - 1, id="late")

    assert receipt == Receipt("late", at(-1), expired=True)
    assert queue.receive() is None
    letter = one(clocked.queue("d"))
    assert (letter.id, letter.deaths[0].reason, letter.deaths[0].expires_at) == ("late", "expired", at(-1))


@pytest.mark.spec("A-017", "TTL-10", "S-009")
def test_the_rules_act_once_when_the_message_is_stored(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_ttl="1s")
    queue.enqueue(b"early")

    queue.update(max_ttl="10ms")
    queue.enqueue(b"late")

    assert [message.expires_at for message in queue.peek()] == [at(1_000), at(10)]


@pytest.mark.spec("S-008", "S-001")
@pytest.mark.parametrize(
    "options, ttl", [({"message_ttl": "500ms"}, None), ({}, "500ms"), ({"max_ttl": "500ms"}, "1h")], ids=str
)
def test_every_path_shows_the_same_deadline(clocked: Clocked, options: dict[str, Any], ttl: str | None) -> None:
    queue = clocked.declare_queue("q", **options)

    receipt = queue.enqueue(b"x", ttl=ttl)

    assert receipt.expires_at == queue.peek()[0].expires_at == one(queue).expires_at == at(500)


@pytest.mark.spec("S-010")
def test_a_ttl_of_one_millisecond_is_a_ttl(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", ttl="1ms")
    assert ready(queue) == [b"x"]

    clocked.advance(1)

    assert queue.receive() is None
