"""JSON text of any value, also of values that JSON lacks: bytes, times, NaN, infinity, keys that are no text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from rqttl.text import escape


def load_object(text: str | bytes) -> dict[str, Any]:
    """Read a JSON object from Redis, where any program may write. Raises only `ValueError`, also for deep nesting."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def dump(value: Any) -> str:
    """Format a value as one line of strict JSON in ASCII, safe on a terminal. Values that JSON lacks become texts."""
    return dump_with(value, as_text, ascii_only=True).replace("\x7f", "\\u007f")


def dump_readable(value: Any) -> str:
    """Format a value as `dump` does, with all letters unchanged. The caller escapes it for a terminal."""
    return dump_with(value, as_text)


def dump_with(
    value: Any,
    replace: Callable[[object], object],
    *,
    ascii_only: bool = False,
    separators: tuple[str, str] | None = None,
) -> str:
    """Format a value as one line of strict JSON. `replace` maps values and keys that JSON lacks to ones that it has."""

    def encode(value: Any) -> str:
        return json.dumps(value, default=replace, ensure_ascii=ascii_only, allow_nan=False, separators=separators)

    try:
        return encode(value)
    except (ValueError, TypeError):  # for NaN, infinity and keys that are bytes `json` does not call `default`
        return encode(_strict(value, replace))


def as_text(value: object) -> str:
    """The text for a value that JSON lacks."""
    if isinstance(value, bytes):
        return escape(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _strict(value: Any, replace: Callable[[object], object]) -> Any:
    if isinstance(value, dict):
        return {_strict_key(key, replace): _strict(item, replace) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item, replace) for item in value]
    return replace(value) if isinstance(value, float) and not math.isfinite(value) else value


def _strict_key(key: Any, replace: Callable[[object], object]) -> Any:
    if isinstance(key, float) and not math.isfinite(key):
        return replace(key)
    return key if isinstance(key, (str, int, float, type(None))) else str(replace(key))
