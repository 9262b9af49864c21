"""The policies of a broker.xml: one for each `address-setting`, and one for each queue that the others do not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rqttl.imports import table
from rqttl.imports.artemis.address_setting import AddressSetting, note_others
from rqttl.imports.artemis.addresses import Addresses, AnycastQueue
from rqttl.imports.artemis.definitions import ADDRESSES, ATTEMPTS, Options, options_of
from rqttl.imports.artemis.tree import PatternTree
from rqttl.imports.report import Kind, Notes
from rqttl.options import OPTIONS
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.policies.policy import NONE

_LONGEST_NAME = 120
_DEFAULTS: Mapping[str, object] = {"max-deliveries": ATTEMPTS}


@dataclass(frozen=True, slots=True)
class Made:
    """A policy in the making."""

    name: str
    pattern: Pattern
    definition: dict[str, object]


@dataclass
class Policies:
    """The policies of a file, in the order of the file."""

    addresses: Addresses
    made: list[Made] = field(default_factory=list)
    _tree: PatternTree[Made] = field(default_factory=PatternTree)
    _by_pattern: dict[str, Made] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    _own: dict[str, Options] = field(default_factory=dict)

    def add_settings(self, settings: Iterable[AddressSetting], notes: Notes) -> None:
        """Translate each `address-setting` to a policy, the vaguest first."""
        settings = sorted(settings, key=lambda setting: setting.pattern.rank, reverse=True)
        has_default = any(setting.pattern.text == "#" for setting in settings)
        targets = self._targets(settings)
        for setting in settings:
            options = self._define(setting, targets, {} if has_default else dict(_DEFAULTS), notes)
            name = self._free_name(setting.pattern.text)
            text = f"policy {name!r} with pattern {setting.pattern.text!r}" if options else "it sets nothing new"
            notes.add("taken" if options else "left out", setting.subject, "match", setting.match, text)
            if options:
                self._add(Made(name, setting.pattern, options))
        if any("*" in setting.pattern.text.split(".") for setting in settings):
            text = (
                "where a match with a single-word wildcard meets another one, and neither includes the other, Artemis "
                "combines settings that act together, and rqttl does not: write an address-setting for these names"
            )
            notes.translated("address-settings", "match", "", text)
        if not has_default:
            name = self._free_name("artemis-defaults")
            self._add(Made(name, compile_pattern("#"), dict(_DEFAULTS)))
            text = f"policy {name!r} for all queues: max-deliveries: {ATTEMPTS}, the default of Artemis"
            notes.translated("address-settings", "max-delivery-attempts", "", text)

    def add_queue(self, queue: AnycastQueue, notes: Notes) -> None:
        """Add what the policies lack for one queue: the settings of its address, and its ring size."""
        needed = self._needed(queue)
        if not needed:
            return
        own = self._by_pattern.get(queue.name)
        if own is None:
            own = Made(self._free_name(queue.name), compile_pattern(queue.name), {})
            self._add(own)
        own.definition.update(needed)
        options = ", ".join(f"{name}: {value}" for name, value in sorted(needed.items()))
        text = f"policy {own.name!r} gives this queue the settings of its address and its own ones: {options}"
        notes.translated(queue.subject, "", "", text)

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
            for made in self.made
        }

    def _add(self, made: Made) -> None:
        self.made.append(made)
        self._tree.add(made.pattern.text, made)
        self._by_pattern.setdefault(made.pattern.text, made)
        self._numbers[made.name] += 1

    def _matching(self, queue: str) -> list[Made]:
        """The policies for a queue, the most specific one first."""
        return sorted(self._tree.including(queue), key=lambda made: made.pattern.rank)

    def _targets(self, settings: Iterable[AddressSetting]) -> set[str]:
        """The names of the queues that get expired or dead messages."""
        names = set()
        for setting in settings:
            for name in ADDRESSES:
                address = str(setting.own.get(name, ""))
                if address:
                    names.add(address)
                    names |= {queue.name for queue in self.addresses.queues.get(address, ())}
        return names

    def _define(self, setting: AddressSetting, targets: set[str], base: Options, notes: Notes) -> Options:
        """The options that the policy of a setting adds to `base` and to those of vaguer ones. Notes each child."""
        for vaguer in reversed(setting.vaguer):
            base = {**base, **self._own[vaguer.pattern.text]}
        base = {name: value for name, value in base.items() if value != NONE}
        remarks: dict[str, str] = {}
        is_target = setting.pattern.text in targets
        merged = options_of(setting.merged(), self.addresses.queue_of, remarks, is_target=is_target)
        options = {name: value for name, value in merged.items() if base.get(name) != value}
        options |= dict.fromkeys(sorted(base.keys() - merged.keys()), NONE)
        for name in setting.own:
            own = table.rows("artemis setting")[name].options
            options |= {option: merged[option] for option in own if option in merged} or dict.fromkeys(own, NONE)
        self._own[setting.pattern.text] = options
        _note_children(setting, merged, remarks, notes)
        return options

    def _free_name(self, pattern: str) -> str:
        """A name for the policy of a pattern: `orders.#` becomes `orders.any-words`."""
        words = [{"#": "any-words", "*": "single-word"}.get(word, word) for word in pattern.split(".")]
        plain = re.sub(r"[^A-Za-z0-9._:/-]", "-", ".".join(words))
        name = plain if plain[:1].isalnum() else f"match-{plain}"
        name = free = name[:_LONGEST_NAME]
        while free in self._numbers:
            self._numbers[name] += 1
            free = f"{name}-{self._numbers[name]}"
        return free

    def _needed(self, queue: AnycastQueue) -> dict[str, object]:
        """The options of a policy for this queue alone."""
        needed, present = self._merged(queue.address), self._merged(queue.name)
        if queue.ring_size is not None and queue.ring_size >= 0:
            needed |= {"max-length": queue.ring_size, "max-length-bytes": NONE, "overflow": "drop-head"}
        elif queue.ring_size is not None and needed.get("overflow") == "drop-head":
            needed["max-length"] = NONE
        names = sorted({*needed, *present})
        return {name: needed.get(name, NONE) for name in names if needed.get(name, NONE) != present.get(name, NONE)}

    def _merged(self, queue: str) -> dict[str, object]:
        """The options that the policies give a queue, with its name in the targets."""
        merged: dict[str, object] = {}
        for made in self._matching(queue):
            merged = {**made.definition, **merged}
        return {name: _named(name, value, queue) for name, value in merged.items()}


def _named(option: str, value: object, queue: str) -> object:
    is_target = OPTIONS[option.replace("-", "_")].kind == "target"
    return str(value).replace("{queue}", queue) if is_target else value


def _note_children(setting: AddressSetting, merged: Options, remarks: Mapping[str, str], notes: Notes) -> None:
    """Note each attribute and child, and the options that it has a part in."""
    for attribute, value in setting.node.attributes.items():
        if attribute != "match":
            notes.left_out(setting.subject, attribute, value, "it is no documented attribute")
    for child in setting.node.children:
        if not note_others(setting, child, notes):
            row = table.rows("artemis setting")[child.name.lower()]
            found = {option: merged[option] for option in row.options if option in merged}
            became = ", ".join(f"{name}: {value}" for name, value in found.items()) or f"{row.options[0]}: none"
            why = remarks.get(child.name.lower()) or row.text
            kind: Kind = "translated" if why else "taken"
            notes.add(kind, setting.subject, child.name, child.text, f"{became}; {why}" if why else became)
