"""How far a streaming query has got: one mark for each queue, and the JSON in which Spark keeps them.

    {"queues":{"orders.dead":["1700000000123-100000",1690000000000,5021]},"v":1}

A mark is the last sequence that was read, when the queue was made (one that was deleted and made again starts anew),
and how many messages it had received by then. Ranges between two offsets are closed, so a batch that is repeated reads
what it read before. Names are sorted, because Spark compares offsets as text. Pure: nothing here asks Redis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_connectors.errors import InvalidOffset
from spark_connectors.ranges import FIRST, Range, position
from spark_connectors.read.marks import Mark

VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """The marks of a query, by queue; a queue without one has not been seen yet."""

    marks: Mapping[str, Mark]
    #: The queue that is to be served first when a limit leaves something over.
    turn: str = ""
    #: Where a query began, if not with the first message, told by the end of its first batch: Spark asks for the
    #: initial offset anew when the first batch has to be repeated, and by then `latest` has become another place.
    began: Mapping[str, Mark] | None = None
    initial: bool = field(default=False)

    def dump(self) -> dict[str, Any]:
        """What Spark writes into the checkpoint, keys in order."""
        parts: dict[str, Any] = {}
        if self.began is not None:
            parts["began"] = _dump(self.began)
        if self.initial:
            parts["initial"] = True
        parts["queues"] = _dump(self.marks)
        if self.turn:
            parts["turn"] = self.turn
        return {**parts, "v": VERSION}

    @property
    def text(self) -> str:
        """The offset as text, the same for equal offsets."""
        return json.dumps(self.dump(), separators=(",", ":"))

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Offset:
        """What `dump` made. Raises `InvalidOffset` for what is none, or that of a later version."""
        if found.get("v") != VERSION:
            raise InvalidOffset(
                f"offset in the checkpoint: expected version {VERSION}, got {found.get('v')!r}; it was written by "
                "another version of rqttl, or for another source"
            )
        try:
            began = found.get("began")
            return cls(_parse(found["queues"]), found.get("turn", ""), None if began is None else _parse(began),
                       bool(found.get("initial", False)))  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidOffset(f"offset in the checkpoint: it is damaged ({type(error).__name__})") from error

    def followed(self, marks: Mapping[str, Mark], turn: str = "") -> Offset:
        """The end of a batch that begins here; this very offset if there is nothing to read."""
        if marks == self.marks:
            return self
        began = {queue: mark for queue, mark in self.marks.items() if mark.after > FIRST}
        return Offset(marks, turn, began if self.initial else None)


def ranges(start: Offset, end: Offset) -> list[Range]:
    """What a batch reads, by queue. `rows` is how many messages the queue received there, at most as it was planned.

    The same two offsets give the same ranges for ever.
    """
    before = start.marks if end.began is None else end.began
    made = []
    for queue in sorted(end.marks):
        upto, since = end.marks[queue], before.get(queue)
        if since is None or since.born != upto.born:
            since = Mark(FIRST, upto.born)
        found = Range(queue, since.after, upto.after, max(1, upto.ordinal - since.ordinal))
        if not found.empty:
            made.append(found)
    return made


def _dump(marks: Mapping[str, Mark]) -> dict[str, list[Any]]:
    return {queue: marks[queue].dump() for queue in sorted(marks)}


def _parse(marks: Mapping[str, list[Any]]) -> dict[str, Mark]:
    parsed = {queue: Mark(*parts) for queue, parts in marks.items()}
    for mark in parsed.values():
        position(mark.after)
    return parsed
