"""The conditions in SQL, of Service Bus and Artemis, that a filter of rqttl can say."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from typing import Any

from rqttl.errors import InvalidInput
from rqttl.filters import Rule
from rqttl.text import format_value

_PART = r"""(?:[a-z_$][\w$]*|\[[^\]]+\]|"[^"]+")"""
_NAME = rf"{_PART}(?:\.{_PART})*"
_VALUE = r"(?:'(?:[^']|'')*'|-?(?:0|[1-9]\d{0,30})(?:\.\d{1,30})?(?![\w.])|true\b|false\b)"
_FLAGS = re.ASCII | re.IGNORECASE | re.VERBOSE
_CONDITION = re.compile(
    rf"""(?<![\w.])1\s*=\s*1(?![\w.])
    | exists\s*\(\s*(?P<of>{_NAME})\s*\)
    | (?P<name>{_NAME})\s*(?:
        (?P<sign>=|<>|!=|(?:not\s+)?like)\s*(?P<value>{_VALUE})
        | (?P<in>(?:not\s+)?in)\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)
        | is\s+(?P<null>(?:not\s+)?null)\b
    )""",
    _FLAGS,
)
_JOINS = re.compile(r"\b(?:and|or|not)\b|[()]", _FLAGS)
_KNOWN = "expected =, <>, IN, LIKE 'x%', EXISTS or IS NULL of headers, with NOT, AND and OR"
#: The most characters of a condition, as in Service Bus; and the most rules that it may become.
_LONGEST, _MOST_RULES = 1_024, 100


def read_sql(text: str, header: Callable[[Sequence[str]], str]) -> list[Rule]:
    """The rules of a condition, one of which must hold. `header` names the header of an identifier, given in parts.

    Raises `InvalidInput` for anything that a filter cannot say.
    """
    conditions: list[re.Match[str]] = []

    def named(condition: re.Match[str]) -> str:
        conditions.append(condition)
        return f" c{len(conditions) - 1} "

    def rules_of(node: ast.expr, *, no: bool = False) -> list[Rule]:
        if isinstance(node, ast.UnaryOp):  # behind NOT, AND and OR change places
            return rules_of(node.operand, no=not no)
        if isinstance(node, ast.BoolOp):
            parts = [rules_of(one, no=no) for one in node.values]
            return reduce(both, parts) if isinstance(node.op, ast.And) is not no else [*chain(*parts)]
        if isinstance(node, ast.Name):
            return [_rule(conditions[int(node.id[1:])], header, no=no)]
        raise InvalidInput(_KNOWN)

    if len(text) > _LONGEST:
        raise InvalidInput(f"expected at most {_LONGEST:,} characters")
    if unknown := _JOINS.sub("", _CONDITION.sub("", text)).strip():
        raise InvalidInput(f"{_KNOWN}, and not {format_value(unknown)}")
    try:  # without its conditions the text is an expression of Python, too
        return rules_of(ast.parse(" ".join(_CONDITION.sub(named, text).lower().split()), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError):
        raise InvalidInput(_KNOWN) from None


def _rule(condition: re.Match[str], header: Callable[[Sequence[str]], str], *, no: bool) -> Rule:
    written = condition["of"] or condition["name"]
    if not written and no:
        raise InvalidInput("no message fits NOT 1=1")
    if not written:
        return {}
    name = header([part.strip('[]"') for part in re.findall(_PART, written, _FLAGS)])
    word = (condition["sign"] or condition["in"] or condition["null"] or "").lower()
    no = no is not word.startswith(("not", "<>", "!="))
    if condition["of"] or condition["null"]:
        return {name: {"exists": no is not bool(condition["of"])}}
    values = [_value(text) for text in re.findall(_VALUE, condition["value"] or condition["values"], _FLAGS)]
    if word.endswith("like") and re.search("[%_]", text := str(values[0])):
        if no or not re.fullmatch("[^%_]*%", text):
            raise InvalidInput(f"{_KNOWN}, and not {format_value(condition[0])}")
        return {name: {"prefix": text[:-1]}}
    return {name: {"not": values} if no else values}


def _value(text: str) -> object:
    return text[1:-1].replace("''", "'") if text[0] == "'" else json.loads(text.lower())


def both(some: Sequence[Rule], others: Sequence[Rule]) -> list[Rule]:
    """The rules that hold if one of each does. Raises `InvalidInput` for two conditions that no rule says at once."""
    if len(some) * len(others) > _MOST_RULES:
        raise InvalidInput(f"it has more than {_MOST_RULES} rules without parentheses")
    return [
        {**one, **other, **{name: _together(name, one[name], other[name]) for name in one.keys() & other.keys()}}
        for one in some
        for other in others
    ]


def _together(name: str, *pair: Any) -> object:
    one, other = sorted(pair, key=lambda condition: condition == {"exists": True})
    if one == other or (other == {"exists": True} and (isinstance(one, list) or "prefix" in one)):
        return one
    if isinstance(one, dict) and "not" in one and "not" in other:
        return {"not": [*one["not"], *other["not"]]}
    raise InvalidInput(f"header {name!r}: a rule of rqttl has one condition on a header")
