"""Wildcard patterns by their words: those that match a name, or include another pattern, are found word by word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Node(Generic[T]):
    words: dict[str, _Node[T]] = field(default_factory=dict)
    ends: list[T] = field(default_factory=list)
    open_ends: list[T] = field(default_factory=list)


class PatternTree(Generic[T]):
    """Values by wildcard patterns. `#` is the last word of a pattern only."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        """Add a value."""
        node, words = self._root, pattern.split(".")
        for word in words[:-1] if words[-1] == "#" else words:
            node = node.words.setdefault(word, _Node())
        (node.open_ends if words[-1] == "#" else node.ends).append(value)

    def including(self, pattern: str) -> Iterator[T]:
        """The values of all patterns that match each name that `pattern` matches. A name is a pattern, too."""
        words = pattern.split(".")
        nodes = [self._root]
        for word in words:
            for node in nodes:
                yield from node.open_ends
            keys = () if word == "#" else (word,) if word == "*" else (word, "*")
            nodes = [node.words[key] for node in nodes for key in keys if key in node.words]
        for node in nodes:
            yield from node.open_ends
            yield from node.ends
