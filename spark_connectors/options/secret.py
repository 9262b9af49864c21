"""Secrets: a password that is seen only by who asks for it."""

from __future__ import annotations

import re
import secrets

MASK = "***"
_IN_URL = re.compile(r"://[^/\s]*@")


class Secret:
    """A text that no `repr`, `str`, format or traceback shows.

    It has to reach the executors, so it can be pickled. The pickle does not hold it in the clear, which keeps it out of
    what is printed or searched; it is no encryption.
    """

    __slots__ = ("_masked", "_pad")

    def __init__(self, text: str) -> None:
        plain = text.encode("utf-8", "surrogateescape")
        self._pad = secrets.token_bytes(len(plain))
        self._masked = _xor(plain, self._pad)

    def reveal(self) -> str:
        """The text itself."""
        return _xor(self._masked, self._pad).decode("utf-8", "surrogateescape")

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self._masked, self._pad)

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return MASK


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _unpickled(masked: bytes, pad: bytes) -> Secret:
    made = Secret.__new__(Secret)
    made._masked, made._pad = masked, pad  # noqa: SLF001  # this is its own constructor
    return made


def shown(value: object) -> str:
    """A value as error texts show it: quoted, not too long, and without the credentials of a URL."""
    return repr(_IN_URL.sub(f"://{MASK}@", str(value))[:80])


def masked(text: str, secret: str | None) -> str:
    """A text of somebody else, without the secret and without the credentials of a URL."""
    text = text.replace(secret, MASK) if secret else text
    return _IN_URL.sub(f"://{MASK}@", text)
