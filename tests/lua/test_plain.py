"""The plain case of a command does what its general text does: the same reply, and the same data to the last byte."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from rqttl.protocol import commands, scripts
from rqttl.protocol.commands import Command, Presence
from tests.lua.states import NOW, Lab, at, place, token
from tests.unit.test_scripts import forget

SEEDS = range(300)
NAMES = ("receive", "ack", "enqueue")
MARK = "do return {'general'} end\n"


@pytest.fixture(scope="module")
def general() -> dict[str, str]:
    """The texts of the commands without their plain cases."""
    forget()
    plain, scripts._plain = scripts._plain, lambda *_: ""
    texts = {name: scripts.load(name).text for name in NAMES}
    scripts._plain = plain
    forget()
    return texts


def state(chance: random.Random, finished: int) -> dict[str, Any]:
    """A queue whose first messages are leased. Most queues have nothing that makes a case other than plain."""

    def seldom(value: Any, other: Any) -> Any:
        return value if chance.random() < 0.1 else other

    ready = chance.choice([0, 1, 3, 20])
    leased = [place(-500, i) for i in range(finished)]
    headers = [b"", b";3;;abc", at(10_000), at(10_000) + b";3;;abc", seldom(at(0), b""), seldom(at(-1) + b";;;", b"")]
    log = dict.fromkeys(leased, (b"", b"leased"))
    waiting = {place(-400, i): (chance.choice(headers), b"x" * seldom(20_000, i)) for i in range(ready)}
    own = {one: int(header.partition(b";")[0]) for one, (header, _) in waiting.items() if header[:1].isdigit()}
    ends = seldom(token(0, 1), token(500, 7))
    parts: dict[str, Any] = {
        "log": {**log, **waiting}, "leases": {place(-600): token(3), **dict.fromkeys(leased, ends)}, "expiry": own,
        "meta": {
            "acked": 5, "delivered": 9, "lease_grants": 1_007, "has_waiters": seldom(1, 0),
            "due_at": seldom("", seldom(NOW, seldom(NOW + 5_000, NOW + 1))), "cursor": place(-450),
            "last_id": seldom(place(-400, 899_999), place(-400, 30)),
        },
        "consumers": {"other": NOW + 5},
        **seldom({"requeued": {place(-700): NOW - 700}}, {}),
        **seldom({"failures": {leased[0]: 2}} if leased else {}, {}),
    }  # fmt: skip
    parts["log"][place(-600)] = (b"", b"of another")
    if "requeued" in parts:
        parts["log"][place(-700)] = (b"", b"back")
    if leased and chance.random() < 0.2:
        parts["detached"] = {leased[0]: parts["log"].pop(leased[0])}
    return {part: contents for part, contents in parts.items() if contents}


def receive(lab: Lab, chance: random.Random, finished: list[Any]) -> Command:
    count, stay = chance.choice([0, 1, 1, 10, 20, 250, 251]), chance.choice([0, 60_000])
    presence = Presence(chance.choice(["", "me"]), chance.choice([0, 0, 500]), stay, room=chance.choice([1, 10]))
    return commands.receive(
        lab.known(), count, 1000, now=NOW, auto_ack=chance.random() < 0.05, presence=presence, finished=finished
    )


def ack(lab: Lab, _: random.Random, finished: list[Any]) -> Command:
    return commands.ack(lab.keyspace, "orders", finished, now=NOW)


def enqueue(lab: Lab, chance: random.Random, _: list[Any]) -> Command:
    bodies = [b"x" * chance.choice([0, 1, 9, 20_000]) for _ in range(chance.choice([1, 1, 2]))]
    return commands.enqueue_plain(lab.known(), bodies, now=chance.choice([NOW - 400, NOW - 401, NOW, NOW - 450]))


BUILD = {"receive": receive, "ack": ack, "enqueue": enqueue}


def outcome(lab: Lab, text: str, command: Command, seeded: dict[str, Any], options: dict[str, Any]) -> Any:
    lab.client.flushall()
    lab.seed(options=options, **deepcopy(seeded))
    client: Any = lab.client
    return client.eval(text, *command.words), lab.dump()


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_case_does_what_the_general_text_does(lab: Lab, general: dict[str, str], name: str) -> None:
    plain, met = scripts.load(name).text, set()
    only = plain.replace(general[name].partition("\n")[2], MARK)
    for seed in SEEDS:
        chance = random.Random(seed)
        number = chance.choice([0, 1, 1, 3, 20]) if name == "receive" else chance.choice([1, 2, 20])
        options = {"message_ttl": 9_000} if chance.random() < 0.1 else {}
        seeded = state(chance, number)
        held = token(500, 7) if chance.random() < 0.9 else token(500, 8)
        finished = [word for i in range(number) for word in (place(-500, i), held)]
        lab.client.flushall()
        lab.seed(options=options, **deepcopy(seeded))
        command = BUILD[name](lab, chance, finished)

        by_plain, _ = outcome(lab, only, command, seeded, options)
        met.add(by_plain == [b"general"])

        assert outcome(lab, plain, command, seeded, options) == outcome(lab, general[name], command, seeded, options)
    assert met == {True, False}
