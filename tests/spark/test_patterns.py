"""Patterns of queue names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connectors.options import patterns

NAMES = ["EXP", "EXP.a", "EXP.a.b", "dead", "orders.dead", "shop.orders.dead", "x.EXP", "x.EXP.y"]
PATHS = [
    "dead",
    "orders",
    "orders.dead",
    "orders/dead",
    "orders/dead/late",
    "shop.orders",
    "shop.orders/dead",
    "shop/eu/dead",
]


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("#", NAMES),
        ("EXP.#", ["EXP", "EXP.a", "EXP.a.b"]),
        ("EXP.*", ["EXP.a"]),
        ("*.EXP", ["x.EXP"]),
        ("#.dead", ["dead", "orders.dead", "shop.orders.dead"]),
        ("*.#.dead", ["orders.dead", "shop.orders.dead"]),
        ("#.EXP.#", ["EXP", "EXP.a", "EXP.a.b", "x.EXP", "x.EXP.y"]),
        ("*", ["EXP", "dead"]),
        ("orders.dead", ["orders.dead"]),
        ("exp", []),
    ],
)
def test_words_match_as_artemis_has_it(pattern: str, found: list[str]) -> None:
    assert patterns.pattern_error(pattern) is None
    assert patterns.matching(pattern, reversed(NAMES)) == found


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("*/dead", ["orders/dead"]),
        ("#/dead", ["dead", "orders/dead", "shop.orders/dead", "shop/eu/dead"]),
        ("*.*/dead", ["shop.orders/dead"]),
        ("shop.#", ["shop.orders", "shop.orders/dead"]),
        ("shop/#", ["shop/eu/dead"]),
        ("orders/*", ["orders/dead"]),
        ("orders/#", ["orders", "orders/dead", "orders/dead/late"]),
        ("orders.*", ["orders.dead"]),
        ("#.dead", ["dead", "orders.dead"]),
        ("shop.#/dead", ["shop.orders/dead"]),
        ("*", ["dead", "orders"]),
        ("#", PATHS),
    ],
)
def test_a_word_ends_at_a_dot_or_a_slash_and_a_slash_is_no_dot(pattern: str, found: list[str]) -> None:
    assert patterns.pattern_error(pattern) is None
    assert patterns.matching(pattern, PATHS) == found


@pytest.mark.parametrize("pattern", ["", "a#", "#a", "a.*b", "**", "a b", "a.#*.b", "a/*b", "#a/dead"])
def test_a_wildcard_stands_alone_between_separators(pattern: str) -> None:
    assert patterns.pattern_error(pattern) is not None


SEPARATORS = st.lists(st.sampled_from("./"), min_size=8, max_size=8)
WORDS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=6)


def joined(separators: list[str], words: list[str]) -> str:
    return "".join(f"{separator}{word}" for separator, word in zip(["", *separators], words, strict=False))


def as_expression(pattern: str) -> str:
    """A regular expression for a pattern, for names without empty words."""
    word, expression = "[^./]+", ""
    parts = re.split(r"([./])", pattern)
    for separator, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        if text == "#":
            expression += f"(?:{re.escape(separator) or ''}{word}(?:[./]{word})*|)"
        else:
            # behind a `#` for no word at the start of the name no separator stands
            first = f"(?:(?<!.)|{re.escape(separator)})" if separator else ""
            expression += first + (word if text == "*" else re.escape(text))
    return expression


@given(SEPARATORS, WORDS, SEPARATORS, st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=7))
def test_any_pattern_matches_as_a_regular_expression_does(
    between: list[str], pattern: list[str], separators: list[str], words: list[str]
) -> None:
    written, name = joined(between, pattern), joined(separators, words)

    assert bool(patterns.matching(written, [name])) == bool(re.fullmatch(as_expression(written), name))


def test_a_long_pattern_takes_no_long_time() -> None:
    assert patterns.matching(".".join(["#", "a"] * 2_000), ["a." * 60 + "b"]) == []


def test_characters_of_regular_expressions_mean_themselves() -> None:
    assert patterns.matching("a+", ["a+", "aa", re.escape("a+")]) == ["a+"]
