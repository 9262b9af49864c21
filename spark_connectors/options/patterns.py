"""Patterns of queue names, as in Artemis: `*` stands for one word, `#` for any words. A word ends at `.` or `/`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

_WORD = re.compile(r"\*|#|[^*#./\s]*", re.ASCII)
_SEPARATOR = re.compile(r"[./]")

#: The words of a name or a pattern, each with the separator before it. The first word has none.
_Words: TypeAlias = list[tuple[str, str]]


def pattern_error(pattern: str) -> str | None:
    """Describe the error in a pattern; `None` for a valid pattern."""
    if not pattern:
        return "expected words with dots or slashes between them"
    if all(_WORD.fullmatch(word) for word in _SEPARATOR.split(pattern)):
        return None
    return "expected words with dots or slashes between them; * and # stand for whole words, alone between these"


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match, sorted."""
    words = _words(pattern)
    return sorted(name for name in names if _matches(words, _words(name)))


def _words(text: str) -> _Words:
    starts = [0, *(match.end() for match in _SEPARATOR.finditer(text))]
    return [
        (text[start - 1 : start] if start else "", _SEPARATOR.split(text[start:], maxsplit=1)[0]) for start in starts
    ]


def _matches(pattern: _Words, name: _Words) -> bool:
    """Match word by word. `#` also stands for no word: `EXP.#` matches `EXP`, and `#/dead` matches `dead`.

    The separator before a word has to be the same, except before the first word of the name and between two words of
    one `#`.
    """
    # the positions in the pattern that the words so far lead to, and the `#`s that have taken a word
    reached, open_hashes = _skip_hashes(pattern, {0}), set[int]()
    for index, (separator, word) in enumerate(name):
        fits = {at for at in reached if at < len(pattern) and (index == 0 or pattern[at][0] == separator)}
        open_hashes = {at for at in fits if pattern[at][1] == "#"} | open_hashes
        after = {at + 1 for at in fits if pattern[at][1] in ("*", word)}
        reached = _skip_hashes(pattern, after | {at + 1 for at in open_hashes})
    return len(pattern) in reached


def _skip_hashes(pattern: _Words, reached: set[int]) -> set[int]:
    """Add the positions behind each reached `#`, because a `#` may stand for no word."""
    for at in range(len(pattern)):
        if at in reached and pattern[at][1] == "#":
            reached.add(at + 1)
    return reached
