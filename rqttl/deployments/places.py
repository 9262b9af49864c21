"""Places in a deployment file: paths, and the lines and columns of those that are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from rqttl.errors import InvalidDeployment
from rqttl.text import escape

Path: TypeAlias = tuple[str, ...]
#: Lines and columns of paths, from 1 on.
Places: TypeAlias = Mapping[Path, tuple[int, int]]

#: Characters of one part of a path in an error.
_LONGEST = 80


def place_of(path: Path, places: Places) -> str:
    """A path as text, with its line and column if they are known: `queues.orders (line 3, column 5)`."""
    text = ".".join(escape(part, _LONGEST) for part in path) or "the file"
    at = places.get(path)
    return f"{text} (line {at[0]}, column {at[1]})" if at else text


def refused(path: Path, places: Places, rule: str) -> InvalidDeployment:
    """The error for a path."""
    return InvalidDeployment(place_of(path, places), rule)
