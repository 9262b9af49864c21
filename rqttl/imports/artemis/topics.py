"""Multicast addresses of Artemis as topics, with their queues, and diverts that take all messages as forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from rqttl.checks import check_queue_name
from rqttl.errors import InvalidInput, InvalidName
from rqttl.imports.artemis.policies import BrokerQueue, Policies
from rqttl.imports.artemis.xml import Node
from rqttl.imports.notes import Notes
from rqttl.imports.routes import Routes
from rqttl.imports.sql import read_sql

#: The beginnings of identifiers that are no headers.
_PROPERTIES = ("AMQ", "JMS")


def topic_names(multicast: Mapping[str, Notes], queues: Sequence[BrokerQueue]) -> set[str]:
    """The multicast addresses that become topics. The others are noted."""
    names, found = {queue.name for queue in queues}, set()
    for address, notes in multicast.items():
        try:
            check_queue_name(address)
        except InvalidName as error:
            notes.lost("multicast", "", str(error))
            continue
        if address in names:
            notes.left_out("multicast", "", f"no topic comes of it: a queue has the name {address!r}")
        else:
            notes.translated("multicast", "", f"topic {address!r}")
            found.add(address)
    return found


class Routing:
    """The queues and topics of the import, with bindings and forwards."""

    def __init__(self, queues: Sequence[BrokerQueue], topics: set[str], policies: Policies) -> None:
        self._queues, self._topics, self._policies, self._routes = queues, topics, policies, Routes()
        self._options = {queue.name: queue.notes.options for queue in queues} | {topic: {} for topic in sorted(topics)}
        self._diverted: set[str] = set()
        for topic in topics:
            self._routes.add_topic(topic)

    def divert(self, node: Node, notes: Notes) -> None:
        """Let all messages of an address go on as an exclusive divert says. Any other divert is noted."""
        parts = {child.name: child.attributes.get("string", child.text) for child in node.children}
        for part in sorted(parts.keys() & {"routing-name", "routing-type"}):
            notes.left_out(part, parts[part], "rqttl has no addresses: what goes on goes to a queue")
        address, forwarding = parts.get("address", ""), parts.get("forwarding-address", "")
        target, _ = self._policies.queue_of(forwarding)
        queues = [queue for queue in self._queues if queue.address == address and not queue.multicast]
        is_free = bool(queues) or address in self._topics or address not in self._options
        if reason := self._reason_against(parts, address, target) or ("" if is_free else "a queue has its name"):
            notes.lost("", "", f"{address!r} does not forward to {forwarding!r}: {reason}")
            return
        self._diverted.add(address)
        if address in self._topics:
            self._routes.bind(address, target, notes, "divert", forwarding, lambda: None)
            return
        for queue in queues:
            self._routes.forward(queue.name, target, queue.notes, "divert", forwarding)
        if not queues:
            self._routes.forward(address, target, notes, "divert", forwarding)
            self._options |= {address: notes.options} if notes.options and notes.queue(address) is not None else {}

    def _reason_against(self, parts: Mapping[str, str], address: str, target: str) -> str:
        if not address or not target:
            return "it lacks one of them"
        if parts.get("exclusive", "").lower() != "true":
            return "it copies messages, which only a topic does: bind a queue to one"
        if parts.keys() & {"transformer", "transformer-class-name"}:
            return "rqttl changes no messages"
        if parts.get("filter"):
            return "it has a filter: bind queues with filters to a topic"
        if address in self._diverted:
            return "an earlier one takes all messages"
        return "the file has no such queue" if address in self._topics and target not in self._options else ""

    def queues(self) -> dict[str, Mapping[str, object]]:
        """All queues and topics, after the queues of topics are bound."""
        for queue in self._queues:
            if not queue.multicast:
                continue
            if queue.address in self._diverted:
                queue.notes.translated("", "", "it gets nothing: a divert takes all messages of its address")
            elif queue.address in self._topics:
                make = partial(read_sql, queue.filter, _header) if queue.filter else lambda: None
                self._routes.bind(queue.address, queue.name, queue.notes, "filter", queue.filter, make)
            elif queue.filter or queue.name != queue.address:
                queue.notes.lost("filter", queue.filter, f"it is bound to nothing: {queue.address!r} is not a topic")
        return self._routes.deployed(self._options)


def _header(parts: Sequence[str]) -> str:
    name = ".".join(parts)
    if name.startswith(_PROPERTIES):
        raise InvalidInput(f"{name!r} is no header, and filters look at headers only")
    return name
