"""Calls that are repeated after a lost reply: what is known of each message then."""

from __future__ import annotations

import pytest

from rqttl import LeaseLost, OutcomeUnknown
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked


def test_of_a_batch_the_lost_deliveries_are_named_and_the_unknown_ones_are_the_cause(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"0", b"1", b"2"])
    gone, there = queue.receive_many(2, lease="1s")
    (held,) = queue.receive_many(1)
    clocked.advance(1_000)
    (again, _) = queue.receive_many(2)
    again.ack()
    store = driver_of(clocked).store
    run = store.run
    monkeypatch.setattr(
        store, "run", lambda command: run(command.as_replay())
    )  # as if the reply to an earlier try was lost

    with pytest.raises(LeaseLost) as error:
        queue.ack_many([gone, there, held])

    assert error.value.ids == (there.id,)
    assert isinstance(error.value.__cause__, OutcomeUnknown)
    assert error.value.__cause__.ids == (gone.id,)
    assert [one.settled for one in (gone, there, held)] == ["outcome unknown", "lease lost", "ack"]
