"""The policies of a broker.xml: one for each `address-setting`, and one for each queue that the others do not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rqttl.imports.artemis import definitions
from rqttl.imports.artemis.address_setting import AddressSetting, note_others
from rqttl.imports.artemis.addresses import Addresses, AnycastQueue
from rqttl.imports.artemis.definitions import Definition
from rqttl.imports.artemis.tree import PatternTree
from rqttl.imports.report import Notes
from rqttl.options import OPTIONS
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.policies.policy import NONE

_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Made:
    """A policy in the making. `setting` is the element that it comes from, if there is one."""

    name: str
    pattern: Pattern
    definition: dict[str, object]
    setting: AddressSetting | None = None


@dataclass
class Policies:
    """The policies of a file, in the order of the file."""

    addresses: Addresses
    made: list[Made] = field(default_factory=list)
    _tree: PatternTree[Made] = field(default_factory=PatternTree)
    _by_pattern: dict[str, Made] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def add_settings(self, settings: Iterable[AddressSetting], notes: Notes) -> None:
        """Translate each `address-setting` to a policy."""
        settings = list(settings)
        targets = self._targets(settings)
        for setting in settings:
            made = self._define(setting, is_target=setting.pattern.text in targets)
            name = self._free_name(setting.pattern.text)
            _note_setting(setting, name, made, notes)
            if made.options:
                self._add(Made(name, setting.pattern, made.options, setting))
        if any("*" in setting.pattern.text.split(".") for setting in settings):
            text = (
                "where a match with a single-word wildcard meets another one, and neither includes the other, Artemis "
                "combines settings that act together, and rqttl does not: write an address-setting for these names"
            )
            notes.translated("address-settings", "match", "", text)
        if not any(setting.pattern.text == "#" for setting in settings):
            name = self._free_name("artemis-defaults")
            self._add(Made(name, compile_pattern("#"), {"max-deliveries": definitions.ATTEMPTS}))
            text = f"policy {name!r} for all queues: max-deliveries: {definitions.ATTEMPTS}, the default of Artemis"
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
            for name in (definitions.EXPIRY.address, definitions.DEAD_LETTERS.address):
                address = str(setting.own.get(name, ""))
                if address:
                    names.add(address)
                    names |= {queue.name for queue in self.addresses.queues.get(address, ())}
        return names

    def _define(self, setting: AddressSetting, *, is_target: bool) -> Definition:
        made = Definition()
        for kind in (definitions.EXPIRY, definitions.DEAD_LETTERS):
            definitions.target(setting, made, kind, self.addresses.queue_of)
        definitions.expiry_delays(setting, made, is_target=is_target)
        definitions.attempts(setting, made)
        definitions.redelivery(setting, made)
        definitions.limits(setting, made)
        return made

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


def _note_setting(setting: AddressSetting, name: str, made: Definition, notes: Notes) -> None:
    """Note the match, each child in order, and the options that come from no child."""
    text = (
        f"policy {name!r} with pattern {setting.pattern.text!r}" if made.options else "it sets nothing that rqttl has"
    )
    same = setting.pattern.text == setting.match
    note = notes.left_out if not made.options else notes.taken if same else notes.translated
    note(setting.subject, "match", setting.match, text)
    for attribute, value in setting.node.attributes.items():
        if attribute != "match":
            notes.left_out(setting.subject, attribute, value, "it is no documented attribute")
    verdicts = dict(made.verdicts)
    for child in setting.node.children:
        if not note_others(setting, child, notes):
            verdict = verdicts.pop(child.name.lower())
            _add(notes, verdict, setting.subject, child.name, child.text)
    for implied, verdict in verdicts.items():
        _add(notes, verdict, setting.subject, implied, "")


def _add(notes: Notes, verdict: definitions.Verdict, subject: str, setting: str, value: str) -> None:
    add = {"taken": notes.taken, "translated": notes.translated, "left out": notes.left_out}[verdict.kind]
    add(subject, setting, value, verdict.text)
