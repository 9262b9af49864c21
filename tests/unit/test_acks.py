"""Acks that wait for the next call: each goes with one call, and waits again if that fails."""

from __future__ import annotations

import pytest

from rqttl import Delivery, QueueOptions
from rqttl.consuming.acks import Acks, Sending
from rqttl.delivery import LOST, Settler, mark
from rqttl.protocol.commands import BATCH, QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.backoff import pause


def unused(*_: object) -> None:
    raise AssertionError("no delivery is settled here")


SETTLER = Settler(unused, unused, unused, unused)

KNOWN = QueueConfig(Keyspace(), "orders", b"v1", QueueOptions.read("orders", {}))


def delivery(number: int) -> Delivery:
    return Delivery(SETTLER, KNOWN, (b"%d" % number, (b"", b"x")), b"7", 0, None)


def waiting(count: int) -> Acks:
    acks = Acks()
    for number in range(count):
        acks.add(delivery(number))
    return acks


def test_a_call_carries_as_many_as_it_may_and_the_next_one_the_rest() -> None:
    acks = waiting(BATCH + 1)

    with Sending(acks) as sending:
        assert len(sending.take()) == 2 * BATCH
        sending.confirm()
        assert list(sending.take()) == [b"%d" % BATCH, b"7"]
        sending.confirm()

    assert not acks


def test_what_a_failed_call_carried_waits_again_in_its_order() -> None:
    acks = waiting(2)

    def fail() -> None:
        with Sending(acks) as sending:
            sending.take()
            acks.add(delivery(2))
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()

    assert list(Sending(acks).take()) == [b"0", b"7", b"1", b"7", b"2", b"7"]


def test_what_was_confirmed_before_a_failure_does_not_wait_again() -> None:
    acks = waiting(2)

    def fail() -> None:
        with Sending(acks) as sending:
            sending.take()
            sending.confirm()
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()

    assert not acks


def test_of_two_senders_each_carries_its_own() -> None:
    """The keeper and the loop send at the same time; the failure of one loses nothing that the other carries."""
    acks = waiting(1)
    first, second = Sending(acks), Sending(acks)
    with first:
        assert list(first.take()) == [b"0", b"7"]
        with second:
            acks.add(delivery(1))
            assert list(second.take()) == [b"1", b"7"]
            second.confirm()

    assert list(Sending(acks).take()) == [b"0", b"7"]


def test_the_deliveries_of_late_acks_are_known_by_their_sequences() -> None:
    acks = waiting(3)
    with Sending(acks) as sending:
        sending.take()
        sending.confirm()

        assert [one.sequence for one in sending.among([b"1", b"9"])] == ["1"]
        assert sending.among([]) == []


def test_the_pause_of_a_failed_message_doubles_and_ends_growing() -> None:
    whole = [pause(failures, lambda: 0.0) for failures in (1, 2, 3, 10, 11, 1_000_000)]
    shortest = [pause(failures, lambda: 1.0) for failures in (1, 2, 11)]

    assert whole == [1_000, 2_000, 4_000, 512_000, 600_000, 600_000]
    assert shortest == [750, 1_500, 450_000]


def test_of_two_acks_of_one_message_the_one_under_the_older_lease_was_missed() -> None:
    older, newer = (Delivery(SETTLER, KNOWN, (b"1-1", (b"", b"x")), token, 0, None) for token in (b"7", b"8"))
    acks = Acks()
    for one in (older, newer, delivery(2)):
        acks.add(one)
    with Sending(acks) as sending:
        sending.take()
        sending.confirm()

        assert sending.among([b"1-1"]) == [older]
        assert sending.among([b"1-1", b"1-1"]) == [older, newer]
        mark(older, LOST)
        assert sending.among([b"1-1"]) == [newer]
