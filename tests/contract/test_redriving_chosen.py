"""Redriving chosen letters: what became of each, and what a redrive does not take."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import InvalidInput, InvalidName, QueueNotFound, RedriveResult
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked
from tests.contract.looks import bodies, letters, one, outcomes, places, ready


@pytest.mark.spec("S-038")
def test_the_outcome_of_each_chosen_letter_is_told_in_their_order(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"1", b"2", b"3", b"4", b"5")
    first, second, third, fourth, fifth = places(dead_ones)
    clocked.declare_queue("p", max_length=0, overflow="reject-publish")
    clocked.declare_queue("p2", max_length_bytes=0, overflow="reject-publish")
    one(dead_ones)
    unknown = "1600000000000-100000"

    told = dead_ones.redrive_many(
        [
            (third, "q"),
            (second, "q"),
            (fourth, "p"),
            (fourth, "p2"),
            (first, "q"),
            (fifth, "nobody"),
            (unknown, "q"),
            (fifth, "d"),
            (third, "q"),
        ]
    )

    assert told == [
        RedriveResult(third, "q", "moved"),
        RedriveResult(second, "q", "moved"),
        RedriveResult(fourth, "p", "full", "max_length"),
        RedriveResult(fourth, "p2", "full", "max_length_bytes"),
        RedriveResult(first, "q", "unavailable"),
        RedriveResult(fifth, "nobody", "no_origin"),
        RedriveResult(unknown, "q", "unavailable"),
        RedriveResult(fifth, "d", "same_queue"),
        RedriveResult(third, "q", "moved"),
    ]
    assert bodies(queue) == [b"2", b"3"]
    assert ready(dead_ones) == [b"4", b"5"]


def test_a_letter_that_is_named_for_two_queues_goes_to_one(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"x")
    other = clocked.declare_queue("other")
    (place,) = places(dead_ones)

    told = dead_ones.redrive_many([(place, "q"), (place, "other")])

    assert sorted(outcomes(told)) == ["moved", "unavailable"]
    assert len(bodies(queue) + bodies(other)) == 1


def test_a_second_time_it_is_gone(clocked: Clocked) -> None:
    queue, dead_ones = letters(clocked, b"x")
    chosen = [(place, "q") for place in places(dead_ones)]

    assert outcomes(dead_ones.redrive_many(chosen)) == ["moved"]
    assert outcomes(dead_ones.redrive_many(chosen)) == ["unavailable"]
    assert bodies(queue) == [b"x"]


@pytest.mark.parametrize(
    "bad",
    [
        "1600000000000-100000",
        [1],
        [("x", "q")],
        [("1600000000000-100000",)],
        5,
        [("1600000000000-100000", "q", "r")],
        [("1600000000000-100000", "")],
    ],
)
def test_a_sequence_that_is_no_letter_is_refused(clocked: Clocked, bad: Any) -> None:
    with pytest.raises(InvalidInput):
        clocked.declare_queue("d").redrive_many(bad)


@pytest.mark.parametrize(
    "words", [{"limit": 0}, {"limit": True}, {"limit": "5"}, {"reason": "tired"}, {"to": "d"}, {"reason": 5}]
)
def test_an_argument_that_a_redrive_cannot_take_is_refused_before_anything_moves(
    clocked: Clocked, words: dict[str, Any]
) -> None:
    queue, dead_ones = letters(clocked, b"x")

    with pytest.raises(InvalidInput):
        dead_ones.redrive(**words)
    assert bodies(queue) == []


@pytest.mark.parametrize("word", ["source", "to"])
def test_names_are_checked(clocked: Clocked, word: str) -> None:
    words: dict[str, Any] = {word: "{"}

    with pytest.raises(InvalidName):
        clocked.declare_queue("d").redrive(**words)


def test_a_queue_that_is_not_there_is_told(clocked: Clocked) -> None:
    with pytest.raises(QueueNotFound, match="nobody"):
        clocked.queue("nobody").redrive()
    with pytest.raises(QueueNotFound, match="nobody"):
        clocked.queue("nobody").redrive_many([("1600000000000-100000", "q")])
    with pytest.raises(QueueNotFound, match="elsewhere"):
        clocked.declare_queue("d").redrive(to="elsewhere")


def test_changed_options_of_the_queue_act_at_once(clocked: Clocked) -> None:
    _, dead_ones = letters(clocked, b"1", b"2")
    dead_ones.redrive(limit=1)
    other = Clocked(driver_of(clocked).store.client)
    other.queue("q").update(max_length=1, overflow="reject-publish")

    assert dead_ones.redrive() == 0
    assert bodies(dead_ones) == [b"2"]
