"""A command as Redis reads it: by hiredis, or in Python where nothing compiled is, as in an archive for Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def pack_in_python(words: tuple[Any, ...]) -> bytes:
    """What `hiredis.pack_command` gives for bytes, texts and numbers."""
    packed = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(packed)


def _chosen() -> Callable[[tuple[Any, ...]], bytes]:
    try:
        from hiredis import pack_command
    except ImportError:
        return pack_in_python
    return pack_command


pack_command = _chosen()
