"""Frames between a worker and its children: arrays as msgpack, one after the other, in both directions."""

from __future__ import annotations

import enum
from typing import Any

import msgpack

#: The most bytes of one read.
CHUNK = 1 << 18


class Frame(enum.IntEnum):
    """The kinds of frames, with their contents."""

    # From the worker to a child
    SETUP = 0  #: the first frame: the settings of the child, as a mapping
    RUN = 1  #: the queue, the JSON of its options, and the key and the fields of each message
    CANCEL = 2  #: cancel the coroutine of a key, or end its command
    STOP = 3  #: begin nothing more, give back what waits, and end when the handlers have ended
    # From a child to the worker
    READY = 10  #: slots, and the seconds in which it can end one handler alone or none
    BROKEN = 11  #: the handler cannot be loaded: one line for people, and a traceback
    ENDED = 12  #: a handler has ended: its key, the seconds, and the outcome or none if it has settled the message
    SETTLED = 13  #: a handler has settled its message and goes on: its key and the outcome
    RENEW = 14  #: a handler renews its lease: its key and the length in ms
    UNSEEN = 15  #: after STOP: the keys of messages that no handler has begun


def pack(kind: Frame, *content: Any) -> bytes:
    """Encode a frame."""
    frame = (int(kind), *content)
    packed: bytes = msgpack.packb(frame, use_bin_type=True, unicode_errors="backslashreplace")  # errors of users
    return packed


def unpacker() -> Any:
    """Return an object with `feed(data)` that iterates over the frames that are complete."""
    return msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=2**31 - 1)
