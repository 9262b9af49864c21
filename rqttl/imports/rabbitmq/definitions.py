"""The objects of a definitions file of RabbitMQ, checked, by vhost; and notes about those that become nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rqttl.errors import InvalidImport
from rqttl.imports.notes import Notes, rows
from rqttl.imports.source import at, member, objects, read

_OPERATOR_POLICY = "operator_policy"
#: Exchanges that every vhost has. The files do not list them.
_BUILT_IN = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}
#: Lists of objects that are noted as a whole, each with the words for one of them.
_OBJECTS = {
    "users": "user {name!r}",
    "permissions": "vhost {vhost!r}: permission of user {user!r}",
    "topic_permissions": "vhost {vhost!r}: topic permission of user {user!r} on exchange {exchange!r}",
    "global_parameters": "global parameter {name!r}",
    "parameters": "vhost {vhost!r}: {component} {name!r}",
}
#: The lists of a file that the import reads.
_LISTS = ("vhosts", "queues", "exchanges", "bindings", "policies", "parameters")
_DEFAULT_TYPE = "default_queue_type"
_NOTHING = "it says nothing about a queue or a policy"


@dataclass(frozen=True)
class Queue:
    """A queue. `kind` is its type: `classic`, `quorum`, `stream`, or the name of another type."""

    place: str
    vhost: str
    name: str
    kind: str
    arguments: Mapping[str, Any]
    body: Mapping[str, Any]


class Binding(NamedTuple):
    """A binding of an exchange to a queue, or to another exchange."""

    source: str
    destination: str
    to_queue: bool
    key: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class SourcePolicy:
    """A policy or an operator policy. `place` is that of the object with its pattern."""

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
    """All objects of one vhost. `exchanges` has the bodies by name; those that no file lists have no name in them."""

    name: str
    queue_type: str = "classic"
    queues: dict[str, Queue] = field(default_factory=dict)
    exchanges: dict[str, Mapping[str, Any]] = field(
        default_factory=lambda: {name: {"type": kind, "arguments": {}} for name, kind in _BUILT_IN.items()}
    )
    bindings: list[Binding] = field(default_factory=list)
    policies: dict[str, SourcePolicy] = field(default_factory=dict)
    operator_policies: dict[str, SourcePolicy] = field(default_factory=dict)


class Setting(NamedTuple):
    """A setting of the source: its name there, its value, and its place in the file."""

    name: str
    value: Any
    place: str


def settings_of(table: Mapping[str, Any], place: str, prefix: str = "") -> dict[str, Setting]:
    """The settings of a queue (with the prefix `x-`) or of a definition, by key. Others keep their names."""
    return {name.removeprefix(prefix): Setting(name, value, at(place, name)) for name, value in table.items()}


def read_vhosts(table: Mapping[str, Any]) -> dict[str, VHost]:
    """Check the objects of a file. Returns its vhosts, in the order of the file. Raises `InvalidImport`."""
    if not any(name in table for name in _LISTS):
        raise InvalidImport("$", f"expected definitions of RabbitMQ, with at least one of {', '.join(_LISTS)}")
    # a file of one vhost names it once, or not at all
    only = member(table, "original_vhost_name", "$", str, "/")
    vhosts: dict[str, VHost] = {}
    queue_type = _default_type(table, "$")

    def home(item: Mapping[str, Any], place: str) -> VHost:
        name = member(item, "vhost", place, str, only)
        return vhosts.setdefault(name, VHost(name, queue_type))

    for place, item in objects(table, "vhosts"):
        name = member(item, "name", place, str)
        _add(vhosts, name, VHost(name, _default_type(item, place)), place)
    for place, item in objects(table, "queues"):
        queue = _queue(item, place, home(item, place))
        _add(home(item, place).queues, queue.name, queue, place)
    for place, item in objects(table, "exchanges"):
        name, exchanges = member(item, "name", place, str), home(item, place).exchanges
        member(item, "type", place, str)
        if name not in _BUILT_IN:
            _add(exchanges, name, {**item, "arguments": _arguments(item, place)}, place)
    for place, item in objects(table, "bindings"):
        home(item, place).bindings.append(_binding(item, place))
    for place, item in objects(table, "policies"):
        vhost, name = home(item, place), member(item, "name", place, str)
        _add(vhost.policies, name, _policy(name, vhost.name, item, place, operator=False), place)
    operators = ((place, item) for place, item in objects(table, "parameters") if _is_operator(item, place))
    for place, item in operators:
        vhost, name = home(item, place), member(item, "name", place, str)
        body = member(item, "value", place, dict)
        _add(vhost.operator_policies, name, _policy(name, vhost.name, body, at(place, "value"), operator=True), place)
    return vhosts


def _default_type(vhost: Mapping[str, Any], place: str) -> str:
    """The type of the queues of a vhost that name none. `rabbitmqctl` writes it in the metadata only."""
    metadata = member(vhost, "metadata", place, dict, {})
    return _type(vhost, place, _DEFAULT_TYPE, _type(metadata, at(place, "metadata"), _DEFAULT_TYPE, "classic"))


def _type(table: Mapping[str, Any], place: str, key: str, default: str) -> str:
    kind = member(table, key, place, str, "")
    return default if kind in ("", "undefined") else kind


def _is_operator(item: Mapping[str, Any], place: str) -> bool:
    return member(item, "component", place, str) == _OPERATOR_POLICY


def _add(table: dict[str, Any], name: str, value: object, place: str) -> None:
    if name in table:
        raise InvalidImport(place, f"expected each name once in a vhost, got {name!r} again")
    table[name] = value


def _queue(item: Mapping[str, Any], place: str, vhost: VHost) -> Queue:
    for flag in ("durable", "auto_delete", "exclusive"):
        member(item, flag, place, bool, False)
    arguments = _arguments(item, place)
    kind = _type(item, place, "type", vhost.queue_type)
    kind = _type(arguments, at(place, "arguments"), "x-queue-type", kind)
    kind = kind.removeprefix("rabbit_").removesuffix("_queue")  # the name of its Erlang module
    return Queue(place, vhost.name, member(item, "name", place, str), kind, arguments, item)


def _arguments(item: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The arguments of an object. An empty list stands for an empty object."""
    return {} if item.get("arguments") == [] else member(item, "arguments", place, dict, {})


def _binding(item: Mapping[str, Any], place: str) -> Binding:
    kind = member(item, "destination_type", place, str, "queue")
    if kind not in ("queue", "exchange"):
        raise InvalidImport(at(place, "destination_type"), f"expected queue or exchange, got {kind[:80]!r}")
    ends = member(item, "source", place, str), member(item, "destination", place, str)
    return Binding(*ends, kind == "queue", member(item, "routing_key", place, str, ""), _arguments(item, place))


def _policy(name: str, vhost: str, body: Mapping[str, Any], place: str, *, operator: bool) -> SourcePolicy:
    pattern = member(body, "pattern", place, str)
    priority, apply_to = member(body, "priority", place, int, 0), member(body, "apply-to", place, str, "all")
    definition = body.get("definition")
    if isinstance(definition, list):  # RabbitMQ exports that of an operator policy as pairs
        where = at(place, "definition")
        pairs = [read(list, pair, at(where, i)) for i, pair in enumerate(definition)]
        if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
            raise InvalidImport(where, "expected pairs of a key and its value")
        body = {**body, "definition": dict(pairs)}
    definition = member(body, "definition", place, dict)
    return SourcePolicy(place, vhost, name, operator, pattern, priority, apply_to, definition, body)


def version(table: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The major and minor version of the RabbitMQ that wrote a file, if the file tells it."""
    for key in ("rabbit_version", "rabbitmq_version"):
        parts = member(table, key, "$", str, "").split(".")[:2]
        if all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
            return tuple(int(part) for part in parts)
    return None


def note_others(table: Mapping[str, Any], notes: Notes) -> None:
    """Note each object without a counterpart. The values of its members, which may be secrets, are not shown."""
    reasons = rows("rabbitmq object")
    vhost = table.get("original_vhost_name", "/")
    for kind, words in _OBJECTS.items():
        for _, item in objects(table, kind):
            if item.get("component") != _OPERATOR_POLICY:
                row = reasons.get(str(item.get("component")), reasons[kind])
                notes.about(words.format_map(defaultdict(str, {"vhost": vhost, **item}))).left_out("", None, row.text)
    for _, item in objects(table, "vhosts"):
        notes = notes.about(f"vhost {item['name']!r}")
        notes.taken("name", item["name"], "a deployment of its own")
        for key in sorted(item.keys() - {"name"}):
            _note_member(key, item[key], notes, reasons["vhost-limits"].text if key == "limits" else _NOTHING)
    for key in sorted(table.keys() - {*_LISTS, *_OBJECTS}):
        _note_member(key, table[key], notes.about("definitions"), _NOTHING)


def _note_member(key: str, value: Any, notes: Notes, reason: str) -> None:
    """Note a member of a vhost, or of a file; that of metadata under its own name."""
    if key.rpartition(".")[2] == _DEFAULT_TYPE:
        notes.translated(key, value, "the type of each queue without one; rqttl has one type")
    elif key == "metadata" and isinstance(value, dict):
        for name in sorted(value):
            _note_member(f"{key}.{name}", value[name], notes, reason)
    else:
        notes.left_out(key, value, reason)
