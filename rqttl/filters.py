"""Filters of topics: which of the bound queues get a message, by its headers.

The canonical form of a filter is a list of rules, of which one must match; without rules it matches every message. A
rule maps headers to conditions, which must all hold. The rule `{"unmatched": True}` matches if no other binding does.

Words of a text have dots between them. In a pattern `*` is one word and `#` any number of words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from operator import eq
from typing import Any, TypeAlias

from rqttl.checks import boolean
from rqttl.errors import InvalidInput
from rqttl.text import first_few, format_value, plain_number, plain_text
from rqttl.types import Death, Header

#: A filter as an argument: text (a pattern of the subject), a mapping from headers to conditions, or a list of these.
Filter: TypeAlias = object
Rule: TypeAlias = dict[str, Any]
_Test: TypeAlias = Callable[[Any], bool]

#: The header that a pattern alone means.
SUBJECT = "subject"
#: The most queues that are bound to one topic: each change writes all bindings.
MOST_BINDINGS = 1_000
#: The most bytes of a pattern. A subject may have as many.
MAX_PATTERN_BYTES = 255
#: Headers that name the newest death of a dead letter.
_OF_DEATH = ("death.queue", "death.reason")
_WILD = frozenset("*#")
_UNMATCHED = "unmatched"
_ALONE = '[{"unmatched":true}]'
#: Answers that the bindings of a topic remember.
_REMEMBERED = 1024
#: The value of a header that a message lacks. `None` is a value.
_ABSENT = object()
_PLAIN = frozenset((str, bytes, bool, int, float, type(None), object))


def canonical_json(value: object) -> str:
    """The JSON of a canonical filter, or of a mapping from queues to such filters. Equal filters have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def check_filter(value: Filter, argument: str = "filter") -> list[Rule]:
    """The canonical form of a filter, itself a filter. Raises `InvalidInput` with argument, header, value and rule."""
    items = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    rules = _distinct([_check_rule(item, argument) for item in items])
    if any(_UNMATCHED in rule for rule in rules) and canonical_json(rules) != _ALONE:
        raise InvalidInput(f'{argument}: header {_UNMATCHED!r}: expected {{"{_UNMATCHED}": True}} without another rule')
    return [] if {} in rules else rules


def _distinct(values: list[Any]) -> list[Any]:
    """Each value once, in the order of their JSON. So `1` and `True` are two values."""
    return [value for _, value in sorted({canonical_json(value): value for value in values}.items())]


def _check_rule(item: object, argument: str) -> Rule:
    rule = {SUBJECT: item} if isinstance(item, str) else item
    if not isinstance(rule, Mapping):
        raise InvalidInput(f"{argument}: expected text, a mapping or a list of these, got {format_value(item)}")
    checked = {}
    for name, condition in rule.items():
        key = plain_text(name)
        if not key:
            raise InvalidInput(f"{argument}: name of a header: expected non-empty text, got {format_value(name)}")
        checked[key] = _check_condition(key, condition, f"{argument}: header {format_value(key)}")
    return checked


def _check_condition(name: str, condition: object, where: str) -> object:
    operator, operand = "", condition
    if isinstance(condition, Mapping):
        if len(condition) != 1 or next(iter(condition)) not in _OPERATORS:
            got = first_few([format_value(one) for one in condition]) or "none"
            raise InvalidInput(f"{where}: expected one of the operators {', '.join(_OPERATORS)}, got {got}")
        ((operator, operand),) = condition.items()
    if operator == "exists":
        return {operator: boolean(operand, f"{where}: exists")}
    if operator == "prefix":
        if not isinstance(operand, str):
            raise InvalidInput(f"{where}: prefix: expected text, got {format_value(operand)}")
        return {operator: plain_text(operand)}
    if operator == "pattern" or (not operator and name == SUBJECT and isinstance(operand, str)):
        pattern = _check_pattern(operand, where)
        return pattern if name == SUBJECT else {operator: pattern}
    items = operand if isinstance(operand, (list, tuple)) else [operand]
    values = _distinct([_check_value(item, where) for item in items])
    if not values:
        raise InvalidInput(f"{where}: expected at least one value, got an empty list")
    texts = [value for value in values if isinstance(value, str)] if name == SUBJECT else []
    if wild := [text for text in texts if not _WILD.isdisjoint(text.split("."))]:
        rule = "expected a pattern alone, without a list or 'not'; a list of filters can have several"
        raise InvalidInput(f"{where}: {rule}, got {format_value(wild[0])}")
    short = values if len(values) > 1 or (texts and not operator) else values[0]
    return {operator: short} if operator else short


def _check_value(value: object, where: str) -> object:
    if isinstance(value, (bool, str)):
        return value if isinstance(value, bool) else plain_text(value)
    number = plain_number(value)
    if number is not None and -(2**63) <= number < 2**64:
        return int(number) if number == int(number) else number
    if isinstance(number, float) and math.isfinite(number):
        return number
    rule = "expected text, a finite number of at most 64 bits, true or false"
    raise InvalidInput(f"{where}: {rule}, got {format_value(value)}")


def _check_pattern(value: object, where: str) -> str:
    text = plain_text(value)
    if text is None or not all(text.split(".")) or len(text.encode(errors="replace")) > MAX_PATTERN_BYTES:
        rule = f"expected words with dots between them, at most {MAX_PATTERN_BYTES} bytes"
        raise InvalidInput(f"{where}: {rule}, got {format_value(value)}")
    if any(len(word) > 1 and not _WILD.isdisjoint(word) for word in text.split(".")):
        raise InvalidInput(f"{where}: expected each '*' and '#' as a word of its own, got {format_value(text)}")
    return text


class Bindings:
    """The bindings of a topic, compiled: a mapping from queues to canonical filters. Threads may share it."""

    def __init__(self, bindings: Mapping[str, list[Rule]]) -> None:
        self._unmatched = tuple(sorted(queue for queue, rules in bindings.items() if rules == [{_UNMATCHED: True}]))
        matched = {queue: bindings[queue] or [{}] for queue in sorted(bindings.keys() - self._unmatched)}
        named = {name for rules in matched.values() for rule in rules for name in rule}
        self._names = sorted(named.difference(_OF_DEATH))
        self._by_death = not named.isdisjoint(_OF_DEATH)
        place = {name: place for place, name in enumerate((*self._names, *_OF_DEATH))}
        self._matched = [
            (queue, [[(place[name], _test(name, condition)) for name, condition in rule.items()] for rule in rules])
            for queue, rules in matched.items()
        ]
        self._answer = lru_cache(_REMEMBERED, typed=True)(self._resolve)

    def find(self, headers: Mapping[str, Header], death: Death | None = None) -> tuple[str, ...]:
        """The queues that get a message, in the order of their names. `death` is the newest one of a dead letter."""
        values: list[Any] = [headers.get(name, _ABSENT) for name in self._names]
        if self._by_death:
            values += (death.queue, death.reason) if death else (_ABSENT, _ABSENT)
        if not _PLAIN.issuperset(map(type, values)):
            values = list(map(_plain, values))
        return self._answer(*values)

    def _resolve(self, *values: Any) -> tuple[str, ...]:
        found = []
        for queue, rules in self._matched:
            for rule in rules:
                for place, test in rule:
                    if not test(values[place]):
                        break
                else:
                    found.append(queue)
                    break
        return tuple(found) or self._unmatched


def _plain(value: Any) -> Any:
    """The value of a subclass as it is stored. Bytes are one value: no condition looks into them."""
    if type(value) in _PLAIN:
        return value
    return b"" if isinstance(value, bytes) else plain_number(value) if (text := plain_text(value)) is None else text


def _test(name: str, condition: Any) -> _Test:
    """The test of a header's value by a condition of a canonical filter."""
    if isinstance(condition, dict):
        ((operator, operand),) = condition.items()
        return _OPERATORS[operator](operand)
    return _words(condition) if name == SUBJECT and isinstance(condition, str) else _one_of(condition)


def _one_of(condition: Any) -> _Test:
    values = condition if isinstance(condition, list) else [condition]
    flags = frozenset(value for value in values if isinstance(value, bool))
    others = frozenset(value for value in values if not isinstance(value, bool))
    return lambda value: value in (flags if value.__class__ is bool else others)


def _none_of(condition: Any) -> _Test:
    is_one = _one_of(condition)
    return lambda value: not is_one(value)


def _words(pattern: str) -> _Test:
    """The match of a pattern. Bit `n` of the places is set if the words so far can be the first `n` of the pattern.

    `#` is no place of its own: words stay at the place where it stands. So the time grows with the text alone.
    """
    if _WILD.isdisjoint(pattern.split(".")):
        return partial(eq, pattern)
    moves: dict[str, int] = {}
    end, stays = 1, 0
    for word in pattern.split("."):
        if word == "#":
            stays |= end
        else:
            moves[word] = moves.get(word, 0) | end
            end <<= 1
    stars = moves.pop("*", 0)
    moves = {word: places | stars for word, places in moves.items()}

    def matches(value: Any) -> bool:
        if value.__class__ is not str:
            return False
        places = 1
        for word in value.split("."):
            places = (places & moves.get(word, stars)) << 1 | places & stays
            if not places:
                return False
        return places & end != 0

    return matches


_OPERATORS: dict[str, Callable[[Any], _Test]] = {
    "exists": lambda wanted: lambda value: (value is not _ABSENT) is wanted,
    "not": _none_of,
    "pattern": _words,
    "prefix": lambda prefix: lambda value: value.__class__ is str and value.startswith(prefix),
}
