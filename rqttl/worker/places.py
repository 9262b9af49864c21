"""The places where handlers run, and the messages that they have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rqttl.worker.board import KEYS

if TYPE_CHECKING:
    from rqttl.delivery import Delivery
    from rqttl.worker.board import Board
    from rqttl.worker.source import Source
    from rqttl.worker.supervision import Deadline


class Task:
    """A message that is out: its place, the time at which its handler began it, and the time limit of the handler.

    `begun_at` is `None` until the worker has looked at the board after the begin.
    """

    __slots__ = ("begun_at", "deadline", "delivery", "key", "place", "settled", "source")

    def __init__(self, source: Source, delivery: Delivery) -> None:
        self.source = source
        self.delivery = delivery
        self.key = -1
        self.place: Place | None = None
        self.begun_at: float | None = None
        self.deadline: Deadline | None = None
        self.settled = False


class Place(ABC):
    """A place where handlers run: a child process, or this process. The lock of the crew guards it."""

    def __init__(self, board: Board) -> None:
        #: The number of handlers that can work at a time.
        self.slots = 0
        #: The seconds in which the place can end one handler alone; `None` if it cannot.
        self.cancel_grace: float | None = None
        #: The messages that the place has, by key, the oldest first.
        self.tasks: dict[int, Task] = {}
        #: True if all handlers are slow, so that the place gets no message that would have to wait for them.
        self.is_stuck = False
        self._board = board
        self._newest_key = -1

    @property
    @abstractmethod
    def takes(self) -> bool:
        """True if the place takes further messages."""

    @abstractmethod
    def send(self, tasks: list[Task]) -> None:
        """Hand messages to the handlers. They have keys."""

    @abstractmethod
    def recall(self) -> None:
        """Ask for all messages that no handler has begun."""

    @abstractmethod
    def cancel(self, key: int) -> None:
        """End the handler of a message alone, where `cancel_grace` says that this is possible."""

    def take(self, tasks: list[Task]) -> None:
        """Give each message a key that is free, and hand them to the handlers."""
        mine, board, key = self.tasks, self._board, self._newest_key
        for task in tasks:
            key = (key + 1) % KEYS
            while key in mine:
                key = (key + 1) % KEYS
            board[2 * key] = board[2 * key + 1] = 0.0
            task.key, task.place = key, self
            mine[key] = task
        self._newest_key = key
        self.send(tasks)

    def begin_of(self, key: int) -> float | None:
        """Return the time at which the message of a key began; `None` before that."""
        return self._board[2 * key] or None

    def end_of(self, key: int) -> float | None:
        """Return the time at which the message of a key ended well; `None` before that."""
        return self._board[2 * key + 1] or None

    def ended(self, keys: Iterable[int]) -> list[tuple[Task, float, float]]:
        """Return the messages of these keys that ended well, each with the times of its begin and end."""
        mine, board = self.tasks, self._board
        return [(mine[key], board[2 * key], end) for key in keys if key in mine and (end := board[2 * key + 1])]

    def begins(self) -> list[float]:
        """Return the times at which the messages began whose handlers work, as far as the worker knows."""
        return [task.begun_at for task in self.tasks.values() if task.begun_at is not None]
