"""The users of the command: the lines of their file, and their passwords."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from rqttl.errors import InvalidInput

#: n, r and p of scrypt: OWASP's choice for 16 MB.
COST = (2**14, 8, 5)

_LINE = re.compile(r"([^\s:]{1,64}):(act|look):scrypt\$([0-9a-f]{32})\$([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class User:
    """The right and the password of a user."""

    acts: bool
    salt: bytes
    digest: bytes

    def has(self, password: str) -> bool:
        """Whether a password is right. It takes a tenth of a second, whatever the password."""
        return hmac.compare_digest(_digest(password, self.salt), self.digest)


#: Whose password nobody has: an unknown name costs as much as a known one.
NOBODY = User(False, secrets.token_bytes(16), secrets.token_bytes(32))


def _digest(password: str, salt: bytes) -> bytes:
    n, r, p = COST
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, dklen=32, maxmem=2**26)


def user_line(name: str, password: str, *, acts: bool) -> str:
    """The line of a user in a file. Raises `InvalidInput`."""
    salt = secrets.token_bytes(16)
    line = f"{name}:{'act' if acts else 'look'}:scrypt${salt.hex()}${_digest(password, salt).hex()}"
    if not (_LINE.fullmatch(line) and name.isprintable() and password):
        raise InvalidInput("user: expected a name of 1 to 64 characters without : and spaces, and a password")
    return line


def read_users(content: str) -> dict[str, User]:
    """The users of a file by name. Raises `InvalidInput`."""
    users: dict[str, User] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not (match := _LINE.fullmatch(line)) or match[1] in users:
            raise InvalidInput(f"users: line {number} is no NAME:act:scrypt... or NAME:look:..., or has a name again")
        users[match[1]] = User(match[2] == "act", bytes.fromhex(match[3]), bytes.fromhex(match[4]))
    return users
