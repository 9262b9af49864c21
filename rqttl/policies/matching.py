"""A list of patterns, prepared to find all patterns that match a name.

A name is compared with few patterns. The words of a name select wildcard patterns: each pattern waits for its first
word without a wildcard, at the place of that word. Regular expressions form groups, and groups of groups: one search
tells that a name matches none of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rqttl.policies.patterns import Pattern, any_of

_Test = tuple[int, Callable[[str], bool]]
_Group = tuple[Callable[[str], bool], list[_Test]]
#: Regular expressions in one group, and groups in one outer group.
_GROUP = 4


class Matcher:
    """Finds the places of the patterns in a list that match a name."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._by_word: dict[tuple[int, str], list[_Test]] = {}
        self._any_word: list[_Test] = []
        self._all: list[int] = []
        regexes = []
        for place, pattern in enumerate(patterns):
            if pattern.syntax == "regex":
                regexes.append((place, pattern))
            elif pattern.text == "#":
                self._all.append(place)
            else:
                fixed = pattern.fixed_word
                tests = self._any_word if fixed is None else self._by_word.setdefault(fixed, [])
                tests.append((place, pattern.matches))
        self._groups = [_outer(regexes[start : start + _GROUP**2]) for start in range(0, len(regexes), _GROUP**2)]

    def places(self, name: str) -> list[int]:
        """The places of all patterns that match a name, in ascending order."""
        places = self._all + _matching(self._any_word, name)
        if self._by_word:
            for word in enumerate(name.split(".")):
                if word in self._by_word:
                    places += _matching(self._by_word[word], name)
        for may_match, groups in self._groups:
            if may_match(name):
                for one_may_match, tests in groups:
                    if one_may_match(name):
                        places += _matching(tests, name)
        places.sort()
        return places


def _matching(tests: Iterable[_Test], name: str) -> list[int]:
    return [place for place, matches in tests if matches(name)]


def _outer(regexes: Sequence[tuple[int, Pattern]]) -> tuple[Callable[[str], bool], list[_Group]]:
    """A test that no name fails if it matches a pattern of the groups, and the groups."""
    groups = [_group(regexes[start : start + _GROUP]) for start in range(0, len(regexes), _GROUP)]
    return any_of([pattern for _, pattern in regexes]), groups


def _group(regexes: Sequence[tuple[int, Pattern]]) -> _Group:
    """A test that no name fails if it matches a pattern of the group, and the test of each pattern."""
    return any_of([pattern for _, pattern in regexes]), [(place, pattern.matches) for place, pattern in regexes]
