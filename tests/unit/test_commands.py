"""Commands as values: which words go to which script, in the order of its header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rqttl import Message, QueueOptions
from rqttl.options import SCRIPT_OPTIONS
from rqttl.protocol import commands, scripts
from rqttl.protocol.codec import Envelope
from rqttl.protocol.commands import Command, Options, Presence, QueueConfig
from rqttl.protocol.keys import TARGET_PARTS, Keyspace
from tests.encoded import enqueue_encoded

KEYSPACE = Keyspace("ns")
DELIVERIES: Sequence[commands.Word] = [b"1", b"t1", b"2", b"t1", b"3", b"t2"]
RUNS = [b"t1", "2", b"1", b"2", b"t2", "1", b"3"]


def known(**options: object) -> QueueConfig:
    return Options.plain(QueueOptions.read_stored("orders", options)).config(KEYSPACE, b"v1")


def bound(command: Command) -> dict[str, Any]:
    """The words of a command by the names in the header of its script; further ones under `rest`."""
    script, (count, *words) = command.script, command.words
    number = int(count)
    keys, args = words[:number], words[number:]
    assert len(args) >= len(script.args) if script.has_rest else len(args) == len(script.args)
    named: dict[str, Any] = dict(zip(script.args, args, strict=False))
    return {"keys": keys, **named, "rest": list(args[len(script.args) :])}


def keys_of(queue: str, parts: Sequence[str]) -> list[str]:
    return [f"ns:{{{queue}}}:{part}" for part in parts]


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
        commands.change_policies(KEYSPACE, 1, {"policy p": "{}"}, ["operator o"]),
    ]

    assert sorted(command.script.name for command in made) == list(scripts.names())
    for command in made:
        script = command.script
        if script.shared:
            assert bound(command)["keys"] == [KEYSPACE.policies]
            continue
        source = keys_of("dead", (*TARGET_PARTS, *script.source) if script.source else ())
        assert bound(command)["keys"] in (
            keys_of("orders", script.keys) + source,
            keys_of("orders", script.keys[: script.least]),
        )


def test_the_words_of_each_command_stand_where_its_header_says() -> None:
    here = known(max_length=5)
    presence = Presence("me", 20, 30, b"ticket", 4)

    receive = bound(commands.receive(here, 7, 99, auto_ack=True, presence=presence, finished=DELIVERIES, now=5))
    assert receive.pop("keys") == keys_of("orders", scripts.load("receive").keys)
    assert receive == {
        "version": b"v1",
        "targets": "",
        "now": 5,
        "replay": "",
        "count": "7",
        "lease": "99",
        "auto": "1",
        "room": "4",
        "consumer": "me",
        "block": "20",
        "stay": "30",
        "ticket": b"ticket",
        "rest": RUNS,
    }
    nack = bound(commands.nack(here, DELIVERIES, delay=8, counted=False, description=b"why", now=5))
    assert {name: nack[name] for name in ("now", "replay", "delay", "counted", "description", "rest")} == {
        "now": 5,
        "replay": "",
        "delay": 8,
        "counted": 0,
        "description": b"why",
        "rest": RUNS,
    }
    plain = bound(commands.nack(here, DELIVERIES))
    assert (plain["delay"], plain["counted"], plain["description"]) == ("", 1, b"")
    assert bound(commands.nack(here, DELIVERIES, delay=0))["delay"] == 0
    reject = bound(commands.reject(here, DELIVERIES, description=b"why", now=5))
    assert (reject["description"], reject["now"], reject["replay"], reject["rest"]) == (b"why", 5, "", RUNS)
    ack = bound(commands.ack(KEYSPACE, "orders", DELIVERIES, now=5))
    assert (ack["now"], ack["replay"], ack["rest"]) == (5, "", RUNS)
    assert bound(commands.ack(KEYSPACE, "orders", [b"1", b"t1"]))["rest"] == [b"t1", "1", b"1"]
    renew = bound(commands.renew(KEYSPACE, "orders", DELIVERIES, lease=9, now=5))
    assert (renew["now"], renew["lease"], renew["rest"]) == (5, 9, RUNS)
    peek = bound(commands.peek(KEYSPACE, "orders", after="a", limit=3, now=5))
    assert (peek["now"], peek["after"], peek["limit"]) == (5, "a", 3)
    delete = bound(commands.delete(KEYSPACE, "orders", if_unused=True, if_empty=False, now=5))
    assert (delete["now"], delete["if_unused"], delete["if_empty"]) == (5, "1", "")
    purge = bound(commands.purge(KEYSPACE, "orders", b"id", ["a", "b"]))
    assert (purge["upto"], purge["rest"]) == (b"id", ["a", "b"])
    enqueue = bound(enqueue_encoded(here, [(b"", b"x"), (b"+5", b"y")], now=5))
    assert (enqueue["version"], enqueue["now"], enqueue["rest"]) == (b"v1", 5, [b"", b"x", b"+5", b"y"])


def test_the_calls_of_each_message_have_no_number_that_has_to_become_text() -> None:
    here, one = known(), [b"1", b"t1"]

    for made in (
        commands.receive(here, 1, 9, finished=one),
        commands.ack(KEYSPACE, "orders", one),
        commands.enqueue_alike(here, [b"x"]),
    ):
        assert {type(word) for word in made.words} <= {str, bytes}


def test_the_options_that_scripts_read_go_to_declare_and_update() -> None:
    options = QueueOptions.read("orders", {"max_length": 5, "lease": "1s", "never_expire": True, "dead_letter": "dead"})
    declare, update = (
        bound(commands.declare(KEYSPACE, Options.plain(options))),
        bound(commands.update(known(), Options.plain(options))),
    )

    assert declare["rest"] == update["rest"]
    given = declare["rest"][declare["absent"] :]
    fields = dict(zip(given[::2], given[1::2], strict=True))
    assert (fields["overflow"], fields["max_length"], fields["never_expire"]) == ("drop-head", 5, 1)
    assert not {"lease", "dead_letter", "message_ttl", "on_expire"} & fields.keys()
    assert declare["options"] == update["options"] == declare["declared"] == options.as_json()


def test_an_update_names_each_option_that_scripts_read_as_absent_or_gives_its_value() -> None:
    for options in ({}, {"max_length": 5}, {"expires": "1h", "redelivery_delay": "1s"}):
        words = bound(commands.update(known(), Options.plain(QueueOptions.read("orders", options))))
        absent, fields = words["rest"][: words["absent"]], words["rest"][words["absent"] :]
        assert sorted([*absent, *fields[::2]]) == sorted([*SCRIPT_OPTIONS, "option_set"])


def test_no_two_declarations_have_the_same_version() -> None:
    made = [bound(commands.declare(KEYSPACE, Options.plain(known().options)))["version"] for _ in range(50)]

    assert len(set(made)) == 50


@pytest.mark.parametrize(
    "options,said,queues",
    [
        ({}, "", []),
        ({"dead_letter": "dead"}, "expired=dead maxlen=dead delivery_limit=dead", ["dead"]),
        ({"dead_letter": "a", "dead_letter_maxlen": "b"}, "expired=a maxlen=b delivery_limit=a", ["a", "b"]),
        ({"dead_letter": "a", "dead_letter_expired": ""}, "maxlen=a delivery_limit=a", ["a"]),
        ({"dead_letter_rejected": "{queue}"}, "", []),
        (
            {"dead_letter": "DEAD.{queue}"},
            " ".join(f"{r}=DEAD.orders" for r in ("expired", "maxlen", "delivery_limit")),
            ["DEAD.orders"],
        ),
    ],
)
def test_targets_are_named_with_their_keys_behind_the_queues_own(
    options: dict[str, object], said: str, queues: list[str]
) -> None:
    words = bound(commands.sweep(known(**options)))

    own = keys_of("orders", scripts.load("sweep").keys)
    assert words["targets"] == said
    assert words["keys"] == own + [key for queue in queues for key in keys_of(queue, TARGET_PARTS)]


def test_a_queue_that_is_its_own_target_is_named_by_a_dot_and_has_no_further_keys() -> None:
    words = bound(commands.reject(known(dead_letter_rejected="orders"), DELIVERIES))

    assert words["targets"] == "rejected=."
    assert words["keys"] == keys_of("orders", scripts.load("reject").keys)


@pytest.mark.parametrize(
    "options,message,short",
    [
        ({}, b"x", True),
        ({}, Message(b"x", ttl="5ms"), True),
        ({}, Message(b"x", ttl=0), False),
        ({}, Message(b"x", expires_at=10**12), False),
        ({}, Message(b"x", id="a", ttl=0), False),
        ({}, Message(b"x", id="a", ttl="5ms"), True),
        ({"max_length": 5}, b"x", False),
        ({"max_length_bytes": 5}, b"x", False),
        ({"message_ttl": 0}, b"x", False),
        ({"max_ttl": 0}, b"x", False),
        ({"default_ttl": 0}, b"x", False),
        ({"message_ttl": 5, "dead_letter": "dead"}, b"x", True),
    ],
)
def test_keys_that_no_limit_and_no_ttl_of_zero_can_need_are_left_out(
    options: dict[str, object], message: object, short: bool
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
        assert command.repeatable
        assert bound(command.as_replay()) == {**bound(command), "replay": "1"}
        assert command.as_replay().as_replay() == command.as_replay()
    assert commands.sweep(here).as_replay() == commands.sweep(here)


def test_commands_without_a_safe_repeat_are_not_repeatable() -> None:
    here = known()

    assert not enqueue_encoded(here, [(b"", b"x")]).repeatable
    assert not commands.receive(here, 1, 1, auto_ack=True).repeatable
    assert not commands.purge(KEYSPACE, "orders", "").repeatable
    assert not commands.delete(KEYSPACE, "orders", if_unused=False, if_empty=False).repeatable


@pytest.mark.parametrize(
    "message,said",
    [
        (b"x", b""),
        (Message(b"x"), b""),
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
        ([ID, Envelope(b"@5", b"a")], ""),
        ([Envelope(b"@5", b"a"), ID], ""),
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
        assert not command.repeatable


def test_an_enqueue_with_ids_may_be_repeated_if_a_window_knows_duplicates() -> None:
    some = [(ID, b"x"), (Envelope(b"+5", b"b", b"\x92\x01\xc0"), b"x")]

    assert commands.enqueue(known(), some, window=5).repeatable
    assert commands.enqueue(known(duplicate_window=5), some).repeatable
    assert not commands.enqueue(known(), some).repeatable
    for other in (Envelope(), TTL, HEADERS):
        assert not commands.enqueue(known(), [*some, (other, b"x")], window=5).repeatable
