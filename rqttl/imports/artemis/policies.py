"""The policies of a broker.xml: one for each `address-setting`, and one for each queue that the others do not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rqttl.imports.artemis.addresses import Addresses, AnycastQueue, queue_of
from rqttl.imports.artemis.settings import ATTEMPTS, AddressSetting, Options, note_children, options_of
from rqttl.imports.notes import Notes, rows
from rqttl.options import OPTIONS
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.policies.policy import NONE

_LONGEST_NAME = 120
_DEFAULTS: Mapping[str, object] = {"max-deliveries": ATTEMPTS}
_STARS = (
    "where a match with a single-word wildcard meets another one, and neither includes the other, Artemis combines "
    "settings that act together, and rqttl does not: write an address-setting for these names"
)


@dataclass(frozen=True, slots=True)
class _Made:
    """A policy in the making."""

    name: str
    pattern: Pattern
    definition: Options


class Policies:
    """The policies of a file, in the order of the file."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._made: dict[str, _Made] = {}

    def add_settings(self, settings: Iterable[AddressSetting], notes: Notes) -> None:
        """Translate each `address-setting` to a policy, the vaguest first."""
        settings = sorted(settings, key=lambda setting: setting.pattern.rank, reverse=True)
        has_default = any(setting.match == "#" for setting in settings)
        targets: set[str] = set()
        for setting in settings:
            for address in (str(setting.own.get(name, "")) for name in ("expiry-address", "dead-letter-address")):
                targets |= {address, *(queue.name for queue in self._addresses.get(address, ()))}
        options: dict[str, Options] = {}
        for place, setting in enumerate(settings):
            about = notes.about(f"address-setting {setting.match!r}")
            vaguer = [other for other in settings[:place] if other.includes(setting.pattern)]
            base: Options = {} if has_default else dict(_DEFAULTS)
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
            name = self._add(compile_pattern("#"), dict(_DEFAULTS), "artemis-defaults").name
            text = f"policy {name!r} for all queues: max-deliveries: {ATTEMPTS}, the default of Artemis"
            about.translated("max-delivery-attempts", "", text)

    def _define(
        self, setting: AddressSetting, vaguer: list[AddressSetting], base: Options, targets: set[str], notes: Notes
    ) -> Options:
        """The options that the policy of a setting adds to `base`, those of vaguer ones. Notes each child."""
        values: dict[str, object] = {}
        for one in (*vaguer, setting):
            values |= one.own
        remarks: dict[str, str] = {}
        merged = options_of(
            values, lambda address: queue_of(self._addresses, address), remarks, is_target=setting.match in targets
        )
        base = {name: value for name, value in base.items() if value != NONE}
        options = {name: value for name, value in merged.items() if base.get(name) != value}
        options |= dict.fromkeys(sorted(base.keys() - merged.keys()), NONE)
        for name in setting.own:
            own = rows("artemis setting")[name].options
            options |= {option: merged[option] for option in own if option in merged} or dict.fromkeys(own, NONE)
        note_children(setting, merged, remarks, notes)
        return options

    def add_queue(self, queue: AnycastQueue) -> None:
        """Add what the policies lack for one queue: the settings of its address, and its ring size."""
        needed, present = self._merged(queue.address), self._merged(queue.name)
        if queue.ring_size is not None and queue.ring_size >= 0:
            needed |= {"max-length": queue.ring_size, "max-length-bytes": NONE, "overflow": "drop-head"}
        elif queue.ring_size is not None and needed.get("overflow") == "drop-head":
            needed["max-length"] = NONE
        wanted = {name: needed.get(name, NONE) for name in sorted({*needed, *present})}
        lacking = {name: value for name, value in wanted.items() if value != present.get(name, NONE)}
        if lacking:
            pattern = compile_pattern(queue.name)
            own = next((made for made in self._made.values() if made.pattern == pattern), None)
            own = own or self._add(pattern, {})
            own.definition.update(lacking)
            options = ", ".join(f"{name}: {value}" for name, value in lacking.items())
            text = f"policy {own.name!r} gives this queue the settings of its address and its own ones: {options}"
            queue.notes.translated("", "", text)

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
        number = 1
        while free in self._made:
            number += 1
            free = f"{name}-{number}"
        self._made[free] = _Made(free, pattern, definition)
        return self._made[free]

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
