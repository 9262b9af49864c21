"""The option table: every rule, both spellings, and what the complaints say."""

import math
import re

import pytest

from rqttl import InvalidDuration, InvalidOption, QueueOptions
from rqttl.options import OPTIONS, REASONS
from rqttl.units import MAX_DURATION

DURATIONS = [name for name, option in OPTIONS.items() if option.kind == "duration"]
TARGETS = [name for name, option in OPTIONS.items() if option.kind == "target"]


#: The options that are refused without `redelivery_delay`.
PAUSES = ("redelivery_multiplier", "redelivery_max_delay", "redelivery_jitter")


def read(**options: object) -> QueueOptions:
    return QueueOptions.read("orders", options)


def with_its_like(name: str, value: object) -> QueueOptions:
    """The options of a queue with this one, and with the one that it needs."""
    return read(**({"redelivery_delay": "1ms"} if name.replace("-", "_") in PAUSES else {}) | {name: value})


def test_an_option_that_is_not_given_has_its_default() -> None:
    options = read()

    assert dict(options) == {name: option.default for name, option in OPTIONS.items()}
    assert (options.lease, options.overflow, options.max_message_bytes) == (30_000, "drop-head", 16 * 2**20)
    assert options.message_ttl is None


@pytest.mark.spec("TTL-02", "TTL-03", "TTL-05", "TTL-06", "A-016")
@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [-1, 60, True, 1.5, "5", "5 min", f"{MAX_DURATION + 1}ms", []])
def test_a_duration_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidDuration, match=rf"^{name}: expected .*, got "):
        read(**{name: value})


@pytest.mark.spec("QTL-01")
@pytest.mark.parametrize("name", DURATIONS)
def test_zero_is_a_ttl_but_no_lease_and_no_lifetime(name: str) -> None:
    if name.endswith("_ttl"):
        assert read(**{name: 0})[name] == 0
    else:
        assert with_its_like(name, "1ms")[name] == 1
        with pytest.raises(InvalidDuration, match=rf"^{name}: expected 1 to"):
            read(**{name: 0})


@pytest.mark.parametrize(
    "word, hint",
    [
        ("ttl", "did you mean message_ttl?"),
        ("dlq", "did you mean dead_letter?"),
        ("durable", "every queue is stored, and `rqttl doctor` says what a crash of Redis can lose"),
        ("max_lenght", "did you mean max_length?"),
        ("message-tll", "did you mean message_ttl?"),
        ("dead_leter", "did you mean dead_letter?"),
    ],
)
def test_an_unknown_option_or_one_of_another_tool_is_answered_with_the_nearest_of_ours(word: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match=rf"^{word}: no such queue option; {re.escape(hint)}$"):
        read(**{word: 1})


@pytest.mark.parametrize("name", ["max_length_bytes", "max_message_bytes"])
@pytest.mark.parametrize(
    "text, size", [("7", 7), ("500kB", 500_000), ("10 MB", 10**7), ("1.5g", 1_500_000_000), ("2MiB", 2**21)]
)
def test_a_size_may_have_a_unit(name: str, text: str, size: int) -> None:
    assert read(**{name: text})[name] == size


@pytest.mark.parametrize("name", ["max_length_bytes", "max_message_bytes"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "much", "-5MB", "5iB", "9999999999TB", 2**53, []])
def test_another_value_is_no_size(name: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=rf"^{name}: expected bytes, [01] or more, such as .*, got "):
        read(**{name: value})


@pytest.mark.parametrize(
    "name,good,bad",
    [
        ("redelivery_multiplier", [1, 1.0, 1.5, 2, 2**53 - 1], [0.999, 0, -2, 2**53]),
        ("redelivery_jitter", [0, -0.0, 0.25, 1], [-0.1, 1.1, 2]),
    ],
)
def test_a_number_may_have_a_fraction_and_lies_in_its_range(name: str, good: list[float], bad: list[float]) -> None:
    for value in good:
        assert with_its_like(name, value)[name] == value
    for wrong in (*bad, True, "1", math.nan, math.inf, 10**400, []):
        with pytest.raises(InvalidOption, match=rf"^{name}: expected a number from [01] to \d+, got "):
            with_its_like(name, wrong)


def test_equal_numbers_are_one_option_and_the_defaults_are_left_out() -> None:
    one = read(redelivery_delay="1s", redelivery_multiplier=2, redelivery_jitter=1)

    assert one.as_json() == read(redelivery_delay="1s", redelivery_multiplier=2.0, redelivery_jitter=1.0).as_json()
    assert read(redelivery_multiplier=1.0, redelivery_jitter=0.0) == read()
    assert QueueOptions.from_json("orders", one.as_json()) == one


@pytest.mark.parametrize(
    "name,value,said",
    [
        ("redelivery_multiplier", 1.5, "1.5"),
        ("redelivery_max_delay", "5s", "5000 ms"),
        ("redelivery_jitter", 0.5, "0.5"),
    ],
)
def test_options_that_shape_a_pause_are_refused_without_a_pause(name: str, value: object, said: str) -> None:
    complaint = f"^{name}: {said} does nothing without redelivery_delay; set both or none$"
    with pytest.raises(InvalidOption, match=complaint):
        read(**{name: value})
    with pytest.raises(InvalidOption, match=complaint):
        read(redelivery_delay="1s", **{name: value}).changed({"redelivery_delay": None})


def test_the_target_of_a_reason_goes_before_the_target_of_all() -> None:
    options = read(dead_letter="dead.{queue}", dead_letter_maxlen="full", dead_letter_expired="")

    assert [options.target(reason) for reason in REASONS] == ["", "full", "dead.orders", "dead.orders"]
    assert [read().target(reason) for reason in REASONS] == [""] * 4


def test_a_template_that_makes_a_name_too_long_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"^dead_letter: "):
        QueueOptions.read("q" * 120, {"dead_letter": "DEAD.LETTERS.{queue}"})


def test_an_option_at_its_default_is_the_option_left_out() -> None:
    assert read(lease="30s", overflow="drop-head", never_expire=False, message_ttl=None) == read()
    assert read(lease="30s").as_json() == "{}"


def test_changes_are_checked_together_with_what_stays() -> None:
    options = read(min_ttl="5ms", max_length=3)

    assert options.changed({"max-length": None, "lease": "1s"}) == read(min_ttl="5ms", lease="1s")
    with pytest.raises(InvalidOption, match=r"^min_ttl: 5ms is more than max_ttl, 4ms"):
        options.changed({"max_ttl": "4ms"})
    with pytest.raises(InvalidOption, match="no such queue option"):
        options.changed({"max_lengthh": None})


def test_a_change_reads_what_is_written_and_leaves_what_is_stored() -> None:
    stored = QueueOptions.from_json("orders", '{"lease":5,"message_ttl":60000}')

    assert stored.changed({"lease": "7s"}).non_default == {"lease": 7_000, "message_ttl": 60_000}
    assert stored.changed({"message-ttl": None}).non_default == {"lease": 5}
    with pytest.raises(InvalidDuration, match=r"^lease: expected a duration with a unit, got 5: write '5s' or '5ms'$"):
        stored.changed({"lease": 5})


def test_stored_options_are_checked_as_written_ones_are() -> None:
    stored: dict[str, object] = {"message_ttl": 60_000, "max_length": 5}

    assert QueueOptions.read_stored("orders", stored) == read(message_ttl="1m", max_length=5)
    for name, wrong in {"message_ttl": -1, "lease": 0, "max_ttl": 1.5, "expires": 10**30, "max_length": "5"}.items():
        with pytest.raises((InvalidDuration, InvalidOption), match=f"^{name}: "):
            QueueOptions.read_stored("orders", {**stored, name: wrong})
    with pytest.raises(InvalidOption, match="no such queue option"):
        QueueOptions.read_stored("orders", {"max_lenght": 5})


def test_options_are_read_like_a_mapping_and_by_attribute() -> None:
    options = read(max_length=3)

    assert (options["max_length"], options.max_length, len(options), "lease" in options) == (3, 3, len(OPTIONS), True)
    with pytest.raises(KeyError):
        options["forward"]
    with pytest.raises(AttributeError):
        _ = options.forward
