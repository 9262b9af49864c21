"""The part of SQL that filters can say, and anything else, which is refused."""

import random
from collections.abc import Callable, Mapping

import pytest

from rqttl.errors import InvalidInput
from rqttl.filters import Bindings, check_filter
from rqttl.imports.sql import read_sql

EXISTS = {"exists": True}
SQL: list[tuple[str, object]] = [
    ("1=1", []),
    ("a='x'", [{"a": "x"}]),
    ("[my prop].b = 'it''s'", [{"my prop.b": "it's"}]),
    ('a = -7 AND b = 1.5 and "c" = TRUE\nAND 1 = 1', [{"a": -7, "b": 1.5, "c": True}]),
    ("a = 'x' AND b = 1 OR c = 2", [{"a": "x", "b": 1}, {"c": 2}]),
    ("(a = 1 OR b = 2) AND (c = 3)", [{"a": 1, "c": 3}, {"b": 2, "c": 3}]),
    ("a <> 'x' AND a != 'y'", [{"a": {"not": ["x", "y"]}}]),
    ("a IN ('x', 'y') AND EXISTS(a) OR EXISTS(b) AND b = 1", [{"a": ["x", "y"]}, {"b": 1}]),
    ("NOT EXISTS ( a ) OR a NOT IN (1)", [{"a": {"exists": False}}, {"a": {"not": 1}}]),
    ("a IS NULL OR b IS NOT NULL AND NOT c IS NULL", [{"a": {"exists": False}}, {"b": EXISTS, "c": EXISTS}]),
    ("a LIKE 'in%' AND a IS NOT NULL", [{"a": {"prefix": "in"}}]),
    ("a LIKE 'x' AND b NOT LIKE 'y'", [{"a": "x", "b": {"not": "y"}}]),
    ("NOT (a = 1 AND NOT b = 2)", [{"a": {"not": 1}}, {"b": 2}]),
    ("subject IN ('a..b', 'c')", [{"subject": ["a..b", "c"]}]),
]


@pytest.mark.parametrize("text, expected", SQL)
def test_a_condition_becomes_rules(text: str, expected: object) -> None:
    assert check_filter(read_sql(text, ".".join)) == expected


OTHERS = (
    "|a|a > 7|a BETWEEN 1 AND 2|a + 1 = 2|a = 7L|a = 007|a = NULL|a = b|newid() = 1|1 = 0|NOT 1=1|'x' = a|a = 1 (b = 2)"
    "|a LIKE 'x%y'|a LIKE 'x_%'|NOT a LIKE 'x%'|a LIKE 'x!%' ESCAPE '!'|a LIKE '%'' OR b = ''%'|a = 1 b = 2|a = 1 OR"
    "|(a = 1|a = 1)|a = 1) AND (b = 2|a = 'x|a = 1 AND a = 2|a IS NULL AND a IS NOT NULL|EXISTS(a) AND a <> 1|()"
    "|a = 1 AND EXISTS(a) AND NOT EXISTS(a)|subject = 'a.*'|[\"] = 1|c0 AND a = 1|a = 1 IF a = 1 ELSE a = 1"
)
BAD = [
    *OTHERS.split("|"),
    "a=" + "9" * 500,
    "NOT " * 250 + "(" * 250,
    "(" * 250 + "a = 1" + ")" * 250,
    " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(40)),
    "'" * 1024,
    "a" * 1024,
    "a IN (" + "1," * 50_000,
]


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:30])
def test_other_sql_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        check_filter(read_sql(text, ".".join))


def made(chance: random.Random, names: str) -> tuple[str, Callable[[Mapping[str, int]], bool]]:
    """A condition as SQL and as a function. Each header stands in it once, so no rule has two conditions on one."""
    if chance.random() < 0.3:
        text, holds = made(chance, names)
        return f"NOT ({text})", lambda headers: not holds(headers)
    if len(names) == 1:
        values = chance.sample((0, 1, 2), 2)
        return f"{names} IN ({values[0]}, {values[1]})", lambda headers: headers[names] in values
    half = chance.randrange(1, len(names))
    (left, one), (right, other) = made(chance, names[:half]), made(chance, names[half:])
    if chance.random() < 0.5:
        return f"({left}) AND ({right})", lambda headers: one(headers) and other(headers)
    return f"({left}) OR ({right})", lambda headers: one(headers) or other(headers)


def test_a_condition_holds_for_the_same_messages_as_its_filter() -> None:
    chance = random.Random(7)
    for _ in range(300):
        text, holds = made(chance, "abcde")
        bindings = Bindings({"q": check_filter(read_sql(text, ".".join))})
        for _ in range(20):
            headers = {name: chance.randrange(3) for name in "abcde"}
            assert (bindings.find(headers) == ("q",)) == holds(headers), text
