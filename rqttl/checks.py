"""Checks of arguments that several calls share: names of queues and namespaces, whole numbers, lists, descriptions.

Each raises `InvalidInput`, or `InvalidName`, with the name of the argument.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from typing import Any

from rqttl.errors import InvalidInput, InvalidName
from rqttl.text import format_value, plain_text, plain_whole
from rqttl.types import Message

#: The most bytes of the description of a failure or a death.
MAX_DESCRIPTION_BYTES = 4_096
#: The most bytes of the id of a message.
MAX_ID_BYTES = 255
#: The largest number of messages, or of deliveries to settle, in one script call.
BATCH = 250
#: Body bytes that one enqueue call carries at most (a single message may be larger).
BATCH_BYTES = 2**20
#: The largest weight of a queue among several.
MOST_WEIGHT = 1_000_000

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._:/-]*"
_TAGGED = r"\{[A-Za-z0-9][A-Za-z0-9._:-]*\}[A-Za-z0-9._:-][A-Za-z0-9._:/-]*"
_NAME = re.compile(rf"(?:{_PLAIN}|{_TAGGED})", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MAX_NAME = 128
_WILD = re.compile(r"[*?\[]")
_PATTERN = re.compile(r"[A-Za-z0-9._:/{}*?!\[\]-]+", re.ASCII)


def whole(
    value: object, name: str, least: int = 1, most: int | None = None, error: type[InvalidInput] = InvalidInput
) -> int:
    """Check a whole number. Raises `error` with `name`."""
    number = plain_whole(value)
    if number is None or number < least or (most is not None and number > most):
        upto = "on" if most is None else f"to {most}"
        raise error(f"{name}: expected a whole number from {least} {upto}, got {format_value(value, int)}")
    return number


def is_scheduled(*messages: object) -> bool:
    """Return True if one of them has a due time. Each message pays for this: a list costs less than `any`."""
    return bool([m for m in messages if isinstance(m, Message) and (m.delay is not None or m.deliver_at is not None)])


def key_and_value(text: str) -> tuple[str, str]:
    """The halves of `KEY=VALUE`. Raises `InvalidInput`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput(f"pair: expected KEY=VALUE, got {text!r}")
    return key, value


def check_id(id: str) -> bytes:
    """The bytes of a message id. Raises `InvalidName`."""
    text = plain_text(id)
    encoded = text.encode() if text is not None and text.isprintable() else b""  # no half of a pair is printable
    if not 0 < len(encoded) <= MAX_ID_BYTES:
        got = f"{len(encoded)} bytes" if encoded else format_value(id)
        raise InvalidName(f"id: expected 1 to {MAX_ID_BYTES} bytes of printable text, got {got}")
    return encoded


def boolean(value: object, name: str) -> bool:
    """Check a bool. Raises `InvalidInput` with `name`."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}: expected true or false, got {format_value(value)}")
    return value


def unpatched(name: str) -> None:
    """Raise `InvalidInput` where gevent has patched what handlers and renewers of leases need."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey and any(map(monkey.is_module_patched, ("threading", "socket"))):
        raise InvalidInput(f"{name}: gevent has patched threads or sockets here; start `rqttl worker` instead")


def items(value: object, argument: str, expected: str) -> list[Any]:
    """The items of an iterable. Raises `InvalidInput` for text, for bytes and for a value that is no iterable."""
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{argument}: expected {expected}, got {format_value(value)}")
    return list(value)


def choice(value: object, name: str, choices: Collection[str]) -> str:
    """Check that a text is one of `choices`. Raises `InvalidInput` with `name`."""
    text = plain_text(value)
    if text is None or text not in choices:
        raise InvalidInput(f"{name}: expected one of {', '.join(choices)}, got {format_value(value)}")
    return text


def cut_description(text: str) -> str:
    """Return a description cut to its limit. Characters that UTF-8 cannot hold are escaped."""
    encoded = text[:MAX_DESCRIPTION_BYTES].encode(errors="backslashreplace")
    return encoded[:MAX_DESCRIPTION_BYTES].decode(errors="ignore")


def is_queue_name(text: str) -> bool:
    """Return whether a queue may have this name. `check_queue_name` states the rule."""
    return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None


def queue_name(member: bytes) -> str | None:
    """A member of the registry as the name of a queue; `None` if no queue can have that name."""
    text = member.decode("ascii", "replace")
    return text if is_queue_name(text) else None


def queue_names(members: Iterable[bytes]) -> list[str]:
    """The names of queues in the registry, sorted. Members from other programs are left out."""
    return sorted(filter(None, map(queue_name, members)))


def check_queue_name(name: object, argument: str = "queue name") -> str:
    """Return `name` if a queue may have it. Raise `InvalidName`, which names the `argument`, otherwise.

    A name has 1 to 128 of `A-Z a-z 0-9 . _ : / -` and starts with a letter or digit. On Redis Cluster its hash tag
    selects the slot. The hash tag is the part before the first `/`, or the whole name: `orders` and `orders/dead`
    share a slot. A name may also begin with a hash tag in braces, as in `{billing}.orders`. Such a tag has no `/`, and
    no `/` follows it: `{orders}/dead` would have the keys of `orders/dead`.
    """
    text = plain_text(name)
    if text is None or not is_queue_name(text):
        is_tagged = text is not None and text.startswith("{")
        tag = "; or a {tag} without / and one more of them, which is no /, in front" if is_tagged else ""
        rule = f"1 to {_MAX_NAME} of A-Z a-z 0-9 . _ : / -, first a letter or digit{tag}"
        raise InvalidName(f"{argument}: expected {rule}, got {format_value(name)}")
    return text


def check_subscription_name(name: object) -> str:
    """Return `name` if a subscription may have it: text that has no `/`. Raise `InvalidName` otherwise."""
    text = plain_text(name)
    if not text or "/" in text or not text.isprintable():
        raise InvalidName(f"name: expected the name of a subscription, without '/', got {format_value(name)}")
    return text


def is_pattern(text: str) -> bool:
    """True if a text has one of the characters `*`, `?` and `[`, which no name has."""
    return _WILD.search(text) is not None


def check_name_or_pattern(text: object, argument: str) -> str:
    """Return `text` if it is a name, or a pattern that a name can match. Raise `InvalidName` otherwise.

    `*` stands for any characters of a name, `?` for one, `[ab]` for one of these and `[!ab]` for any other.
    """
    pattern = plain_text(text)
    if pattern is None or not is_pattern(pattern):
        return check_queue_name(text, argument)
    if not _PATTERN.fullmatch(pattern):
        raise InvalidName(
            f"{argument}: expected a name, or a pattern of A-Z a-z 0-9 . _ : / - {{ }} with * ? [ab] or [!ab], "
            f"got {format_value(text)}"
        )
    return pattern


def check_namespace(namespace: object) -> str:
    """Return `namespace` if keys may start with it, raise `InvalidName` otherwise."""
    text = plain_text(namespace)
    if text is None or not _NAMESPACE.fullmatch(text):
        raise InvalidName(f"namespace: expected 1 to 64 of A-Z a-z 0-9 . _ -, got {format_value(namespace)}")
    return text
