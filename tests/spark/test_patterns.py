"""Patterns of queue names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connectors.options import patterns

NAMES = ["EXP", "EXP.a", "EXP.a.b", "dead", "orders.dead", "shop.orders.dead", "x.EXP", "x.EXP.y"]


@pytest.mark.parametrize("pattern, found", [
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
])  # fmt: skip
def test_words_match_as_artemis_has_it(pattern: str, found: list[str]) -> None:
    assert patterns.fault(pattern) is None
    assert patterns.select(pattern, reversed(NAMES)) == found


@pytest.mark.parametrize("pattern", ["", "a#", "#a", "a.*b", "**", "a b", "a.#*.b"])
def test_a_wildcard_stands_alone_between_dots(pattern: str) -> None:
    assert patterns.fault(pattern) is not None


WORDS = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=6)


def matches(pattern: list[str], words: list[str]) -> bool:
    """What a pattern means, word by word."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches(pattern[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


@given(WORDS, st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=7))
def test_any_pattern_matches_what_it_means(pattern: list[str], words: list[str]) -> None:
    found = patterns.select(".".join(pattern), [".".join(words)])

    assert bool(found) == matches(pattern, words)


def test_characters_of_regular_expressions_mean_themselves() -> None:
    assert patterns.select("a+", ["a+", "aa", re.escape("a+")]) == ["a+"]
