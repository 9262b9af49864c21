"""Patterns of queue names, as in Artemis: words with dots between them, `*` for one word, `#` for any words."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORD = re.compile(r"\*|#|[^*#.\s]*", re.ASCII)


def pattern_error(pattern: str) -> str | None:
    """Describe the error in a pattern; `None` for a valid pattern."""
    if not pattern:
        return "expected words with dots between them"
    if all(_WORD.fullmatch(word) for word in pattern.split(".")):
        return None
    return "expected words with dots between them; * and # stand for whole words, alone between the dots"


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match, sorted."""
    words = pattern.split(".")
    return sorted(name for name in names if _matches(words, name.split(".")))


def _matches(pattern: list[str], words: list[str]) -> bool:
    """Match word by word. `#` also stands for no word: `EXP.#` matches `EXP`, and `#.dead` matches `dead`."""
    at, last_hash, retry = 0, -1, 0
    index = 0
    while index < len(words):
        if at < len(pattern) and pattern[at] == "#":
            last_hash, retry = at, index
            at += 1
        elif at < len(pattern) and pattern[at] in ("*", words[index]):
            at, index = at + 1, index + 1
        elif last_hash >= 0:
            # the last # takes one word more
            retry += 1
            at, index = last_hash + 1, retry
        else:
            return False
    return all(word == "#" for word in pattern[at:])
