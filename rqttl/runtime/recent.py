"""A memory of what was used last, with a bound."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by name: all that were used last, `limit` at most, and at least half as many. Safe to share.

    Two generations make it as fast as a dictionary: what is used moves into the younger one, and when that is half of
    all, the older one is forgotten.
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
