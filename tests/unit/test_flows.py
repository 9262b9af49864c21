"""Flows, driven by hand: every step is seen, every answer is sent, and there is no Redis."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import (
    ContractError,
    Message,
    Policy,
    QueueFull,
    QueueInUse,
    QueueMismatch,
    QueueNotFound,
    QueueOptions,
    flows,
)
from rqttl.consuming import settling
from rqttl.flows.steps import GetConfig, GetPolicies, HandleNotes, Pipeline, Read, Register, Unregister
from rqttl.policies import PolicySet
from rqttl.protocol import commands
from rqttl.protocol.commands import BATCH, BATCH_BYTES, Command, Options, QueueConfig
from rqttl.protocol.keys import Keyspace
from tests.encoded import enqueue_encoded

KEYSPACE = Keyspace()
VERSION_CALL = ("HGET", "rqttl:policies", "version")
LISTED = Read([("SISMEMBER", KEYSPACE.registry, "orders"), VERSION_CALL])
NO_POLICIES = PolicySet()
PLACE = b"1700000000000-100000"
REFUSED, OK = b"refused", b"ok"


def known(version: bytes = b"v1", **options: object) -> QueueConfig:
    return Options.plain(QueueOptions.read_stored("orders", options)).config(KEYSPACE, version)


class Drive:
    """A flow in the hands of a test. `step` is its current step; after its end `result` is its return value."""

    def __init__(self, flow: flows.steps.Flow[Any]) -> None:
        self._flow = flow
        self.step: Any = next(flow)
        self.result: Any = None

    def answer(self, value: Any) -> Any:
        try:
            self.step = self._flow.send(value)
        except StopIteration as done:
            self.step, self.result = None, done.value
        return self.step

    @property
    def script(self) -> str:
        assert type(self.step) is Command
        return self.step.script.name


def stored(*results: bytes) -> list[Any]:
    return [OK, b"", list(results)]


def received(*messages: Any, more: int = 0, due: Any = b"", lost: Any = (), now: int = 1000) -> list[Any]:
    return [OK, b"", now, due, more, b"77" if messages else b"", list(lost), list(messages), [], []]


def test_a_stale_client_asks_for_the_options_and_repeats_the_call_with_them() -> None:
    drive = Drive(flows.messages.enqueue("orders", [b"x"]))

    assert drive.step == GetConfig("orders")
    drive.answer(known(b"v1"))
    while isinstance(drive.step, GetConfig):
        drive.answer(known(b"v1"))
    assert drive.script == "enqueue"
    assert b"v1" in drive.step.words
    drive.answer([REFUSED, b"stale"])
    assert drive.step == GetConfig("orders", fresh=True)
    drive.answer(known(b"v2"))
    assert drive.script == "enqueue"
    assert b"v2" in drive.step.words
    drive.answer(stored(PLACE))
    while isinstance(drive.step, GetConfig):
        drive.answer(known(b"v2"))
    assert [receipt.id for receipt in drive.result] == [PLACE.decode()]


def test_a_message_takes_one_step_with_known_options_and_its_reply_is_treated_like_any_other() -> None:
    drive = Drive(flows.messages.enqueue_one("orders", b"x", known(b"v1")))
    assert drive.script == "enqueue"
    drive.answer(stored(PLACE))
    assert (drive.step, drive.result.id) == (None, PLACE.decode())

    drive = Drive(flows.messages.enqueue_one("orders", b"x", known(b"v1")))
    first = drive.step
    assert drive.answer([REFUSED, b"retry"]) == first
    assert drive.answer([REFUSED, b"stale"]) == GetConfig("orders", fresh=True)
    assert b"v2" in drive.answer(known(b"v2", message_ttl="1h")).words
    assert drive.answer([OK, [b"a note"], [PLACE]]) == HandleNotes([b"a note"])
    drive.answer(None)
    assert (drive.step, drive.result.expires_at is None) == (None, False)


def test_a_call_that_had_to_make_room_first_is_repeated_as_it_was() -> None:
    drive = Drive(flows.steps.with_config("orders", lambda known: enqueue_encoded(known, [(b"", b"x")])))

    first = drive.answer(known())
    second = drive.answer([REFUSED, b"retry"])
    assert second == first
    drive.answer(stored(PLACE))
    assert drive.result.results == [PLACE]


def test_a_queue_that_is_gone_is_looked_for_once_more_and_then_not_found() -> None:
    drive = Drive(flows.reading.swept_stats("orders"))
    drive.answer(known())

    assert drive.answer([REFUSED, b"not_found"]) == GetConfig("orders", fresh=True)
    with pytest.raises(QueueNotFound):
        drive._flow.throw(QueueNotFound("orders"))


def test_a_refusal_that_nobody_expects_is_a_bug() -> None:
    drive = Drive(flows.reading.swept_stats("orders"))
    drive.answer(known())

    with pytest.raises(ContractError, match="script stats: unexpected refusal 'surprise'"):
        drive.answer([REFUSED, b"surprise"])


def test_queues_that_a_script_made_are_entered_and_those_over_their_limit_swept() -> None:
    drive = Drive(flows.steps.with_config("orders", lambda known: enqueue_encoded(known, [(b"", b"x")])))
    drive.answer(known())

    notes = [b"created", b"dead", b"sweep", b"late", b"deleted", b"orders"]
    assert drive.answer([OK, notes, [PLACE]]) == HandleNotes(notes)
    drive.answer(None)
    assert drive.result.results == [PLACE]

    drive = Drive(flows.queues.follow(KEYSPACE, notes))
    assert drive.step == Register("dead")
    fields = ("version", "options", "declared", "policies")
    assert drive.answer(1) == Read([("HMGET", "rqttl:{dead}:meta", *fields), VERSION_CALL])
    assert drive.answer([[b"auto-1", b"{}", b"{}", b"0"], b"7"]) == GetPolicies(7)
    drive.answer(PolicySet(7, (Policy.read("all", "#", {"expires": "1h"}),)))
    [command] = drive.step.commands
    assert (command.script.name, command.queue, command.word("options")) == ("update", "dead", '{"expires":3600000}')
    drive.answer([[OK, b"", 1]])
    assert (drive.step.queue, drive.step.newest.options.expires) == ("dead", 3_600_000)
    assert drive.answer(None) == GetConfig("late", for_sweep=True)
    drive.answer(known())
    assert drive.script == "sweep"
    assert drive.answer([OK, b"", 5, b"", 0, 0, 0, 0, 0, 0, b""]) == Unregister("orders")


def test_without_limits_batches_go_together_and_one_that_was_stale_alone_again() -> None:
    drive = Drive(flows.messages.enqueue("orders", [b"x"] * (BATCH + 1)))
    while isinstance(drive.step, GetConfig):
        drive.answer(known())

    assert [drive.step] == [Pipeline(drive.step.commands)]
    assert [command.words.count(b"x") for command in drive.step.commands] == [BATCH, 1]
    drive.answer([stored(*[PLACE] * BATCH), [REFUSED, b"stale"]])
    while isinstance(drive.step, GetConfig):
        drive.answer(known(b"v2"))
    assert (drive.script, b"v2" in drive.step.words) == ("enqueue", True)
    drive.answer(stored(b"1700000000001-100000"))
    while isinstance(drive.step, GetConfig):
        drive.answer(known(b"v2"))
    assert [drive.result[0].id, drive.result[-1].id] == [PLACE.decode(), "1700000000001-100000"]
    assert len(drive.result) == BATCH + 1


def test_with_a_limit_one_batch_goes_after_the_other() -> None:
    drive = Drive(flows.messages.enqueue("orders", [b"x"] * (BATCH + 1)))
    here = known(max_length=5, overflow="reject-publish")
    sent = 0
    while drive.step is not None:
        if isinstance(drive.step, GetConfig):
            drive.answer(here)
        else:
            assert drive.script == "enqueue"
            sent += 1
            drive.answer(stored(*[b"!max_length"] * (BATCH if sent == 1 else 1)))

    assert sent == 2
    assert all(isinstance(one, QueueFull) for one in drive.result)
    assert (drive.result[0].queue, drive.result[0].limit, drive.result[0].value) == ("orders", "max_length", 5)


def test_a_batch_holds_about_a_megabyte_but_one_message_may_be_larger() -> None:
    bodies = [b"x" * (BATCH_BYTES // 2)] * 3 + [b"y" * (2 * BATCH_BYTES)] + [b"z"]
    drive = Drive(flows.messages.enqueue("orders", bodies))
    while isinstance(drive.step, GetConfig):
        drive.answer(known())

    sizes = [sum(len(word) for word in command.words if isinstance(word, bytes)) for command in drive.step.commands]
    assert len(sizes) == 4
    assert sum(sizes) >= sum(map(len, bodies))


def test_a_receipt_tells_the_deadline_that_is_in_force() -> None:
    drive = Drive(flows.messages.enqueue("orders", [b"a", Message(b"b", ttl="1ms", id="me")]))
    here = known(message_ttl=500)
    while isinstance(drive.step, GetConfig):
        drive.answer(here)
    drive.answer(stored(PLACE, b"1700000000000-100001 1700000000001"))
    while isinstance(drive.step, GetConfig):
        drive.answer(here)

    first, second = drive.result
    assert (first.id, first.expires_at.microsecond) == (PLACE.decode(), 500_000)
    assert (second.id, second.expires_at.microsecond) == ("me", 1_000)


def test_a_receive_goes_on_at_once_while_all_that_was_met_had_expired() -> None:
    finished = [b"1", b"9"]
    drive = Drive(flows.receive.receive_once("orders", 5, None, finished=finished))
    drive.answer(known())

    assert b"1" in drive.step.words
    drive.answer(received(more=1, lost=[b"1"]))
    drive.answer(known()) if isinstance(drive.step, GetConfig) else None
    assert b"1" not in drive.step.words
    drive.answer(received(PLACE, b"", b"x"))
    assert (drive.result.entries, drive.result.lost) == ([(PLACE, b"", b"x")], [b"1"])


def test_deliveries_are_settled_in_batches_and_lost_and_unknown_ones_collected() -> None:
    seen: list[int] = []

    def run(words: Any) -> flows.steps.Flow[Any]:
        seen.append(len(words) // 2)
        return (yield from flows.steps.run(commands.ack(KEYSPACE, "orders", words)))

    drive = Drive(settling.settle_in_batches([(b"%d" % i, b"t") for i in range(2 * BATCH + 1)], run))
    drive.answer([OK, b"", [], [b"3"]])
    drive.answer([OK, b"", [b"499"], []])
    drive.answer([OK, b"", [], [b"500"]])

    assert seen == [BATCH, BATCH, 1]
    assert (drive.result.lost, drive.result.unknown) == ({b"3", b"500"}, {b"499"})


def test_a_declaration_that_differs_names_each_option_with_both_values() -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {"max_length": 3})))
    drive.answer([1, None])
    drive.answer(NO_POLICIES)

    with pytest.raises(
        QueueMismatch, match="max_length: requested 3, declared 4; lease: requested '30s', declared '5ms'"
    ) as told:
        drive.answer([REFUSED, b"mismatch", b'{"lease":5,"max_length":4}'])

    assert told.value.differences == {"max_length": (3, 4), "lease": (30_000, 5)}


def test_a_deleted_queue_leaves_the_registry_and_one_in_use_does_not() -> None:
    for reply in ([OK, b"", 7], [REFUSED, b"in_use", b"if_empty", 2]):
        drive = Drive(flows.queues.delete(KEYSPACE, "orders", if_unused=False, if_empty=True))
        while not (type(drive.step) is Command and drive.script == "delete"):
            drive.answer(known() if isinstance(drive.step, GetConfig) else [OK, b"", 5, b"", 0, 0, 0, 0, 0, 0, b""])
        if reply[0] == OK:
            assert drive.answer(reply) == Unregister("orders")
            drive.answer(1)
            assert drive.result == 7
        else:
            with pytest.raises(QueueInUse, match="if_empty is set and it has 2 messages"):
                drive.answer(reply)


def test_a_sweep_goes_on_until_nothing_is_due_or_its_rounds_are_over() -> None:
    for rounds, expected in ((None, 3), (2, 2)):
        drive = Drive(flows.sweeping.sweep("orders", rounds=rounds))
        replies = iter([1, 1, 0])
        while drive.step is not None:
            drive.answer(
                known() if isinstance(drive.step, GetConfig) else [OK, b"", 5, b"9", next(replies), 1, 2, 3, 4, 5, b""]
            )
        assert len(drive.result) == expected
        assert (drive.result[0].due, drive.result[0].reclaimed, drive.result[0].compacted) == (9, 1, 5)
