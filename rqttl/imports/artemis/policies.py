"""The policies of a broker.xml: one for each `address-setting`, and one for each queue that the others do not fit.

The table of settings says which setting makes which option. Artemis merges settings one by one, so they are merged
first. A policy then has what differs from vaguer matches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rqttl import units
from rqttl.errors import InvalidInput
from rqttl.imports.artemis.xml import Node, read_value
from rqttl.imports.notes import Notes, rows
from rqttl.options import OPTIONS
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.policies.policy import NONE

#: The default of `max-delivery-attempts`.
_ATTEMPTS = 10
#: The default of `max-redelivery-delay` as a multiple of `redelivery-delay`.
_LONGEST_DELAY = 10
_SECTION = "artemis setting"
#: Kinds of targets: the beginning of the names of their settings, their options, and their default prefix.
_TARGETS = (
    ("expiry", ("dead-letter-expired",), "EXP."),
    ("dead-letter", ("dead-letter-delivery-limit", "dead-letter-rejected"), "DLQ."),
)
_LONGEST_NAME = 120
_STARS = (
    "where a match with a single-word wildcard meets another one, and neither includes the other, Artemis combines "
    "settings that act together, and rqttl does not: write an address-setting for these names"
)

Options = dict[str, object]
Settings = Mapping[str, Any]
#: The queues by the names of their addresses, as the file writes these.
Addresses = Mapping[str, "Sequence[BrokerQueue]"]


@dataclass(frozen=True, slots=True)
class BrokerQueue:
    """A queue of rqttl, with its address and its `ring-size` (`None` if it has none).

    A multicast queue gets a copy of each message to its address that `filter` lets pass; empty: all.
    """

    name: str
    address: str
    multicast: bool
    ring_size: int | None
    filter: str
    notes: Notes


@dataclass(frozen=True, slots=True)
class _AddressSetting:
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


@dataclass(frozen=True, slots=True)
class _Made:
    """A policy in the making."""

    name: str
    pattern: Pattern
    definition: Options


class Policies:
    """The policies of a file, in the order of the file."""

    def __init__(self, addresses: Addresses, topics: Collection[str]) -> None:
        self._addresses, self.topics = addresses, topics
        self._made: dict[str, _Made] = {}
        self._numbers: Counter[str] = Counter()  # of policies that would have the same name

    def add_settings(self, section: Node | None, notes: Notes) -> None:
        """Translate each `address-setting` to a policy, the vaguest first. Raises `InvalidImport`."""
        read = _read_settings(section, notes) if section else []
        settings = sorted(read, key=lambda setting: setting.pattern.rank, reverse=True)
        has_default = any(setting.match == "#" for setting in settings)
        targets: set[str] = set()
        for setting in settings:
            for address in (str(setting.own.get(name, "")) for name in ("expiry-address", "dead-letter-address")):
                targets |= {address, *(queue.name for queue in self._addresses.get(address, ()))}
        options: dict[str, Options] = {}
        for place, setting in enumerate(settings):
            about = notes.about(f"address-setting {setting.match!r}")
            vaguer = [other for other in settings[:place] if other.includes(setting.pattern)]
            base: Options = {} if has_default else {"max-deliveries": _ATTEMPTS}
            for other in vaguer:
                base |= options[other.match]
            own = options[setting.match] = self._define(setting, vaguer, base, targets, about)
            if own:
                name = self._add(setting.pattern, own).name
                about.taken("match", setting.match, f"policy {name!r} with pattern {setting.match!r}")
            else:
                about.left_out("match", setting.match, "it sets nothing new")
        about = notes.about("address-settings")
        if any("*" in setting.match.split(".") for setting in settings):
            about.translated("match", "", _STARS)
        if not has_default:
            name = self._add(compile_pattern("#"), {"max-deliveries": _ATTEMPTS}, "artemis-defaults").name
            text = f"policy {name!r} for all queues: max-deliveries: {_ATTEMPTS}, the default of Artemis"
            about.translated("max-delivery-attempts", "", text)

    def _define(
        self, setting: _AddressSetting, vaguer: list[_AddressSetting], base: Options, targets: set[str], notes: Notes
    ) -> Options:
        """The options that the policy of a setting adds to `base`, those of vaguer ones. Notes each child."""
        values: dict[str, object] = {}
        for one in (*vaguer, setting):
            values |= one.own
        remarks: dict[str, str] = {}
        merged = self._options(values, remarks, is_target=setting.match in targets)
        base = {name: value for name, value in base.items() if value != NONE}
        options = {name: value for name, value in merged.items() if base.get(name) != value}
        options |= dict.fromkeys(sorted(base.keys() - merged.keys()), NONE)
        for name in setting.own:
            own = rows(_SECTION)[name].options
            options |= {option: merged[option] for option in own if option in merged} or dict.fromkeys(own, NONE)
        _note_children(setting, merged, remarks, notes)
        return options

    def _options(self, settings: Settings, remarks: dict[str, str], *, is_target: bool) -> Options:
        """The options of merged settings. Adds remarks by setting. `is_target`: the queue gets dead messages."""
        found = _lifetime(settings, is_target=is_target) | _redelivery(settings) | _limits(settings)
        for kind, options, prefix in _TARGETS:
            text = self._target(settings, kind, prefix, remarks)
            try:
                for option in options if text else ():
                    name = option.replace("-", "_")
                    OPTIONS[name].read(name, text)
                    found[option] = text
            except InvalidInput as error:
                remarks[f"{kind}-address"] = str(error)
        return found

    def _target(self, settings: Settings, kind: str, prefix: str, remarks: dict[str, str]) -> str:
        """The target of expired or dead messages, or a template for one that each queue gets; empty without one."""
        address = settings.get(f"{kind}-address", "")
        if not address:
            return ""
        if settings.get(f"auto-create-{kind}-resources"):
            before, after = settings.get(f"{kind}-queue-prefix", prefix), settings.get(f"{kind}-queue-suffix", "")
            return f"{before}{{queue}}{after}"
        text, remarks[f"{kind}-address"] = self.queue_of(address)
        return text

    def queue_of(self, address: str) -> tuple[str, str]:
        """The queue or topic that gets the dead letters for an address, and a remark on it."""
        _, qualified, queue = address.partition("::")
        if qualified:
            return queue, "the queue of the fully qualified name"
        queues = self._addresses.get(address)
        if address in self.topics:
            return address, "the topic of the address"
        if queues is None:
            return address, "no such address is in the file; the first dead letter makes the queue"
        if not queues:
            return address, "the address has no anycast queue: all dead letters wait in one queue with its name"
        more = f"; the address has {len(queues)} queues, and this is the first" if len(queues) > 1 else ""
        return queues[0].name, f"the queue of the address {address!r}{more}"

    def add_queue(self, queue: BrokerQueue) -> None:
        """Add what the policies lack for one queue: the settings of its address, and its ring size."""
        needed, present = self._merged(queue.address), self._merged(queue.name)
        if queue.ring_size is not None and queue.ring_size >= 0:
            needed |= {"max-length": queue.ring_size, "max-length-bytes": NONE, "overflow": "drop-head"}
        elif queue.ring_size is not None and needed.get("overflow") == "drop-head":
            needed["max-length"] = NONE
        wanted = {name: needed.get(name, NONE) for name in sorted({*needed, *present})}
        lacking = {name: value for name, value in wanted.items() if value != present.get(name, NONE)}
        if lacking:
            same = (made for made in self._made.values() if made.pattern.text == queue.name)
            own = next(same, None) or self._add(compile_pattern(queue.name), {})
            own.definition.update(lacking)
            options = ", ".join(f"{name}: {value}" for name, value in lacking.items())
            text = f"policy {own.name!r} gives this queue the settings of its address and its own ones: {options}"
            queue.notes.translated("", "", text)

    def _merged(self, queue: str) -> Options:
        """The options that the policies give a queue, with its name in the targets."""
        matching = [made for made in self._made.values() if made.pattern.matches(queue)]
        merged: Options = {}
        for made in sorted(matching, key=lambda made: made.pattern.rank, reverse=True):
            merged |= made.definition
        for name, value in merged.items():
            if OPTIONS[name.replace("-", "_")].kind == "target":
                merged[name] = str(value).replace("{queue}", queue)
        return merged

    def as_mapping(self) -> dict[str, dict[str, object]]:
        """The policies by name, with the keys of a deployment file."""
        return {
            made.name: {
                "pattern": made.pattern.text,
                "syntax": "wildcard",
                "priority": 0,
                "apply-to": "queues",
                "definition": made.definition,
            }
            for made in self._made.values()
        }

    def _add(self, pattern: Pattern, definition: Options, name: str = "") -> _Made:
        """A new policy. Its name comes of its pattern: `orders.#` becomes `orders.any-words`."""
        words = [{"#": "any-words", "*": "single-word"}.get(word, word) for word in pattern.text.split(".")]
        name = name or re.sub(r"[^A-Za-z0-9._:/-]", "-", ".".join(words))
        name = free = (name if name[:1].isalnum() else f"match-{name}")[:_LONGEST_NAME]
        while free in self._made:
            self._numbers[name] += 1
            free = f"{name}-{self._numbers[name] + 1}"
        made = self._made[free] = _Made(free, pattern, definition)
        return made


def _read_settings(section: Node, notes: Notes) -> list[_AddressSetting]:
    """The children of `address-settings`. Raises `InvalidImport`. Of two with the same match the first counts."""
    by_match: dict[str, _AddressSetting] = {}
    for node in section.children:
        if node.name != "address-setting":
            notes.about("address-settings").left_out(node.name, node.text, "it is not an address-setting")
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
                with about.reading(child.name, child.text):
                    own[child.name.lower()] = read_value(row.reader, child.text, child.place)
        if match in by_match:
            about.left_out("", "", "an earlier address-setting has the same match, and Artemis keeps that one")
        else:
            by_match[match] = _AddressSetting(match, pattern, node, own)
    return list(by_match.values())


def _note_children(setting: _AddressSetting, merged: Options, remarks: Mapping[str, str], notes: Notes) -> None:
    """Note each attribute and child, and the options that it has a part in."""
    for attribute, value in setting.node.attributes.items():
        if attribute != "match":
            notes.left_out(attribute, value, "it is not a documented attribute")
    last = {child.name.lower(): child for child in setting.node.children if not child.foreign}
    for child in setting.node.children:
        name = child.name.lower()
        row = rows(_SECTION).get(name)
        if child.foreign:
            notes.left_out(child.name, child.text, "it is not an element of Artemis")
        elif child is not last[name]:
            notes.left_out(child.name, child.text, "it stands here again, and Artemis takes the last one")
        elif row and row.by_code and name not in setting.own:
            pass  # it could not be read, and was noted then
        elif row and row.by_code:
            found = {option: merged[option] for option in row.options if option in merged}
            became = ", ".join(f"{option}: {value}" for option, value in found.items()) or f"{row.options[0]}: none"
            if why := remarks.get(name) or row.text:
                notes.translated(child.name, child.text, f"{became}; {why}")
            else:
                notes.taken(child.name, child.text, became)
        else:
            notes.take_setting(_SECTION, name, child.name, child.text, child.place)


def _duration(ms: int) -> str:
    """Milliseconds as a duration of rqttl, at most its longest one."""
    return units.as_text(min(ms, units.MAX_DURATION)) if ms else "0"


def _lifetime(settings: Settings, *, is_target: bool) -> Options:
    found: Options = {}
    attempts = settings.get("max-delivery-attempts", _ATTEMPTS)
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
    return found


def _redelivery(settings: Settings) -> Options:
    found: Options = {}
    delay, factor = settings.get("redelivery-delay", 0), settings.get("redelivery-delay-multiplier", 1)
    longest = settings.get("max-redelivery-delay", delay * _LONGEST_DELAY if delay > 0 and factor > 1 else 0)
    if delay > 0:
        found["redelivery-delay"] = _duration(min(delay, longest) if longest > 0 else delay)
    if "redelivery-delay-multiplier" in settings and factor >= 1:
        found["redelivery-multiplier"] = int(factor) if factor == int(factor) else factor
    if longest > 0:
        found["redelivery-max-delay"] = _duration(longest)
    if "redelivery-collision-avoidance-factor" in settings:
        found["redelivery-jitter"] = settings["redelivery-collision-avoidance-factor"]
    return found


def _limits(settings: Settings) -> Options:
    ring = settings.get("default-ring-size", -1)
    if ring >= 0:
        return {"max-length": ring, "overflow": "drop-head"}
    if settings.get("address-full-policy", "PAGE") == "PAGE":
        return {}
    found: Options = {"overflow": "reject-publish"}
    for option, name in (("max-length-bytes", "max-size-bytes"), ("max-length", "max-size-messages")):
        if settings.get(name, -1) >= 0:
            found[option] = settings[name]
    return found
