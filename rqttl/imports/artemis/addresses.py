"""The addresses of a broker.xml and their queues. An anycast queue becomes a queue; a multicast one is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rqttl.checks import check_queue_name
from rqttl.errors import InvalidName
from rqttl.imports.artemis.settings import read_value
from rqttl.imports.artemis.xml import Node
from rqttl.imports.notes import Notes

_MULTICAST = "a multicast queue gets a copy of each message, and rqttl has no topics: senders name one queue"

#: The anycast queues by the names of their addresses, as the file writes these.
Addresses = Mapping[str, "Sequence[AnycastQueue]"]


@dataclass(frozen=True, slots=True)
class AnycastQueue:
    """A queue of rqttl, with its address and its `ring-size` (`None` if it has none)."""

    name: str
    address: str
    ring_size: int | None
    notes: Notes


def queue_of(addresses: Addresses, address: str) -> tuple[str, str]:
    """The queue that gets the dead letters for an address, and a remark on it."""
    _, qualified, queue = address.partition("::")
    if qualified:
        return queue, "the queue of the fully qualified name"
    queues = addresses.get(address)
    if queues is None:
        return address, "no such address is in the file; the first dead letter makes the queue"
    if not queues:
        return address, "the address has no anycast queue: all dead letters wait in one queue with its name"
    more = f"; the address has {len(queues)} queues, and this is the first" if len(queues) > 1 else ""
    return queues[0].name, f"the queue of the address {address!r}{more}"


def read_addresses(section: Node | None, notes: Notes) -> Addresses:
    """Read `addresses`. Raises `InvalidImport` for a queue or an address without a name."""
    by_address: dict[str, list[AnycastQueue]] = {}
    names: set[str] = set()
    for node in section.children if section else ():
        if node.name != "address":
            notes.about("addresses").left_out(node.name, node.text, "it is no address")
            continue
        address = node.attribute("name")
        about = notes.about(f"address {address!r}")
        if address in by_address:
            about.left_out("", "", "an earlier element has the same name")
            continue
        queues = [_queue(queue, address, names, about) for queue in _anycast(node, about)]
        by_address[address] = [queue for queue in queues if queue is not None]
    return by_address


def _anycast(node: Node, notes: Notes) -> Iterator[Node]:
    """The elements of the anycast queues of an address. Everything else is noted."""
    for name in node.attributes.keys() - {"name", "type"}:
        notes.left_out(name, node.attributes[name], "it is no documented attribute")
    if "type" in node.attributes:
        notes.taken("type", node.attributes["type"], "the form of early versions of Artemis")
    if not node.children:
        notes.left_out("", "", "it has no queues: declare a queue for it")
    for child in node.children:
        routing = node.attributes.get("type", "anycast").lower() if child.name == "queues" else child.name
        if routing not in ("anycast", "multicast"):
            notes.left_out(child.name, child.text, "it is no documented setting")
            continue
        if not child.children:
            reason = _MULTICAST if routing == "multicast" else "it has no queues yet: declare one with this name"
            notes.left_out(child.name, "", reason)
        for queue in child.children:
            if queue.name != "queue":
                notes.left_out(queue.name, queue.text, "it is no queue")
            elif routing == "anycast":
                yield queue
            else:
                notes.about(f"{notes.subject}: queue {queue.attribute('name')!r}").left_out("", "", _MULTICAST)


def _queue(node: Node, address: str, names: set[str], notes: Notes) -> AnycastQueue | None:
    written = node.attribute("name")
    notes = notes.about(f"{notes.subject}: queue {written!r}")
    try:
        name = check_queue_name(written)
    except InvalidName as error:
        notes.left_out("name", written, str(error))
        return None
    if name in names:
        notes.left_out("", "", f"an earlier queue has the name {name!r}, too")
        return None
    names.add(name)
    if written == address:
        notes.taken("name", written, f"queue {name!r}")
    else:
        notes.translated("name", written, f"queue {name!r}; senders name the queue, not the address")
    ring_size = None
    settings = [(name, value, f"{node.place}/@{name}") for name, value in node.attributes.items()]
    settings += [(child.name, child.attributes.get("string", child.text), child.place) for child in node.children]
    for setting, value, place in settings:
        if setting == "ring-size":
            ring_size = read_value("whole", value, place)
            became = f"max-length: {ring_size}, overflow: drop-head; a policy for this queue alone has them"
            notes.translated(setting, value, became if ring_size >= 0 else "max-length: none")
        elif setting == "address":
            notes.taken(setting, value, "the address is that of the element around it")
        elif setting != "name":
            notes.take_setting("artemis queue", setting, setting, value, place)
    return AnycastQueue(name, address, ring_size, notes)
