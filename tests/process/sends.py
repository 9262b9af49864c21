"""A blow at one of the sends of this process to Redis: before it, in the middle of its bytes, or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from redis.connection import AbstractConnection

Part = Literal["before", "half", "after"]
PARTS: tuple[Part, ...] = ("before", "half", "after")


@dataclass(frozen=True)
class Place:
    """The place of a blow: the number of the send, from 0, and its part. `cut` is the portion that `half` sends."""

    send: int
    part: Part
    cut: float = 0.5


class Sends:
    """Counts sends. An action at a place happens once; its own sends do not count."""

    def __init__(self) -> None:
        self.count = 0
        self._actions: list[tuple[Place, Callable[[], object]]] = []
        self._acting = False

    @property
    def done(self) -> bool:
        """True if all actions have happened."""
        return not self._actions

    def at(self, place: Place, action: Callable[[], object]) -> None:
        """Do something at a place."""
        self._actions.append((place, action))

    def meet(self, part: Part, number: int, unsent: Callable[[float], object] = lambda _: None) -> None:
        """Carry out the actions of this place. `unsent` sends a portion of the bytes."""
        for place, action in [pair for pair in self._actions if (pair[0].part, pair[0].send) == (part, number)]:
            self._actions.remove((place, action))
            self._acting = True
            unsent(place.cut)
            action()
            self._acting = False

    @contextmanager
    def counting(self) -> Iterator[Sends]:
        """Count the sends of all connections of this process."""
        send: Callable[..., Any] = AbstractConnection.send_packed_command

        def counted(connection: Any, command: Any, check_health: bool = True) -> Any:
            if self._acting:
                return send(connection, command, check_health)
            number, self.count = self.count, self.count + 1
            packed = b"".join([command] if isinstance(command, bytes) else command)
            self.meet("before", number)
            self.meet("half", number, lambda cut: connection._sock.sendall(packed[: int(len(packed) * cut)]))
            answer = send(connection, command, check_health)
            self.meet("after", number)
            return answer

        AbstractConnection.send_packed_command = counted  # type: ignore[method-assign]
        try:
            yield self
        finally:
            AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
