"""The wildcard syntax of matches, that of rqttl, too: `.` between words, `*` for one, `#` for any number at the end."""

from __future__ import annotations

import re

from rqttl.errors import InvalidImport
from rqttl.imports.artemis.xml import Node
from rqttl.imports.report import Notes
from rqttl.text import format_value

#: Characters of a word that a queue of rqttl may have in its name.
_WORD = re.compile(r"[A-Za-z0-9_:/{}-]*", re.ASCII)
_SAME = {"delimiter": ".", "any-words": "#", "single-word": "*"}


class Untranslatable(Exception):
    """A match or a name has no counterpart. The text says why."""


def check_match(match: str, place: str) -> str:
    """Check a match, which is a pattern of rqttl then. Raises `Untranslatable`, and `InvalidImport` as Artemis does."""
    words = match.split(".")
    if "#" in words[:-1]:
        raise InvalidImport(place, f"expected '#' as the last word only, got {format_value(match)}")
    for word in words:
        if word not in ("*", "#") and {"*", "#"} & set(word):
            raise Untranslatable(f"{word!r} has a wildcard inside a word; in rqttl a wildcard is a word of its own")
        if word not in ("*", "#") and not _WORD.fullmatch(word):
            raise Untranslatable(f"{word!r} has a character that no queue of rqttl may have in its name")
    return match


def check_syntax(core: Node, notes: Notes) -> None:
    """Note `wildcard-addresses`. Raises `InvalidImport` for a syntax of the file's own."""
    for child in (child for section in core.all("wildcard-addresses")[:1] for child in section.children):
        if child.name.lower() not in _SAME:
            notes.left_out("wildcard-addresses", child.name, child.text, "rqttl sends to queues by their names")
        elif child.text != _SAME[child.name.lower()]:
            rule = "expected the usual wildcards '.', '#' and '*'; write the matches of the file with them"
            raise InvalidImport(child.place, f"{rule}, got {format_value(child.text)}")
        else:
            notes.taken("wildcard-addresses", child.name, child.text, "it means the same in patterns of rqttl")
    for child in core.all("literal-match-markers")[:1]:
        raise InvalidImport(child.place, "expected no literal matches: no queue of rqttl has wildcards in its name")
