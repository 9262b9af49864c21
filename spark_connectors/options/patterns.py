"""Patterns of queue names, as Artemis writes addresses: words with dots between them, `*` one word, `#` any words."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"\*|#|[^*#.\s]*", re.ASCII)


def fault(pattern: str) -> str | None:
    """What is wrong with a pattern; `None` if nothing is."""
    if not pattern:
        return "expected words with dots between them"
    if all(_WORD.fullmatch(word) for word in pattern.split(".")):
        return None
    return "expected words with dots between them; * and # stand for whole words, alone between the dots"


def select(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that match, sorted."""
    words = pattern.split(".")
    return sorted(name for name in names if _matches(words, name.split(".")))


def _matches(pattern: list[str], words: list[str]) -> bool:
    """`#` also stands for no word at all: `EXP.#` matches `EXP`, and `#.dead` matches `dead`."""
    at, wide, retry = 0, -1, 0
    index = 0
    while index < len(words):
        if at < len(pattern) and pattern[at] == "#":
            wide, retry = at, index
            at += 1
        elif at < len(pattern) and pattern[at] in ("*", words[index]):
            at, index = at + 1, index + 1
        elif wide >= 0:
            # the last # takes one word more
            retry += 1
            at, index = wide + 1, retry
        else:
            return False
    return all(word == "#" for word in pattern[at:])
