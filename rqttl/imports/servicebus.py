"""Queues of Azure Service Bus: an ARM template with plain values, or the JSON of `az servicebus … list`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rqttl.errors import InvalidImport, InvalidInput
from rqttl.imports import table
from rqttl.imports.durations import parse_duration
from rqttl.imports.names import NameTable, namespaces, translate
from rqttl.imports.report import Collector, Imported, ImportedDeployment, Notes
from rqttl.imports.source import at, load, member, optional_object, read_flag, read_list, read_object, read_text
from rqttl.options import QueueOptions
from rqttl.units import as_text

#: The longest name of a queue whose dead-letter queue `{queue}/dead` has a valid name, too.
_LONGEST = 128 - len("/dead")
_PROVIDER = "microsoft.servicebus/"
_EXPRESSION = re.compile(r"\[(?!\[).*\]", re.DOTALL)
_DEPLOY = "the import computes no expressions: deploy the template, and import the JSON of `az servicebus queue list`"
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/", re.IGNORECASE)
#: Members of a resource that tell nothing of a queue.
_AZURE = frozenset(
    [
        "apiVersion",
        "comments",
        "dependsOn",
        "id",
        "identity",
        "location",
        "resourceGroup",
        "scope",
        "sku",
        "systemData",
        "tags",
    ]
)
_READ = frozenset({"type", "name", "properties", "resources", "condition"})
_DUPLICATES, _WINDOW = "requiresDuplicateDetection", "duplicateDetectionHistoryTimeWindow"
_EXPIRED, _FORWARD = "deadLetteringOnMessageExpiration", "forwardDeadLetteredMessagesTo"


@dataclass(frozen=True)
class _Resource:
    """A resource. `kind` is its type in small letters, without the provider; `segments` has a name for each word."""

    place: str
    kind: str
    segments: tuple[str, ...]
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return "/".join(self.segments)


@dataclass
class _Namespace:
    """The queues and topics of a namespace. Service Bus compares names without case: the keys are in small letters."""

    name: str
    queues: dict[str, _Resource] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    names: NameTable = field(default_factory=lambda: NameTable({}, {}))
    used: frozenset[str] = frozenset()


def read_resources(text: str) -> Imported:
    """Read the text of an ARM template, or of the answer of `az servicebus queue list`.

    Raises `InvalidImport`, which names the place of a fault. What an expression of a template computes is left out,
    with a note. Each queue's options are valid for `declare_queue`.
    """
    found = load(text, "an ARM template or a list of queues", lists=True)
    notes = Notes()
    if isinstance(found, dict) and "resources" in found:
        for key in sorted(found.keys() - {"resources"}):
            notes.left_out("template", key, None, "the import reads the resources only")
        listed, place = found["resources"], "$.resources"
    elif found and (isinstance(found, list) or "type" in found):
        listed, place = [found] if isinstance(found, dict) else found, "$"
    else:
        raise InvalidImport("$", "expected an ARM template, which has 'resources', or a list of queues")
    by_name: dict[str, _Namespace] = {}
    for resource in _resources(listed, place, None, notes):
        _sort(resource, by_name, notes)
    valid = namespaces(namespace.name for namespace in by_name.values())
    deployments = {one.name: _deployment(one, valid[one.name], notes) for one in by_name.values()}
    return Imported(deployments, notes.as_tuple())


def _resources(listed: object, place: str, parent: _Resource | None, notes: Notes) -> Iterator[_Resource]:
    """The resources of Service Bus, also nested ones. All others are noted."""
    items = listed.items() if isinstance(listed, dict) else enumerate(read_list(listed, place))
    for key, item in items:
        where = at(place, key)
        body = read_object(item, where)
        resource = _resource(body, where, parent, notes)
        if resource:
            yield resource
            if "resources" in body:
                yield from _resources(body["resources"], at(where, "resources"), resource, notes)


def _resource(body: Mapping[str, Any], place: str, parent: _Resource | None, notes: Notes) -> _Resource | None:
    kind = read_text(member(body, "type", place), at(place, "type")).lower()
    if parent and "." not in kind.partition("/")[0]:
        kind = f"{_PROVIDER}{parent.kind}/{kind}"
    name = read_text(member(body, "name", place), at(place, "name"))
    subject = f"resource {name!r}"
    condition = body.get("condition", True)
    if not kind.startswith(_PROVIDER):
        notes.left_out(subject, "", None, f"it is no resource of Service Bus, but {kind}")
    elif "copy" in body:
        notes.left_out(subject, "copy", body["copy"], f"the import runs no loops: {_DEPLOY.partition(': ')[2]}")
    elif _EXPRESSION.fullmatch(name):
        notes.left_out(subject, "name", name, _DEPLOY)
    elif condition is False:
        notes.left_out(subject, "condition", condition, "nothing is deployed")
    else:
        if isinstance(condition, str):
            notes.translated(subject, "condition", condition, "taken as true: the import computes no expressions")
        return _Resource(place, kind.removeprefix(_PROVIDER), _segments(kind, name, body, place, parent), body)
    return None


def _segments(kind: str, name: str, body: Mapping[str, Any], place: str, parent: _Resource | None) -> tuple[str, ...]:
    """A name for each word of the type. The names of queues and topics may have slashes of their own."""
    namespace = _NAMESPACE.search(str(body.get("id", "")))
    if namespace:  # the answer of `az` has the last part of the name only
        return (namespace[1], name)
    words = kind.count("/")
    segments = (*parent.segments, name) if parent else tuple(name.split("/", words - 1))
    if len(segments) < words or not all(segments):
        raise InvalidImport(at(place, "name"), f"expected a name of {words} parts with / between them")
    return segments


def _sort(resource: _Resource, by_name: dict[str, _Namespace], notes: Notes) -> None:
    """Keep a queue for later, because others may name it. Note any other resource."""
    kind, name = resource.kind, resource.segments[0]
    namespace = by_name.setdefault(name.lower(), _Namespace(name))
    if kind == "namespaces":
        notes.taken(f"namespace {name!r}", "name", name, "a deployment of its own")
        _note_rest(resource, f"namespace {name!r}", {"type", "name", "resources"}, notes)
    elif kind == "namespaces/queues":
        spelling = resource.segments[1].lower()
        if spelling in namespace.queues:
            first = namespace.queues[spelling].place
            raise InvalidImport(at(resource.place, "name"), f"expected each queue once: {first} has this name, too")
        namespace.queues[spelling] = resource
    else:
        if kind == "namespaces/topics":
            namespace.topics.add(resource.segments[1].lower())
        rows = table.rows("servicebus resource")
        row = rows.get(kind, rows.get(kind.rpartition("/")[2]))
        text = row.text if row else "rqttl has nothing like it: it is about the server"
        notes.left_out(f"{kind.rpartition('/')[2].removesuffix('s')} {resource.name!r}", "", None, text)


def _note_rest(resource: _Resource, subject: str, read: set[str] | frozenset[str], notes: Notes) -> None:
    unread = sorted(resource.body.keys() - read)
    if unread:
        notes.left_out(subject, ", ".join(unread), None, "it is about Azure only")


def _deployment(namespace: _Namespace, valid: str, notes: Notes) -> ImportedDeployment:
    names = namespace.names = NameTable.of((one.segments[1] for one in namespace.queues.values()), _LONGEST)
    namespace.used = frozenset(names.names.values())
    options = {}
    for resource in namespace.queues.values():
        source, out = resource.segments[1], Collector(notes, f"queue {resource.name!r}")
        if source in names.refused:
            out.left_out("", None, f"the queue is not imported: {names.refused[source]}")
            continue
        name = names.names[source]
        (out.taken if name == source else out.translated)("name", source, names.note(source))
        _Queue(resource, name, namespace, out).read()
        try:
            QueueOptions.read(name, out.options)
        except InvalidInput as error:
            out.left_out("", None, f"the queue is not imported: {error}")
        else:
            options[name] = out.options
    return ImportedDeployment(options, namespace=valid)


class _Queue:
    """Reads the properties of one queue: those of `properties`, or of the resource itself as `az` prints them."""

    def __init__(self, resource: _Resource, name: str, namespace: _Namespace, out: Collector) -> None:
        body, place = resource.body, resource.place
        flat = "properties" not in body
        self.place = place if flat else at(place, "properties")
        listed = {key: body[key] for key in body.keys() - _READ - _AZURE} if flat else {}
        given = listed if flat else optional_object(body, "properties", place)
        self.properties = {key: value for key, value in sorted(given.items()) if value is not None}
        _note_rest(resource, out.subject, _READ | listed.keys(), out.notes)
        self.name, self.namespace, self.out = name, namespace, out

    def read(self) -> None:
        """Take each property, or note why not."""
        out, properties = self.out, self.properties
        for key, value in [*properties.items()]:
            if isinstance(value, str) and _EXPRESSION.fullmatch(value):
                out.left_out(key, properties.pop(key), _DEPLOY)
        for key, value in properties.items():
            row = table.rows("servicebus").get(key)
            if row is None or not row.by_code:
                table.take(out, "servicebus", key, key, value, at(self.place, key))
        for key, option, default in (("lockDuration", "lease", "1m"), ("maxDeliveryCount", "max_deliveries", 10)):
            if key not in properties:
                out.take(option, default, key, None, because="the default of Service Bus")
        if "maxSizeInMegabytes" not in properties:
            out.left_out("maxSizeInMegabytes", None, "Service Bus has a limit by default; rqttl sets none unasked")
        if "max_length_bytes" in out.options:
            because = "a full queue of Service Bus refuses messages"
            out.take("overflow", "reject-publish", "maxSizeInMegabytes", None, because=because)
        self._duplicates()
        self._dead_letters(self._forward())

    def _flag(self, key: str) -> bool | None:
        return read_flag(self.properties[key], at(self.place, key)) if key in self.properties else None

    def _duplicates(self) -> None:
        required, text = self._flag(_DUPLICATES), self.properties.get(_WINDOW)
        if required:
            self.out.translated(_DUPLICATES, required, "duplicate_window: for messages with an id")
            if text is None:
                self.out.take("duplicate_window", "10m", _WINDOW, None, because="the default of Service Bus")
            else:
                place = at(self.place, _WINDOW)
                length = as_text(parse_duration(read_text(text, place), place))
                self.out.take("duplicate_window", length, _WINDOW, text)
            return
        if required is False:
            self.out.taken(_DUPLICATES, required, "no duplicate_window")
        if text is not None:
            self.out.left_out(_WINDOW, text, f"it does nothing without {_DUPLICATES}")

    def _forward(self) -> str | None:
        """The queue that gets the dead letters, if the source forwards them."""
        if _FORWARD not in self.properties:
            return None
        forward = read_text(self.properties[_FORWARD], at(self.place, _FORWARD))
        known = self.namespace.queues.get(forward.lower())
        target = self.namespace.names.names.get(known.segments[1]) if known else translate(forward, _LONGEST)
        if not target or forward.lower() in self.namespace.topics:
            self.out.left_out(_FORWARD, forward, f"{forward!r} is no queue of the import: rqttl has no topics yet")
        elif target == self.name:
            self.out.left_out(_FORWARD, forward, "a queue cannot be its own target")
        else:
            self.out.translated(_FORWARD, forward, f"dead letters go to {target!r} at once")
            return target
        return None

    def _dead_letters(self, forward: str | None) -> None:
        used = self.namespace.used
        own = [word for word in ("dead", "dead-letters", "deadletterqueue") if f"{self.name}/{word}" not in used]
        expired = self._flag(_EXPIRED)
        target = forward or (f"{{queue}}/{own[0]}" if own else None)
        if target is None:
            self.out.left_out("", None, "no dead-letter queue: no free name was left for it; set dead_letter yourself")
            return
        for option in ("dead_letter_delivery_limit", "dead_letter_rejected"):
            self.out.take(option, target, "", None, because="the dead-letter queue of Service Bus")
        if expired:
            self.out.take("dead_letter_expired", target, _EXPIRED, expired)
        elif expired is False:
            self.out.taken(_EXPIRED, expired, "expired messages are dropped, and counted")
