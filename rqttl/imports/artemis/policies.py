"""The policies of a broker.xml: one for each `address-setting`, and one for each queue that the others do not fit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from rqttl.imports.artemis.addresses import Addresses, AnycastQueue, queue_of
from rqttl.imports.artemis.settings import ATTEMPTS, AddressSetting, Options, note_children, options_of
from rqttl.imports.notes import Notes, rows
from rqttl.options import OPTIONS
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.policies.policy import NONE

Value = TypeVar("Value")

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


class _ByPattern(dict[str, Value]):
    """Values by the texts of their patterns. The few that may match a name are looked up: one for each shape in use."""

    def __init__(self) -> None:
        self._shapes: set[tuple[str, ...]] = set()

    def __setitem__(self, text: str, value: Value) -> None:
        super().__setitem__(text, value)
        self._shapes.add(tuple(word if word in ("*", "#") else "" for word in text.split(".")))

    def candidates(self, name: str) -> list[Value]:
        """The values of all patterns that match a name, and of a few others. A pattern is a name, too."""
        words = [*name.split("."), ""]
        texts = {".".join(mark or word for mark, word in zip(shape, words, strict=False)) for shape in self._shapes}
        return [self[text] for text in texts if text in self]


class Policies:
    """The policies of a file, in the order of the file."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._made: dict[str, _Made] = {}
        self._by_pattern = _ByPattern[_Made]()
        self._numbers: Counter[str] = Counter()  # of policies that would have the same name

    def add_settings(self, settings: Iterable[AddressSetting], notes: Notes) -> None:
        """Translate each `address-setting` to a policy, the vaguest first."""
        settings = sorted(settings, key=lambda setting: setting.pattern.rank, reverse=True)
        has_default = any(setting.match == "#" for setting in settings)
        targets: set[str] = set()
        for setting in settings:
            for address in (str(setting.own.get(name, "")) for name in ("expiry-address", "dead-letter-address")):
                targets |= {address, *(queue.name for queue in self._addresses.get(address, ()))}
        options: dict[str, Options] = {}
        earlier = _ByPattern[tuple[int, AddressSetting]]()
        for place, setting in enumerate(settings):
            about = notes.about(f"address-setting {setting.match!r}")
            found = sorted(earlier.candidates(setting.match.removesuffix(".#")), key=itemgetter(0))
            vaguer = [other for _, other in found if other.includes(setting.pattern)]
            earlier[setting.match] = (place, setting)
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
            own = self._by_pattern.get(pattern.text) or self._add(pattern, {})
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
        while free in self._made:
            self._numbers[name] += 1
            free = f"{name}-{self._numbers[name] + 1}"
        self._made[free] = self._by_pattern[pattern.text] = _Made(free, pattern, definition)
        return self._made[free]

    def _merged(self, queue: str) -> Options:
        """The options that the policies give a queue, with its name in the targets."""
        matching = [made for made in self._by_pattern.candidates(queue) if made.pattern.matches(queue)]
        merged: Options = {}
        for made in sorted(matching, key=lambda made: made.pattern.rank, reverse=True):
            merged |= made.definition
        for name, value in merged.items():
            if OPTIONS[name.replace("-", "_")].kind == "target":
                merged[name] = str(value).replace("{queue}", queue)
        return merged
