"""The `address-setting` elements of a broker.xml, and the options that their values become.

The table of settings says which setting makes which option. Artemis merges settings one by one, so they are merged
first. A policy then has what differs from vaguer matches.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rqttl import units
from rqttl.errors import InvalidImport, InvalidInput
from rqttl.imports.artemis.xml import Node
from rqttl.imports.notes import Notes, rows
from rqttl.options import OPTIONS
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.text import format_value

#: The default of `max-delivery-attempts`.
ATTEMPTS = 10
#: The default of `max-redelivery-delay` as a multiple of `redelivery-delay`.
_LONGEST_PAUSES = 10
_MAX_LONG = 2**63 - 1
_SECTION = "artemis setting"
#: Kinds of targets: the beginning of the names of their settings, their options, and their default prefix.
_TARGETS = (
    ("expiry", ("dead-letter-expired",), "EXP."),
    ("dead-letter", ("dead-letter-delivery-limit", "dead-letter-rejected"), "DLQ."),
)

Options = dict[str, object]
Settings = Mapping[str, Any]
#: Returns the queue of an address and a remark on it.
QueueOf = Callable[[str], tuple[str, str]]


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) > _MAX_LONG:
        raise ValueError
    return number


def _decimal(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _size(text: str) -> int:
    match = re.fullmatch(r"([+-]?\d{1,19})\s*([kmg]?)i?b?", text, re.ASCII | re.IGNORECASE)
    if not match:
        raise ValueError
    return _whole(match[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2].lower()]


#: What a value is, by the words behind `by` in the table.
_KINDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "plain": ("a text", str),
    "whole": ("a whole number", _whole),
    "decimal": ("a number", _decimal),
    "flag": ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    "size": ("a number of bytes such as 1048576 or 10MB", _size),
    "full-policy": (
        "one of PAGE, DROP, BLOCK, FAIL",
        lambda text: {word: word for word in ("PAGE", "DROP", "BLOCK", "FAIL")}[text.upper()],
    ),
}


def read_value(kind: str, text: str, place: str) -> Any:
    """A text as a value of a kind, one of `_KINDS`. Raises `InvalidImport`."""
    expected, convert = _KINDS[kind]
    try:
        return convert(text)
    except (ValueError, KeyError):
        hint = "; write the value of the property" if "${" in text else ""
        raise InvalidImport(place, f"expected {expected}, got {format_value(text)}{hint}") from None


@dataclass(frozen=True)
class AddressSetting:
    """One `address-setting`. `own` has its values by their names in small letters."""

    match: str
    pattern: Pattern
    node: Node
    own: Settings

    def includes(self, other: Pattern) -> bool:
        """True if its match includes each name of another one."""
        text, own = other.text, self.pattern.text
        if text == "#" or own == "#":
            return own == "#"
        return (own.endswith("#") or not text.endswith("#")) and self.pattern.matches(text.removesuffix(".#"))


def read_address_settings(section: Node, notes: Notes) -> list[AddressSetting]:
    """Read the children of `address-settings`. Raises `InvalidImport`. Of two with the same match the first counts."""
    by_match: dict[str, AddressSetting] = {}
    for node in section.children:
        if node.name != "address-setting":
            notes.about("address-settings").left_out(node.name, node.text, "it is no address-setting")
            continue
        match = node.attribute("match")
        about = notes.about(f"address-setting {match!r}")
        try:
            pattern = compile_pattern(match)
        except InvalidInput as error:
            about.left_out("match", match, str(error))
            continue
        table, own = rows(_SECTION), {}
        for child in node.children:
            row = table.get(child.name.lower())
            if row and row.by_code and not child.foreign:  # of several, Artemis takes the last one
                own[child.name.lower()] = read_value(row.reader, child.text, child.place)
        if match in by_match:
            about.left_out("", "", "an earlier address-setting has the same match, and Artemis keeps that one")
        else:
            by_match[match] = AddressSetting(match, pattern, node, own)
    return list(by_match.values())


def note_children(setting: AddressSetting, merged: Options, remarks: Mapping[str, str], notes: Notes) -> None:
    """Note each attribute and child, and the options that it has a part in."""
    for attribute, value in setting.node.attributes.items():
        if attribute != "match":
            notes.left_out(attribute, value, "it is no documented attribute")
    last = {child.name.lower(): child for child in setting.node.children if not child.foreign}
    for child in setting.node.children:
        name = child.name.lower()
        row = rows(_SECTION).get(name)
        if child.foreign:
            notes.left_out(child.name, child.text, "it is no element of Artemis")
        elif child is not last[name]:
            notes.left_out(child.name, child.text, "it stands here again, and Artemis takes the last one")
        elif row and row.by_code:
            found = {option: merged[option] for option in row.options if option in merged}
            became = ", ".join(f"{option}: {value}" for option, value in found.items()) or f"{row.options[0]}: none"
            if why := remarks.get(name) or row.text:
                notes.translated(child.name, child.text, f"{became}; {why}")
            else:
                notes.taken(child.name, child.text, became)
        else:
            notes.take_setting(_SECTION, name, child.name, child.text, child.place)


def options_of(settings: Settings, queue_of: QueueOf, remarks: dict[str, str], *, is_target: bool) -> Options:
    """The options of merged settings, in kebab-case. Adds remarks by setting. `is_target`: it gets dead messages."""
    found: Options = {}
    _lifetime(settings, found, is_target=is_target)
    _redelivery(settings, found)
    ring = settings.get("default-ring-size", -1)
    if ring >= 0:
        found |= {"max-length": ring, "overflow": "drop-head"}
    elif settings.get("address-full-policy", "PAGE") != "PAGE":
        found["overflow"] = "reject-publish"
        for option, name in (("max-length-bytes", "max-size-bytes"), ("max-length", "max-size-messages")):
            if settings.get(name, -1) >= 0:
                found[option] = settings[name]
    for kind, options, prefix in _TARGETS:
        try:
            text = _target(settings, kind, prefix, queue_of, remarks)
            for option in options if text else ():
                name = option.replace("-", "_")
                OPTIONS[name].read(name, text)
                found[option] = text
        except InvalidInput as error:
            remarks[f"{kind}-address"] = str(error)
    return found


def _duration(ms: int) -> str:
    """Milliseconds as a duration of rqttl, at most its longest one."""
    return units.as_text(min(ms, units.MAX_DURATION)) if ms else "0"


def _lifetime(settings: Settings, found: Options, *, is_target: bool) -> None:
    attempts = settings.get("max-delivery-attempts", ATTEMPTS)
    delay, high = settings.get("expiry-delay", -1), settings.get("max-expiry-delay", -1)
    low = settings.get("min-expiry-delay", -1)
    if attempts > 0:
        found["max-deliveries"] = attempts
    if "no-expiry" in settings:
        found["never-expire"] = settings["no-expiry"]
    if delay >= 0:
        found["message-ttl" if is_target else "default-ttl"] = _duration(delay)
    if low >= 0:
        found["min-ttl"] = _duration(min(low, high) if high >= 0 else low)
    if high >= 0:
        found["max-ttl"] = _duration(high)


def _redelivery(settings: Settings, found: Options) -> None:
    delay, factor = settings.get("redelivery-delay", 0), settings.get("redelivery-delay-multiplier", 1)
    longest = settings.get("max-redelivery-delay", delay * _LONGEST_PAUSES if delay > 0 and factor > 1 else 0)
    if delay > 0:
        found["redelivery-delay"] = _duration(min(delay, longest) if longest > 0 else delay)
    if "redelivery-delay-multiplier" in settings and factor >= 1:
        found["redelivery-multiplier"] = int(factor) if factor == int(factor) else factor
    if longest > 0:
        found["redelivery-max-delay"] = _duration(longest)
    if "redelivery-collision-avoidance-factor" in settings:
        found["redelivery-jitter"] = settings["redelivery-collision-avoidance-factor"]


def _target(settings: Settings, kind: str, prefix: str, queue_of: QueueOf, remarks: dict[str, str]) -> str:
    """The target of expired or dead messages, or a template for one that each queue gets; empty if there is none."""
    address = settings.get(f"{kind}-address", "")
    if not address:
        return ""
    if settings.get(f"auto-create-{kind}-resources"):
        before, after = settings.get(f"{kind}-queue-prefix", prefix), settings.get(f"{kind}-queue-suffix", "")
        return f"{before}{{queue}}{after}"
    text, remarks[f"{kind}-address"] = queue_of(address)
    return text
