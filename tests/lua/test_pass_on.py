"""Passing on: `publish` takes messages out of the log of a topic; other scripts note that some wait there."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rqttl import Message
from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.lua.states import NOW, Lab, at, changed, enqueue, place, plain, token

#: The record of a queue whose messages go on to others.
PASSES = {"passes_on": 1, "option_set": "custom"}


def pass_on(
    lab: Lab, *sequences: str, to: Sequence[str] = ("eu", "us"), known: str = "", mark: str = "", **only: list[int]
) -> Command:
    """The call of a client that has seen the options of `orders`, the topic, and of the queues."""
    copies = [(lab.known(name), only.get(name, [])) for name in to]
    return commands.pass_on(lab.known(), copies, sequences, known=known, mark=mark, now=NOW)


def dead(*deaths: str, header: bytes = b";1;%d;x%b\x92") -> bytes:
    """The header of a dead letter with id `x`. Each death is `queue reason`, the newest first."""
    history = "".join(f"{one} 1 {NOW} {NOW} {NOW} - 1 0 " for one in deaths).encode()
    return header % (len(history), history)


def test_messages_leave_the_log_and_each_queue_gets_its_copies(lab: Lab) -> None:
    lab.seed("eu")
    lab.seed("us", log=plain(place(-50)))
    letter = dead("asia expired")
    ready = {place(-9): (b"", b"a"), place(-8): (at(5) + b";1;;y", b"bc"), place(-7): (letter, b"d")}
    before = lab.seed(log={**ready, place(-6): (b"", b"last")}, expiry={place(-8): NOW + 5}, failures={place(-9): 1})

    reply = lab.run(pass_on(lab, *ready, eu=[2], us=[2, 3]))

    assert reply == [b"ok", b"", b""]
    gone = dict.fromkeys(ready)
    counters = {"copies": 3, "unrouted": 1, "ready_bytes": 4, "cursor": place(-7)}
    after = changed(before, log=gone, expiry={place(-8): None}, failures={place(-9): None}, meta=counters)
    first = (at(5) + b";1;;y", b"bc")
    meta = {"last_id": place(), "enqueued": 1, "ready_bytes": 2, "due_at": NOW + 5}
    after = changed(after, "eu", log={place(): first}, expiry={place(): NOW + 5}, meta=meta)
    meta = {"last_id": place(0, 1), "enqueued": 2, "ready_bytes": 4, "due_at": NOW + 5}
    log = {place(): first, place(0, 1): (letter, b"d")}
    after = changed(after, "us", log=log, expiry={place(): NOW + 5}, meta=meta)
    assert lab.snapshot() == after


def test_a_copy_has_the_first_sequence_as_id_and_lives_as_long_as_the_topic_lets_it(lab: Lab) -> None:
    lab.seed("eu")
    lab.seed(options={"message_ttl": 20}, log={place(-9): (b"", b"a")}, failures={place(-9): 1})

    lab.run(pass_on(lab, place(-9), to=["eu"]))

    assert lab.snapshot_of("eu", "log") == {place(): (at(11) + b";20;;" + place(-9).encode(), b"a")}


@pytest.mark.parametrize(
    "sequences,parts",
    [
        ([place(-9)], {"log": {}}),
        ([place(-8)], {}),
        ([place(-9), place(-8), place(-7)], {}),
        ([place(-8), place(-9)], {}),
        ([place(-9)], {"leases": {place(-9): token(50)}}),
        ([place(-9)], {"log": {place(-9): (at(0), b"x")}, "expiry": {place(-9): NOW}}),
        ([place(-9)], {"options": {"message_ttl": 9}}),
        ([place(-9)], {"meta": {"fan_at": f"{place(-9)} asia"}}),
        ([place(-9), place(-8)], {"meta": {"fan_at": f"{place(-8)} asia"}}),
    ],
)
def test_a_client_that_knows_other_messages_or_another_mark_is_behind(
    lab: Lab, sequences: list[str], parts: dict[str, dict[str, object]]
) -> None:
    lab.seed("eu")
    lab.seed(**{"log": plain(place(-9), place(-8)), **parts})  # type: ignore[arg-type]
    mark = str(parts.get("meta", {}).get("fan_at", "")).encode()

    assert lab.refusal(pass_on(lab, *sequences, to=["eu"])) == [b"behind", mark]


@pytest.mark.parametrize(
    "deaths,kept",
    [
        (["us expired", "eu maxlen"], []),
        (["asia expired", "eu maxlen"], ["us"]),
        (["asia expired", "us redriven", "eu maxlen"], ["eu", "us"]),
        (["asia expired", "eu rejected"], ["eu", "us"]),
        (["eu rejected"], ["eu", "us"]),
    ],
)
def test_a_dead_letter_goes_to_no_queue_of_its_run_of_deaths(lab: Lab, deaths: list[str], kept: list[str]) -> None:
    lab.seed("eu")
    lab.seed("us")
    lab.seed(log={place(-9): (dead(*deaths), b"x")})

    lab.run(pass_on(lab, place(-9)))

    state = lab.snapshot()
    assert [queue for queue in ("eu", "us") if "log" in state[queue]] == kept
    meta = state["orders"]["meta"]
    assert (meta.get("dropped:cycle", 0), meta["copies"], meta["unrouted"]) == (2 - len(kept), len(kept), 0)
    assert "log" not in state["orders"]


def test_what_a_full_queue_refuses_waits_and_is_told_by_number(lab: Lab) -> None:
    lab.seed("eu")
    lab.seed("us", options={"max_length": 1, "overflow": "reject-publish"}, log=plain(place(-50)))
    lab.seed(log=plain(place(-9), place(-8)), meta={"fan_at": f"{place(-50)} asia"})

    refusal = lab.refusal(pass_on(lab, place(-9), place(-8), us=[2]))

    assert refusal == [b"full", b"us", b"max_length", 2]


#: Calls after which a message waits in `orders`, and the queue that each of them is about.
NOTED: dict[str, Callable[[Lab], Command]] = {
    "enqueue": lambda lab: enqueue(lab, b"a"),
    "enqueue past a limit": lambda lab: enqueue(lab, b"a", Message(b"b", ttl=0)),
    "move": lambda lab: commands.move(lab.known(), "other", [place(-9)], now=NOW),
    "redrive": lambda lab: commands.redrive(lab.known(), "other", [place(-9)], now=NOW),
    "redrive between slots": lambda lab: commands.redrive_in(
        lab.known(), "far", [place(-9), b"", b"x"], number=1, token="t", now=NOW
    ),
    "nack": lambda lab: commands.nack(lab.known(), [place(-40), token(50)], now=NOW),
    "a death": lambda lab: commands.reject(lab.known("other"), [place(-9), token(50)], now=NOW),
    "the hand-over": lambda lab: commands.accept(
        lab.keyspace, "orders", "far", [dead("far expired"), b"x"], number=1, token="t", now=NOW
    ),
    "a copy": lambda lab: commands.publish(lab.known("other"), [(lab.known(), [])], [commands.pack(b"a")], now=NOW),
}


def prepare(lab: Lab, call: str, meta: dict[str, object]) -> Command:
    leased = {"leases": {place(-9): token(50)}} if call == "a death" else {}
    log = {} if call == "a copy" else plain(place(-9))
    lab.seed("other", {"dead_letter": "orders"}, log=log, **leased)
    lab.seed(log=plain(place(-40)), leases={place(-40): token(50)}, meta=meta)
    return NOTED[call](lab)


@pytest.mark.parametrize("call", NOTED)
def test_what_arrives_where_messages_go_on_is_noted_and_due_in_two_seconds(lab: Lab, call: str) -> None:
    command = prepare(lab, call, {**PASSES, "due_at": ""})

    reply = lab.run(command)

    assert reply[1] == [b"pass", b"orders"]
    assert lab.snapshot_of("orders", "meta")["due_at"] == NOW + 2000


@pytest.mark.parametrize("call", NOTED)
def test_a_paused_queue_asks_nobody_to_pass_on(lab: Lab, call: str) -> None:
    command = prepare(lab, call, {**PASSES, "paused": 1})

    assert lab.run(command)[1] == b""


def test_a_message_that_arrives_later_is_noted_when_it_arrives(lab: Lab) -> None:
    lab.seed(meta=PASSES)
    message = [(b"+5", *commands.pack(b"a"))]
    assert lab.run(commands.schedule(lab.known(), message, now=NOW))[1] == b""

    reply = lab.run(commands.sweep(lab.known(), now=NOW + 5))

    assert reply[1] == [b"pass", b"orders"]
    assert lab.snapshot_of("orders", "meta")["due_at"] == NOW + 2005


@pytest.mark.parametrize("leases,due", [({}, 1000), ({"leases": {place(-9): token(50)}}, 50)])
def test_a_sweep_asks_while_messages_wait_and_looks_again_in_a_second(
    lab: Lab, leases: dict[str, Any], due: int
) -> None:
    lab.seed(log=plain(place(-9), place(-8)), meta={**PASSES, "due_at": NOW}, **leases)

    reply = lab.run(commands.sweep(lab.known(), now=NOW))

    assert reply[1] == [b"pass", b"orders"]
    assert lab.snapshot_of("orders", "meta")["due_at"] == NOW + due


@pytest.mark.parametrize("parts", [{"log": {}}, {"leases": {place(-9): token(50)}}, {"meta": {**PASSES, "paused": 1}}])
def test_a_sweep_asks_for_nothing_where_nothing_waits_or_may_go(lab: Lab, parts: dict[str, dict[str, object]]) -> None:
    lab.seed(**{"log": plain(place(-9)), "meta": PASSES, **parts})  # type: ignore[arg-type]

    assert lab.run(commands.sweep(lab.known(), now=NOW))[1] == b""
