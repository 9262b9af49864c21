"""Fewer runs of the garbage collector during reads and writes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: The users of a relaxed collector in this process, with the thresholds before the first of them.
_users: dict[object, tuple[int, int, int]] = {}


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Raise the thresholds of the garbage collector until the last user in this process leaves.

    Pages set the collector off all the time. A worker of Spark holds some 70,000 objects, so a full collection takes
    20 ms.
    """
    user = object()
    # a second user must not take the raised thresholds for the original ones
    _users[user] = next(iter(_users.values()), gc.get_threshold())
    gc.set_threshold(200_000, 20, 20)
    try:
        yield
    finally:
        original = _users.pop(user)
        if not _users:
            gc.set_threshold(*original)
