"""Commands as values: which words go to which script, calls that become one, and exchanges without a server."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError, NoPermissionError, NoScriptError, ReadOnlyError, TimeoutError

from rqttl import Message, QueueOptions
from rqttl.errors import ContractError, OutcomeUnknown
from rqttl.events import Events
from rqttl.flows.steps import Read
from rqttl.protocol import commands, contract, scripts
from rqttl.protocol.codec import Envelope
from rqttl.protocol.commands import BATCH, Command, Joined, Options, QueueConfig
from rqttl.protocol.keys import PAIRED, TARGET_PARTS, Keyspace
from rqttl.store.exchanges import Exchanges, NotSent
from rqttl.store.topology import OneServer
from tests.encoded import enqueue_encoded

KEYSPACE = Keyspace("ns")
DELIVERIES: Sequence[commands.Word] = [b"1", b"t1", b"2", b"t1", b"3", b"t2"]


def known(queue: str = "orders", version: bytes = b"v1", **options: Any) -> QueueConfig:
    return Options.plain(QueueOptions.read_stored(queue, options)).config(KEYSPACE, version)


def bound(command: Command) -> dict[str, Any]:
    """The words of a command by the names in the header of its script; further ones under `rest`."""
    script, (count, *words) = command.script, command.words
    number = int(count)
    keys, args = words[:number], words[number:]
    assert len(args) >= len(script.args) if script.has_rest else len(args) == len(script.args)
    named: dict[str, Any] = dict(zip(script.args, args, strict=False))
    return {"keys": keys, **named, "rest": list(args[len(script.args) :])}


def keys_of(queue: str, parts: Sequence[str]) -> list[str]:
    """The keys of these parts of a queue; of a pair, the other queue is `dead`."""
    return [f"ns:{{{queue}}}:{part}{'>dead' * (part in PAIRED)}" for part in parts]


def test_every_script_has_a_factory_and_every_factory_fills_its_header() -> None:
    here = known()
    made = [
        commands.lookup(KEYSPACE, "orders"),
        commands.declare(KEYSPACE, Options.plain(here.options)),
        commands.update(here, Options.plain(here.options)),
        commands.preview(here, here.options, commands.Walk()),
        commands.touch(KEYSPACE, "orders"),
        commands.purge(KEYSPACE, "orders", ""),
        commands.discard(KEYSPACE, "orders", 1, "a", "b"),
        commands.delete(KEYSPACE, "orders", if_unused=True, if_empty=False),
        commands.peek(KEYSPACE, "orders", after="", limit=1),
        commands.sweep(here),
        commands.stats(here),
        enqueue_encoded(here, [(b"", b"x")]),
        commands.receive(here, 1, 1),
        commands.redrive(here, "dead", ["x"]),
        commands.ack(KEYSPACE, "orders", DELIVERIES),
        commands.nack(here, DELIVERIES),
        commands.reject(here, DELIVERIES),
        commands.renew(KEYSPACE, "orders", DELIVERIES, lease=1),
        commands.publish(here, [(known("eu"), [1])], [(Envelope(), b"x")]),
        commands.schedule(here, [(b"+1", Envelope(), b"x")]),
        commands.cancel(KEYSPACE, "orders", "x"),
        commands.reschedule(KEYSPACE, "orders", "x", b"+1"),
        commands.intervene(here, "delete", ["x"]),
        commands.move(here, "dead", ["x"]),
        commands.relay(KEYSPACE, "orders", "dead", token="", verdict="", fresh="x", more=True),
        commands.accept(KEYSPACE, "orders", "dead", [b"", b"x"], number=1, token="x"),
        commands.redrive_out(KEYSPACE, "orders", "dead", ["x"], fresh="x"),
        commands.redrive_in(here, "dead", ["x", b"", b"x"], number=1, token="x"),
        commands.change_policies(KEYSPACE, 1, {"policy p": "{}"}, ["operator o"]),
    ]

    assert sorted(command.script.name for command in made) == list(scripts.names())
    for command in made:
        script = command.script
        if script.shared:
            assert bound(command)["keys"] == [KEYSPACE.policies]
            continue
        source = keys_of("dead", (*TARGET_PARTS, *script.source) if script.source else ())
        copied = scripts.load(script.copies) if script.copies else None
        further = keys_of("eu", copied.keys[: copied.least]) if copied else source
        assert bound(command)["keys"] in (
            keys_of("orders", script.keys) + further,
            keys_of("orders", script.keys[: script.least]),
        )


@pytest.mark.parametrize(
    "options,message,short",
    [
        ({}, b"x", True),
        ({}, Message(b"x", ttl="5ms"), True),
        ({}, Message(b"x", ttl=0), False),
        ({}, Message(b"x", expires_at=10**12), False),
        ({"max_length": 5}, b"x", False),
        ({"max_length_bytes": 5}, b"x", False),
        ({"message_ttl": 0}, b"x", False),
        ({"default_ttl": 0}, b"x", False),
        ({"message_ttl": 5, "dead_letter": "dead"}, b"x", True),
    ],
)
def test_keys_that_no_limit_and_no_ttl_of_zero_can_need_are_left_out(
    options: dict[str, Any], message: object, short: bool
) -> None:
    here = known(**options)
    command = commands.enqueue(here, [(Envelope(), b"x"), commands.pack(message)])

    script = command.script
    assert bound(command)["keys"][: len(script.keys)] == keys_of(
        "orders", script.keys[: script.least if short else None]
    )
    assert (bound(command)["targets"] == "") == (short or "dead_letter" not in options)


def test_a_repeatable_command_says_so_to_the_script_and_nothing_else_changes() -> None:
    here = known()
    for command in (
        commands.ack(KEYSPACE, "orders", DELIVERIES, now=5),
        commands.nack(here, DELIVERIES, now=5),
        commands.reject(here, DELIVERIES, now=5),
        commands.receive(here, 1, 1, finished=DELIVERIES, now=5),
    ):
        assert command.repeat
        assert bound(command.as_replay()) == {**bound(command), "replay": "1"}
        assert command.as_replay().as_replay() == command.as_replay()
    assert commands.sweep(here).as_replay() == commands.sweep(here)


@pytest.mark.parametrize(
    "message,said",
    [
        (b"x", b""),
        (Message(b"x", ttl="5s"), b"+5000"),
        (Message(b"x", ttl=0), b"+0"),
        (Message(b"x", expires_at=10**12), b"@1000000000000"),
        (Message(b"x", id="é"), b";2;;\xc3\xa9"),
        (Message(b"x", ttl="1ms", id="a", headers={"b": 1}), b"+1;1;;a\x92\xc0\x81\xa1b\x01"),
        ({"v": 1}, b";;;\x92\x01\xc0"),
        (Message({"v": 1}, content_type="text/x"), b";;;\x92\xa6text/x\xc0"),
    ],
)
def test_the_envelope_of_a_sender_is_packed_for_the_script(message: object, said: bytes) -> None:
    envelope, _ = commands.pack(message)
    assert envelope.encode() == said


ID, TTL, HEADERS = Envelope(id=b"a"), Envelope(ttl=b"+5"), Envelope(extras=b"\x92\x01\xc0")


@pytest.mark.parametrize(
    "envelopes,form",
    [
        ([ID, Envelope(id=b";;"), Envelope(id=b"123456789012")], "ids"),
        ([ID, Envelope()], ""),
        ([TTL, HEADERS], ""),
        ([Envelope(b"+5", b"a")], ""),
        ([Envelope(b"", b"a", b"\x92\x01\xc0")], ""),
    ],
)
def test_only_a_batch_of_nothing_but_ids_has_that_form(envelopes: list[Envelope], form: str) -> None:
    packed = [(envelope, b"x") for envelope in envelopes]
    encoded = [(envelope.encode(), b"x") for envelope in envelopes]

    for window in (0, 5):
        command = commands.enqueue(known(), packed, window=window)
        assert bound(command)["form"] == form
        assert command == enqueue_encoded(known(), encoded, window=window)


@pytest.mark.parametrize(
    "envelope,form",
    [
        (Envelope(), "bodies"),
        (TTL, b"+5"),
        (HEADERS, b";;;\x92\x01\xc0"),
        (Envelope(b"@5"), b"@5"),
        (Envelope(b"+0", b"", b"\x92\x01\xc0"), b"+0;;;\x92\x01\xc0"),
    ],
)
def test_a_batch_of_one_envelope_without_an_id_sends_it_once(envelope: Envelope, form: commands.Word) -> None:
    encoded = [(envelope.encode(), b"x"), (envelope.encode(), b"y")]

    for window in (0, 5):
        command = commands.enqueue(known(), [(envelope, b"x"), (envelope, b"y")], window=window)
        assert (bound(command)["form"], bound(command)["rest"]) == (form, [b"x", b"y"])
        assert bound(command)["keys"] == bound(enqueue_encoded(known(), encoded))["keys"]
        assert not command.repeat


def test_an_enqueue_with_ids_may_be_repeated_if_a_window_knows_duplicates() -> None:
    some = [(ID, b"x"), (Envelope(b"+5", b"b", b"\x92\x01\xc0"), b"x")]

    assert commands.enqueue(known(), some, window=5).repeat
    assert commands.enqueue(known(duplicate_window=5), some).repeat
    assert not commands.enqueue(known(), some).repeat
    for other in (Envelope(), TTL, HEADERS):
        assert not commands.enqueue(known(), [*some, (other, b"x")], window=5).repeat


def enqueued(*messages: object, config: QueueConfig | None = None) -> Command:
    return commands.enqueue(config or known(), [commands.pack(message) for message in messages])


@pytest.mark.parametrize(
    "calls",
    [
        [(b"a",), (b"b", b"c"), (b"",)],
        [({"v": 1},), ("x", "y")],
        [(Message(b"a", id="1"),), (Message(b"b", id="2"), Message(b"c", id="30"))],
        [(Message(b"a", id="1", ttl="5s"), b"b"), (Message(b"c", id="1", ttl="6s"),)],
        [(Message(b"a", ttl="5s"),)] * 2,
    ],
    ids=["bodies", "values", "ids", "any", "one TTL"],
)
def test_the_one_call_is_that_of_all_messages(calls: list[tuple[object, ...]]) -> None:
    first, *others = (enqueued(*messages) for messages in calls)
    joined = Joined(first)

    assert first.head
    assert all(joined.take(other) for other in others)

    assert joined.words == enqueued(*[message for messages in calls for message in messages]).words


@pytest.mark.parametrize("reply", [[b"refused", b"stale"], [b"refused", b"retry"], ConnectionError("lost"), b"odd"])
def test_any_other_reply_is_the_reply_to_all(reply: Any) -> None:
    joined = Joined(enqueued(b"a"))
    assert joined.take(enqueued(b"b"))

    assert joined.replies(reply) == [reply, reply]


@pytest.mark.parametrize(
    "place,told", [(1, [1, None, None]), (2, [None, 1, None]), (3, [None, 2, None]), (4, [None, None, 1])]
)
def test_a_malformed_message_is_the_fault_of_its_own_call(place: int, told: list[int | None]) -> None:
    ids = [Message(b"x", id=str(i)) for i in range(4)]
    joined = Joined(enqueued(ids[0]))
    assert joined.take(enqueued(ids[1], ids[2]))
    assert joined.take(enqueued(ids[3]))

    assert joined.replies([b"refused", b"malformed", place]) == [
        one and [b"refused", b"malformed", one] for one in told
    ]


def test_a_reply_with_another_number_of_results_is_no_reply_to_any_call() -> None:
    joined = Joined(enqueued(b"a"))
    assert joined.take(enqueued(b"b"))

    replies = joined.replies([b"ok", b"", [b"1"]])

    assert {type(reply) for reply in replies} == {ContractError}


@pytest.mark.parametrize(
    "other",
    [
        enqueued(b"x", config=known("others")),
        enqueued(b"x", config=known(version=b"v2")),
        enqueued({"v": 1}),
        enqueued(Message(b"x", id="1")),
        enqueued(Message(b"x", ttl="5s")),
        enqueued(b"x", config=known(max_length=5)),
        commands.receive(known(), 1, 1),
        enqueued(*[b"x"] * BATCH),
        enqueued(b"x" * (commands.BATCH_BYTES + 1)),
    ],
    ids=["queue", "options", "value", "id", "TTL", "limit", "script", "too many", "too large"],
)
def test_other_calls_do_not_join(other: Command) -> None:
    joined = Joined(enqueued(b"a"))
    before = joined.words

    assert not joined.take(other)

    assert joined.words == before
    assert joined.replies([b"ok", b"", [b"1"]]) == [[b"ok", b"", [b"1"]]]


def test_a_call_that_may_be_repeated_joins_none_that_may_not() -> None:
    config = known(duplicate_window=5)
    joined = Joined(enqueued(Message(b"a", id="1"), Message(b"b", id="2", ttl="5s"), config=config))

    assert not joined.take(enqueued(Message(b"c", id="3", ttl="5s"), b"d", config=config))


DENIED, READONLY = NoPermissionError("this user has no permissions to run multi"), ReadOnlyError("a replica")
STORED: Any = [b"ok", b""]


def messages(window: int = 0) -> list[Command]:
    packed = [(Envelope(id=b"a"), b"x")] if window else [(Envelope(), b"x")]
    return [commands.enqueue(known(), packed, window=window) for _ in range(3)]


class FakeNode:
    def __init__(self) -> None:
        self.loaded: set[str] = set()

    def leave(self) -> None: ...


def exchanges_of(*nodes: FakeNode) -> Exchanges:
    return Exchanges(OneServer(nodes[0]), Keyspace(), Events(), lambda: 0.0)


def carry_out(batch: Sequence[Command], *replies: Any) -> list[Any]:
    """Run a batch whose MULTI is refused, so that each command has a reply of its own."""
    exchange = exchanges_of(node := FakeNode())._ordered(node, batch)
    trip: Any = next(exchange)
    loads = sum(call[0] == "SCRIPT" for call in trip.calls)
    try:
        exchange.send([b"sha"] * loads + [DENIED, *replies, DENIED])
    except StopIteration as done:
        result: list[Any] = done.value
        return result
    raise AssertionError("a second round trip")


def test_a_batch_of_which_a_part_is_stored_has_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown) as caught:
        carry_out(messages(), STORED, READONLY, READONLY)

    assert (caught.value.queue, caught.value.action) == (known().name, "enqueue")
    assert caught.value.__cause__ is READONLY


def test_a_batch_of_which_nothing_is_stored_is_refused() -> None:
    with pytest.raises(NotSent):
        carry_out(messages(), READONLY, READONLY, READONLY)


@pytest.mark.parametrize("window, error", [(5, READONLY), (0, NoScriptError("no matching script"))])
def test_what_may_be_repeated_and_what_redis_has_not_run_has_its_error_as_a_reply(window: int, error: Any) -> None:
    assert carry_out(messages(window), STORED, error, error) == [STORED, error, error]


WORDS = st.binary() | st.text() | st.integers() | st.floats()


@given(st.lists(WORDS, min_size=1).map(tuple))
def test_python_packs_what_hiredis_packs(words: tuple[Any, ...]) -> None:
    assert contract.pack_in_python(words) == hiredis.pack_command(words)


def test_hiredis_packs_where_it_is_and_python_where_it_is_not() -> None:
    ask = (
        "import sys; sys.modules['hiredis'] = None; "
        "from rqttl.protocol import contract; print(contract.pack_words.__name__)"
    )

    assert vars(contract)["pack_words"] is hiredis.pack_command
    assert subprocess.check_output([sys.executable, "-c", ask], text=True).split() == ["pack_in_python"]


@pytest.mark.parametrize(
    "error, cause",
    [
        (TimeoutError("Timeout connecting to server"), OSError("_ssl.c:989: The handshake operation timed out")),
        (ConnectionError("Error 1 connecting to h:1. [SSL: CERTIFICATE_VERIFY_FAILED] no"), OSError()),
        (ConnectionError("Error 1 connecting to h:1. [SSL: WRONG_VERSION_NUMBER] no"), OSError()),
    ],
)
def test_a_failed_tls_handshake_is_final(error: Exception, cause: Exception) -> None:
    exchange = exchanges_of(FakeNode()).read(Read([("TIME",)]))
    next(exchange)
    unsent = NotSent()
    unsent.__cause__, error.__context__ = error, cause

    with pytest.raises(type(error)) as caught:
        exchange.throw(unsent)

    assert caught.value is error
