"""Errors name the queue, the option, both values and the rule, and each has a code of its own."""

from __future__ import annotations

import pytest

import rqttl
from rqttl import errors
from rqttl.errors import RqttlError


def tree(root: type[RqttlError]) -> list[type[RqttlError]]:
    return [root, *[found for one in root.__subclasses__() for found in tree(one)]]


MISMATCH = (
    "queue 'q' exists with other options (lease: requested 1, declared None; overflow: requested 'a', declared 'b'): "
    "use update() to change them"
)
UNKNOWN = (
    "queue 'q': the connection was lost before the reply to enqueue arrived; Redis may or may not have performed it"
)
ALL = [one for one in tree(RqttlError) if one.__module__ == "rqttl.errors"]


def test_every_error_has_a_code_of_its_own_and_says_when() -> None:
    codes = [one.code for one in ALL]

    assert len(set(codes)) == len(codes)
    assert all(one.__doc__ for one in ALL)


def test_every_error_is_public() -> None:
    assert {one.__name__ for one in ALL} <= set(rqttl.__all__)


@pytest.mark.parametrize("name", ["InvalidName", "InvalidOption", "InvalidDuration", "MessageTooLarge"])
def test_bad_input_is_also_a_value_error(name: str) -> None:
    one = getattr(errors, name)

    assert issubclass(one, errors.InvalidInput)
    assert issubclass(one, ValueError)


@pytest.mark.parametrize(
    "error,text",
    [
        (errors.QueueNotFound("q"), "queue 'q' does not exist: declare it first"),
        (errors.QueueMismatch("q", {"lease": (1, None), "overflow": ("a", "b")}), MISMATCH),
        (errors.QueueFull("q", "max_length", 5), "queue 'q' is full: max_length is 5"),
        (errors.QueueInUse("q", "if_unused", 2), "queue 'q' was not deleted: if_unused is set and it has 2 consumers"),
        (errors.QueueInUse("q", "if_empty", 2), "queue 'q' was not deleted: if_empty is set and it has 2 messages"),
        (
            errors.LeaseLost("q", ["a", "b"]),
            "queue 'q': the lease had ended for a, b; another consumer may hold the message now",
        ),
        (
            errors.LeaseLost("q", list("abcdefg")),
            "queue 'q': the lease had ended for a, b, c, d, e and 2 more; another consumer may hold the message now",
        ),
        (errors.AlreadySettled("q", "a", "ack"), "queue 'q': delivery of 'a' is settled already (ack)"),
        (errors.OutcomeUnknown("q", "enqueue"), UNKNOWN),
    ],
)
def test_an_error_names_what_it_is_about(error: RqttlError, text: str) -> None:
    assert str(error) == text
    assert error.queue == "q"  # type: ignore[attr-defined]  # all of these have one


def test_facts_can_be_read_from_an_error() -> None:
    full = errors.QueueFull("q", "max_length", 5)
    lost = errors.LeaseLost("q", ["a"])
    mismatch = errors.QueueMismatch("q", {"lease": (1, 2)})

    assert (full.limit, full.value) == ("max_length", 5)
    assert lost.ids == ("a",)
    assert mismatch.differences == {"lease": (1, 2)}
