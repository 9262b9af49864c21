"""The broker.xml of Apache ActiveMQ Artemis, read as queues and policies.

An `address-setting` becomes a policy with syntax `wildcard`: matching and merging are those of Artemis. An anycast
queue becomes a queue. Each other element is noted, with the reason why it is left out.
"""

from __future__ import annotations

from rqttl.errors import InvalidImport
from rqttl.imports.artemis.addresses import read_addresses
from rqttl.imports.artemis.policies import Policies
from rqttl.imports.artemis.settings import read_address_settings
from rqttl.imports.artemis.xml import Node, parse
from rqttl.imports.notes import Notes, rows
from rqttl.imports.report import Imported, ImportedDeployment
from rqttl.text import format_value

__all__ = ["read_broker"]

_INCLUDED = "the import reads one file: put the elements of the included file here"
_SECTIONS = ("wildcard-addresses", "literal-match-markers", "addresses", "address-settings")
#: The wildcard syntax of matches, that of rqttl, too.
_SAME = {"delimiter": ".", "any-words": "#", "single-word": "*"}
#: Parts of names of settings whose values stay out of notes.
_SECRET = ("password", "user", "codec")


def read_broker(text: str | bytes) -> Imported:
    """Read the text of a broker.xml. Raises `InvalidImport`, which names the element.

    Nothing is dropped in silence: each setting becomes an option or has a note.
    """
    root, notes = parse(text), Notes("core")
    core = _core(root, notes.about("configuration"))
    first = {child.name: child for child in reversed(core.children) if not child.foreign}
    _check_wildcards(first, notes.about("wildcard-addresses"))
    addresses = read_addresses(first.get("addresses"), notes)
    policies = Policies(addresses)
    section = first.get("address-settings")
    policies.add_settings(read_address_settings(section, notes) if section else [], notes)
    queues = [queue for queues in addresses.values() for queue in queues]
    for queue in queues:
        policies.add_queue(queue)
    for child in core.children:
        if child.foreign:
            notes.left_out(child.name, _value(child), _foreign(child, "it is no element of Artemis"))
        elif child.name not in ("name", *_SECTIONS):
            _note_section(child, notes)
        elif child is not first[child.name]:
            notes.left_out(child.name, _value(child), "it stands twice in the file, and the first one counts")
        elif child.name == "name":
            notes.translated(child.name, child.text, "the name of the broker names this import")
    if core.text:
        notes.left_out("", core.text, "it is text outside of an element")
    name = (first["name"].text if "name" in first else "") or "artemis"
    deployment = ImportedDeployment({queue.name: {} for queue in queues}, policies.as_mapping())
    return Imported({name: deployment}, tuple(notes.found))


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
            notes.left_out(child.name, _value(child), _foreign(child, "rqttl reads the element 'core' only"))
    return cores[0]


def _foreign(child: Node, reason: str) -> str:
    return _INCLUDED if child.name == "include" else reason


def _check_wildcards(sections: dict[str, Node], notes: Notes) -> None:
    """Note `wildcard-addresses`. Raises `InvalidImport` for a syntax of the file's own."""
    for child in sections["wildcard-addresses"].children if "wildcard-addresses" in sections else ():
        same = _SAME.get(child.name.lower())
        if same is None:
            notes.left_out(child.name, child.text, "rqttl sends to queues by their names")
        elif child.text != same:
            rule = "expected the usual wildcards '.', '#' and '*'; write the matches of the file with them"
            raise InvalidImport(child.place, f"{rule}, got {format_value(child.text)}")
        else:
            notes.taken(child.name, child.text, "it means the same in patterns of rqttl")
    if markers := sections.get("literal-match-markers"):
        raise InvalidImport(markers.place, "expected no literal matches: no queue of rqttl has wildcards in its name")


def _note_section(section: Node, notes: Notes) -> None:
    """Note a section without a counterpart: each of its parts by name, or the whole."""
    fitting = [beginning for beginning in rows("artemis core") if section.name.startswith(beginning)]
    reason = "it configures the process of the broker, not queues"
    if fitting:
        reason = rows("artemis core")[max(fitting, key=len)].text
    named = [(part, part.attributes.get("name") or part.attributes.get("match")) for part in section.children]
    parts = [(part, name) for part, name in named if name]
    if not parts or len(parts) < len(named):
        notes.left_out(section.name, _value(section), reason)
    for part, name in parts:
        notes.about(f"{part.name} {name!r}").left_out("", "", reason)


def _value(node: Node) -> str:
    """The text of an element, or the file that it includes; nothing if it may hold a secret or is made of others."""
    text = node.attributes.get("href", node.text)
    return "" if node.children or any(word in node.name for word in _SECRET) else text
