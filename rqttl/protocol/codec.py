"""The sender's part of a message, as a value and as bytes. Scripts make the packed header from it."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from traceback import format_exception_only
from typing import Any, NamedTuple, cast

import msgpack

from rqttl import units
from rqttl.checks import MAX_DESCRIPTION_BYTES, MAX_ID_BYTES, check_id, cut_description
from rqttl.errors import InvalidInput, MessageTooLarge
from rqttl.filters import MAX_PATTERN_BYTES, SUBJECT
from rqttl.text import format_value, plain_number, plain_text
from rqttl.types import BINARY, MSGPACK, Death, Duration, Header, Instant, Message
from rqttl.units import as_datetime

#: Names that callers need beside those below.
__all__ = ["BINARY", "MAX_ID_BYTES", "MSGPACK", "check_id"]

#: Packed headers, content type included, may not be larger.
MAX_HEADER_BYTES = 65_536

#: The reason of the record in a history that says that the message was redriven.
REDRIVEN = b"redriven"

#: The class of several errors in one. Python 3.10 has none.
_GROUPS: Any = getattr(builtins, "BaseExceptionGroup", ())
_MSGPACK_CODE = 1
_DIGITS = 15
_LENGTHS = re.compile(rb"(\d*);(\d*);(\d*);")
_RECORD = re.compile(rb"(\S+) (\S+) (\d{1,15}) (\d{1,15}) (\d{1,15}) (\d{1,15}) (-|\d{1,15}) (\d{1,15}) (\d{1,15}) ")
_SEQUENCE = re.compile(r"\d{13}-\d{6}", re.ASCII)
#: How to pass values of types that msgpack does not know.
_AS_TEXT = {
    **dict.fromkeys(("datetime", "date", "time"), "pass its isoformat(), or a number"),
    **dict.fromkeys(("UUID", "Decimal"), "pass str() of it"),
    **dict.fromkeys(("set", "frozenset"), "pass a list"),
}
#: Types that hold no extension of msgpack, and the first bytes of extensions. Text and numbers may have these, too.
_SCALARS = frozenset((str, int, float, bool, type(None)))
_EXTENSIONS = bytes((*range(0xC7, 0xCA), *range(0xD4, 0xD9)))
_ONLY_MSGPACK: bytes = msgpack.packb([_MSGPACK_CODE, None])
_NO_HEADERS: Mapping[str, Header] = {}


def pack_body(body: object) -> tuple[bytes, str | None]:
    """The stored bytes of a body and its content type. Bytes are stored unchanged, with the content type `None`."""
    if type(body) is bytes:
        return body, None
    try:
        if isinstance(body, (bytes, bytearray, memoryview)):
            return memoryview(body).tobytes(), None
        try:
            packed: bytes = msgpack.Packer(strict_types=True).pack(body)  # `packb` takes longer
        except TypeError:  # a tuple, which may be a key, or a type of the caller's own
            return _checked(msgpack.packb(body)), MSGPACK
        is_plain = type(body) in _SCALARS or packed.translate(None, _EXTENSIONS) == packed
        return packed if is_plain else _checked(packed), MSGPACK
    except InvalidInput:
        raise
    except Exception as error:  # methods of the caller's own types may raise any exception
        why = describe(error)[:200]
        if isinstance(error, TypeError) and (kind := re.search(r"can not serialize '([\w.]+)' object", why)):
            why = f"got a {kind[1]}: {_AS_TEXT.get(kind[1].rpartition('.')[2], 'pass a dict, a list or text of it')}"
        raise InvalidInput(f"body: expected bytes or a value that msgpack can hold: {why}") from error


def _checked(packed: bytes) -> bytes:
    """The bytes of a value. Raises `InvalidInput` if `unpack` would refuse them."""
    try:
        unpack(packed)
    except InvalidInput as error:
        cause = error.__context__
        why = "got a tuple as a key: pass text of it" if isinstance(cause, TypeError) else cause
        raise InvalidInput(f"body: expected a value that consumers can decode: {why}") from None
    return packed


def pack_values(values: Sequence[object]) -> list[bytes]:
    """The stored bytes of values of other types than bytes, as `pack_body` packs them."""
    try:
        packed = list(map(msgpack.Packer(strict_types=True).pack, values))
    except Exception:  # noqa: BLE001  # one of them cannot be packed so: its own error tells which rule it breaks
        return [pack_body(value)[0] for value in values]
    if _SCALARS.issuperset(map(type, values)) or not any(map(b"".join(packed).__contains__, _EXTENSIONS)):
        return packed
    return [pack_body(value)[0] for value in values]


def unpack(data: bytes) -> Any:
    """Decode msgpack bytes. It refuses extension types and sizes beyond the data itself. Raises `InvalidInput`."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, ext_hook=_refuse_extension)
    except (ValueError, TypeError, RecursionError) as error:
        # msgpack's own exceptions are ValueErrors
        raise InvalidInput(f"body: not valid msgpack: {type(error).__name__}: {str(error)[:200]}") from None


def _refuse_extension(code: int, _: bytes) -> object:
    raise ValueError(f"extension type {code} is not accepted")


def pack_extras(content_type: str | None, headers: Mapping[str, Header] | None) -> bytes:
    """Encode content type and headers as the opaque end of a packed header. Empty if a message has neither."""
    if headers is None:
        if content_type is None:
            return b""
        if content_type is MSGPACK:
            return _ONLY_MSGPACK
        headers = _NO_HEADERS
    elif not isinstance(headers, Mapping):
        raise InvalidInput(f"headers: expected a mapping, got {format_value(headers)}")
    plain = dict([_header(name, value) for name, value in headers.items()])
    text = plain_text(content_type)
    if content_type is not None and (text is None or not text.isprintable()):
        raise InvalidInput(f"content_type: expected printable text, got {format_value(content_type)}")
    if text is None and not plain:
        return b""
    kind = _MSGPACK_CODE if text == MSGPACK else text
    try:
        packed: bytes = msgpack.packb([kind, plain or None], use_bin_type=True)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"headers: {error}") from None
    if len(packed) > MAX_HEADER_BYTES:
        parts = "headers and content_type" if plain and text else "headers" if plain else "content_type"
        raise MessageTooLarge(f"{parts}: {len(packed)} bytes are more than {MAX_HEADER_BYTES}")
    return packed


def _header(name: object, value: object) -> tuple[str, Header]:
    """Check one header. Returns its name and its value as plain types."""
    key = plain_text(name)
    if not key:
        raise InvalidInput(f"headers: expected non-empty text as name, got {format_value(name)}")
    if value is None or isinstance(value, bool):
        return key, value
    if isinstance(value, (str, bytes)):
        return key, plain_text(value) if isinstance(value, str) else memoryview(value).tobytes()
    number = plain_number(value)
    if number is None:
        raise InvalidInput(
            f"headers: {format_value(key)}: expected text, bytes, a number, a flag or None, got {format_value(value)}"
        )
    if isinstance(number, int) and not -(2**63) <= number < 2**64:
        raise InvalidInput(
            f"headers: {format_value(key)}: expected a number of at most 64 bits, got {format_value(value, int)}"
        )
    if not math.isfinite(number):
        raise InvalidInput(f"headers: {format_value(key)}: expected a finite number, got {number!r}")
    return key, number


@dataclass(frozen=True, slots=True)
class ParsedHeader:
    """The contents of a packed header. `deadline` is the message's own. `id` is `None` if the sequence is the id."""

    deadline: int | None
    id: str | None
    content_type: str
    headers: Mapping[str, Header]
    deaths: tuple[Death, ...]


_PLAIN = ParsedHeader(None, None, BINARY, _NO_HEADERS, ())


def unpack_header(header: bytes) -> ParsedHeader:
    """Read a packed header. It never fails: an unreadable part counts as absent."""
    if not header:
        return _PLAIN
    if header.isdigit():
        return ParsedHeader(_deadline(header), None, BINARY, _NO_HEADERS, ())
    if header.startswith(b";;;"):  # extras alone
        return ParsedHeader(None, None, *_unpack_extras(header[3:]), ())
    deadline, id, records, extras = _split(header)
    deaths = tuple(death for death, _ in _records(records) if death)
    return ParsedHeader(_deadline(deadline), id.decode(errors="replace") or None, *_unpack_extras(extras), deaths)


def sound_header(header: bytes) -> bytes:
    """The same header without the unreadable parts of deadline, id and deaths."""
    if not header or header.isdigit():
        return header if len(header) <= _DIGITS else b""
    deadline, id, deaths, extras = _split(header)
    end = max((end for _, end in _records(deaths)), default=0)
    deadline = deadline if _deadline(deadline) is not None else b""
    return b"%b;%d;%d;%b%b%b" % (deadline, len(id), end, id, deaths[:end], extras)


def _split(header: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Deadline, id, deaths and extras, as bytes. Damaged lengths leave only the deadline."""
    match = _LENGTHS.match(header)
    start = match.end() if match else 0
    end_of_id = start + (_length(match[2]) if match else 0)
    end_of_deaths = end_of_id + (_length(match[3]) if match else 0)
    if not match or end_of_deaths > len(header):
        before, semicolon, _ = header.partition(b";")
        return before if semicolon else b"", b"", b"", b""
    return match[1], header[start:end_of_id], header[end_of_id:end_of_deaths], header[end_of_deaths:]


def _deadline(digits: bytes) -> int | None:
    return int(digits) if digits.isdigit() and len(digits) <= _DIGITS else None


def _length(digits: bytes) -> int:
    """A length in a header. A number with too many digits gives a length beyond any header."""
    return int(digits or 0) if len(digits) <= _DIGITS else 10**_DIGITS


def _unpack_extras(extras: bytes) -> tuple[str, Mapping[str, Header]]:
    if not extras:
        return BINARY, _NO_HEADERS
    try:
        kind, headers = msgpack.unpackb(extras, raw=False, unicode_errors="replace")
    except (ValueError, TypeError, RecursionError, OverflowError):  # msgpack's own exceptions are ValueErrors
        return BINARY, _NO_HEADERS
    content_type = MSGPACK if kind == _MSGPACK_CODE else kind if kind and isinstance(kind, str) else BINARY
    if not isinstance(headers, dict):
        return content_type, _NO_HEADERS
    sound = {
        name: value
        for name, value in headers.items()
        if isinstance(name, str) and isinstance(value, str | bytes | int | float | None)
    }
    return content_type, sound or _NO_HEADERS


def _records(data: bytes) -> Iterator[tuple[Death | None, int]]:
    """The records of a history up to the first unreadable one: the death (`None`: a redrive) and the end of each."""
    end = 0
    while match := _RECORD.match(data, end):
        queue, reason, count, first, last, enqueued, expires, deliveries, length = match.groups()
        end = match.end() + int(length)
        if end > len(data):
            return
        death = Death(
            queue=queue.decode(errors="replace"),
            reason=reason.decode(errors="replace"),
            count=int(count),
            first_at=as_datetime(int(first)),
            last_at=as_datetime(int(last)),
            enqueued_at=as_datetime(int(enqueued)),
            expires_at=None if expires == b"-" else as_datetime(int(expires)),
            delivery_count=int(deliveries),
            description=data[match.end() : end].decode(errors="replace") or None,
        )
        yield (None if reason == REDRIVEN else death), end


def pack_description(text: str | None) -> bytes:
    """The description of a rejection or a failure as bytes. Raises `InvalidInput` beyond 4096 bytes."""
    if text is None:
        return b""
    plain = plain_text(text)
    if plain is None:
        raise InvalidInput(f"description: expected text, got {format_value(text)}")
    encoded = plain.encode(errors="replace")
    if len(encoded) > MAX_DESCRIPTION_BYTES:
        raise InvalidInput(f"description: {len(encoded)} bytes are more than {MAX_DESCRIPTION_BYTES}")
    return encoded


def describe(error: BaseException) -> str:
    """Describe a failure: the class of the error and its text, cut to the limit of a description. It never fails.

    A group of errors, as a TaskGroup raises it, says little: the first error in it follows.
    """
    chain = [error]
    while isinstance(chain[-1], _GROUPS):
        chain.append(chain[-1].exceptions[0])
    return cut_description(": ".join("".join(format_exception_only(one)).rstrip() for one in chain))


def enqueued_at(sequence: bytes) -> int:
    """The millisecond in which a message was put into its queue: the first part of its sequence."""
    return int(sequence[:13])


def deadline(retention: int | None, sequence: bytes, own: int | None) -> datetime | None:
    """The effective deadline: the earlier one of the message's own deadline and the end of the queue's retention."""
    ends = own
    if retention is not None:
        kept = enqueued_at(sequence) + retention
        ends = kept if own is None else min(own, kept)
    return None if ends is None else as_datetime(ends)


def is_sequence(text: object) -> bool:
    """Return True for text in the form of a sequence."""
    return isinstance(text, str) and _SEQUENCE.fullmatch(text) is not None


def check_sequence(value: object, argument: str) -> str:
    """Return `value` if it has the form of a sequence, raise `InvalidInput` otherwise."""
    text = plain_text(value)
    if text is None or not is_sequence(text):
        raise InvalidInput(f"{argument}: expected the sequence of a message, got {format_value(value)}")
    return text


def sequence_before(sequence: str) -> str:
    """The sequence right before a sequence."""
    before = f"{max(0, int(sequence.replace('-', '')) - 1):019d}"
    return f"{before[:13]}-{before[13:]}"


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
VALUE = Envelope(extras=pack_extras(MSGPACK, None))


_TTL = re.compile(rb"([+@]?)([0-9]{0,15})")


def unpack_envelope(envelope: bytes) -> tuple[tuple[bytes, int] | None, ParsedHeader]:
    """Read an encoded envelope: the sign and the number of its TTL, `None` without one, and the rest as a header."""
    ttl = cast("re.Match[bytes]", _TTL.match(envelope))
    sent = (ttl[1], int(ttl[2])) if ttl[1] and ttl[2] else None
    return sent, unpack_header(envelope[ttl.end() :])


def ttl_may_be_over(ttl: bytes) -> bool:
    """Return True if an encoded TTL may have ended when the message arrives."""
    return ttl == b"+0" or ttl[:1] == b"@"


def due_of(delay: Duration | None, deliver_at: Instant | None) -> bytes:
    """Encode when a message is due: `+<ms>` or `@<ms>`, empty for at once. Raises `InvalidInput`."""
    if delay is not None:
        if deliver_at is not None:
            raise InvalidInput("delay: give delay or deliver_at, not both")
        return b"+%d" % units.duration(delay, "delay")
    return b"" if deliver_at is None else b"@%d" % units.instant(deliver_at, "deliver_at")


def envelope_of(message: Message, content_type: str | None) -> Envelope:
    """Encode TTL, id and headers of a message. Raises `InvalidInput`."""
    ttl = b""
    if message.ttl is not None and message.expires_at is not None:
        raise InvalidInput("ttl: give ttl or expires_at, not both")
    if message.ttl is not None:
        ttl = b"+%d" % units.duration(message.ttl, "ttl")
    elif message.expires_at is not None:
        ttl = b"@%d" % units.instant(message.expires_at, "expires_at")
    id = b"" if message.id is None else check_id(message.id)
    # as `Envelope(...)`, but without the cost of keywords: a batch makes many
    headers = message.headers if message.subject is None else headers_of(message)
    return tuple.__new__(Envelope, (ttl, id, pack_extras(content_type, headers)))


def headers_of(message: Message) -> Mapping[str, Header] | None:
    """The headers of a message, its subject among them. Raises `InvalidInput`."""
    if message.subject is None:
        return message.headers
    text, headers = plain_text(message.subject), message.headers or {}
    size = len(text.encode()) if text is not None and text.isprintable() else 0  # no half of a pair is printable
    if not 0 < size <= MAX_PATTERN_BYTES or not all(str(text).split(".")):
        rule = f"expected printable words with dots between them, at most {MAX_PATTERN_BYTES} bytes"
        raise InvalidInput(f"subject: {rule}, got {format_value(message.subject)}")
    if isinstance(headers, Mapping) and SUBJECT in headers:
        raise InvalidInput(f"subject: given as a header, too: {format_value(headers[SUBJECT])}; leave one of them out")
    return {**headers, SUBJECT: text} if isinstance(headers, Mapping) else headers
