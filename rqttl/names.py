"""Names of queues and namespaces, and the rules for them."""

from __future__ import annotations

import re

from rqttl.errors import InvalidName
from rqttl.text import format_value, plain_text

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._:/-]*"
_TAGGED = r"\{[A-Za-z0-9][A-Za-z0-9._:-]*\}[A-Za-z0-9._:-][A-Za-z0-9._:/-]*"
_NAME = re.compile(rf"(?:{_PLAIN}|{_TAGGED})", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MAX_NAME = 128
_WILD = re.compile(r"[*?\[]")
_PATTERN = re.compile(r"[A-Za-z0-9._:/{}*?!\[\]-]+", re.ASCII)


def is_queue_name(text: str) -> bool:
    """Return whether a queue may have this name. `check_queue_name` states the rule."""
    return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None


def check_queue_name(name: object, argument: str = "queue name") -> str:
    """Return `name` if a queue may have it. Raise `InvalidName`, which names the `argument`, otherwise.

    A name has 1 to 128 of `A-Z a-z 0-9 . _ : / -` and starts with a letter or digit. On Redis Cluster its hash tag
    selects the slot. The hash tag is the part before the first `/`, or the whole name: `orders` and `orders/dead`
    share a slot. A name may also begin with a hash tag in braces, as in `{billing}.orders`. Such a tag has no `/`, and
    no `/` follows it: `{orders}/dead` would have the keys of `orders/dead`.
    """
    text = plain_text(name)
    if text is None or not is_queue_name(text):
        rule = f"1 to {_MAX_NAME} of A-Z a-z 0-9 . _ : / -, first a letter or digit{_tag_rule(text)}"
        raise InvalidName(f"{argument}: expected {rule}, got {format_value(name)}")
    return text


def _tag_rule(text: str | None) -> str:
    """The rule for braces, for a name that has some."""
    if text is None or not text.startswith("{"):
        return ""
    return "; or a {tag} without / and one more of them, which is no /, in front"


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
