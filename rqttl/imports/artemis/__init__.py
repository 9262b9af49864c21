"""The broker.xml of Apache ActiveMQ Artemis, read as queues, topics and policies.

An `address-setting` becomes a policy with syntax `wildcard`: matching and merging are those of Artemis. A queue becomes
a queue, and a multicast address a topic. Each other element is noted, with the reason why it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from rqttl.checks import check_queue_name
from rqttl.errors import InvalidImport, InvalidName
from rqttl.imports.artemis.policies import Addresses, BrokerQueue, Policies
from rqttl.imports.artemis.topics import routed, topic_names
from rqttl.imports.artemis.xml import Node, parse, read_value
from rqttl.imports.notes import Imported, ImportedDeployment, Notes, rows
from rqttl.text import format_value

_INCLUDED = "the import reads one file: put the elements of the included file here"
_SECTIONS = ("wildcard-addresses", "literal-match-markers", "addresses", "address-settings", "diverts")
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
    multicast: dict[str, Notes] = {}
    addresses = _read_addresses(first.get("addresses"), multicast, notes)
    addresses |= {f"jms.queue.{queue.name}": [queue] for queue in _jms_queues(root, addresses, multicast, notes)}
    queues = [queue for queues in addresses.values() for queue in queues]
    topics = topic_names(multicast, queues)
    policies = Policies(addresses, topics)
    policies.add_settings(first.get("address-settings"), notes)
    for queue in queues:
        policies.add_queue(queue)
    for child in core.children:
        if child.foreign:
            notes.left_out(child.name, _shown(child), _foreign(child, "it is not an element of Artemis"))
        elif child.name not in ("name", *_SECTIONS):
            _note_section(child, notes)
        elif child is not first[child.name]:
            notes.left_out(child.name, _shown(child), "it stands twice in the file, and the first one counts")
        elif child.name == "name":
            notes.translated(child.name, child.text, "the name of the broker names this import")
    if core.text:
        notes.left_out("", core.text, "it is text outside of an element")
    name = (first["name"].text if "name" in first else "") or "artemis"
    diverts = first["diverts"].children if "diverts" in first else ()
    deployment = ImportedDeployment(routed(queues, topics, diverts, policies, notes), policies.as_mapping())
    return Imported({name: deployment}, tuple(notes.found))


def _core(root: Node, notes: Notes) -> Node:
    """The element `core`. Everything beside it is noted."""
    if root.name not in ("configuration", "core") or root.foreign:
        rule = "expected the root element 'configuration' or 'core' of the namespace 'urn:activemq'"
        raise InvalidImport(root.place, f"{rule}, got {format_value(root.name)}")
    if root.name == "core":
        return root
    cores = [child for child in root.children if child.name == "core" and not child.foreign]
    if len(cores) != 1:
        raise InvalidImport(root.place, f"expected one element 'core', got {len(cores)}")
    for child in root.children:
        if child is not cores[0] and child.name != "jms":
            notes.left_out(child.name, _shown(child), _foreign(child, "rqttl reads the element 'core' only"))
    return cores[0]


def _jms_queues(root: Node, addresses: Addresses, multicast: dict[str, Notes], notes: Notes) -> Iterator[BrokerQueue]:
    """The queues of an element `jms` of Artemis 1, whose addresses begin with `jms.queue.`. Adds its topics."""
    names = {queue.name for queues in addresses.values() for queue in queues}
    for node in (node for child in root.children if child.name == "jms" for node in child.children):
        about = notes.about(f"jms: {node.name} {node.attributes.get('name', '')!r}")
        if node.name == "topic":
            multicast[node.attribute("name")] = about
        elif node.name != "queue":
            about.lost("", "", "it is neither a queue nor a topic")
        elif queue := _queue(node, f"jms.queue.{node.attribute('name')}", names, notes.about("jms")):
            yield queue


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
        notes.left_out(section.name, _shown(section), reason)
    for part, name in parts:
        notes.about(f"{part.name} {name!r}").left_out("", "", reason)


def _shown(node: Node) -> str:
    """The text of an element, or the file that it includes; nothing if it may hold a secret or is made of others."""
    text = node.attributes.get("href", node.text)
    return "" if node.children or any(word in node.name for word in _SECRET) else text


def _read_addresses(section: Node | None, multicast: dict[str, Notes], notes: Notes) -> dict[str, list[BrokerQueue]]:
    """The queues of `addresses`. Adds multicast addresses. Raises `InvalidImport` for what has no name."""
    by_address: dict[str, list[BrokerQueue]] = {}
    names: set[str] = set()
    for node in section.children if section else ():
        if node.name != "address":
            notes.about("addresses").left_out(node.name, node.text, "it is not an address")
            continue
        address = node.attribute("name")
        about = notes.about(f"address {address!r}")
        if address in by_address:
            about.left_out("", "", "an earlier element has the same name")
            continue
        if any(child.name == "multicast" for child in node.children):
            multicast[address] = about
        found = _queues_of(node, about)
        queues = [_queue(queue, address, names, about, multicast=kind == "multicast") for kind, queue in found]
        by_address[address] = [queue for queue in queues if queue is not None]
    return by_address


def _queues_of(node: Node, notes: Notes) -> Iterator[tuple[str, Node]]:
    """The elements of the queues of an address, with the kind of each. Everything else is noted."""
    for name in node.attributes.keys() - {"name"}:
        notes.left_out(name, node.attributes[name], "it is not a documented attribute")
    if not node.children:
        notes.left_out("", "", "it has no queues: declare a queue for it")
    for child in node.children:
        if child.name not in ("anycast", "multicast"):
            notes.left_out(child.name, child.text, "it is not a documented setting")
            continue
        if not child.children and child.name == "anycast":
            notes.left_out(child.name, "", "it has no queues yet: declare one with this name")
        for queue in child.children:
            if queue.name != "queue":
                notes.left_out(queue.name, queue.text, "it is not a queue")
            else:
                yield child.name, queue


def _queue(node: Node, address: str, names: set[str], notes: Notes, *, multicast: bool = False) -> BrokerQueue | None:
    written = node.attribute("name")
    notes = notes.about(f"{notes.subject}: queue {written!r}")
    try:
        name = check_queue_name(written)
    except InvalidName as error:
        notes.lost("name", written, str(error))
        return None
    if name in names:
        notes.left_out("", "", f"an earlier queue has the name {name!r}, too")
        return None
    names.add(name)
    if written == address or multicast:
        notes.taken("name", written, f"queue {name!r}")
    else:
        notes.translated("name", written, f"queue {name!r}; senders name the queue, not the address")
    ring_size, filter = None, ""
    settings = [(name, value, f"{node.place}/@{name}") for name, value in node.attributes.items()]
    settings += [(child.name, child.attributes.get("string", child.text), child.place) for child in node.children]
    for setting, value, place in settings:
        if setting == "ring-size":
            with notes.reading(setting, value):
                ring_size = read_value("whole", value, place)
                became = f"max-length: {ring_size}, overflow: drop-head; a policy for this queue alone has them"
                notes.translated(setting, value, became if ring_size >= 0 else "max-length: none")
        elif setting == "filter" and multicast:
            filter = value
        elif setting == "address":
            notes.taken(setting, value, "the address is that of the element around it")
        elif setting != "name":
            notes.take_setting("artemis queue", setting, setting, value, place)
    return BrokerQueue(name, address, multicast, ring_size, filter, notes)
