"""The wildcard syntax of a broker.xml, and its translation to that of rqttl: `.` between words, `*`, `#`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rqttl.errors import InvalidImport
from rqttl.imports.artemis.xml import Node
from rqttl.imports.report import Notes
from rqttl.text import format_value

#: Characters of a word that a queue of rqttl may have in its name.
_WORD = re.compile(r"[A-Za-z0-9_:/{}-]*", re.ASCII)


class Untranslatable(Exception):
    """A match or a name has no counterpart. The text says why."""


@dataclass(frozen=True, slots=True)
class Wildcards:
    """The characters of a wildcard syntax, and the pair that marks a literal match."""

    delimiter: str = "."
    any_words: str = "#"
    single_word: str = "*"
    literal_markers: str = ""

    def pattern(self, match: str, place: str) -> str:
        """A match as a wildcard pattern of rqttl. Raises `Untranslatable`, and `InvalidImport` as Artemis refuses."""
        literal = self._literal(match)
        words = (match if literal is None else literal).split(self.delimiter)
        if literal is not None and self._has_wildcards(literal):
            raise Untranslatable("a literal match is about a name with wildcards, and no queue has such a name")
        if self.any_words in words[:-1]:
            raise InvalidImport(place, f"expected {self.any_words!r} as the last word only, got {format_value(match)}")
        return ".".join(self._word(word) for word in words)

    def name(self, name: str) -> str:
        """The name of an address or a queue with `.` as its delimiter. Raises `Untranslatable`."""
        if self.delimiter != "." and "." in name:
            raise Untranslatable(f"it has a '.', and the delimiter {self.delimiter!r} becomes '.'")
        return name.replace(self.delimiter, ".")

    def part(self, text: str) -> str:
        """A prefix or suffix with `.` as its delimiter."""
        return text.replace(self.delimiter, ".")

    def _literal(self, match: str) -> str | None:
        """The text between the markers of a literal match."""
        first, last = self.literal_markers[:1], self.literal_markers[1:]
        marked = first and len(match) > 1 and match.startswith(first) and match.endswith(last)
        return match[1:-1] if marked else None

    def _has_wildcards(self, text: str) -> bool:
        return self.any_words in text or self.single_word in text

    def _word(self, word: str) -> str:
        if word == self.any_words:
            return "#"
        if word == self.single_word:
            return "*"
        if self._has_wildcards(word):
            raise Untranslatable(f"{word!r} has a wildcard inside a word; in rqttl a wildcard is a word of its own")
        if self.delimiter != "." and "." in word:
            raise Untranslatable(f"{word!r} has a '.', and the delimiter {self.delimiter!r} becomes '.'")
        if not _WORD.fullmatch(word):
            raise Untranslatable(f"{word!r} has a character that no queue of rqttl may have in its name")
        return word


def read_wildcards(core: Node, notes: Notes) -> Wildcards:
    """Read `wildcard-addresses` and `literal-match-markers` of a file. Raises `InvalidImport`."""
    characters = {}
    for child in (child for section in core.all("wildcard-addresses")[:1] for child in section.children):
        name = child.name.lower()
        if name in ("delimiter", "any-words", "single-word"):
            characters[name.replace("-", "_")] = _character(child)
            became = {"delimiter": ".", "any-words": "#", "single-word": "*"}[name]
            _note_character(notes, child, became)
        elif name in ("enabled", "routing-enabled"):
            reason = "it turns on the routing of messages by wildcards, and rqttl sends to queues by their names"
            notes.left_out("wildcard-addresses", child.name, child.text, reason)
        else:
            notes.left_out("wildcard-addresses", child.name, child.text, "it is no documented setting")
    for child in core.all("literal-match-markers")[:1]:
        if len(child.text) != 2:
            raise InvalidImport(child.place, f"expected two characters, got {format_value(child.text)}")
        characters["literal_markers"] = child.text
        notes.translated("core", child.name, child.text, "a literal match becomes the pattern between the markers")
    syntax = Wildcards(**characters)
    if len({syntax.delimiter, syntax.any_words, syntax.single_word}) < 3:
        raise InvalidImport(core.place, "expected three different characters in wildcard-addresses")
    return syntax


def _character(node: Node) -> str:
    if len(node.text) != 1:
        raise InvalidImport(node.place, f"expected one character, got {format_value(node.text)}")
    return node.text


def _note_character(notes: Notes, node: Node, became: str) -> None:
    if node.text == became:
        notes.taken("wildcard-addresses", node.name, node.text, f"{became!r} means the same in patterns of rqttl")
    else:
        names = ", also in the names of queues" if became == "." else ""
        text = f"{node.text!r} becomes {became!r} in patterns{names}"
        notes.translated("wildcard-addresses", node.name, node.text, text)
