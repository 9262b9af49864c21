"""`publish`: a copy in each queue of the call, or nothing anywhere."""

from collections.abc import Sequence

import pytest

from rqttl import Message
from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.lua.states import NOW, Lab, at, changed, place, plain


def publish(
    lab: Lab, *messages: object, to: Sequence[str] = ("eu", "us"), window: int = 0, **only: list[int]
) -> Command:
    """The call of a client that has seen the options of `orders`, the topic, and of the queues."""
    copies = [(lab.known(name), only.get(name, [])) for name in to]
    return commands.publish(lab.known(), copies, [commands.pack(one) for one in messages], window=window, now=NOW)


def own(seq: str, deadline: bytes = b"") -> bytes:
    """The header of a copy whose sender gave no id."""
    return deadline + b";20;;" + seq.encode()


def test_each_queue_gets_one_copy_with_one_id_for_all(lab: Lab) -> None:
    lab.seed("eu", log=plain(place(-9)))
    lab.seed("us")
    before = lab.seed()

    reply = lab.run(publish(lab, b"a", Message(b"bc", id="x"), b"d", us=[1, 2], eu=[2]))

    assert reply == [b"ok", b"", [place(0, i).encode() for i in range(3)]]
    named = (b";1;;x", b"bc")
    after = changed(before, meta={"last_id": place(0, 2), "enqueued": 3, "copies": 3, "unrouted": 1})
    after = changed(after, "eu", meta={"last_id": place(), "enqueued": 1, "ready_bytes": 3}, log={place(): named})
    log = {place(): (own(place()), b"a"), place(0, 1): named}
    after = changed(after, "us", meta={"last_id": place(0, 1), "enqueued": 2, "ready_bytes": 3}, log=log)
    assert lab.snapshot() == after


def test_stale_names_all_queues_that_are_gone_or_have_other_options(lab: Lab) -> None:
    for queue in ("eu", "us", "asia"):
        lab.seed(queue, meta={"version": "other"} if queue == "us" else {})
    lab.seed()
    command = publish(lab, b"a", to=("eu", "us", "asia"))
    lab.run(commands.delete(lab.keyspace, "asia", if_unused=False, if_empty=False, now=NOW))

    assert lab.refusal(command) == [b"stale", b"us", b"asia"]


def test_a_stale_topic_is_named_by_nothing(lab: Lab) -> None:
    lab.seed("eu")
    lab.seed(meta={"version": "other"})

    assert lab.refusal(publish(lab, b"a", to=["eu"])) == [b"stale"]


@pytest.mark.parametrize(
    "topic,queue,deadline",
    [
        ({"message_ttl": 60}, {"message_ttl": 90}, 60),
        ({"message_ttl": 60}, {"min_ttl": 90}, 90),
        ({"default_ttl": 70}, {}, 70),
        ({"message_ttl": 60}, {"never_expire": True}, None),
    ],
)
def test_the_smallest_ttl_holds_unless_the_queue_asks_for_more(
    lab: Lab, topic: dict[str, object], queue: dict[str, object], deadline: int | None
) -> None:
    lab.seed("eu", options=queue)
    lab.seed(options=topic)

    lab.run(publish(lab, b"x", to=["eu"]))

    state = lab.snapshot()["eu"]
    assert state["log"] == {place(): (own(place(), at(deadline) if deadline else b""), b"x")}
    assert state.get("expiry", {}) == ({place(): NOW + deadline} if deadline else {})


@pytest.mark.parametrize("message", [Message(b"x", ttl=0), Message(b"x", expires_at=NOW - 5)])
def test_a_message_whose_time_is_over_goes_to_who_waits_or_dies_in_each_queue(lab: Lab, message: Message) -> None:
    lab.seed("eu", waiters={"w": NOW + 9})
    lab.seed("us")
    lab.seed()

    lab.run(publish(lab, message))

    state = lab.snapshot()
    handed = message.expires_at is None
    assert ("leases" in state["eu"]) == handed
    assert state["eu"]["meta"].get("deaths:expired", 0) == (not handed)
    assert state["us"]["meta"]["deaths:expired"] == 1
    assert "deaths:expired" not in state["orders"]["meta"]


def test_a_full_queue_refuses_the_message_and_nothing_is_stored(lab: Lab) -> None:
    lab.seed("eu", options={"max_length": 1}, log=plain(place(-9)), waiters={"w": NOW - 9})
    lab.seed("us", options={"max_length": 2, "overflow": "reject-publish"}, log=plain(place(-9)))
    lab.seed(options={"duplicate_window": 9})

    refusal = lab.refusal(publish(lab, b"a", b"b", Message(b"c", id="x"), us=[2, 3]))

    assert refusal == [b"full", b"us", b"max_length", 3]


@pytest.mark.parametrize("target", ["us", "orders"])
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish-dlx"])
def test_a_copy_buries_into_another_copy_or_into_the_topic(lab: Lab, target: str, overflow: str) -> None:
    lab.seed("us")
    options = {"max_length": 1, "overflow": overflow, "dead_letter": target}
    lab.seed("eu", options=options, log={place(-9): (b"", b"old")})
    lab.seed()

    lab.run(publish(lab, b"new", to=("us", "eu")))

    pushed, kept = (b"old", b"new") if overflow == "drop-head" else (b"new", b"old")
    state = lab.snapshot()
    assert [body for _, body in state["eu"]["log"].values()] == [kept]
    letters = [body for _, body in state[target]["log"].values()]
    assert letters == ([b"new", pushed] if target == "us" else [pushed])
    assert state[target]["meta"]["letters"] == 1
    assert (state["orders"]["meta"]["enqueued"], state["orders"]["meta"]["copies"]) == (1 + (target == "orders"), 2)


@pytest.mark.spec("TR-04")
def test_messages_that_wait_at_the_topic_go_first(lab: Lab) -> None:
    lab.seed("eu")
    lab.seed(log=plain(place(-9)))

    assert lab.refusal(publish(lab, b"a", to=["eu"])) == [b"behind"]


def test_leased_messages_of_the_topic_hold_nobody_up(lab: Lab) -> None:
    lab.seed("eu")
    lab.seed(log=plain(place(-9)), leases={place(-9): (NOW + 50) * 1000})

    assert lab.run(publish(lab, b"a", to=["eu"]))[0] == b"ok"


def test_a_queue_that_has_to_make_room_first_asks_for_a_retry(lab: Lab) -> None:
    lab.seed("us")
    crowd = {place(-9, i): (b"", b"x") for i in range(300)}
    lab.seed("eu", options={"max_length": 1, "dead_letter": "us"}, log=crowd)
    before = lab.seed()

    assert lab.run(publish(lab, b"a", to=("us", "eu"))) == [b"refused", b"retry"]
    assert lab.snapshot()["orders"] == before["orders"]
    assert lab.run(publish(lab, b"a", to=("us", "eu")))[0] == b"ok"

    state = lab.snapshot()
    assert [body for _, body in state["eu"]["log"].values()] == [b"a"]
    assert sorted(body for _, body in state["us"]["log"].values()) == [b"a", *[b"x"] * 300]
    assert state["us"]["meta"]["ready_bytes"] == 301


@pytest.mark.parametrize("limit", [{}, {"max_length": 0}])
def test_an_arrival_does_not_prolong_the_life_of_a_queue(lab: Lab, limit: dict[str, int]) -> None:
    seeded = lab.seed("eu", options={"auto_delete_on_idle": 9, **limit}, meta={"last_active_at": NOW - 1})
    lab.seed()

    lab.run(publish(lab, b"a", to=["eu"]))

    assert lab.snapshot()["eu"]["meta"]["last_active_at"] == seeded["eu"]["meta"]["last_active_at"]
