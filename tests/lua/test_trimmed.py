"""`trimmed`: the highest place of a message that went without anybody's having handled it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rqttl import Message, QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Options
from tests.lua.states import NOW, Lab, at, place, plain, token

HELD: list[Any] = [place(-9), token(50)]
LEASED: dict[str, Any] = {"log": plain(place(-9), place(-8)), "leases": {place(-9): token(50)}}


def trimmed(lab: Lab, queue: str = "orders") -> object:
    return lab.snapshot()[queue]["meta"]["trimmed_upto"]


def enqueue(lab: Lab, *messages: object) -> Command:
    known = lab.known()
    return commands.enqueue(known, [commands.pack(message) for message in messages], now=NOW)


SETTLED: dict[str, Callable[[Lab], Command]] = {
    "acked": lambda lab: commands.ack(lab.keyspace, "orders", HELD, now=NOW),
    "acked with a receive": lambda lab: commands.receive(lab.known(), 0, 1, finished=HELD, now=NOW),
    "taken for good": lambda lab: commands.receive(lab.known(), 9, 1, auto_ack=True, now=NOW),
    "rejected": lambda lab: commands.reject(lab.known(), HELD, now=NOW),
    "given back": lambda lab: commands.nack(lab.known(), HELD, now=NOW),
    "leased for longer": lambda lab: commands.renew(lab.keyspace, "orders", HELD, lease=99, now=NOW),
    "swept in vain": lambda lab: commands.sweep(lab.known(), now=NOW),
    "looked at": lambda lab: commands.stats(lab.known(), now=NOW),
}


@pytest.mark.parametrize("how", SETTLED)
def test_settled_and_moved_messages_are_not_trimmed(lab: Lab, how: str) -> None:
    lab.seed(**LEASED)

    assert lab.run(SETTLED[how](lab))[0] == b"ok"

    assert trimmed(lab) == "0-0"


@pytest.mark.parametrize("how", ["nack", "lost lease"])
def test_a_death_of_the_last_delivery_is_no_trim(lab: Lab, how: str) -> None:
    lab.seed(options={"max_deliveries": 1}, **{**LEASED, "leases": {place(-9): token(50 if how == "nack" else 0)}})

    lab.run(SETTLED["given back" if how == "nack" else "swept in vain"](lab))

    state = lab.snapshot()["orders"]
    assert state["meta"]["deaths:delivery_limit"] == 1
    assert state["meta"]["trimmed_upto"] == "0-0"


@pytest.mark.parametrize("how", ["given back", "lost lease", "delay over"])
def test_a_message_that_comes_back_too_late_is_trimmed(lab: Lab, how: str) -> None:
    away: dict[str, Any] = {
        "given back": {"leases": {place(-9): token(50)}},
        "lost lease": {"leases": {place(-9): token(0)}},
        "delay over": {"delayed": {place(-9): NOW}},
    }
    lab.seed(log={place(-9): (at(-1), b"x"), **plain(place(-8))}, **away[how])

    lab.run(SETTLED["given back" if how == "given back" else "swept in vain"](lab))

    assert lab.snapshot()["orders"]["meta"]["deaths:expired"] == 1
    assert trimmed(lab) == place(-9)


def test_the_highest_of_the_expired_counts_whichever_dies_last(lab: Lab) -> None:
    lab.seed(
        log={place(-9): (at(0), b"a"), place(-8): (at(-5), b"b"), **plain(place(-7))},
        expiry={place(-9): NOW, place(-8): NOW - 5},
    )

    lab.run(commands.receive(lab.known(), 1, 50, now=NOW))

    assert trimmed(lab) == place(-8)


def test_retention_limits_and_purges_raise_it_step_by_step(lab: Lab) -> None:
    lab.seed(options={"message_ttl": 9, "max_length": 3}, log=plain(*[place(-9 + i) for i in range(4)]))

    steps = []
    for command in (
        commands.receive(lab.known(), 1, 50, now=NOW),  # the first is past retention
        enqueue(lab, b"a", b"b"),  # one too many
        commands.purge(lab.keyspace, "orders", "", [place(-6)], unread=True),
        commands.purge(lab.keyspace, "orders", "", [place(-7)], unread=True),
        commands.purge(lab.keyspace, "orders", ""),
    ):
        lab.run(command)
        steps.append(trimmed(lab))

    assert steps == [place(-9), place(-7), place(-6), place(-6), place(0, 1)]


def test_a_purge_of_chosen_messages_is_a_decision_and_no_trim(lab: Lab) -> None:
    lab.seed(log=plain(place(-3)), detached=plain(place(-9)), requeued={place(-9): NOW - 9})

    assert lab.run(commands.purge(lab.keyspace, "orders", "", [place(-9), place(-3)]))[2] == 2

    assert trimmed(lab) == "0-0"


def test_a_purge_of_all_says_what_really_went(lab: Lab) -> None:
    lab.seed(log=plain(place(-9), place(-8)), meta={"last_id": place(-1)})

    lab.run(commands.purge(lab.keyspace, "orders", ""))

    assert trimmed(lab) == place(-8)


def test_a_purge_of_an_empty_queue_is_no_trim(lab: Lab) -> None:
    lab.seed(meta={"last_id": place(-1), "cursor": place(-1)})

    lab.run(commands.purge(lab.keyspace, "orders", ""))

    assert trimmed(lab) == "0-0"


def test_a_purge_of_what_was_moved_aside_counts(lab: Lab) -> None:
    lab.seed(detached=plain(place(-5), place(-4)), requeued={place(-5): NOW - 5, place(-4): NOW - 4})

    lab.run(commands.purge(lab.keyspace, "orders", ""))

    assert trimmed(lab) == place(-4)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_message_that_never_was_in_the_log_is_not_missed(lab: Lab, overflow: str) -> None:
    lab.seed(options={"max_length": 0, "overflow": overflow, "dead_letter": "dead"})

    lab.run(enqueue(lab, b"refused", Message(b"dead", ttl=0)))

    assert trimmed(lab) == "0-0"


@pytest.mark.parametrize("away", ["leases", "delayed", ""])
def test_the_end_of_a_lifetime_trims_every_message_that_it_takes(lab: Lab, away: str) -> None:
    places = [place(-9, i) for i in range(300)]
    ends = {"leases": token(50), "delayed": NOW + 50}
    parts: dict[str, Any] = {away: dict.fromkeys(places, ends[away])} if away else {}
    lab.seed(
        options={"expires": 5, "on_expire": "dead-letter", "dead_letter": "dead"},
        log=plain(*places),
        meta={"last_used_at": NOW - 5, "last_active_at": NOW - 5},
        **parts,
    )

    lab.run(commands.sweep(lab.known(), now=NOW))

    assert trimmed(lab) == places[249]


def test_a_record_that_has_no_such_field_gets_it(lab: Lab) -> None:
    lab.seed(log={place(-9): (at(0), b"x")}, expiry={place(-9): NOW})
    lab.client.hdel("rqttl:{orders}:meta", "trimmed_upto", "created_at")

    lab.run(commands.sweep(lab.known(), now=NOW))

    assert trimmed(lab) == place(-9)


def test_a_queue_that_is_declared_again_was_born_when_it_was_made(lab: Lab) -> None:
    def declare(now: int) -> None:
        lab.run(commands.declare(lab.keyspace, Options.plain(QueueOptions.read("orders", {})), now=now))

    declare(NOW)
    declare(NOW + 5)
    assert lab.snapshot()["orders"]["meta"]["created_at"] == NOW

    lab.run(commands.delete(lab.keyspace, "orders", if_unused=False, if_empty=False))
    declare(NOW + 7)
    assert lab.snapshot()["orders"]["meta"]["created_at"] == NOW + 7


def test_a_queue_that_a_dead_letter_made_keeps_its_birth_when_it_is_adopted(lab: Lab) -> None:
    lab.seed(options={"dead_letter": "dead"}, **LEASED)
    lab.run(SETTLED["rejected"](lab))

    lab.run(commands.declare(lab.keyspace, Options.plain(QueueOptions.read("dead", {"max_length": 9})), now=NOW + 5))

    assert lab.snapshot()["dead"]["meta"]["created_at"] == NOW
