"""Frames between a worker and its children: arrays as msgpack, one after the other, in both directions. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack

# From the worker to a child
#: The settings of the child, the first frame: one mapping.
SETUP = 0
#: A queue: its number, its name, and the JSON of its options. It comes before the first task of that queue.
QUEUE = 1
#: Messages to handle: the number of their queue, and the key and the parcel of each.
TASKS = 2
#: Give back all messages that no handler has begun.
RECALL = 3
#: Cancel the coroutine of a key, or end its command.
CANCEL = 4
#: End when no handler works any more.
QUIT = 5

# From a child to the worker
#: The child can handle messages: the number at a time, the seconds in which it can end one alone or none, and the
#: folder of the handler's source.
READY = 10
#: The child cannot load its handler: one line for people.
BROKEN = 11
#: Handlers have ended well: the keys of their messages. The board of the child shows the times, and the begins.
SUCCEEDED = 12
#: A handler has settled its message and goes on: its key and the outcome.
SETTLED = 13
#: A handler has ended: its key, and the outcome, or none if it has settled the message itself.
ENDED = 14
#: The keys of messages that no handler has begun.
UNSEEN = 15
#: The child ends after the messages at hand: the cause. Its unseen messages follow.
RETIRING = 16
#: A handler renews its lease: its key and the length in ms.
RENEW = 17

_LARGEST = 2**31 - 1


def pack(*frame: Any) -> bytes:
    """Encode a frame."""
    packed: bytes = msgpack.packb(frame, use_bin_type=True, unicode_errors="backslashreplace")  # errors of users
    return packed


class FrameReader:
    """Cuts received bytes into frames."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=_LARGEST)

    def feed(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        """Add received bytes. Returns the frames that are complete now."""
        self._unpacker.feed(data)
        yield from self._unpacker
