"""Bodies that name their message and show any change of a byte."""

from __future__ import annotations

from zlib import crc32

#: How bodies begin that were put into a queue past the API, with headers that no client makes.
MEDDLED = b"meddled "


def body_of(id: str, size: int) -> bytes:
    """Return a body of about `size` bytes for a message."""
    text = id.encode() + b" " + b"." * max(0, size - len(id) - 10)
    return text + b"%08x" % crc32(text)


def is_body_of(id: str, body: bytes) -> bool:
    """Return True if it is an unchanged body of this message."""
    text, check = body[:-8], body[-8:]
    return text.partition(b" ")[0] == id.encode() and check == b"%08x" % crc32(text)
