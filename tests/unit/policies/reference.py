"""The options in force, computed in the slowest and plainest way. It shares no code with `rqttl.policies`."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cmp_to_key

from rqttl import Policy
from rqttl.options import OPTIONS, Value

NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"
BOUNDS = {"min_ttl": "max_ttl", "redelivery_delay": "redelivery_max_delay"}
PAUSES = ("redelivery_multiplier", "redelivery_max_delay", "redelivery_jitter")


def matches(policy: Policy, queue: str) -> bool:
    if policy.syntax == "regex":
        return bool(re.search(policy.pattern, queue))
    return policy.pattern == "#" or words_match(policy.pattern.split("."), queue.split("."))


def words_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if list(pattern) == ["#"]:
        return list(words) != [""]  # a dot, and nothing after it
    if not pattern or not words:
        return not pattern and not words
    return (words[0] if pattern[0] == "*" else pattern[0]) == words[0] != "" and words_match(pattern[1:], words[1:])


def order(a: Policy, b: Policy) -> int:
    """Less than 0 if `a` comes first. Both match one name."""
    for first, second in ((a, b), (b, a)):
        before = -1 if first is a else 1
        if first.priority > second.priority:
            return before
        if first.priority == second.priority and goes_first(first, second):
            return before
    return 0 if a is b else -1 if (a.name, a.operator) < (b.name, b.operator) else 1


def goes_first(a: Policy, b: Policy) -> bool:
    """True if the pattern of `a` is more specific. Both have one priority."""
    if "regex" in (a.syntax, b.syntax):
        both = a.syntax == b.syntax
        return len(a.pattern) > len(b.pattern) if both else b.syntax == "regex"
    for wildcard in ("#", "*"):
        if (wildcard in a.pattern) != (wildcard in b.pattern):
            return wildcard in b.pattern
        if wildcard == "#" and "#" in a.pattern:
            if len(a.pattern) != len(b.pattern):
                return len(a.pattern) > len(b.pattern)
            break
    for ours, theirs in zip(a.pattern.split("."), b.pattern.split("."), strict=False):
        if (ours == "*") != (theirs == "*"):
            return theirs == "*"
    return len(a.pattern) < len(b.pattern)


def in_force(queue: str, declared: Mapping[str, Value], policies: Sequence[Policy]) -> dict[str, Value]:
    """The options in force that differ from their defaults."""
    matching = sorted((policy for policy in policies if matches(policy, queue)), key=cmp_to_key(order))
    found: dict[str, Value] = {}
    for name, option in OPTIONS.items():
        operator = offer(name, queue, [p for p in matching if p.operator], policies)
        user = offer(name, queue, [p for p in matching if not p.operator], policies)
        present = [value for value in (operator, declared.get(name), user) if value is not None]
        if present:
            found[name] = min(present) if option.kind in ("duration", "count", "size") else present[0]
            if option.kind == "rate":
                found[name] = min((one for one in (declared.get(name), user, operator) if one), key=per_ms)
    if "rate" not in found:
        found.pop("burst", None)
    if "redelivery_delay" not in found:
        found = {name: value for name, value in found.items() if name not in PAUSES}
    for floor, ceiling in BOUNDS.items():
        if floor in found and ceiling in found:
            found[floor] = min(found[floor], found[ceiling])
    return {name: value for name, value in found.items() if value != OPTIONS[name].default}


def per_ms(rate: Value) -> Fraction:
    return Fraction(str(rate))


def offer(name: str, queue: str, kind: Sequence[Policy], policies: Sequence[Policy]) -> Value | None:
    """The value that policies of one kind give to an option of a queue."""
    value = next((policy.definition[name] for policy in kind if name in policy.definition), None)
    if value in (None, "") or OPTIONS[name].kind != "target":
        return value
    target = str(value).replace("{queue}", queue)
    allowed = re.fullmatch(NAME, target)
    if target == queue:
        return value if name == "dead_letter_rejected" else None
    return None if not allowed or ("{queue}" in str(value) and is_made(queue, policies)) else value


def is_made(queue: str, policies: Sequence[Policy]) -> bool:
    """True if a template of a policy gives this name for another queue that the policy matches."""
    names = {queue[i:j] for i in range(len(queue)) for j in range(i + 1, len(queue) + 1)} - {queue}
    templates = [(p, str(t)) for p in policies for t in p.definition.values() if "{queue}" in str(t)]
    return any(
        t.replace("{queue}", name) == queue and matches(p, name) and re.fullmatch(NAME, name)
        for p, t in templates
        for name in names
    )
