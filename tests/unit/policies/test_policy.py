"""One policy: the check of its arguments, its text in Redis and its text for people."""

import json
from datetime import timedelta
from typing import Any

import pytest

from rqttl import InvalidPolicy, Policy
from rqttl.options import DECLARED_ONLY, OPTIONS
from tests.hostile import VALUES as HOSTILE
from tests.hostile import Own

GOOD: dict[str, Any] = {"name": "short", "pattern": "orders.#", "definition": {"message-ttl": "5m"}}
WHOLE = "expected a whole number from -1000000 to 1000000"
NAME = "1 to 128 of A-Z a-z 0-9 . _ : / -, first a letter or digit"
COUNT = "expected a whole number from 0 to 9007199254740991"
TEN_YEARS = "315360000000 ms (10 years)"
UNIT = "with a unit such as '30s', '5m' or '1500ms'"
LOOP = "expected a queue name or a template with {queue}"


def read(**changes: Any) -> Policy:
    return Policy.read(**{**GOOD, **changes})


def refusal(**changes: Any) -> str:
    with pytest.raises(InvalidPolicy) as refused:
        read(**changes)
    return str(refused.value)


@pytest.mark.spec("POL-04")
@pytest.mark.parametrize(
    "definition,rule",
    [
        ({}, "definition: expected at least one option, got none"),
        (None, "definition: expected a mapping of options, got None"),
        ("message-ttl: 5m", "definition: expected a mapping of options, got 'message-ttl: 5m'"),
        ([("lease", "1s")], "definition: expected a mapping of options, got list"),
        ({"message-tll": "5m"}, "message-tll: no such queue option; did you mean message_ttl?"),
        ({"lease": "1s", "max_lenght": 5}, "max_lenght: no such queue option; did you mean max_length?"),
        ({"x-expires": "1s"}, "x-expires: no such queue option; did you mean expires?"),
        ({5: 1}, "options: expected the name of an option, got int 5"),
        ({"max-length": 1, "max_length": 1}, "max_length: given twice, with a hyphen and with an underscore"),
        ({"min_ttl": "5m", "max_ttl": "1m"}, "min_ttl: 5m is more than max_ttl, 1m"),
    ],
)
def test_a_definition_that_is_no_mapping_of_options_is_refused(definition: object, rule: str) -> None:
    assert refusal(definition=definition) == f"policy 'short': {rule}"


@pytest.mark.spec("POL-05")
@pytest.mark.parametrize(
    "option,value,rule",
    [
        ("message-ttl", 60, "expected a duration with a unit, got 60: write '60s' or '60ms'"),
        ("message_ttl", "60", "expected a duration with a unit, got '60': write '60s' or '60ms'"),
        ("message_ttl", True, f"expected a timedelta or text {UNIT}, got True"),
        ("message_ttl", "4000d", f"expected 0 to {TEN_YEARS}, got '4000d'"),
        ("expires", "0s", f"expected 1 to {TEN_YEARS}, got '0s'"),
        ("max-length", -1, f"{COUNT}, got -1"),
        ("max_length", True, f"{COUNT}, got bool True"),
        ("max_length", "5", f"{COUNT}, got str '5'"),
        ("max_length", 2**300, f"{COUNT}, got int of 301 bits"),
        ("max_deliveries", 0, "expected a whole number from 1 to 9007199254740991, got 0"),
        ("overflow", "mystery", "expected one of drop-head, reject-publish, reject-publish-dlx, got 'mystery'"),
        ("on-expire", "delete", "expected one of drop, dead-letter, keep, got 'delete'"),
        ("never_expire", 1, "expected true or false, got int 1"),
        ("redelivery_multiplier", 0.5, "expected a number from 1 to 9007199254740991, got 0.5"),
        ("redelivery_jitter", 1.5, "expected a number from 0 to 1, got 1.5"),
        ("dead_letter", 5, f"{LOOP}, got int 5"),
        ("dead_letter", "a b", f"queue name: expected {NAME}, got 'a b'"),
        ("dead_letter_expired", "EXP.{name}", f"queue name: expected {NAME}, got 'EXP.{{name}}'"),
    ],
)
def test_a_value_that_breaks_a_rule_is_refused_with_its_option(option: str, value: object, rule: str) -> None:
    refused = refusal(definition={"lease": "1s", option: value})

    assert refused == f"policy 'short': {option.replace('-', '_')}: {rule}"


def test_another_policy_may_bring_the_delay_that_a_pause_needs() -> None:
    assert read(definition={"redelivery_max_delay": "1s"}).definition == {"redelivery_max_delay": 1_000}


@pytest.mark.spec("POL-06")
def test_a_priority_is_a_whole_number_between_its_bounds_and_may_be_negative() -> None:
    for priority in (0, -5, 1_000_000, -1_000_000):
        assert read(priority=priority).priority == priority
    for wrong, got in ((True, "bool True"), (1_000_001, "1000001"), (2**300, "int of 301 bits")):
        assert refusal(priority=wrong) == f"policy 'short': priority: {WHOLE}, got {got}"


@pytest.mark.spec("POL-02")
@pytest.mark.parametrize("wrong,got", [("topics", "'topics'"), (b"queues", "bytes b'queues'"), (None, "None")])
def test_a_policy_applies_to_queues_only_and_a_syntax_is_one_of_two(wrong: object, got: str) -> None:
    rule = "expected 'queues', the only kind that exists"

    assert refusal(apply_to=wrong) == f"policy 'short': apply_to: {rule}, got {got}"
    assert refusal(syntax=wrong) == f"policy 'short': syntax: expected one of wildcard, regex, got {got}"


@pytest.mark.parametrize("name,got", [("a b", "'a b'"), (b"a", "bytes b'a'"), (True, "bool True")])
@pytest.mark.parametrize("operator,kind", [(False, "policy"), (True, "operator policy")])
def test_the_name_of_a_policy_follows_the_rule_of_queue_names(
    name: object, got: str, operator: bool, kind: str
) -> None:
    assert refusal(name=name, operator=operator) == f"name of the {kind}: expected {NAME}, got {got}"


@pytest.mark.parametrize("argument", ["name", "pattern", "definition", "priority", "apply_to", "syntax", *OPTIONS])
def test_hostile_values_are_read_or_refused_with_a_typed_error(argument: str) -> None:
    for make in HOSTILE.values():
        value = make()
        try:
            read(**({"definition": {argument: value}} if argument in OPTIONS else {argument: value}))
        except InvalidPolicy:
            continue
        except Own:  # from the methods of a mapping
            if argument != "definition":
                raise


@pytest.mark.parametrize("spelling", ["message-ttl", "message_ttl"])
@pytest.mark.parametrize(
    "value,stored", [("5m", 300_000), (timedelta(seconds=1), 1_000), (0, 0), ("none", None), (None, None)]
)
def test_options_are_read_in_both_spellings(spelling: str, value: object, stored: int | None) -> None:
    assert read(definition={spelling: value}).definition == {"message_ttl": stored}


@pytest.mark.spec("POL-13")
@pytest.mark.parametrize("option", OPTIONS.keys() - DECLARED_ONLY)
def test_any_option_may_be_in_a_definition_and_be_none(option: str) -> None:
    values = {"duration": "5s", "count": 5, "size": 5, "number": 1, "flag": True, "target": "dead"}
    good = values.get(OPTIONS[option].kind, OPTIONS[option].default)

    assert list(read(definition={option: good}).definition) == [option]
    assert read(definition={option.replace("_", "-"): "none"}).definition == {option: None}


PARTS: dict[str, Any] = json.loads(read().as_json())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"pattern":"a"}',
        *(json.dumps({key: value for key, value in PARTS.items() if key != part}) for part in PARTS),
        *(json.dumps({**PARTS, part: None}) for part in PARTS),
        json.dumps({**PARTS, "more": 1}),
        json.dumps({**PARTS, "definition": {"lease": -1}}),
        json.dumps({**PARTS, "definition": {"leese": 1}}),
        json.dumps({**PARTS, "definition": [["lease", 1]]}),
    ],
)
def test_a_damaged_text_is_refused_with_the_policy(text: bytes | str) -> None:
    with pytest.raises(InvalidPolicy, match=r"^operator policy 'short': "):
        Policy.from_json("short", True, text)
