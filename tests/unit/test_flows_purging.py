"""Flows of purges: each ends where the queue ended at its begin."""

from __future__ import annotations

from rqttl import flows
from rqttl.flows.steps import GetConfig
from rqttl.protocol.commands import Command
from tests.unit.test_flows import KEYSPACE, OK, PLACE, Drive, known


def test_a_purge_ends_where_the_queue_ended_when_it_began() -> None:
    drive = Drive(flows.messages.purge(KEYSPACE, "orders"))
    while not (type(drive.step) is Command and drive.script == "purge"):
        drive.answer(known() if isinstance(drive.step, GetConfig) else [OK, b"", 5, b"", 0, 0, 0, 0, 0, 0, b""])

    drive.answer([OK, b"", 250, 1, PLACE])
    assert PLACE in drive.step.words
    drive.answer([OK, b"", 3, 0, PLACE])
    assert drive.result == 253


def test_a_purge_of_chosen_messages_goes_on_behind_what_was_looked_at() -> None:
    chosen = [f"{i:013d}-100000" for i in range(300)]
    drive = Drive(flows.messages.purge_many(KEYSPACE, "orders", [*reversed(chosen), chosen[7]]))
    while not (type(drive.step) is Command and drive.script == "purge"):
        drive.answer(known() if isinstance(drive.step, GetConfig) else [OK, b"", 5, b"", 0, 0, 0, 0, 0, 0, b""])

    assert list(drive.step.words[-250:]) == chosen[:250]
    drive.answer([OK, b"", 80, 1, chosen[99].encode()])
    assert list(drive.step.words[-200:]) == chosen[100:]
    drive.answer([OK, b"", 199, 0, chosen[299].encode()])
    assert drive.result == 279
