"""The sender's part of a message, as a value and as bytes. Scripts make the packed header from it."""

from __future__ import annotations

from typing import NamedTuple

from rqttl import units
from rqttl.errors import InvalidInput
from rqttl.protocol import codec
from rqttl.types import Message


class Envelope(NamedTuple):
    """The sender's part of a message: TTL, id and extras. Each is encoded, and empty where the message has none.

    The TTL is `+<ms>` or `@<instant>`.
    """

    ttl: bytes = b""
    id: bytes = b""
    extras: bytes = b""

    def encode(self) -> bytes:
        """The envelope as enqueue.lua takes it: a packed header with the TTL where the deadline will be."""
        ttl, id, extras = self
        if not (id or extras):
            return ttl
        if id and not ttl:
            return b";%d;;%b%b" % (len(id), id, extras)
        return b"%b;%b;;%b%b" % (ttl, b"%d" % len(id) if id else b"", id, extras)


#: The envelope of a message that has a body only.
NO_ENVELOPE = Envelope()
#: The envelope of a value that msgpack holds, without further fields.
VALUE = Envelope(extras=codec.pack_extras(codec.MSGPACK, None))


def ttl_may_be_over(ttl: bytes) -> bool:
    """Return True if an encoded TTL may have ended when the message arrives."""
    return ttl == b"+0" or ttl[:1] == b"@"


def envelope_of(message: Message, content_type: str | None) -> Envelope:
    """Encode TTL, id and headers of a message. Raises `InvalidInput`."""
    ttl = b""
    if message.ttl is not None and message.expires_at is not None:
        raise InvalidInput("ttl: give ttl or expires_at, not both")
    if message.ttl is not None:
        ttl = b"+%d" % units.duration(message.ttl, "ttl")
    elif message.expires_at is not None:
        ttl = b"@%d" % units.instant(message.expires_at, "expires_at")
    id = b"" if message.id is None else codec.check_id(message.id)
    # as `Envelope(...)`, but without the cost of keywords: a batch makes many
    return tuple.__new__(Envelope, (ttl, id, codec.pack_extras(content_type, message.headers)))
