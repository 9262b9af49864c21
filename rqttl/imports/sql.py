"""The conditions in SQL, of Service Bus and Artemis, that a filter of rqttl can say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from rqttl.errors import InvalidInput
from rqttl.filters import Rule
from rqttl.imports.routes import both, one_of
from rqttl.text import format_value

_PART = r"""(?:[a-z_$][\w$]*|\[[^\]]+\]|"[^"]+")"""
_NAME = rf"{_PART}(?:\.{_PART})*"
_TEXT = "'(?:[^']|'')*'"
_VALUE = rf"(?:{_TEXT}|-?(?:0|[1-9]\d{{0,30}})(?:\.\d{{1,30}})?(?:e[+-]?\d{{1,3}})?(?![\w.])|true\b|false\b)"
_FLAGS = re.ASCII | re.IGNORECASE | re.VERBOSE
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<join>and\b|or\b|not\b|[()])
        | exists\s*\(\s*(?P<exists>{_NAME})\s*\)
        | (?P<left>{_VALUE})\s*=\s*(?:(?P<right>{_VALUE})|(?P<of>{_NAME}))
        | (?P<name>{_NAME})\s*(?:
            (?P<sign>=|<>|!=)\s*(?P<value>{_VALUE})
            | is\s+(?P<null>(?:not\s+)?null\b)
            | (?P<no>not\s+)?(?:in\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)|like\s*(?P<like>{_TEXT})))
    )\s*""",
    _FLAGS,
)
_KNOWN = "expected =, <>, IN, LIKE 'x%', EXISTS or IS NULL of headers, with NOT, AND and OR"


def read_sql(text: str, header: Callable[[Sequence[str]], str]) -> list[Rule]:
    """The rules of a condition, one of which must hold. `header` names the header of an identifier, given in parts.

    Raises `InvalidInput` for anything that a filter cannot say.
    """
    try:
        return _Condition(text, header).read()
    except RecursionError:
        raise InvalidInput("expected fewer parentheses") from None


class _Condition:
    """Reads by descent. Behind NOT (`no`), AND and OR change places."""

    def __init__(self, text: str, header: Callable[[Sequence[str]], str]) -> None:
        self._text, self._header, self._at = text, header, 0

    def read(self) -> list[Rule]:
        rules = self._joined("or", no=False)
        return rules if self._at == len(self._text) else self._refuse()

    def _joined(self, word: str, *, no: bool) -> list[Rule]:
        """Conditions with OR between them, or with AND, which binds more closely."""
        one = self._one if word == "and" else partial(self._joined, "and")
        rules = one(no=no)
        while self._take(word):
            other = one(no=no)
            rules = both(rules, other) if (word == "and") is not no else [*rules, *other]
        return rules

    def _one(self, *, no: bool) -> list[Rule]:
        if self._take("not"):
            return self._one(no=not no)
        if self._take("("):
            inner = self._joined("or", no=no)
            return inner if self._take(")") else self._refuse()
        token = _TOKEN.match(self._text, self._at)
        if token is None or token["join"]:
            return self._refuse()
        if token["right"]:
            rules: list[Rule] = [{}] if (_value(token["left"]) == _value(token["right"])) is not no else []
        else:
            parts = re.findall(_PART, token["exists"] or token["of"] or token["name"], _FLAGS)
            rules = [self._condition(self._header([part.strip('[]"') for part in parts]), token, no=no)]
        self._at = token.end()
        return rules

    def _condition(self, name: str, token: re.Match[str], *, no: bool) -> Rule:
        if token["exists"] or token["null"]:
            return {name: {"exists": no is bool(token["null"] and len(token["null"]) == len("null"))}}
        if like := token["like"]:
            text, no = str(_value(like)), no is not bool(token["no"])
            if text[-1:] == "%" and not no and "%" not in text[:-1] and "_" not in text:
                return {name: {"prefix": text[:-1]}}
            return self._refuse() if "%" in text or "_" in text else one_of(name, [text], no=no)
        if token["values"]:
            values = re.findall(_VALUE, token["values"], _FLAGS)
            return one_of(name, map(_value, values), no=no is not bool(token["no"]))
        value = token["left"] or token["value"]
        return one_of(name, [_value(value)], no=no is (token["sign"] in (None, "=")))

    def _take(self, word: str) -> bool:
        token = _TOKEN.match(self._text, self._at)
        if token is None or (token["join"] or "").lower() != word:
            return False
        self._at = token.end()
        return True

    def _refuse(self) -> NoReturn:
        raise InvalidInput(f"{_KNOWN}, and not {format_value(self._text[self._at :].strip())}")


def _value(text: str) -> object:
    return text[1:-1].replace("''", "'") if text[0] == "'" else json.loads(text.lower())
