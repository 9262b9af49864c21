"""An `address-setting`: its match, its values, and those that it inherits from vaguer matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rqttl.errors import InvalidPolicy
from rqttl.imports import table
from rqttl.imports.artemis import values
from rqttl.imports.artemis.tree import PatternTree
from rqttl.imports.artemis.wildcards import Untranslatable, check_match
from rqttl.imports.artemis.xml import Node
from rqttl.imports.report import Collector, Notes
from rqttl.policies.patterns import Pattern, compile_pattern


@dataclass(frozen=True)
class AddressSetting:
    """One `address-setting`. `own` has its values, `last` the elements that count, by their names in small letters.

    `vaguer` are the settings whose matches include its match.
    """

    match: str
    pattern: Pattern
    node: Node
    own: Mapping[str, values.Setting]
    last: Mapping[str, Node]
    vaguer: tuple[AddressSetting, ...] = field(default=(), repr=False)

    @property
    def subject(self) -> str:
        """The setting as the subject of notes."""
        return f"address-setting {self.match!r}"

    def merged(self) -> dict[str, values.Setting]:
        """The values, also those from vaguer matches."""
        found: dict[str, values.Setting] = {}
        for setting in (self, *self.vaguer):
            found = {**setting.own, **found}
        return found


def read_address_settings(section: Node, notes: Notes) -> list[AddressSetting]:
    """Read the children of `address-settings`. Raises `InvalidImport`. Of two with the same match the first counts."""
    by_match: dict[str, AddressSetting] = {}
    for node in section.children:
        if node.name != "address-setting":
            notes.left_out("address-settings", node.name, node.text, "it is no address-setting")
            continue
        match = node.attribute("match")
        subject = f"address-setting {match!r}"
        setting = _read(node, match, notes)
        if setting is not None and setting.pattern.text in by_match:
            notes.left_out(subject, "", "", "an earlier address-setting has the same match, and Artemis keeps that one")
        elif setting is not None:
            by_match[setting.pattern.text] = setting
    return _with_vaguer(list(by_match.values()))


def _read(node: Node, match: str, notes: Notes) -> AddressSetting | None:
    try:
        pattern = compile_pattern(check_match(match, node.place))
    except (Untranslatable, InvalidPolicy) as error:
        notes.left_out(f"address-setting {match!r}", "match", match, str(error))
        return None
    last = {child.name.lower(): child for child in node.children if not child.foreign}
    rows = {name: table.rows("artemis setting").get(name) for name in last}
    read = {name: values.read(row.reader, last[name]) for name, row in rows.items() if row and row.by_code}
    return AddressSetting(match, pattern, node, read, last)


def note_others(setting: AddressSetting, child: Node, notes: Notes) -> bool:
    """Note a child that becomes no option. Returns false for a child that may become one."""
    name = child.name.lower()
    if child.foreign:
        notes.left_out(setting.subject, child.name, child.text, "it is no element of Artemis")
    elif child is not setting.last[name]:
        notes.left_out(setting.subject, child.name, child.text, "it stands here again, and Artemis takes the last one")
    elif not (row := table.rows("artemis setting").get(name)) or not row.by_code:
        table.take(Collector(notes, setting.subject), "artemis setting", name, child.name, child.text, child.place)
    else:
        return False
    return True


def _with_vaguer(settings: Sequence[AddressSetting]) -> list[AddressSetting]:
    tree: PatternTree[AddressSetting] = PatternTree()
    for setting in settings:
        tree.add(setting.pattern.text, setting)
    return [_inheriting(setting, tree) for setting in settings]


def _inheriting(setting: AddressSetting, tree: PatternTree[AddressSetting]) -> AddressSetting:
    others = [other for other in tree.including(setting.pattern.text) if other is not setting]
    return replace(setting, vaguer=tuple(sorted(others, key=lambda other: other.pattern.rank)))
