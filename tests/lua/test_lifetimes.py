"""`touch`, and the effects of a lifetime on the other commands."""

from __future__ import annotations

import pytest

from rqttl import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Options
from tests.lua.states import NOW, Lab, changed, place, plain, token

LIFE = 50


def touch(lab: Lab, now: int = NOW) -> Command:
    return commands.touch(lab.keyspace, "orders", now=now)


def test_a_touch_begins_both_lifetimes_anew(lab: Lab) -> None:
    before = lab.seed(options={"expires": LIFE, "auto_delete_on_idle": 2 * LIFE}, meta={"due_at": NOW + LIFE})

    assert lab.run(touch(lab, NOW + 7)) == [b"ok", b"", 1]
    assert lab.snapshot() == changed(before, meta={"last_used_at": NOW + 7, "last_active_at": NOW + 7})


def test_nobody_can_touch_what_is_not_there_or_over(lab: Lab) -> None:
    assert lab.refusal(touch(lab)) == [b"not_found"]
    lab.seed(options={"expires": LIFE})
    assert lab.refusal(touch(lab, NOW + LIFE)) == [b"queue_expired"]
    assert lab.run(touch(lab, NOW + LIFE - 1))[0] == b"ok"


@pytest.mark.parametrize("what", ["lookup", "declare"])
def test_an_ended_queue_is_refused_with_its_version_and_options(lab: Lab, what: str) -> None:
    lab.seed(options={"auto_delete_on_idle": LIFE})
    options = QueueOptions.read("orders", {})
    command = {
        "lookup": commands.lookup(lab.keyspace, "orders", now=NOW + LIFE),
        "declare": commands.declare(lab.keyspace, Options.plain(options), now=NOW + LIFE),
    }[what]

    assert lab.refusal(command) == [b"queue_expired", b"v1", b'{"auto_delete_on_idle":50}']


def test_an_update_of_what_is_over_is_refused(lab: Lab) -> None:
    lab.seed(options={"expires": LIFE})

    assert lab.refusal(
        commands.update(lab.known(), Options.plain(QueueOptions.read("orders", {})), now=NOW + LIFE)
    ) == [b"queue_expired"]


def test_an_ended_queue_goes_with_every_key_in_one_step(lab: Lab) -> None:
    entries = plain(*[place(-i) for i in range(900, 0, -1)])
    lab.seed(options={"expires": LIFE}, log=entries, leases={place(-900): token(70)}, delayed={place(-899): NOW + 90})

    reply = lab.run(commands.sweep(lab.known(), now=NOW + LIFE))

    assert reply == [b"ok", [b"deleted", b"orders"], NOW + LIFE, b"", 0, 0, 0, 0, 0, 0, 900]
    tombstone = {"created_at": NOW, "last_id": place(-1), "trimmed_upto": "0-0", "deleted": NOW}
    assert lab.snapshot() == {"orders": {"tombstone": tombstone}}


def test_dead_lettering_what_is_over_goes_in_bounded_steps_and_nobody_gets_in_between(lab: Lab) -> None:
    options = {"expires": LIFE, "on_expire": "dead-letter", "dead_letter": "dead"}
    lab.seed("dead")
    lab.seed(options=options, log=plain(*[place(-i) for i in range(300, 0, -1)]), leases={place(-300): token(70)})
    sweep = commands.sweep(lab.known(), now=NOW + LIFE)

    assert lab.run(sweep)[2:] == [NOW + LIFE, b"", 1, 0, 0, 250, 0, 0, b""]
    assert lab.refusal(touch(lab, NOW + LIFE)) == [b"queue_expired"]
    assert lab.run(sweep)[2:] == [NOW + LIFE, b"", 1, 0, 0, 49, 0, 0, b""]
    assert lab.run(sweep)[1:] == [[b"deleted", b"orders"], NOW + LIFE, b"", 0, 0, 0, 1, 0, 0, 0]
    state = lab.snapshot()
    assert set(state) == {"dead", "orders"}
    tombstone = {"created_at": NOW, "last_id": "0-0", "trimmed_upto": place(-1), "deleted": NOW}
    assert state["orders"] == {"tombstone": tombstone}


def test_a_consumer_that_leaves_no_longer_keeps_the_queue(lab: Lab) -> None:
    lab.seed(options={"expires": LIFE}, consumers={"me": NOW + 30})

    lab.run(commands.receive(lab.known(), 1, 1000, presence=commands.Presence("me", 0, 30), now=NOW))
    assert lab.snapshot()["orders"]["meta"]["last_used_at"] == NOW + 30
    lab.run(commands.receive(lab.known(), 0, 1000, presence=commands.Presence("me", 0, 0), now=NOW + 1))
    assert lab.snapshot()["orders"]["meta"]["last_used_at"] == NOW + 1
