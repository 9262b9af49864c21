"""Headers that no client packs: scripts refuse them from senders, and do not fail over those that stand in Redis."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rqttl import MalformedMessage
from rqttl.flows.steps import with_config
from rqttl.protocol import codec, commands, scripts
from rqttl.protocol.commands import Command, Reply
from rqttl.store.driver import driver_of
from tests.lua.states import NOW, Lab, at, place, plain, token

RECORD = b"q expired 1 1700000000000 1700000000000 1700000000000 - 1 3 why"
DAMAGED = [
    b";",
    b";;",
    b"x",
    b"nan",
    b"inf",
    b"0x10",
    b"1e400",
    b"-5",
    b"9" * 400,
    b"9" * 400 + b";;;",
    b";9;;short",
    b"\xff\xfe",
    b";;" + b"9" * 400 + b";x",
    b";" + b"9" * 400 + b";;x",
    b"5;5;5;5",
    b"5x;;;",
    b" 12",
    b"1.5",
    b";;;\xc1",
    b";;;\x93\x01",
    b";;;\x92\x01\xa1a",
    b";;4;dead",
    b";;63;" + RECORD[:-1],
    b";;63;" + RECORD.replace(b" 1 3 ", b" 1 9 "),
    b";;%d;" % (2 * len(RECORD) - 3) + RECORD + RECORD[3:],
    b";;%d;" % (len(RECORD) + 399) + RECORD.replace(b" 1 ", b" %b " % (b"9" * 400), 1),
    b";;%d;" % (len(RECORD) + 2) + RECORD.replace(b" - ", b" nan ", 1),
    b"1700000000009;2;;i",
]
anything = st.one_of(
    st.binary(max_size=40),
    st.text("0123456789;;;+@ -.aqx", max_size=24).map(str.encode),
    st.builds(
        lambda parts, rest: b";".join(b"%d" % n if n is not None else b"" for n in parts) + b";" + rest,
        st.lists(st.none() | st.integers(0, 70), min_size=3, max_size=3),
        st.sampled_from([RECORD, RECORD * 2, b"id", b"id\x92\x01\xc0", b""]),
    ),
    st.sampled_from(DAMAGED),
)
examples = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD = [b"", b"+5000", b";2;;id", b";;;" + codec.pack_extras(None, {"a": 1}), b"@%d;1;;x" % (NOW + 9)]
IDS = [b";3;;id%d" % i for i in range(5)]


def enqueue(lab: Lab, headers: list[bytes], form: str = "") -> Command:
    """The call of a user without the client. In the form `schedule` messages are due after 5 ms."""
    name, start = ("schedule", [b"+5"]) if form == "schedule" else ("enqueue", [])
    known, script = lab.known(), scripts.load(name)
    words = [word for i, header in enumerate(headers) for word in (*start, header, b"%d" % i)]
    return Command(script, "orders", (*known.keys_for(script), NOW, "", *[form] * (not start), *words))


def of_one_envelope(lab: Lab, envelope: bytes) -> Command:
    """The call of such a user for two bodies that have the envelope in common."""
    known, script = lab.known(), scripts.load("enqueue")
    return Command(script, "orders", (*known.keys_for(script), NOW, "", envelope, b"a", b"b"))


@pytest.mark.parametrize("options", [{}, {"default_ttl": 900}, {"duplicate_window": 9, "max_length": 1}], ids=str)
@pytest.mark.parametrize("form", ["", "ids", "schedule", "common"])
@examples
@given(header=anything, where=st.integers(0, 5))
@example(b";;%d;" % len(RECORD) + RECORD, 3)
@example(b"+9999999999999999", 5)
@example(b"bodies ", 0)
@example(b"@0", 0)
def test_a_batch_with_any_header_is_stored_as_a_whole_or_not_at_all(
    lab: Lab, form: str, options: dict[str, object], header: bytes, where: int
) -> None:
    lab.client.flushall()
    lab.seed(options=options)
    before = lab.dump()
    batch = [*(IDS if form == "ids" else GOOD)]
    batch.insert(where, header)
    if form == "common":
        batch, where = [header] * 2, 0

    reply = lab.run(of_one_envelope(lab, header) if form == "common" else enqueue(lab, batch, form))

    if reply[0] == b"refused":
        assert (reply[1:], lab.dump()) == ([b"malformed", where + 1], before)
    else:
        lab.run(commands.sweep(lab.known(), now=NOW + 5))
        assert not {"scheduled", "upcoming", "scheduled_ids"} & lab.snapshot()["orders"].keys()
        meta = lab.snapshot()["orders"]["meta"]
        assert meta["enqueued"] + sum(one == b"=" for one in reply[2]) == len(batch) == len(reply[2])
        stored = lab.snapshot()["orders"].get("log", {}).values()
        assert all(not codec.unpack_header(one).deaths for one, _ in stored)
    take_all(lab)


@pytest.mark.parametrize(
    "header",
    [
        b";;%d;" % len(RECORD) + RECORD,
        b"5;2;63;id" + RECORD,
        b"1700000000009",
        b"+",
        b"+5;",
        b"+5;0;;",
        b";02;;id",
        b";999;;id",
        b";3;;id",
        b"+" + b"9" * 16,
        b"@-5",
        b"++5",
        b"x",
    ],
)
def test_senders_bring_no_deaths_and_no_deadlines_of_their_own_making(lab: Lab, header: bytes) -> None:
    lab.seed()

    assert lab.refusal(enqueue(lab, [b"", b"+5", header])) == [b"malformed", 3]
    assert lab.refusal(enqueue(lab, [header])) == [b"malformed", 1]
    assert lab.refusal(enqueue(lab, [b";2;;id", header], "ids")) == [b"malformed", 2]
    assert lab.refusal(of_one_envelope(lab, header)) == [b"malformed", 1]


@pytest.mark.parametrize("form", ["", "ids"])
def test_a_header_without_a_body_is_refused(lab: Lab, form: str) -> None:
    lab.seed()
    whole = enqueue(lab, [b";2;;id", b";2;;ie"], form)

    assert lab.refusal(Command(whole.script, "orders", whole.words[:-1])) == [b"malformed", 2]


@pytest.mark.parametrize("header", [b";1;;x\x92\x01\xc0", b";;;\x92\x01\xc0", b"+5", b""])
def test_the_form_of_ids_takes_nothing_but_ids(lab: Lab, header: bytes) -> None:
    lab.seed()

    assert lab.refusal(enqueue(lab, [*IDS, header], "ids")) == [b"malformed", 6]


def test_the_refusal_is_an_error_that_names_the_message(lab: Lab) -> None:
    lab.seed()
    driver = driver_of(lab.broker)
    call = enqueue(lab, [b"", b";;4;dead"])

    with pytest.raises(MalformedMessage, match=r"queue 'orders': .* message 2 of the batch") as raised:
        driver.perform(with_config("orders", lambda _: call, lab.known()))

    assert (raised.value.place, raised.value.code) == (2, "malformed")


def take_all(lab: Lab) -> None:
    """Take, look at and reject all that is there; none of it fails, and nothing is lost."""
    peeked = lab.run(commands.peek(lab.keyspace, "orders", after="", limit=100, now=NOW))[4]
    found = lab.run(commands.receive(lab.known(), 100, 1000, now=NOW))
    for header in [*(header for _, (header, _) in peeked), *found[7][1::3]]:
        codec.unpack_header(header)
    if found[7]:
        held: list[commands.Word] = [word for one in found[7][::3] for word in (one, found[5])]
        assert lab.run(commands.reject(lab.known(), held, now=NOW))[2] == []


def nack(lab: Lab, delay: int | None = None) -> Reply:
    held: list[commands.Word] = [place(-9), token(50), place(-8), token(50)]
    return lab.run(commands.nack(lab.known(), held, delay=delay, now=NOW))


FATES: dict[str, Callable[[Lab], object]] = {
    "receive and reject": take_all,
    "sweep at the end of retention": lambda lab: lab.run(commands.sweep(lab.known(), now=NOW + 2000)),
    "stats": lambda lab: lab.run(commands.stats(lab.known(), now=NOW + 2000)),
    "preview": lambda lab: lab.run(commands.preview(lab.known(), lab.known().options, commands.Walk(), now=NOW)),
    "redrive": lambda lab: lab.run(commands.redrive(lab.known("dead"), "orders", [place(-9), place(-8)], now=NOW)),
}
#: Ways back of messages that are leased.
WAYS_BACK: dict[str, Callable[[Lab], object]] = {
    "nack": nack,
    "nack with a delay": lambda lab: nack(lab, 5),
    "the end of the lease": lambda lab: lab.run(commands.sweep(lab.known(), now=NOW + 60)),
}


@pytest.mark.parametrize("fate", [*FATES, *WAYS_BACK])
@examples
@given(header=anything)
def test_no_header_that_stands_in_redis_makes_a_script_fail_or_lose_a_message(
    lab: Lab, fate: str, header: bytes
) -> None:
    leases: dict[str, Any] = {"leases": {place(-9): token(50), place(-8): token(50)}} if fate in WAYS_BACK else {}
    options = {"max_deliveries": 9} if leases else {"message_ttl": 1000}
    lab.client.flushall()
    lab.seed("dead", log=plain(place(-99)))
    lab.seed(
        options={"dead_letter": "dead", **options}, log={place(-9): (header, b"x"), place(-8): (at(9), b"y")}, **leases
    )

    (FATES | WAYS_BACK)[fate](lab)
    lab.run(commands.sweep(lab.known(), now=NOW + 90))

    assert holds(lab, b"x")
    assert holds(lab, b"y")
    due = lab.snapshot()["orders"]["meta"]["due_at"]
    assert due == "" or isinstance(due, int)


def holds(lab: Lab, body: bytes) -> bool:
    """Return True if the body is in one of the queues, once, under a readable header."""
    entries = [one for state in lab.snapshot().values() for one in state.get("log", {}).values() if one[1] == body]
    return len(entries) == 1 and codec.unpack_header(entries[0][0]) is not None
