"""Calls that are repeated after a lost reply: what is known of each message then."""

from __future__ import annotations

import pytest
import redis

from rqttl import Broker, LeaseLost, OutcomeUnknown
from rqttl.protocol.commands import Command, Reply
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


@pytest.mark.parametrize("how", ["ack", "reject", "redrive"])
def test_a_lost_reply_and_other_options_after_it_make_no_success_a_failure(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Redis carries out a call, its reply is lost, and Redis refuses the repeated call: the options are other ones."""
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue(b"x", id="mine")
    if how == "redrive":
        queue.reject_many(queue.receive_many(1))
    store = driver_of(broker).store
    send = store._send_one
    lost: list[str] = []

    def lose_one_reply(command: Command) -> Reply:
        reply = send(command)
        if command.script.name in ("receive", "reject", "redrive") and not lost:
            lost.append(command.script.name)
            other = Broker(store.client)
            other.set_policy("p", "q", {"lease": "1m"})
            raise redis.ConnectionError("the reply was lost")
        return reply

    if how == "ack":
        with queue.consume(wait=0) as deliveries:
            delivery = next(deliveries)
            monkeypatch.setattr(store, "_send_one", lose_one_reply)
            delivery.ack()
            assert list(deliveries) == []
        assert (deliveries.lost, queue.stats().acked) == ([], 1)
    elif how == "reject":
        (delivery,) = queue.receive_many(1)
        monkeypatch.setattr(store, "_send_one", lose_one_reply)
        delivery.reject()
        assert (delivery.settled, broker.queue("dead").stats().ready) == ("reject", 1)
    else:
        (letter,) = broker.queue("dead").peek(1)
        monkeypatch.setattr(store, "_send_one", lose_one_reply)
        (result,) = broker.queue("dead").redrive_many([(letter.sequence, "q")])
        assert (result.outcome, queue.stats().ready) == ("moved", 1)
    assert lost
