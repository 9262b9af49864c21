"""The addresses of a broker.xml and their queues. An anycast queue becomes a queue; a multicast one is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rqttl.errors import InvalidName
from rqttl.imports import table
from rqttl.imports.artemis import values
from rqttl.imports.artemis.xml import Node
from rqttl.imports.report import Collector, Notes
from rqttl.names import check_queue_name

_MULTICAST = "a multicast queue gets a copy of each message, and rqttl has no topics: senders name one queue"


@dataclass(frozen=True, slots=True)
class AnycastQueue:
    """A queue of rqttl, with its address and its `ring-size` (`None` if it has none)."""

    name: str
    address: str
    subject: str
    ring_size: int | None


@dataclass(frozen=True, slots=True)
class Addresses:
    """The anycast queues by the names of their addresses, as the file writes these."""

    queues: Mapping[str, tuple[AnycastQueue, ...]]

    def queue_of(self, address: str) -> tuple[str, str]:
        """The queue that gets the letters for an address, and a remark on it."""
        _, qualified, queue = address.partition("::")
        if qualified:
            return queue, "the queue of the fully qualified name"
        queues = self.queues.get(address)
        if queues is None:
            return address, "no such address is in the file; the first letter makes the queue"
        if not queues:
            return address, "the address has no anycast queue: all letters wait in one queue with its name"
        more = f"; the address has {len(queues)} queues, and this is the first" if len(queues) > 1 else ""
        return queues[0].name, f"the queue of the address {address!r}{more}"


def read_addresses(section: Node | None, notes: Notes) -> Addresses:
    """Read `addresses`. Raises `InvalidImport` for a queue or an address without a name."""
    by_address: dict[str, tuple[AnycastQueue, ...]] = {}
    names: set[str] = set()
    for node in section.children if section else ():
        if node.name != "address":
            notes.left_out("addresses", node.name, node.text, "it is no address")
            continue
        address = node.attribute("name")
        if address in by_address:
            notes.left_out(f"address {address!r}", "", "", "an earlier element has the same name")
            continue
        queues = [_queue(queue, address, names, notes) for queue in _anycast(node, address, notes)]
        by_address[address] = tuple(queue for queue in queues if queue is not None)
    return Addresses(by_address)


def _anycast(node: Node, address: str, notes: Notes) -> Iterator[Node]:
    """The elements of the anycast queues of an address. Everything else is noted."""
    subject = f"address {address!r}"
    _note_attributes(node, subject, notes)
    for child in node.children:
        routing = node.attributes.get("type", "anycast").lower() if child.name == "queues" else child.name
        if routing not in ("anycast", "multicast"):
            notes.left_out(subject, child.name, child.text, "it is no documented setting")
        elif not child.children:
            reason = _MULTICAST if routing == "multicast" else "it has no queues yet: declare one with this name"
            notes.left_out(subject, child.name, "", reason)
        for queue in child.children if routing in ("anycast", "multicast") else ():
            if queue.name != "queue":
                notes.left_out(subject, queue.name, queue.text, "it is no queue")
            elif routing == "anycast":
                yield queue
            else:
                notes.left_out(f"{subject}: queue {queue.attribute('name')!r}", "", "", _MULTICAST)


def _note_attributes(node: Node, subject: str, notes: Notes) -> None:
    for name, value in node.attributes.items():
        if name == "type":
            notes.taken(subject, name, value, "the form of early versions of Artemis")
        elif name != "name":
            notes.left_out(subject, name, value, "it is no documented attribute")
    if not node.children:
        notes.left_out(subject, "", "", "it has no queues: declare a queue for it")


def _queue(node: Node, address: str, names: set[str], notes: Notes) -> AnycastQueue | None:
    written = node.attribute("name")
    subject = f"address {address!r}: queue {written!r}"
    try:
        name = check_queue_name(written)
    except InvalidName as error:
        notes.left_out(subject, "name", written, str(error))
        return None
    if name in names:
        notes.left_out(subject, "", "", f"an earlier queue has the name {name!r}, too")
        return None
    names.add(name)
    if written == address:
        notes.taken(subject, "name", written, f"queue {name!r}")
    else:
        notes.translated(subject, "name", written, f"queue {name!r}; senders name the queue, not the address")
    return AnycastQueue(name, address, subject, _ring_size(node, subject, notes))


def _ring_size(node: Node, subject: str, notes: Notes) -> int | None:
    """Read the attributes and children of a queue, and note all of them except `ring-size` and `name`."""
    ring_size = None
    settings = [(name, value, f"{node.place}/@{name}") for name, value in node.attributes.items()]
    settings += [(child.name, child.attributes.get("string", child.text), child.place) for child in node.children]
    for name, value, place in settings:
        if name == "ring-size":
            ring_size = values.whole(value.strip(), place)
            became = "max-length: none"
            if ring_size >= 0:
                became = f"max-length: {ring_size}, overflow: drop-head; a policy for this queue alone has them"
            notes.translated(subject, name, value, became)
        elif name == "address":
            notes.taken(subject, name, value, "the address is that of the element around it")
        elif name != "name":
            table.take(Collector(notes, subject), "artemis queue", name, name, value, place)
    return ring_size
