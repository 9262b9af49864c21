"""A whole broker.xml: the sections that rqttl reads, and notes about all others."""

from __future__ import annotations

from rqttl.errors import InvalidImport
from rqttl.imports import table
from rqttl.imports.artemis.address_setting import read_address_settings
from rqttl.imports.artemis.addresses import read_addresses
from rqttl.imports.artemis.policies import Policies
from rqttl.imports.artemis.wildcards import check_syntax
from rqttl.imports.artemis.xml import Node, parse
from rqttl.imports.report import Imported, ImportedDeployment, Notes
from rqttl.text import format_value

_INCLUDED = "the import reads one file: put the elements of the included file here"
_SECTIONS = ("wildcard-addresses", "literal-match-markers", "addresses", "address-settings")
#: Parts of names of settings whose values stay out of notes.
_SECRET = ("password", "user", "codec")


def read_broker(text: str | bytes) -> Imported:
    """Read the text of a broker.xml. Raises `InvalidImport`, which names the element.

    Nothing is dropped in silence: each setting becomes an option or has a note.
    """
    root, notes = parse(text), Notes()
    core = _core(root, notes)
    check_syntax(core, notes)
    addresses = read_addresses(_first(core, "addresses"), notes)
    policies = Policies(addresses)
    section = _first(core, "address-settings")
    policies.add_settings(read_address_settings(section, notes) if section else [], notes)
    queues = [queue for queues in addresses.queues.values() for queue in queues]
    for queue in queues:
        policies.add_queue(queue, notes)
    _note_others(core, notes)
    deployment = ImportedDeployment({queue.name: {} for queue in queues}, policies.as_mapping())
    names = core.all("name")
    name = names[0].text if names and names[0].text else "artemis"
    return Imported({name: deployment}, notes.as_tuple())


def _first(core: Node, name: str) -> Node | None:
    return next(iter(core.all(name)), None)


def _core(root: Node, notes: Notes) -> Node:
    """The element `core`. Everything beside it is noted."""
    if root.name not in ("configuration", "core") or root.foreign:
        rule = "expected the root element 'configuration' or 'core' of the namespace 'urn:activemq'"
        raise InvalidImport(root.place, f"{rule}, got {format_value(root.name)}")
    if root.name == "core":
        return root
    cores = root.all("core")
    if len(cores) != 1:
        raise InvalidImport(root.place, f"expected one element 'core', got {len(cores)}")
    for child in root.children:
        if child is not cores[0]:
            reason = _INCLUDED if child.name == "include" else "rqttl reads the element 'core' only"
            notes.left_out("configuration", child.name, _value(child), reason)
    return cores[0]


def _note_others(core: Node, notes: Notes) -> None:
    """Note the children of `core` that no other module reads."""
    first = {child.name: child for child in reversed(core.children) if not child.foreign}
    for child in core.children:
        if child.foreign:
            reason = _INCLUDED if child.name == "include" else "it is no element of Artemis"
            notes.left_out("core", child.name, _value(child), reason)
        elif child.name not in ("name", *_SECTIONS):
            _section(child, notes)
        elif child is not first[child.name]:
            notes.left_out("core", child.name, _value(child), "it stands twice in the file, and the first one counts")
        elif child.name == "name":
            notes.translated("core", child.name, child.text, "the name of the broker names this import")
    if core.text:
        notes.left_out("core", "", core.text, "it is text outside of an element")


def _section(section: Node, notes: Notes) -> None:
    """Note a section without a counterpart: each of its parts by name, or the whole."""
    row = table.beginning("artemis core", section.name)
    reason = row.text if row else "it configures the process of the broker, not queues"
    named = [(part, part.attributes.get("name") or part.attributes.get("match")) for part in section.children]
    parts = [(part, name) for part, name in named if name]
    if not parts or len(parts) < len(named):
        notes.left_out("core", section.name, _value(section), reason)
    for part, name in parts:
        notes.left_out(f"{part.name} {name!r}", "", "", reason)


def _value(node: Node) -> str:
    """The text of an element, or the file that it includes; nothing if it may hold a secret or is made of others."""
    text = node.attributes.get("href", node.text)
    return "" if node.children or any(word in node.name for word in _SECRET) else text
