"""Patterns of policies, and their order from specific to general.

A pattern of syntax `wildcard` is a list of words with dots between them. `*` stands for one word, and `#` at the end
for any number of words; an empty word is no word. The whole name must match, and case counts. Matching and order are
those of the address settings of Artemis, except that

* a wildcard inside a word is refused, and so is a character that no queue name has (Artemis reads `a#` as `a.#`);
* of two patterns with `#` and of equal length, the leftmost word decides in which only one has `*`;
* of patterns with `*`, those with fewer words come first (Artemis orders `a.*` and `a.*.b` in a circle).

A pattern of syntax `regex` is searched for anywhere in the name, as in RabbitMQ. RE2 searches in linear time: no
pattern can hang a client. RE2 has no look-around and no back-references.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import eq
from typing import Literal, TypeAlias, get_args

from rqttl.errors import InvalidPolicy
from rqttl.text import escape, format_value, plain_text

Syntax = Literal["wildcard", "regex"]
#: Sorts patterns: kind, length, places of `*`, length.
Rank: TypeAlias = tuple[int, int, tuple[bool, ...], int]

MAX_BYTES = 1024
SYNTAXES: tuple[Syntax, ...] = get_args(Syntax)

#: Memory for one compiled regular expression.
_REGEX_MEMORY = 2**20
#: Compiled patterns that a process remembers.
_REMEMBERED = 1024
_WORD = re.compile(r"[A-Za-z0-9_:/{}-]*", re.ASCII)
_ANY_WORDS = r"(?:\..+)?"
_ONE_WORD = r"[^.]+"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. `matches` tells if a queue name matches. A more specific pattern has a smaller `rank`."""

    text: str
    syntax: Syntax
    rank: Rank = field(compare=False, repr=False)
    matches: Callable[[str], bool] = field(compare=False, repr=False)


def compile_pattern(text: object, syntax: object = "wildcard") -> Pattern:
    """Check and compile a pattern. Raises `InvalidPolicy`, which names the argument, the value and the rule."""
    known = plain_text(syntax)
    if known not in SYNTAXES:
        raise InvalidPolicy(f"syntax: expected one of {', '.join(SYNTAXES)}, got {format_value(syntax)}")
    plain = plain_text(text)
    try:
        size = 0 if plain is None else len(plain.encode())
    except UnicodeEncodeError:
        size = 0
    if plain is None or not 1 <= size <= MAX_BYTES:
        raise InvalidPolicy(f"pattern: expected text of 1 to {MAX_BYTES} bytes in UTF-8, got {format_value(text)}")
    return _compiled(plain, known)


@lru_cache(maxsize=_REMEMBERED)
def _compiled(text: str, syntax: Syntax) -> Pattern:
    if syntax == "wildcard":
        return _wildcard(text)
    search = _search(text)
    if isinstance(search, str):
        rule = "expected a regular expression of RE2"
        raise InvalidPolicy(f"pattern: {rule}, got {format_value(text)}: {search}")
    return Pattern(text, "regex", (3, -len(text), (), 0), search)


def _wildcard(text: str) -> Pattern:
    words = text.split(".")
    for place, word in enumerate(words):
        _check_word(text, word, last=place == len(words) - 1)
    if not words[0]:
        raise InvalidPolicy(f"pattern: expected a word before the first dot, got {format_value(text)}: {_ADVICE}")
    if text == "#":
        return Pattern(text, "wildcard", (2, -1, (), 0), lambda _: True)
    open_end = words[-1] == "#"
    fixed = words[:-1] if open_end else words
    stars = tuple(word == "*" for word in fixed)
    if not open_end and not any(stars):
        return Pattern(text, "wildcard", (0, 0, (), len(text)), partial(eq, text))
    rank: Rank = (2, -len(text), stars, 0) if open_end else (1, 0, stars, len(text))
    # linear: no part matches a dot that the next part could match, too, so a failed match has one way back
    parts = r"\.".join(_ONE_WORD if word == "*" else re.escape(word) for word in fixed)
    search = re.compile(parts + _ANY_WORDS * open_end, re.DOTALL).fullmatch
    return Pattern(text, "wildcard", rank, lambda queue: search(queue) is not None)


_ADVICE = "no queue name matches it; write a regular expression with syntax 'regex'"


def _check_word(text: str, word: str, *, last: bool) -> None:
    if word == "*" or (word == "#" and last):
        return
    if word == "#":
        raise InvalidPolicy(f"pattern: expected '#' as the last word only, got {format_value(text)}")
    if "*" in word or "#" in word:
        rule = "expected each '*' and '#' as a word of its own, with dots around it"
        raise InvalidPolicy(f"pattern: {rule}, got {format_value(text)}; syntax 'regex' matches parts of words")
    if not _WORD.fullmatch(word):
        rule = "expected words of A-Z a-z 0-9 _ : / - { }, '*' and '#', with dots between them"
        raise InvalidPolicy(f"pattern: {rule}, got {format_value(text)}: {_ADVICE}")


def _search(text: str) -> Callable[[str], bool] | str:
    """The search for a regular expression in a name, or the reason why RE2 refuses the expression."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _REGEX_MEMORY
    try:
        search = re2.compile(text.encode(), options).search
    except re2.error as error:
        return escape(error.args[0], 200)
    return lambda queue: search(queue.encode()) is not None
