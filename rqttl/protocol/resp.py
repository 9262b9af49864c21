"""Commands in the format of Redis (RESP). hiredis packs them; Python does if hiredis is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PLAIN = frozenset((bytes, str))
_NUMBERS = frozenset((int, float))


def pack_in_python(words: tuple[Any, ...]) -> bytes:
    """Pack bytes, texts and numbers as `hiredis.pack_command` does."""
    packed = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(packed)


def without_numbers(words: tuple[Any, ...]) -> tuple[Any, ...]:
    """The words with each number as text.

    hiredis asks Python for the text of a number and does not check the answer. A signal handler that raises at that
    moment would end the process with a segmentation fault.
    """
    if _PLAIN.issuperset(map(type, words)):
        return words
    return tuple([str(word) if type(word) in _NUMBERS else word for word in words])


def _best_packer() -> Callable[[tuple[Any, ...]], bytes]:
    try:
        from hiredis import pack_command as pack_in_c
    except ImportError:
        return pack_in_python

    def pack_with_hiredis(words: tuple[Any, ...]) -> bytes:
        packed: bytes = pack_in_c(without_numbers(words))
        return packed

    return pack_with_hiredis


pack_command = _best_packer()


class Packer:
    """Packs the commands that redis-py itself sends on a connection, such as `SELECT 3` and `HELLO 3`."""

    def pack(self, *words: Any) -> list[bytes]:
        """Pack one command. Its name may have several words."""
        name = words[0].encode() if isinstance(words[0], str) else words[0]
        arguments = [bytes(word) if isinstance(word, bytearray | memoryview) else word for word in words[1:]]
        return [pack_command((*name.split(), *arguments))]
