"""Patterns of RabbitMQ (PCRE) as patterns of rqttl (RE2). Both search anywhere in the name, and case counts."""

from __future__ import annotations

import re

from rqttl.policies.patterns import Pattern, compile_pattern

#: `^(?!amq\.).*`: all names that do not begin with a plain text.
_NOT_AT_START = re.compile(r"\^\(\?!((?:[A-Za-z0-9_:/-]|\\[._:/-]|\.)+)\)(?:\.[*+])?\$?", re.ASCII)


def translated(pattern: str) -> tuple[Pattern, str]:
    """The pattern in rqttl, and the words about a change of it. Raises `InvalidPolicy` if RE2 lacks a part of it."""
    if not pattern:
        return compile_pattern("^", "regex"), "it is empty, and matches every name"
    match = _NOT_AT_START.fullmatch(pattern)
    if match:
        text = f"^{_unlike(re.findall(_ONE_SIGN, match[1]))}"
        return compile_pattern(text, "regex"), "it matches the same names; RE2 has no look-ahead"
    return compile_pattern(pattern, "regex"), ""


_ONE_SIGN = re.compile(r"\\.|.")


def _unlike(signs: list[str]) -> str:
    """A pattern for the texts that do not begin with these signs. A dot without a backslash is any character."""
    pattern = ""
    for sign in reversed(signs):
        inner = f"(?:{pattern})" if pattern else ""
        if sign == ".":
            pattern = f"$|.{inner}" if inner else "$"
        else:
            plain = re.escape(sign[-1])
            pattern = f"$|[^{plain}]" + (f"|{plain}{inner}" if inner else "")
    return f"(?:{pattern})"
