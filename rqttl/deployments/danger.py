"""The ways in which messages can die by a change of options.

The judgement is careful: a change is dangerous if there are messages that it can end. A dry run counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import TypeAlias

from rqttl.options import OPTIONS, QueueOptions, Value, written
from rqttl.policies import Policy

#: Options that end messages, or whole queues, sooner when they are lowered or newly set.
_ENDINGS = (
    "message_ttl",
    "default_ttl",
    "max_ttl",
    "max_length",
    "max_length_bytes",
    "expires",
    "auto_delete_on_idle",
    "max_deliveries",
)
#: Options that keep messages, or a part of them.
_KEEPERS = (
    "min_ttl",
    "never_expire",
    "overflow",
    "on_expire",
    *(name for name in OPTIONS if OPTIONS[name].kind == "target"),
)
_PARTS = ("pattern", "syntax", "priority", "apply_to")


#: `...` stands for an option that is not in a definition, `None` for the word `none`.
_Declaration: TypeAlias = Value | EllipsisType | None


def queue_dangers(before: QueueOptions, after: QueueOptions) -> tuple[str, ...]:
    """The dangers of new declared options for a queue."""
    return tuple(_dangers(before, after))


def policy_dangers(before: Policy | None, after: Policy | None) -> tuple[str, ...]:
    """The dangers of a policy that is new, changed or deleted.

    A policy with another pattern or priority is a new one for some queues, and a deleted one for others.
    """
    if before and after and any(getattr(before, part) != getattr(after, part) for part in _PARTS):
        return tuple(dict.fromkeys((*policy_dangers(None, after), *policy_dangers(before, None))))
    old, new = (policy.definition if policy else {} for policy in (before, after))
    dangers = list(_dangers(old, new))
    gone = [name for name in (*_ENDINGS, *_KEEPERS) if name in old and name not in new]
    dangers += [f"{name}: without this policy, messages may end sooner" for name in gone]
    return tuple(dangers)


def _dangers(before: Mapping[str, Value | None], after: Mapping[str, Value | None]) -> Iterator[str]:
    for name in OPTIONS:
        old, new = before.get(name, ...), after.get(name, ...)
        if old != new and new is not ... and _ends_messages(name, old, new):
            yield f"{name}: {_as_text(name, old)} → {_as_text(name, new)}"


def _ends_messages(name: str, old: _Declaration, new: Value | None) -> bool:
    """True if messages can die because an option gets another value."""
    if name in _ENDINGS:
        return new is not None and (not _is_number(old) or float(new) < float(old))  # type: ignore[arg-type]  # numbers
    if name == "min_ttl":  # a floor gives a TTL to messages without one, and keeps others alive
        return new is None or not _is_number(old) or float(new) < float(old)  # type: ignore[arg-type]  # numbers
    if name == "never_expire":
        return not new and old is not False
    if name == "overflow":
        return new in (None, "drop-head")
    if name == "on_expire":
        return new in (None, "drop")
    return OPTIONS[name].kind == "target" and not new


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _as_text(name: str, value: object) -> str:
    if value is ...:
        return "unset"
    if value is None:
        return "none"
    return repr("") if value == "" else str(written(name, value))
