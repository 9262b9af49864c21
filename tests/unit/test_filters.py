"""Filters: what is refused, the canonical form, which queues get a message, and no pattern that hangs.

RQTTL_MODEL_RUNS raises the number of random cases; 20000 is a campaign. A failure names the seed of its case.
"""

import json
import os
import random
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import pytest

from rqttl import InvalidInput
from rqttl.filters import Bindings, canonical_json, check_filter
from rqttl.types import Death

RUNS = int(os.environ.get("RQTTL_MODEL_RUNS", "500"))
NAMES = ("subject", "country", "amount")
TEXTS = ("a", "b", "a.b", "b.a", "a.a.b", "a..b", "1", "", "DE", "de")
VALUES = (*TEXTS, True, False, 0, 1, 1.0, 1.5, -1)
WORDS = ("a", "b", "*", "#", "#")


class Country(str, Enum):
    GERMANY = "DE"


def bound(**filters: object) -> Bindings:
    """Bindings as a record keeps them: through their JSON."""
    return Bindings(json.loads(canonical_json({queue: check_filter(one) for queue, one in filters.items()})))


def matches(filter: object, headers: Mapping[str, Any]) -> bool:
    return bound(q=filter).find(headers) == ("q",)


def death(queue: str, reason: str) -> Death:
    now = datetime.now(timezone.utc)
    return Death(queue, reason, 1, now, now, now, None, 1, None)


SUBJECT, X = "header 'subject': ", "header 'x': "
WORDS_ALONE = "expected words with dots between them, at most 255 bytes, got "
STARS_ALONE = "expected each '*' and '#' as a word of its own, got "
PATTERN_ALONE = "expected a pattern alone, without a list or 'not'; a list of filters can have several, got "
SIMPLE = "expected text, a finite number of at most 64 bits, true or false, got "
OPERATORS = "expected one of the operators exists, not, pattern, prefix, got "
UNMATCHED = "header 'unmatched': expected {\"unmatched\": True} without another rule"
REFUSED: list[tuple[str, list[Any]]] = [
    ("expected text, a mapping or a list of these, got ", [7, True, b"a", {"a"}, range(0), [None], [["a"]]]),
    ("name of a header: expected non-empty text, got ", [{"": 1}, {7: 1}, [{"fine": 1}, {None: 1}]]),
    (SUBJECT + WORDS_ALONE, ["", ".", "a..b", ".a", ["a", "a."], {"subject": ""}, {"subject": {"pattern": 7}}]),
    (SUBJECT + WORDS_ALONE, ["é" * 128]),
    (X + WORDS_ALONE, [{"x": {"pattern": "a."}}, {"x": {"pattern": b"a"}}, {"x": {"pattern": None}}]),
    (SUBJECT + STARS_ALONE, ["orders*", "#a", "a.##", "a.*b"]),
    (X + STARS_ALONE, [{"x": {"pattern": "a.*#"}}]),
    (SUBJECT + PATTERN_ALONE, [{"subject": ["a.*"]}, {"subject": ["a", "#"]}, {"subject": {"not": "a.#"}}]),
    (X + "expected at least one value, got an empty list", [{"x": []}, {"x": {"not": []}}]),
    (X + SIMPLE, [{"x": None}, {"x": b"a"}, {"x": [["a"]]}, {"x": {"not": {"not": 1}}}, {"x": float("nan")}]),
    (X + SIMPLE, [{"x": ["a", float("-inf")]}, {"x": {"not": 2**64}}, {"x": -(2**63) - 1}, {"x": [10**9999]}]),
    (X + OPERATORS, [{"x": {"gt": 1}}, {"x": {1: 1}}, {"x": {}}, {"x": {"not": 1, "exists": True}}]),
    (X + OPERATORS, [{"x": {"Prefix": "a"}}]),
    (X + "exists: expected true or false, got ", [{"x": {"exists": 1}}, {"x": {"exists": None}}]),
    (X + "prefix: expected text, got ", [{"x": {"prefix": ["a"]}}, {"x": {"prefix": 1}}]),
    (UNMATCHED, [{"unmatched": False}, {"unmatched": 1}, {"unmatched": True, "x": 1}, [{"unmatched": True}, {}]]),
    (UNMATCHED, [[{"unmatched": True}, "a"], {"unmatched": [True, False]}, {"unmatched": {"exists": True}}]),
]


@pytest.mark.parametrize("rule,filter", [(rule, one) for rule, refused in REFUSED for one in refused])
def test_a_refusal_names_filter_header_and_rule(rule: str, filter: object) -> None:
    with pytest.raises(InvalidInput) as error:
        check_filter(filter, "--filter")

    assert str(error.value).startswith(f"--filter: {rule}")


@pytest.mark.parametrize(
    "filters,canonical",
    [
        ((None, {}, [], [{}], ["a", {}]), "[]"),
        (("a.#", ["a.#"], {"subject": {"pattern": "a.#"}}, ["a.#", {"subject": "a.#"}]), '[{"subject":"a.#"}]'),
        (({"b": 1, "a": [True]}, {"a": True, "b": (1.0,)}), '[{"a":true,"b":1}]'),
        (({"a": ["x", 1, "x", True]}, {"a": [True, 1.0, "x"]}), '[{"a":["x",1,true]}]'),
        (({"a": {"not": ["x"]}}, {"a": {"not": "x"}}), '[{"a":{"not":"x"}}]'),
        ((["b", "a"], [{"subject": "a"}, "b"]), '[{"subject":"a"},{"subject":"b"}]'),
        (({"a": Country.GERMANY}, {"a": "DE"}), '[{"a":"DE"}]'),
        (({"a": 1e300},), '[{"a":1e+300}]'),
        (({"a": 2**64 - 1},), '[{"a":18446744073709551615}]'),
        (({"subject": ["a..b"]},), '[{"subject":["a..b"]}]'),
        (({"unmatched": True}, [{"unmatched": True}]), '[{"unmatched":true}]'),
    ],
)
def test_equal_filters_have_one_canonical_form_which_can_be_given_again(filters: Any, canonical: str) -> None:
    assert {canonical_json(check_filter(filter)) for filter in filters} == {canonical}
    assert check_filter(json.loads(canonical)) == json.loads(canonical)


@pytest.mark.parametrize(
    "condition,yes,no",
    [
        ("x", ["x"], ["X", "x ", b"x", None, ...]),
        (1, [1, 1.0], [True, "1", 2, ...]),
        (True, [True], [1, 1.0, "True", False, ...]),
        (0, [0, -0.0], [False, None, "", ...]),
        (["a", 1], ["a", 1.0], [True, "b", ...]),
        ([True, 1], [True, 1], [False, "1"]),
        ({"not": "x"}, ["X", 1, None, b"x", ...], ["x"]),
        ({"not": [1, "x"]}, [True, "1", ...], [1, 1.0, "x"]),
        ({"exists": True}, [None, "", False, b""], [...]),
        ({"exists": False}, [...], [None, "", False, b""]),
        ({"prefix": "inv-"}, ["inv-", "inv-1"], ["INV-1", "a inv-", b"inv-1", 1, None, ...]),
        ({"pattern": "a.*"}, ["a.b"], ["a", "a.b.c", b"a.b", 1, None, ...]),
        ({"pattern": "a.b"}, ["a.b"], ["a", b"a.b", 1, ...]),
        ("a.*", ["a.*"], ["a.b"]),
        ("DE", ["DE", Country.GERMANY], ["de"]),
        ({"pattern": "*"}, ["DE", Country.GERMANY], ["a.b"]),
    ],
)
def test_a_condition_looks_at_value_and_type(condition: object, yes: list[Any], no: list[Any]) -> None:
    bindings = bound(q={"x": condition})

    def found(value: Any) -> bool:
        return bindings.find({} if value is ... else {"x": value}) == ("q",)

    assert ([value for value in yes if not found(value)], [value for value in no if found(value)]) == ([], [])
    assert ([value for value in no[::-1] if found(value)], [value for value in yes if not found(value)]) == ([], [])


@pytest.mark.parametrize(
    "pattern,yes,no",
    [
        ("orders.*.created", ["orders.eu.created"], ["orders.created", "orders.a.b.created", "Orders.eu.created"]),
        ("orders.#", ["orders", "orders.eu", "orders.eu.a"], ["order", "ordersx", "x.orders"]),
        ("#", ["a", "a.b", "", "a..b"], []),
        ("#.a", ["a", "b.a", "b.c.a"], ["a.b", "ba"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.b.b"], ["a", "b", "a.b.c", "ab"]),
        ("#.a.#.a.#", ["a.a", "x.a.y.a.z"], ["a", "x.a.y"]),
        ("*.#.*", ["a.b", "a.b.c"], ["a"]),
        ("#.*", ["a", "a.b"], []),
        ("a+.ä", ["a+.ä"], ["aa.ä", "a+.a\u0308"]),
        ("a.*", ["a.b\n", "a."], ["a\n.b", "a"]),
    ],
)
def test_words_of_a_subject_match(pattern: str, yes: list[str], no: list[str]) -> None:
    found = {text: matches(pattern, {"subject": text}) for text in yes + no}

    assert found == {**dict.fromkeys(yes, True), **dict.fromkeys(no, False)}
    assert not matches(pattern, {"other": yes[0]})


def test_queues_stand_in_the_order_of_their_names_and_get_one_copy_each() -> None:
    bindings = bound(c=["a.*", "*.b", {"x": 1}], a=None, b={"subject": "a.b", "x": {"exists": False}})

    assert bindings.find({"subject": "a.b"}) == ("a", "b", "c")
    assert bindings.find({"subject": "a.b", "x": 1}) == ("a", "c")
    assert bound().find({"x": 1}) == ()


def test_unmatched_gets_what_no_other_binding_wants() -> None:
    bindings = bound(rest={"unmatched": True}, other={"unmatched": True}, eu="eu.#")

    assert bindings.find({"subject": "eu.a"}) == ("eu",)
    assert bindings.find({"unmatched": True}) == bindings.find({}) == ("other", "rest")
    assert bound(rest={"unmatched": True}, all=None).find({}) == ("all",)


def test_the_newest_death_is_named_and_no_sender_forges_it() -> None:
    bindings = bound(late={"death.queue": "orders", "death.reason": ["expired", "maxlen"]}, x={"x": 1})
    forged: dict[str, Any] = {"death.queue": "orders", "death.reason": "expired", "x": 1}

    assert bindings.find({"x": 1}, death("orders", "expired")) == ("late", "x")
    assert bindings.find({}, death("orders", "rejected")) == bindings.find({}, death("other", "expired")) == ()
    assert bindings.find(forged) == ("x",)


def test_answers_that_are_remembered_are_bounded() -> None:
    bindings = bound(q={"x": {"not": 7}})

    assert [n for n in range(5_000) if bindings.find({"x": n}) != ("q",)] == [7]
    assert bindings._answer.cache_info().currsize == 1_024


def test_no_pattern_hangs() -> None:
    pattern = ".".join("#a" * 63) + ".#.b"

    assert not matches(pattern, {"subject": ".".join("a" * 32_000)})
    assert matches(pattern, {"subject": ".".join("a" * 32_000) + ".b"})


# Random cases


def text_matches(pattern: str, text: object) -> bool:
    """The reference: the set of places in the pattern at which a match can stand after each word."""
    if not isinstance(text, str):
        return False
    words = pattern.split(".")

    def skip(places: set[int]) -> set[int]:
        for place in range(len(words)):
            if place in places and words[place] == "#":
                places.add(place + 1)
        return places

    places = skip({0})
    for word in text.split("."):
        ahead = {place + 1 for place in places if place < len(words) and words[place] in ("*", word)}
        places = skip(ahead | {place for place in places if place < len(words) and words[place] == "#"})
    return len(words) in places


def same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def holds(name: str, condition: Any, headers: Mapping[str, Any]) -> bool:
    value = headers.get(name)
    if isinstance(condition, dict):
        ((operator, operand),) = condition.items()
        if operator == "exists":
            return (name in headers) is operand
        if operator == "prefix":
            return isinstance(value, str) and value[: len(operand)] == operand
        if operator == "pattern":
            return text_matches(operand, value)
        return not holds("", operand, {"": value} if name in headers else {})
    if name == "subject" and isinstance(condition, str):
        return text_matches(condition, value)
    return name in headers and any(
        same(value, one) for one in (condition if isinstance(condition, list) else [condition])
    )


def wants(filter: Any, headers: Mapping[str, Any]) -> bool:
    if isinstance(filter, str):
        return text_matches(filter, headers.get("subject"))
    if isinstance(filter, list):
        return not filter or any(wants(one, headers) for one in filter)
    return filter is None or all(holds(name, condition, headers) for name, condition in filter.items())


def find(filters: Mapping[str, Any], headers: Mapping[str, Any]) -> tuple[str, ...]:
    rest = {queue for queue, filter in filters.items() if filter == {"unmatched": True}}
    return tuple(sorted(q for q in filters if q not in rest and wants(filters[q], headers))) or tuple(sorted(rest))


def some_pattern(drawn: random.Random, most: int = 4) -> str:
    return ".".join(drawn.choices(WORDS, k=drawn.randint(1, most)))


def some_condition(drawn: random.Random, name: str) -> object:
    values = drawn.choices(VALUES, k=drawn.randint(1, 3))
    return drawn.choice(
        (
            some_pattern(drawn) if name == "subject" else values[0],
            values,
            {"not": drawn.choice((values, values[0]))},
            {"exists": drawn.random() < 0.5},
            {"prefix": drawn.choice(TEXTS)},
            {"pattern": some_pattern(drawn)},
        )
    )


def some_rule(drawn: random.Random) -> object:
    names = drawn.sample(NAMES, k=drawn.choice((0, 1, 1, 2, 3)))
    return some_pattern(drawn) if drawn.random() < 0.2 else {name: some_condition(drawn, name) for name in names}


def some_filter(drawn: random.Random) -> object:
    several = [some_rule(drawn) for _ in range(drawn.randint(0, 3))]
    return drawn.choice((None, {"unmatched": True}, several, *[some_rule(drawn)] * 4))


def some_headers(drawn: random.Random) -> dict[str, Any]:
    values = (*VALUES, None, b"a", Country.GERMANY)
    return {name: drawn.choice(values) for name in drawn.sample(NAMES, k=drawn.randint(0, 3))}


def test_find_is_the_reference_for_random_bindings_and_messages() -> None:
    for seed in range(RUNS):
        drawn = random.Random(seed)
        filters = {queue: some_filter(drawn) for queue in drawn.sample("abcdef", k=drawn.randint(0, 6))}
        bindings = bound(**filters)
        messages = [some_headers(drawn) for _ in range(5)] * 2  # the second time each answer is remembered

        found = [bindings.find(headers) for headers in messages]

        assert (seed, found) == (seed, [find(filters, headers) for headers in messages])


def test_a_pattern_matches_as_the_sets_of_places_do() -> None:
    for seed in range(2 * RUNS):
        drawn = random.Random(seed)
        pattern, text = some_pattern(drawn, 8), ".".join(drawn.choices(("a", "b", ""), k=drawn.randint(1, 8)))

        assert (seed, matches(pattern, {"subject": text})) == (seed, text_matches(pattern, text))
