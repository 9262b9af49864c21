"""The options that the settings of an address become. The table of settings says which setting makes which option.

Artemis merges settings one by one, so they are merged first. A policy then has what differs from vaguer matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rqttl.errors import InvalidInput
from rqttl.imports.artemis.values import duration_text
from rqttl.options import OPTIONS

#: The default of `max-delivery-attempts`.
ATTEMPTS = 10
#: The default of `max-redelivery-delay` as a multiple of `redelivery-delay`.
_LONGEST_PAUSES = 10

Options = dict[str, object]
Settings = Mapping[str, Any]
#: Returns the queue of an address and a remark on it.
QueueOf = Callable[[str], tuple[str, str]]


class _Target(NamedTuple):
    """The beginning of the names of settings about one kind of target, its options, and its default prefix."""

    kind: str
    options: tuple[str, ...]
    prefix: str


_TARGETS = (
    _Target("expiry", ("dead-letter-expired",), "EXP."),
    _Target("dead-letter", ("dead-letter-delivery-limit", "dead-letter-rejected"), "DLQ."),
)
#: The settings that name targets.
ADDRESSES = ("expiry-address", "dead-letter-address")


def options_of(settings: Settings, queue_of: QueueOf, remarks: dict[str, str], *, is_target: bool) -> Options:
    """The options of merged settings, in kebab-case. Adds remarks by setting. `is_target`: it gets dead messages."""
    found: Options = {}
    _lifetime(settings, found, is_target=is_target)
    _redelivery(settings, found)
    _limits(settings, found)
    for target in _TARGETS:
        found |= _target(settings, target, queue_of, remarks)
    return found


def _lifetime(settings: Settings, found: Options, *, is_target: bool) -> None:
    attempts = settings.get("max-delivery-attempts", ATTEMPTS)
    delay, high = settings.get("expiry-delay", -1), settings.get("max-expiry-delay", -1)
    low = settings.get("min-expiry-delay", -1)
    if attempts > 0:
        found["max-deliveries"] = attempts
    if "no-expiry" in settings:
        found["never-expire"] = settings["no-expiry"]
    if delay >= 0:
        found["message-ttl" if is_target else "default-ttl"] = duration_text(delay)
    if low >= 0:
        found["min-ttl"] = duration_text(min(low, high) if high >= 0 else low)
    if high >= 0:
        found["max-ttl"] = duration_text(high)


def _redelivery(settings: Settings, found: Options) -> None:
    delay, factor = settings.get("redelivery-delay", 0), settings.get("redelivery-delay-multiplier", 1)
    longest = settings.get("max-redelivery-delay", delay * _LONGEST_PAUSES if delay > 0 and factor > 1 else 0)
    if delay > 0:
        found["redelivery-delay"] = duration_text(min(delay, longest) if longest > 0 else delay)
    if "redelivery-delay-multiplier" in settings and factor >= 1:
        found["redelivery-multiplier"] = _number(factor)
    if longest > 0:
        found["redelivery-max-delay"] = duration_text(longest)
    if "redelivery-collision-avoidance-factor" in settings:
        found["redelivery-jitter"] = _number(settings["redelivery-collision-avoidance-factor"])


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _limits(settings: Settings, found: Options) -> None:
    ring = settings.get("default-ring-size", -1)
    if ring >= 0:
        found |= {"max-length": ring, "overflow": "drop-head"}
    elif settings.get("address-full-policy", "PAGE") != "PAGE":
        found["overflow"] = "reject-publish"
        for option, name in (("max-length-bytes", "max-size-bytes"), ("max-length", "max-size-messages")):
            if settings.get(name, -1) >= 0:
                found[option] = settings[name]


def _target(settings: Settings, target: _Target, queue_of: QueueOf, remarks: dict[str, str]) -> Options:
    """The target of expired or dead messages, or a template for one that each queue gets."""
    kind, address = target.kind, settings.get(f"{target.kind}-address", "")
    if not address:
        return {}
    if settings.get(f"auto-create-{kind}-resources"):
        prefix, suffix = settings.get(f"{kind}-queue-prefix", target.prefix), settings.get(f"{kind}-queue-suffix", "")
        text = f"{prefix}{{queue}}{suffix}"
    else:
        text, remarks[f"{kind}-address"] = queue_of(address)
    try:
        for option in target.options:
            name = option.replace("-", "_")
            OPTIONS[name].read(name, text)
    except InvalidInput as error:
        remarks[f"{kind}-address"] = str(error)
        return {}
    return dict.fromkeys(target.options, text)
