"""Errors name the queue, the option, both values and the rule; values in them are short and show no password."""

from decimal import Decimal

import pytest

import rqttl
from rqttl import errors
from rqttl.errors import RqttlError
from rqttl.text import format_value
from tests.unit.reference import public_errors

MISMATCH = (
    "queue 'q' exists with other options (lease: requested 1, declared None; overflow: requested 'a', declared 'b'): "
    "use update() to change them"
)
UNKNOWN = (
    "queue 'q': the connection was lost before the reply to enqueue arrived; Redis may or may not have performed it"
)


def test_every_error_is_public_and_has_a_code_of_its_own() -> None:
    every: list[type[RqttlError]] = [RqttlError, *public_errors()]

    assert len({one.code for one in every}) == len(every)
    assert {one.__name__ for one in every} <= set(rqttl.__all__)


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


@pytest.mark.parametrize(
    "value, expected, text",
    [
        (17, str, "int 17"),
        ("17", str, "'17'"),
        ("17", int, "str '17'"),
        (0, int, "0"),
        (True, int, "bool True"),
        (1, bool, "int 1"),
        (1.5, int, "float 1.5"),
        (None, str, "None"),
        (b"x", str, "bytes b'x'"),
        (Decimal(1), int, "decimal.Decimal"),
        ([1], str, "list"),
        (object(), str, "object"),
        pytest.param(10**5000, int, "int of 16610 bits", id="huge"),
    ],
)
def test_a_value_of_another_type_is_shown_with_its_type(value: object, expected: type, text: str) -> None:
    assert format_value(value, expected) == text


def test_a_long_value_is_cut_and_says_how_long_it_is() -> None:
    assert format_value("x" * 129) == f"'{'x' * 37}...{'x' * 38}' (129 characters)"
    assert format_value(b"x" * 1_000_000).endswith(" (1000000 bytes)")
