"""Errors name the queue, the option, both values and the rule; values in them are short and show no password."""

import copy
import inspect
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from decimal import Decimal
from multiprocessing import get_context

import pytest

import rqttl
import rqttl.demo.flights
import rqttl.metrics
import rqttl.telemetry
import rqttl.testing
import spark_connectors.errors  # noqa: F401  # its classes are subclasses, too
from rqttl import errors
from rqttl.delivery import Decision
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


#: A value for each parameter of an error that takes other ones than a text.
VALUES = {
    "queue": "q",
    "found": {"p": 1},
    "away": {"q": ConnectionError("away")},
    "differences": {"lease": (1, None)},
    "written": {"lease": ("1ms", None)},
    "value": 5,
    "count": 2,
    "paused": True,
    "operator": True,
    "ids": ["a", "b"],
    "sequences": ["1-1"],
    "until": datetime(2026, 1, 1, tzinfo=timezone.utc),
    "receipts": [rqttl.Receipt("a", None, False)],
    "confirmed": 1,
    "limit": 5,
    "waiting": 2,
    "place": 3,
    "delay": "5s",
}


def every(kind: type[Exception]) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        yield from (one, *every(one))


def an_error(kind: type[Exception]) -> Exception:
    if inspect.isfunction(kind.__init__):
        names = [name for name in inspect.signature(kind).parameters if name != "args"]
        error = kind(**{name: VALUES.get(name, name) for name in names})
    else:
        error = kind("text")
    error.__dict__["namespace"] = "other"  # as a driver sets it
    return error


def raise_full(_: int) -> None:
    raise errors.QueueFull("q", "max_length", 5)


@pytest.mark.parametrize(
    "kind", sorted({*every(RqttlError), *every(Decision)}, key=str), ids=lambda kind: kind.__name__
)
def test_an_error_is_the_same_after_pickle_and_copy(kind: type[Exception]) -> None:
    error = an_error(kind)

    pickled = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    for again in (pickled, copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert repr(vars(again)) == repr(vars(error))


def test_an_error_of_a_process_pool_reaches_its_caller_and_leaves_the_pool_whole() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        with pytest.raises(errors.QueueFull, match="max_length is 5"):
            pool.submit(raise_full, 1).result()
        assert pool.submit(abs, -1).result() == 1
