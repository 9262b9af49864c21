"""The offset of a query over several servers: the offset of each server, by its name.

    {"servers":{"eu":{"birth":"9f86d081884c7d65","queues":{…},"v":2},"us":{…}},"v":2}

Names are sorted, so the order of the list in `url` does not matter. A server that is no longer in the list keeps its
offset. A query of one server without a name has the offset of this server itself. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_connectors.errors import InvalidOffset
from spark_connectors.stream.offsets import VERSION, Offset

_SERVERS = "servers"
_NEXT = "next"
_AWAY = "away"

#: A server, and one of its queues.
QueueOfServer = tuple[str, str]
NO_QUEUE: QueueOfServer = ("", "")


def is_composed(values: Mapping[str, Any]) -> bool:
    """True if an offset of a checkpoint is one of several servers."""
    return _SERVERS in values


@dataclass(frozen=True, slots=True)
class ServersOffset:
    """The offsets of the servers. `alone` is an offset of one server, whose name it does not have."""

    offsets: Mapping[str, Offset]
    #: The queue that the next batch serves first, after an equal share cut this one off.
    next_queue: QueueOfServer = NO_QUEUE
    alone: Offset | None = None
    #: The servers that are away. Only reports have them.
    away: tuple[str, ...] = ()

    def dump(self) -> dict[str, Any]:
        """Return the JSON value for the checkpoint, with its keys in order."""
        if self.alone is not None:
            return self.alone.dump()
        values: dict[str, Any] = {}
        if self.away:
            values[_AWAY] = sorted(self.away)
        if self.next_queue != NO_QUEUE:
            values[_NEXT] = list(self.next_queue)
        values[_SERVERS] = {server: self.offsets[server].dump() for server in sorted(self.offsets)}
        return {**values, "v": VERSION}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> ServersOffset:
        """Parse the result of `dump`, or the offset of one server. Raises `InvalidOffset`."""
        if not is_composed(values):
            return cls({}, alone=Offset.parse(values))
        if values.get("v") != VERSION:
            raise InvalidOffset(f"offset in the checkpoint: expected version {VERSION}, got {values.get('v')!r}")
        try:
            server, queue = values.get(_NEXT, NO_QUEUE)
            return cls(
                {str(name): Offset.parse(offset) for name, offset in values[_SERVERS].items()},
                (str(server), str(queue)),
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidOffset(f"offset in the checkpoint: it is damaged ({type(error).__name__})") from error
