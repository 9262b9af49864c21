"""Secrets: passwords that no output shows."""

from __future__ import annotations

import re
import secrets

MASK = "***"
_CREDENTIALS = re.compile(r"://[^/\s]*@")


class Secret:
    """A text that `repr`, `str`, format and tracebacks show as `***`. Only `reveal` returns it.

    Spark pickles it for the executors. The pickle holds the text XORed with a random pad, so a print of the pickle, or
    a text search in it, does not show the text by accident. This is no encryption: the pickle holds the pad, too, and
    any program that loads it has the text.
    """

    __slots__ = ("_masked", "_pad")

    def __init__(self, text: str) -> None:
        plain = text.encode("utf-8", "surrogateescape")
        self._pad = secrets.token_bytes(len(plain))
        self._masked = _xor(plain, self._pad)

    def reveal(self) -> str:
        """Return the text itself."""
        return _xor(self._masked, self._pad).decode("utf-8", "surrogateescape")

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return MASK


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def quoted(value: object) -> str:
    """Quote a value for an error text: at most 80 characters, and no credentials of a URL."""
    return repr(_CREDENTIALS.sub(f"://{MASK}@", str(value))[:80])


def mask(text: str, secret: str | None) -> str:
    """Replace the secret and the credentials of URLs in a text of another program."""
    text = text.replace(secret, MASK) if secret else text
    return _CREDENTIALS.sub(f"://{MASK}@", text)
