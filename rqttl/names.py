"""Names of queues and namespaces, and the rules for them."""

from __future__ import annotations

import re

from rqttl.errors import InvalidName
from rqttl.text import plain_text, shown

_WORD = r"[A-Za-z0-9][A-Za-z0-9._:/-]*"
_NAME = re.compile(rf"(?:{_WORD}|\{{{_WORD}\}}[A-Za-z0-9._:/-]+)", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MAX_NAME = 128


def check_queue_name(name: object, argument: str = "queue name") -> str:
    """Return `name` if a queue may be called so, raise `InvalidName` otherwise, which names the `argument`.

    A name has 1 to 128 of `A-Z a-z 0-9 . _ : / -` and starts with a letter or digit. It may begin with a hash tag,
    as in `{billing}.orders`, to share a Redis Cluster slot with others of that tag.
    """
    text = plain_text(name)
    if text is None or len(text) > _MAX_NAME or not _NAME.fullmatch(text):
        rule = f"1 to {_MAX_NAME} of A-Z a-z 0-9 . _ : / -, first a letter or digit"
        raise InvalidName(f"{argument}: expected {rule}, got {shown(name)}")
    return text


def check_namespace(namespace: object) -> str:
    """Return `namespace` if keys may start with it, raise `InvalidName` otherwise."""
    text = plain_text(namespace)
    if text is None or not _NAMESPACE.fullmatch(text):
        raise InvalidName(f"namespace: expected 1 to 64 of A-Z a-z 0-9 . _ -, got {shown(namespace)}")
    return text
