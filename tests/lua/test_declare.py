"""`declare`, `lookup`, `update` and `touch`: the record of a queue, and its lifetime."""

import json
from typing import Any

import pytest

from rqttl import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.codec import NO_ENVELOPE
from rqttl.protocol.commands import Command, Options
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, changed, place, plain, plain_options, token

OPTIONS = {"message_ttl": "60s", "max_length": 5, "overflow": "reject-publish", "never_expire": True}


def declaration(lab: Lab, **options: object) -> commands.Command:
    return commands.declare(lab.keyspace, plain_options(**options), now=NOW)


def test_declare_makes_a_queue_with_what_scripts_read_and_all_that_was_given(lab: Lab) -> None:
    reply = lab.run(declaration(lab, **OPTIONS, lease="5s", dead_letter="dead"))

    assert reply[:3] == [b"ok", b"", 1]
    meta = lab.snapshot()["orders"]["meta"]
    meta.pop("about", None)
    given = {
        "dead_letter": "dead",
        "lease": 5000,
        "max_length": 5,
        "message_ttl": 60000,
        "never_expire": True,
        "overflow": "reject-publish",
    }
    assert json.loads(meta.pop("declared")) == json.loads(meta.pop("options")) == given
    assert len(meta.pop("version")) == 16
    assert meta == {
        "explicit": 1,
        "created_at": NOW,
        "cursor": "0-0",
        "trimmed_upto": "0-0",
        "last_id": "0-0",
        "ready_bytes": 0,
        "due_at": "",
        "lease_grants": 0,
        "holds_dead_letters": 0,
        "policies": 0,
        "has_waiters": 0,
        "enqueued": 0,
        "delivered": 0,
        "option_set": "custom",
        "message_ttl": 60000,
        "max_length": 5,
        "overflow": "reject-publish",
        "never_expire": 1,
    }
    assert list(lab.snapshot()) == ["orders"]


def test_a_declaration_that_is_repeated_after_a_lost_reply_still_says_that_it_made_the_queue(lab: Lab) -> None:
    command = declaration(lab, **OPTIONS)

    replies = [lab.run(command), lab.run(command.as_replay())]
    assert replies == [[b"ok", b"", 1, lab.snapshot()["orders"]["meta"]["version"].encode(), b"0", b""]] * 2
    assert lab.run(declaration(lab, **OPTIONS))[:3] == [b"ok", b"", 0]


@pytest.mark.parametrize("explicit", [0, 1])
def test_a_message_that_makes_its_target_leaves_one_that_exists_as_it_is(lab: Lab, explicit: int) -> None:
    before = lab.seed(options={"max_length": 3}, log=plain(place()), meta={"explicit": explicit, "policies": 2})

    assert lab.run(commands.make(lab.keyspace, "orders"))[:3] == [b"ok", b"", 0]

    assert lab.snapshot() == before


def test_a_queue_that_only_a_dead_letter_made_is_adopted_and_looked_at_at_once(lab: Lab) -> None:
    before = lab.seed(log=plain(place()), meta={"explicit": 0, "version": "auto-1", "holds_dead_letters": 1})

    assert lab.run(declaration(lab, max_length=3))[:3] == [b"ok", b"", 2]

    after = lab.snapshot()
    version = after["orders"]["meta"]["version"]
    assert version != "auto-1"
    assert after == changed(
        before,
        meta={
            "explicit": 1,
            "version": version,
            "declared": '{"max_length":3}',
            "options": '{"max_length":3}',
            "max_length": 3,
            "due_at": 0,
            "option_set": "custom",
        },
    )


@pytest.mark.parametrize("old, new", [((1,), (2,)), ((0, 1), (0, 2))], ids=["merged", "seen by the client"])
def test_an_adoption_with_policies_that_are_older_than_those_in_force_is_refused(
    lab: Lab, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    lab.seed(meta={"explicit": 0, "version": "auto-1", "policies": 2})
    declared = QueueOptions("orders", {})

    def adopt(merged: int, *seen: int) -> commands.Command:
        return commands.declare(lab.keyspace, Options(declared, declared, merged), *seen, now=NOW)

    assert lab.refusal(adopt(*old)) == [b"stale"]
    assert lab.run(adopt(*new))[:3] == [b"ok", b"", 2]


def test_an_update_tells_reapers_that_the_queue_is_due(lab: Lab, hints: Any) -> None:
    lab.seed()

    lab.run(commands.update(lab.known(), plain_options(max_length=1)))

    assert hints.get_message(timeout=60)["data"] == b"0 orders"


FENCED = {
    "sweep": lambda known: commands.sweep(known, now=NOW),
    "stats": lambda known: commands.stats(known, now=NOW),
    "enqueue": lambda known: enqueue_encoded(known, [(b"", b"x")], now=NOW),
    "schedule": lambda known: commands.schedule(known, [(b"+5", NO_ENVELOPE, b"x")], now=NOW),
    "receive": lambda known: commands.receive(known, 5, 1000, now=NOW, finished=[place(), 1]),
    "nack": lambda known: commands.nack(known, [place(), 1], now=NOW),
    "reject": lambda known: commands.reject(known, [place(), 1], now=NOW),
    "redrive": lambda known: commands.redrive(known, "dead", [place()], now=NOW),
    "update": lambda known: commands.update(known, plain_options(max_length=1)),
    "preview": lambda known: commands.preview(known, known.options, commands.Walk(), now=NOW),
}


@pytest.mark.parametrize("name", FENCED)
def test_a_command_that_depends_on_options_refuses_a_client_with_outdated_ones(lab: Lab, name: str) -> None:
    lab.seed(options={"message_ttl": 1}, log=plain(place(-5), place(-4)), leases={place(-5): NOW * 1000 - 1})

    assert lab.refusal(FENCED[name](lab.known(version="v0"))) == [b"stale"]


@pytest.mark.parametrize("name", FENCED)
def test_a_command_that_depends_on_options_refuses_a_missing_queue(lab: Lab, name: str) -> None:
    lab.seed()
    lab.client.delete("rqttl:{orders}:meta")

    assert lab.refusal(FENCED[name](lab.known())) == [b"not_found"]


def test_commands_without_a_fence_refuse_a_missing_queue_too(lab: Lab) -> None:
    keyspace = lab.keyspace

    assert lab.refusal(commands.purge(keyspace, "orders", "")) == [b"not_found"]
    assert lab.refusal(commands.peek(keyspace, "orders", after="", limit=5)) == [b"not_found"]
    assert lab.refusal(commands.delete(keyspace, "orders", if_unused=False, if_empty=False)) == [b"not_found"]
    assert lab.refusal(commands.lookup(keyspace, "orders")) == [b"not_found"]
    assert lab.refusal(commands.ack(keyspace, "orders", [place(), 1])) == [b"not_found"]
    assert lab.refusal(commands.renew(keyspace, "orders", [place(), 1], lease=1)) == [b"not_found"]
    assert lab.refusal(commands.cancel(keyspace, "orders", "id")) == [b"not_found"]
    assert lab.refusal(commands.reschedule(keyspace, "orders", "id", b"+5")) == [b"not_found"]


LIFE = 50


def touch(lab: Lab, now: int = NOW) -> Command:
    return commands.touch(lab.keyspace, "orders", now=now)


def test_nobody_can_touch_or_change_what_is_not_there_or_over_nor_put_anything_into_it(lab: Lab) -> None:
    assert lab.refusal(touch(lab)) == [b"not_found"]
    lab.seed(options={"expires": LIFE})
    for command in (
        touch(lab, NOW + LIFE),
        commands.schedule(lab.known(), [(b"+5", NO_ENVELOPE, b"x")], now=NOW + LIFE),
        commands.cancel(lab.keyspace, "orders", "id", now=NOW + LIFE),
        commands.reschedule(lab.keyspace, "orders", "id", b"+5", now=NOW + LIFE),
        commands.redrive(lab.known(), "dead", [place()], now=NOW + LIFE),
        commands.update(lab.known(), plain_options(), now=NOW + LIFE),
    ):
        assert lab.refusal(command) == [b"queue_expired"]
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


def test_an_ended_queue_goes_with_every_key_in_one_step(lab: Lab) -> None:
    entries = plain(*[place(-i) for i in range(900, 0, -1)])
    lab.seed(options={"expires": LIFE}, log=entries, leases={place(-900): token(70)}, delayed={place(-899): NOW + 90})

    reply = lab.run(commands.sweep(lab.known(), now=NOW + LIFE))

    assert reply == [b"ok", [b"deleted", b"orders"], NOW + LIFE, b"", 0, 0, 0, 0, 0, 0, 0, 900]
    tombstone = {"created_at": NOW, "last_id": place(-1), "trimmed_upto": "0-0", "deleted": NOW}
    assert lab.snapshot() == {"orders": {"tombstone": tombstone}}


def test_dead_lettering_what_is_over_goes_in_bounded_steps_and_nobody_gets_in_between(lab: Lab) -> None:
    options = {"expires": LIFE, "on_expire": "dead-letter", "dead_letter": "dead"}
    lab.seed("dead")
    lab.seed(options=options, log=plain(*[place(-i) for i in range(300, 0, -1)]), leases={place(-300): token(70)})
    sweep = commands.sweep(lab.known(), now=NOW + LIFE)

    assert lab.run(sweep)[2:] == [NOW + LIFE, b"", 1, 0, 0, 250, 0, 0, 0, b""]
    assert lab.refusal(touch(lab, NOW + LIFE)) == [b"queue_expired"]
    assert lab.run(sweep)[2:] == [NOW + LIFE, b"", 1, 0, 0, 49, 0, 0, 0, b""]
    assert lab.run(sweep)[1:] == [[b"deleted", b"orders"], NOW + LIFE, b"", 0, 0, 0, 1, 0, 0, 0, 0]
    state = lab.snapshot()
    assert set(state) == {"dead", "orders"}
    tombstone = {"created_at": NOW, "last_id": "0-0", "trimmed_upto": place(-1), "deleted": NOW}
    assert state["orders"] == {"tombstone": tombstone}
