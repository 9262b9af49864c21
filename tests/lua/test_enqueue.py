"""`enqueue`: order, ids, deadlines, forms of a batch, and messages that go to waiting consumers before a limit acts."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import redis

from rqttl import Message
from rqttl.protocol import commands
from rqttl.protocol.codec import Envelope
from rqttl.protocol.commands import Command, Reply
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, State, changed, enqueue, place, plain, token


def test_messages_are_stored_in_order_under_rising_ids(lab: Lab) -> None:
    before = lab.seed()

    reply = lab.run(enqueue(lab, b"a", b"bc"))

    assert reply == [b"ok", b"", [place().encode(), place(0, 1).encode()]]
    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(0, 1), "ready_bytes": 3, "enqueued": 2},
        log={place(): (b"", b"a"), place(0, 1): (b"", b"bc")},
    )


def test_the_last_id_of_a_millisecond_is_followed_by_the_first_of_the_next(lab: Lab) -> None:
    lab.seed(meta={"last_id": f"{NOW}-999998"})

    reply = lab.run(enqueue(lab, b"a", b"b", b"c"))

    assert reply[2] == [f"{NOW}-999999".encode(), place(1).encode(), place(1, 1).encode()]


@pytest.mark.parametrize(
    "options,message,deadline",
    [
        ({}, Message(b"x", ttl=0), NOW),
        ({}, Message(b"x", expires_at=NOW - 5000), NOW - 5000),
        ({"max_ttl": 0}, Message(b"x"), NOW),
        ({"message_ttl": 0}, Message(b"x", ttl="50ms"), NOW),
        ({"message_ttl": 0}, Message(b"x"), NOW),
    ],
)
def test_a_message_whose_time_is_over_dies_on_arrival(
    lab: Lab, options: dict[str, object], message: Message, deadline: int
) -> None:
    lab.seed("dead")
    before = lab.seed(options={**options, "dead_letter": "dead"})

    lab.run(enqueue(lab, message))

    after = lab.snapshot()
    ((header, body),) = after["dead"]["log"].values()
    history = f"orders expired 1 {NOW} {NOW} {NOW} {deadline} 0 0 "
    assert header.decode() == f";{len(place())};{len(history)};{place()}{history}"
    assert body == b"x"
    meta = {"last_id": place(), "enqueued": 1, "deaths:expired": 1}
    letters = {"last_id": place(), "enqueued": 1, "ready_bytes": 1, "holds_dead_letters": 1, "letters": 1}
    letters["letter_bytes"] = len(header) + 1
    assert after == changed(changed(before, meta=meta), "dead", meta=letters, log={place(): (header, body)})


def test_an_earlier_deadline_is_told_to_reapers_a_later_one_is_not(lab: Lab, hints: Any) -> None:
    lab.seed()

    for ms in (500, 900, 400):
        lab.run(enqueue(lab, Message(b"x", ttl=f"{ms}ms")))

    assert [hints.get_message(timeout=60)["data"] for _ in range(2)] == [b"%d orders" % (NOW + ms) for ms in (500, 400)]
    assert hints.get_message(timeout=0) is None


# Hand-off to consumers that wait


def test_ttl_zero_is_not_handed_past_an_earlier_message_of_its_batch(lab: Lab) -> None:
    lab.seed(waiters={"c1": NOW + 1})

    lab.run(enqueue(lab, b"a", Message(b"x", ttl=0)))

    state = lab.snapshot()["orders"]
    assert state["log"] == {place(): (b"", b"a")}
    assert state["wakeup"] == [""]
    assert state["meta"]["deaths:expired"] == 1


PICKUP = 5000


def waiting(count: int) -> dict[str, int]:
    return {f"c{i}": NOW + 1 for i in range(count)}


def ticket(one: str, grant: int = 0) -> str:
    return f"{one} {token(PICKUP, grant)}"


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
@pytest.mark.parametrize("limit", [{"max_length": 1}, {"max_length_bytes": 1}], ids=str)
def test_a_limit_acts_on_what_is_left_after_those_that_wait_have_taken_theirs(
    lab: Lab, overflow: str, limit: Mapping[str, int]
) -> None:
    lab.seed(options={**limit, "overflow": overflow}, log=plain(place(-1)), waiters=waiting(2), wakeup=[""])

    reply = lab.run(enqueue(lab, b"b", b"c"))

    state = lab.snapshot()["orders"]
    assert state["wakeup"] == ["", ticket(place(-1)), ticket(place(), 1)]
    assert reply[2] == [place().encode(), place(0, 1).encode()]
    assert (list(state["log"]), state["meta"]["ready_bytes"]) == ([place(-1), place(), place(0, 1)], 1)
    assert not {"deaths:maxlen", "refused"} & state["meta"].keys()


def test_one_call_hands_over_a_bounded_number(lab: Lab) -> None:
    places = [place(-i) for i in range(600, 0, -1)]
    lab.seed(log=plain(*places), waiters=waiting(601))

    steps = [lab.run(enqueue(lab, Message(b"x", ttl=0))) for _ in range(3)]

    assert [reply[0] for reply in steps] == [b"refused", b"refused", b"ok"]
    wakeup = lab.snapshot()["orders"]["wakeup"]
    assert [one.split()[0] for one in wakeup] == [*places, place()]


@pytest.mark.parametrize("left", [0, 1])
def test_a_ticket_that_was_shown_or_whose_time_is_over_is_under_way_no_more(lab: Lab, left: int) -> None:
    shown = ticket(place(-1)).encode()
    lab.seed(log=plain(place(-1)), leases={place(-1): token(PICKUP)}, waiters={place(-1): -(NOW + left), "c": NOW + 9})

    if left:
        lab.run(commands.receive(lab.known(), 1, 9, presence=commands.Presence("c", 0, 0, shown), now=NOW))
        assert "waiters" not in lab.snapshot()["orders"]
    else:
        lab.run(commands.sweep(lab.known(), now=NOW))
        assert lab.snapshot()["orders"]["waiters"] == {"c": NOW + 9}


@pytest.mark.parametrize("count, noted", [(1, True), (2, True), (3, False)])
def test_a_consumer_that_gets_fewer_messages_than_it_has_room_for_goes_on_waiting(
    lab: Lab, count: int, noted: bool
) -> None:
    lab.seed(log=plain(*[place(-1 - i) for i in range(count)]))
    presence: Any = commands.Presence("me", 300, room=3)

    lab.run(commands.receive(lab.known(), 10, 9, presence=presence, now=NOW))

    assert ("waiters" in lab.snapshot()["orders"]) == noted


def test_a_consumer_that_stops_waiting_takes_a_ticket_behind_a_hint_and_behind_ended_tickets(lab: Lab) -> None:
    wakeup = ["", ticket(place(-5)), ticket(place(-1)), ticket(place())]
    lab.seed(
        log=plain(place(-1), place()),
        leases=dict.fromkeys([place(-1), place()], token(PICKUP)),
        wakeup=wakeup,
        waiters={"me": NOW + 300, "other": NOW + 9},
    )

    reply = lab.run(commands.receive(lab.known(), 9, 9, presence=commands.Presence("me", 0), now=NOW))

    state = lab.snapshot()["orders"]
    assert reply[7][::3] == [place(-1).encode()]
    assert (state["wakeup"], state["waiters"]) == (wakeup[3:], {"other": NOW + 9})
    assert state["leases"] == {place(-1): token(9), place(): token(PICKUP)}


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


def test_forgetting_beforehand_is_refused_too_while_memory_is_full(lab: Lab, full_memory: Callable[..., Any]) -> None:
    lab.seed(dedup_ids=[";3;;old"], dedup_windows={";3;;old": NOW})
    command = enqueue_encoded(lab.known(), [(b";3;;old", b"x")], window=WINDOW, now=NOW)
    before = lab.dump()

    with full_memory(), pytest.raises(redis.ResponseError):
        lab.run(command)

    assert lab.dump() == before
