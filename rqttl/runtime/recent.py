"""A bounded memory of the values that were remembered last."""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

T = TypeVar("T")


class Recent(dict[str, T]):
    """Values by name: those remembered last, `limit` at most. Safe to share between threads.

    A full memory forgets its older half, so it is as fast as a dictionary.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, name: str, value: T) -> None:
        """Remember a value, as the youngest one."""
        self.pop(name, None)
        if len(self) >= self._limit:
            for old in list(islice(self, self._limit // 2)):
                self.pop(old, None)
        self[name] = value

    def make_room(self, limit: int) -> None:
        """Raise the limit to `limit`. It never falls."""
        self._limit = max(self._limit, limit)
