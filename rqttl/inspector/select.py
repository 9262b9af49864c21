"""Queues by their names or by patterns: `orders`, `*/dead`, `eu-[ab]?`.

`*` stands for any characters of a name, also for `.` and `/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from rqttl.errors import QueueNotFound
from rqttl.names import is_pattern

if TYPE_CHECKING:
    from rqttl.broker import Broker


def plain_names(patterns: Sequence[str]) -> list[str]:
    """The names among names and patterns, each once."""
    return [text for text in dict.fromkeys(patterns) if not is_pattern(text)]


def select_names(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """All plain names, also of missing queues, then the queues that match a pattern. Without patterns, all queues."""
    names = plain_names(patterns)
    if patterns and len(names) == len(set(patterns)):
        return names
    matches = [name for name in broker.queues() if not patterns or any(fnmatchcase(name, text) for text in patterns)]
    return list(dict.fromkeys([*names, *matches]))


def existing_names(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """The names of existing queues that match, sorted.

    Raises `QueueNotFound` for a plain name without a queue, and `InvalidName`.
    """
    names = sorted(select_names(broker, patterns))
    plain = plain_names(patterns)
    existing = set(broker.queues()) if plain else ()
    for name in plain:
        if name not in existing:
            raise QueueNotFound(broker.queue(name).name)
    return names
