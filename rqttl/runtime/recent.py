"""A bounded memory of the values that were used last."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by name: the ones used last, `limit` at most and at least half as many. Safe to share between threads.

    Two generations make it as fast as a dictionary. A value that is used moves into the younger generation. When that
    holds half of the limit, the older generation is forgotten.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._young: dict[str, T] = {}
        self._old: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, name: str) -> T | None:
        """Return the value of a name; `None` if there is none."""
        value = self._young.get(name)
        if value is None:
            value = self._old.pop(name, None)
            if value is not None:
                self.put(name, value)
        return value

    def put(self, name: str, value: T) -> None:
        """Remember a value."""
        young = self._young
        if len(young) >= self._half:
            self._old, self._young = young, {}
        self._young[name] = value

    def forget(self, name: str) -> None:
        """Forget a name."""
        self._young.pop(name, None)
        self._old.pop(name, None)

    def clear(self) -> None:
        """Forget all."""
        self._young, self._old = {}, {}

    def make_room(self, limit: int) -> None:
        """Raise the limit to `limit`. It never falls."""
        self._half = max(self._half, limit // 2)
