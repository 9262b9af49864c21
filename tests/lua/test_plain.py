"""The plain case of a command does what its general text does: the same reply, hints and data to the last byte."""

import random
from copy import deepcopy
from itertools import takewhile
from typing import Any, NamedTuple

import pytest

from rqttl.protocol import commands, scripts
from rqttl.protocol.commands import Command, Presence
from tests.lua.states import NOW, Lab, at, place, token
from tests.unit.test_scripts import forget

SEEDS = range(500)
NAMES = ("receive", "ack", "enqueue")
#: Names with each form of a tag: hints have the name of the queue, which scripts find in a key.
QUEUES = ("orders", "orders/dead", "{eu}.orders")
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
    large = seldom(300_000, 0)  # 20 of them exceed the budget of a call
    leased = [place(-500, i) for i in range(finished)]
    headers = [b"", b";3;;abc", at(10_000), at(10_000) + b";3;;abc", b""]
    headers = seldom([*headers, at(0), at(-1) + b";;;"], headers)
    log = dict.fromkeys(leased, (b"", b"leased"))
    waiting = {place(-400, i): (chance.choice(headers), b"x" * (large + i)) for i in range(ready)}
    waits = chance.random() < 0.5
    own = {one: int(header.partition(b";")[0]) for one, (header, _) in waiting.items() if header[:1].isdigit()}
    ends = seldom(token(0, 1), token(500, 7))
    parts: dict[str, Any] = {
        "log": {**log, **waiting},
        "leases": {place(-600): token(3), **dict.fromkeys(leased, ends)},
        "expiry": own,
        "meta": {
            "acked": 5,
            "delivered": 9,
            "lease_grants": 1_007,
            "has_waiters": int(waits),
            "cursor": place(-450),
            "due_at": chance.choice(["", NOW, *[NOW + 1] * 5, NOW + 4_600, NOW + 9_000]),
            "last_id": chance.choice([place(-400, 899_999), place(-400, 30), max([place(-450), *waiting])]),
        },
        "consumers": {"other": NOW + 5},
        **(waiters(chance) if waits else {}),
        **seldom({"requeued": {place(-700): NOW - 700}}, {}),
        **seldom({"failures": {leased[0]: 2}} if leased else {}, {}),
    }
    parts["log"][place(-600)] = (b"", b"of another")
    if "requeued" in parts:
        parts["log"][place(-700)] = (b"", b"back")
    if leased and chance.random() < 0.2:
        parts["detached"] = {leased[0]: parts["log"].pop(leased[0])}
    return {part: contents for part, contents in parts.items() if contents}


def waiters(chance: random.Random) -> dict[str, Any]:
    """The parts of a queue that says that consumers wait. All of them may have gone, or one may have been rung for."""
    waiting = [{}, {"me": NOW + 5_300}, {"other": NOW + 5_400}, {"me": NOW + 5_300, "other": NOW + 5_400}]
    return {"waiters": chance.choice(waiting), "wakeup": chance.choice([[], [], [b""]])}


def receive(lab: Lab, queue: str, chance: random.Random, finished: list[Any]) -> Command:
    count, stay = chance.choice([0, 1, 1, 1, 3, 10, 20, 250, 251]), chance.choice([0, 4_000, 60_000])
    block = chance.choice([-1, 0, 0, 500, 500])
    presence = Presence(chance.choice(["", "me", "me"]), block, stay, room=chance.choice([1, 10, 10]))
    return commands.receive(
        lab.known(queue), count, 1000, now=NOW, auto_ack=chance.random() < 0.05, presence=presence, finished=finished
    )


def ack(lab: Lab, queue: str, _: random.Random, finished: list[Any]) -> Command:
    return commands.ack(lab.keyspace, queue, finished, now=NOW)


def enqueue(lab: Lab, queue: str, chance: random.Random, _: list[Any]) -> Command:
    now, config = chance.choice([NOW - 400, NOW - 401, NOW, NOW - 450]), lab.known(queue)
    bodies = [b"x" * chance.choice([0, 1, 9, 16_381, 20_000]) for _ in range(chance.choice([1, 1, 2]))]
    command = commands.enqueue_alike(config, bodies, now=now)
    if chance.random() < 0.7:
        common = [b"bodies", b"bodies", b";;;\x92\x01\xc0", b";;;", b"+500;;;", b";3;;abc", b"x", b""]
        return command.with_word("form", chance.choice(common))
    forms = [b";;;", b";;;", b";;;\x92\x01\xc0", b"+500", b";3;;abc\x92", b"+0;;;", b""]
    envelopes = [chance.choice(forms) for _ in bodies]
    words = [word for pair in zip(envelopes, bodies, strict=True) for word in pair]
    form, window = chance.choice([False, False, True]), chance.choice([0, 0, 0, 500])
    return commands.enqueue_encoded(
        config, words, has_ids=False, ids_only=form, may_be_over=b"+0;;;" in envelopes, window=window, now=now
    )


BUILD = {"receive": receive, "ack": ack, "enqueue": enqueue}


class Case(NamedTuple):
    """A call on a queue in one state."""

    queue: str
    parts: dict[str, Any]
    options: dict[str, Any]
    finished: list[Any]
    chance: random.Random


def case(name: str, seed: int) -> Case:
    chance = random.Random(seed)
    number = chance.choice([0, 1, 1, 3, 20]) if name == "receive" else chance.choice([1, 2, 20])
    parts = state(chance, number)
    held = token(500, 7) if chance.random() < 0.9 else token(500, 8)
    finished = [word for i in range(number) for word in (place(-500, i), held)]
    return Case(chance.choice(QUEUES), parts, {"message_ttl": 9_000} if chance.random() < 0.1 else {}, finished, chance)


def seeded(lab: Lab, case: Case) -> None:
    lab.client.flushall()
    lab.seed(case.queue, options=case.options, **deepcopy(case.parts))


def outcome(lab: Lab, text: str, command: Command, case: Case, hints: Any) -> Any:
    """The reply, the data after the call, and the hints to reapers."""
    seeded(lab, case)
    client: Any = lab.client
    client.publish("rqttl:due", "begin")
    reply = client.eval(text, *command.words)
    client.publish("rqttl:due", "end")
    sent = [hint["data"] for hint in takewhile(lambda hint: hint["data"] != b"end", hints.listen())]
    return reply, lab.dump(), sent[sent.index(b"begin") + 1 :]


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_case_does_what_the_general_text_does(
    lab: Lab, general: dict[str, str], hints: Any, name: str
) -> None:
    plain, met = scripts.load(name).text, set()
    only = plain.replace(general[name].partition("\n")[2], MARK)
    for seed in SEEDS:
        one = case(name, seed)
        seeded(lab, one)
        command = BUILD[name](lab, one.queue, one.chance, one.finished)

        by_plain, _, sent = outcome(lab, only, command, one, hints)
        met.add((by_plain == [b"general"], one.parts["meta"]["has_waiters"], len(sent)))

        assert outcome(lab, plain, command, one, hints) == outcome(lab, general[name], command, one, hints)
    assert met >= {(False, 0, 0), (True, 0, 0), (False, 1, 0), (True, 1, 0)}
    assert ((False, 1, 1) in met) == (name == "enqueue")
