"""The objects of a definitions file of RabbitMQ, checked, by vhost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rqttl.errors import InvalidImport
from rqttl.imports.source import at, member, objects, optional_object, read_flag, read_object, read_text, read_whole

OPERATOR_POLICY = "operator_policy"
#: The lists of a file that the import reads.
LISTS = ("vhosts", "queues", "exchanges", "bindings", "policies", "parameters")
DEFAULT_VHOST = "/"
#: Exchanges that every vhost has. The files do not list them.
_BUILT_IN = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}


@dataclass(frozen=True)
class Queue:
    """A queue. `kind` is its type: `classic`, `quorum`, `stream`, or the name of another type."""

    place: str
    vhost: str
    name: str
    kind: str
    arguments: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def subject(self) -> str:
        """The queue in a note."""
        return f"vhost {self.vhost!r}: queue {self.name!r}"


@dataclass(frozen=True)
class Binding:
    """A binding of an exchange to a queue, or to another exchange."""

    source: str
    destination: str
    to_queue: bool
    key: str


@dataclass(frozen=True)
class SourcePolicy:
    """A policy or an operator policy."""

    place: str
    vhost: str
    name: str
    operator: bool
    pattern: str
    priority: int
    apply_to: str
    definition: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def subject(self) -> str:
        """The policy in a note."""
        return f"vhost {self.vhost!r}: {'operator policy' if self.operator else 'policy'} {self.name!r}"


@dataclass
class VHost:
    """All objects of one vhost. `exchanges` has their types, such as `direct`, by name."""

    name: str
    queues: dict[str, Queue] = field(default_factory=dict)
    exchanges: dict[str, str] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    policies: dict[str, SourcePolicy] = field(default_factory=dict)
    operator_policies: dict[str, SourcePolicy] = field(default_factory=dict)


@dataclass(frozen=True)
class Definitions:
    """The vhosts of a file, in the order of the file. `version` is the RabbitMQ that wrote it, if the file says so."""

    version: tuple[int, ...] | None
    vhosts: Mapping[str, VHost]


def read_definitions_file(table: Mapping[str, Any]) -> Definitions:
    """Check the objects of a file. Raises `InvalidImport`."""
    if not any(name in table for name in LISTS):
        raise InvalidImport("$", f"expected definitions of RabbitMQ, with at least one of {', '.join(LISTS)}")
    return _Reader(table).read()


class _Reader:
    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table
        # a file of one vhost names it once, or not at all
        self.vhost = read_text(table.get("original_vhost_name", DEFAULT_VHOST), "$.original_vhost_name")
        self.vhosts: dict[str, VHost] = {}
        self.kinds: dict[str, str] = {}

    def read(self) -> Definitions:
        self._vhosts()
        self._queues()
        for place, item in objects(self.table, "exchanges"):
            name = read_text(member(item, "name", place), at(place, "name"))
            kind = read_text(member(item, "type", place), at(place, "type"))
            exchanges = self._home(item, place).exchanges
            if name in _BUILT_IN:
                exchanges.pop(name, None)
            _add(exchanges, name, kind, place)
        for place, item in objects(self.table, "bindings"):
            self._home(item, place).bindings.append(_binding(item, place))
        for place, item in objects(self.table, "policies"):
            vhost = self._home(item, place)
            _add(vhost.policies, *_policy(item, place, vhost.name, item, operator=False), place)
        for place, item in objects(self.table, "parameters"):
            if read_text(member(item, "component", place), at(place, "component")) == OPERATOR_POLICY:
                vhost = self._home(item, place)
                value = read_object(member(item, "value", place), at(place, "value"))
                _add(vhost.operator_policies, *_policy(item, place, vhost.name, value, operator=True), place)
        return Definitions(_version(self.table), self.vhosts)

    def _home(self, item: Mapping[str, Any], place: str) -> VHost:
        name = read_text(item.get("vhost", self.vhost), at(place, "vhost"))
        if name not in self.vhosts:
            self.vhosts[name] = VHost(name)
            self.vhosts[name].exchanges.update(_BUILT_IN)
        return self.vhosts[name]

    def _vhosts(self) -> None:
        for place, item in objects(self.table, "vhosts"):
            name = read_text(member(item, "name", place), at(place, "name"))
            if name in self.vhosts:
                raise InvalidImport(place, f"expected each name once, got {name!r} again")
            self._home({"vhost": name}, place)
            kind = item.get("default_queue_type")
            if kind is not None:
                self.kinds[name] = read_text(kind, at(place, "default_queue_type"))

    def _queues(self) -> None:
        for place, item in objects(self.table, "queues"):
            vhost = self._home(item, place)
            name = read_text(member(item, "name", place), at(place, "name"))
            arguments = optional_object(item, "arguments", place)
            for flag in ("durable", "auto_delete", "exclusive"):
                read_flag(item.get(flag, False), at(place, flag))
            kind = read_text(item.get("type", self.kinds.get(vhost.name, "classic")), at(place, "type"))
            if "x-queue-type" in arguments:
                kind = read_text(arguments["x-queue-type"], at(at(place, "arguments"), "x-queue-type"))
            _add(vhost.queues, name, Queue(place, vhost.name, name, _short(kind), arguments, item), place)


def _add(table: dict[str, Any], name: str, value: object, place: str) -> None:
    if name in table:
        raise InvalidImport(place, f"expected each name once in a vhost, got {name!r} again")
    table[name] = value


def _short(kind: str) -> str:
    """The name of a type of queues without that of its Erlang module."""
    return kind.removeprefix("rabbit_").removesuffix("_queue")


def _binding(item: Mapping[str, Any], place: str) -> Binding:
    texts = {name: read_text(member(item, name, place), at(place, name)) for name in ("source", "destination")}
    kind = read_text(item.get("destination_type", "queue"), at(place, "destination_type"))
    if kind not in ("queue", "exchange"):
        raise InvalidImport(at(place, "destination_type"), f"expected queue or exchange, got {kind[:80]!r}")
    key = read_text(item.get("routing_key", ""), at(place, "routing_key"))
    optional_object(item, "arguments", place)
    return Binding(texts["source"], texts["destination"], kind == "queue", key)


def _policy(
    item: Mapping[str, Any], place: str, vhost: str, value: Mapping[str, Any], *, operator: bool
) -> tuple[str, SourcePolicy]:
    name = read_text(member(item, "name", place), at(place, "name"))
    where = at(place, "value") if operator else place
    pattern = read_text(member(value, "pattern", where), at(where, "pattern"))
    priority = read_whole(value.get("priority", 0), at(where, "priority"))
    apply_to = read_text(value.get("apply-to", "all"), at(where, "apply-to"))
    definition = _definition(member(value, "definition", where), at(where, "definition"))
    return name, SourcePolicy(place, vhost, name, operator, pattern, priority, apply_to, definition, value)


def _definition(value: object, place: str) -> Mapping[str, Any]:
    """A definition as an object. RabbitMQ exports that of an operator policy as a list of pairs."""
    if not isinstance(value, list):
        return read_object(value, place)
    table: dict[str, Any] = {}
    for i, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidImport(at(place, i), "expected a pair of a key and its value")
        if pair[0] in table:
            raise InvalidImport(at(place, i), "expected each key once in a definition")
        table[pair[0]] = pair[1]
    return table


def _version(table: Mapping[str, Any]) -> tuple[int, ...] | None:
    for key in ("rabbit_version", "rabbitmq_version"):
        if table.get(key) is not None:
            parts = read_text(table[key], f"$.{key}").split(".")[:2]
            if all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
                return tuple(int(part) for part in parts)
    return None
