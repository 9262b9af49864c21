"""Multicast addresses of Artemis as topics, with their queues; and exclusive diverts as forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rqttl.checks import is_queue_name
from rqttl.errors import InvalidInput
from rqttl.imports.artemis.policies import BrokerQueue, Policies
from rqttl.imports.artemis.xml import Node
from rqttl.imports.notes import Notes
from rqttl.imports.routes import Routes
from rqttl.imports.sql import read_sql

#: The beginnings of identifiers that are no headers of a sender.
_PROPERTIES = ("AMQ", "_AMQ", "JMS")


def topic_names(multicast: Mapping[str, Notes], queues: Sequence[BrokerQueue]) -> set[str]:
    """The multicast addresses that become topics. The others are noted."""
    names, found = {queue.name for queue in queues}, set()
    for address, notes in multicast.items():
        if address in names or not is_queue_name(address):
            why = "a queue has its name" if address in names else "rqttl allows no such name"
            notes.add("left out", "multicast", "", f"no topic comes of it: {why}", costs=address not in names)
        else:
            notes.translated("multicast", "", f"topic {address!r}")
            found.add(address)
    return found


def routed(
    queues: Sequence[BrokerQueue], topics: set[str], diverts: Sequence[Node], policies: Policies, notes: Notes
) -> dict[str, Mapping[str, object]]:
    """The queues and topics of the import, with bindings and forwards."""
    routes = Routes(sorted(topics))
    for node in diverts:
        _divert(node, queues, policies, notes.about(f"{node.name} {node.attributes.get('name', '')!r}"))
    for queue in queues:
        if queue.multicast and queue.address in topics:
            make = partial(read_sql, queue.filter, _header) if queue.filter else lambda: None
            routes.bind(queue.address, queue.name, make, queue.notes, "filter", queue.filter)
        elif queue.multicast and (queue.filter or queue.name != queue.address):
            queue.notes.lost("filter", queue.filter, f"it is bound to nothing: {queue.address!r} is not a topic")
    return routes.deployed({queue.name: queue.notes.options for queue in queues})


def _divert(node: Node, queues: Sequence[BrokerQueue], policies: Policies, notes: Notes) -> None:
    """Let the messages of the queues of an address go on as an exclusive divert says, or note why not."""
    parts = {child.name: child.attributes.get("string", child.text) for child in node.children}
    for part in sorted(parts.keys() & {"routing-name", "routing-type"}):
        notes.left_out(part, parts[part], "rqttl has no addresses: what goes on goes to a queue")
    address, forwarding = parts.get("address", ""), parts.get("forwarding-address", "")
    sources = [queue.notes for queue in queues if queue.address == address and "forward_to" not in queue.notes.options]
    changes = parts.get("filter") or parts.keys() & {"transformer", "transformer-class-name"}
    if not sources or changes or parts.get("exclusive", "").lower() != "true" or address in policies.topics:
        rule = "the first exclusive divert of a queue's address, without a filter or a transformer, becomes a forward"
        notes.lost("", "", f"{address!r} does not forward to {forwarding!r}: {rule}; for others bind queues to a topic")
        return
    for about in sources:
        target, _ = policies.queue_of(forwarding)
        about.take("forward_to", target, "divert", forwarding, because="its messages go on")


def _header(parts: Sequence[str]) -> str:
    name = ".".join(parts)
    if name.startswith(_PROPERTIES):
        raise InvalidInput(f"{name!r} is no header, and filters look at headers only")
    return name
