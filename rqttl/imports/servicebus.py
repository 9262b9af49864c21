"""Queues of Azure Service Bus: an ARM template with plain values, or the JSON of `az servicebus … list`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rqttl.errors import InvalidImport
from rqttl.imports.notes import Imported, ImportedDeployment, NameTable, Notes, namespaces, rows, translate
from rqttl.imports.source import at, load, member, read, read_duration, read_flag
from rqttl.units import as_text

#: The longest name of a queue whose dead-letter queue `{queue}/dead` has a valid name, too.
_LONGEST = 128 - len("/dead")
_PROVIDER = "microsoft.servicebus/"
_EXPRESSION = re.compile(r"\[(?!\[).*\]", re.DOTALL)
_DEPLOY = "deploy the template, and import the JSON of `az servicebus queue list`"
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/", re.IGNORECASE)
#: Members of a resource that the import reads.
_READ = frozenset({"type", "name", "properties", "resources", "condition"})
_DUPLICATES, _WINDOW = "requiresDuplicateDetection", "duplicateDetectionHistoryTimeWindow"
_EXPIRED, _FORWARD = "deadLetteringOnMessageExpiration", "forwardDeadLetteredMessagesTo"
#: What the values of properties are that need more than a row of the table.
_KINDS: Mapping[str, Callable[[object, str], Any]] = {
    _DUPLICATES: read_flag,
    _EXPIRED: read_flag,
    _FORWARD: partial(read, str),
    "status": partial(read, str),
}
#: The name of a namespace that a parameter gives, and the type of a template within a template.
_PARAMETER, _NESTED = re.compile(r"\[parameters\('([^']+)'\)\]"), "microsoft.resources/deployments"


@dataclass(frozen=True)
class _Resource:
    """A resource. `kind` is its type in small letters, without the provider; `segments` has a name for each word."""

    place: str
    kind: str
    segments: tuple[str, ...]
    body: Mapping[str, Any]


@dataclass
class _Namespace:
    """The queues and topics of a namespace. Service Bus compares names without case: the keys are in small letters."""

    name: str
    queues: dict[str, _Resource] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)


def read_resources(text: str) -> Imported:
    """Read the text of an ARM template, or of the answer of `az servicebus queue list`.

    Raises `InvalidImport`, which names the place of a fault. What an expression of a template computes is left out,
    with a note. Each queue's options are valid for `declare_queue`.
    """
    found, notes = load(text, "an ARM template or a list of queues"), Notes("template")
    if isinstance(found, dict) and "resources" in found:
        for key in sorted(found.keys() - {"resources"}):
            notes.left_out(key, None, "the import reads the resources only")
        listed, place = found["resources"], "$.resources"
    elif found and (isinstance(found, list) or (isinstance(found, dict) and "type" in found)):
        listed, place = [found] if isinstance(found, dict) else found, "$"
    else:
        raise InvalidImport("$", "expected an ARM template, which has 'resources', or a list of queues")
    by_name: dict[str, _Namespace] = {}
    for resource in _resources(listed, place, None, notes):
        _sort(resource, by_name, notes)
    valid = namespaces(namespace.name for namespace in by_name.values())
    deployments = {one.name: _deployment(one, valid[one.name], notes) for one in by_name.values()}
    return Imported(deployments, tuple(notes.found))


def _resources(listed: object, place: str, parent: _Resource | None, notes: Notes) -> Iterator[_Resource]:
    """The resources of Service Bus, also nested ones. All others are noted."""
    for key, item in listed.items() if isinstance(listed, dict) else enumerate(read(list, listed, place)):
        where = at(place, key)
        body = read(dict, item, where)
        kind, name = member(body, "type", where, str).lower(), member(body, "name", where, str)
        if parent and "." not in kind.partition("/")[0]:
            kind = f"{_PROVIDER}{parent.kind}/{kind}"
        about = notes.about(f"resource {name!r}")
        if kind == f"{_PROVIDER}namespaces" and (parameter := _PARAMETER.fullmatch(name)):
            name = parameter[1]
            about.translated("name", parameter[0], f"{name!r}, as its parameter: the import computes no expressions")
        inner = _inner(body, where)
        resource = None
        if kind == _NESTED:
            about.translated("", None, "a template within the template: its resources are read")
        elif _is_deployed(kind, name, body, about):
            segments = _segments(kind, name, body, where, parent)
            resource = _Resource(where, kind.removeprefix(_PROVIDER), segments, body)
            yield resource
        else:
            _note_inner(inner, notes)
            continue
        for listed_within, there in inner:
            yield from _resources(listed_within, there, resource, notes)


def _inner(body: Mapping[str, Any], place: str) -> list[tuple[object, str]]:
    """The lists of resources within a resource, each with its place."""
    found = [(body["resources"], at(place, "resources"))] if "resources" in body else []
    properties = body.get("properties")
    template = properties.get("template") if isinstance(properties, dict) else None
    if isinstance(template, dict) and "resources" in template:
        found.append((template["resources"], f"{place}.properties.template.resources"))
    return found


def _note_inner(inner: Sequence[tuple[object, str]], notes: Notes) -> None:
    """Name each resource within one that is left out."""
    for listed, place in inner:
        for key, item in listed.items() if isinstance(listed, dict) else enumerate(read(list, listed, place)):
            body = read(dict, item, at(place, key))
            word = str(body.get("type", "resource")).rpartition("/")[2].lower().removesuffix("s")
            text = "it is not imported: the resource around it is left out"
            notes.about(f"{word} {str(body.get('name', ''))!r}").lost("", None, text)
            _note_inner(_inner(body, at(place, key)), notes)


def _is_deployed(kind: str, name: str, body: Mapping[str, Any], notes: Notes) -> bool:
    """True for a resource of Service Bus with a name that the file tells. Any other one is noted."""
    condition = body.get("condition", True)
    if not kind.startswith(_PROVIDER):
        notes.left_out("", None, f"it is not a resource of Service Bus, but {kind}")
    elif "copy" in body:
        notes.lost("copy", body["copy"], f"the import runs no loops: {_DEPLOY}")
    elif _EXPRESSION.fullmatch(name):
        notes.lost("name", name, f"the import computes no expressions: {_DEPLOY}")
    elif condition is False:
        notes.left_out("condition", condition, "nothing is deployed")
    else:
        if isinstance(condition, str):
            notes.translated("condition", condition, "taken as true: the import computes no expressions")
        return True
    return False


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
    kind, name, last = resource.kind, resource.segments[0], resource.kind.rpartition("/")[2]
    namespace = by_name.setdefault(name.lower(), _Namespace(name))
    if kind == "namespaces":
        notes = notes.about(f"namespace {name!r}")
        notes.taken("name", name, "a deployment of its own")
        _note_rest(resource, _READ - {"properties"}, notes)
    elif kind == "namespaces/queues":
        spelling = resource.segments[1].lower()
        if spelling in namespace.queues:
            first = namespace.queues[spelling].place
            raise InvalidImport(at(resource.place, "name"), f"expected each queue once: {first} has this name, too")
        namespace.queues[spelling] = resource
    else:
        if kind == "namespaces/topics":
            namespace.topics.add(resource.segments[1].lower())
        table = rows("servicebus resource")
        row = table.get(kind, table.get(last))
        text = row.text if row else "rqttl has nothing like it: it is about the server"
        about = notes.about(f"{last.removesuffix('s')} {'/'.join(resource.segments)!r}")
        about.add("left out", "", None, text, costs=last == "subscriptions")


def _note_rest(resource: _Resource, read: frozenset[str], notes: Notes) -> None:
    if unread := sorted(resource.body.keys() - read):
        notes.left_out(", ".join(unread), None, "it is about Azure only")


def _deployment(namespace: _Namespace, valid: str, notes: Notes) -> ImportedDeployment:
    names = NameTable.of((one.segments[1] for one in namespace.queues.values()), _LONGEST)
    queues = {}
    for resource in namespace.queues.values():
        notes = notes.about(f"queue {'/'.join(resource.segments)!r}")
        if name := names.take(resource.segments[1], "queue", notes):
            _Queue(resource, name, namespace, names, notes).read()
            if (options := notes.queue(name)) is not None:
                queues[name] = options
    return ImportedDeployment(queues, namespace=valid)


class _Queue:
    """Reads the properties of one queue: those of `properties`, or of the resource itself as `az` prints them."""

    def __init__(self, resource: _Resource, name: str, namespace: _Namespace, names: NameTable, notes: Notes) -> None:
        body, place = resource.body, resource.place
        is_flat = "properties" not in body
        self.place = place if is_flat else at(place, "properties")
        listed = body.keys() - _READ - rows("servicebus azure").keys() if is_flat else set()
        given = {key: body[key] for key in listed} if is_flat else member(body, "properties", place, dict, {})
        self.properties = {key: value for key, value in sorted(given.items()) if value is not None}
        _note_rest(resource, _READ | listed, notes)
        self.name, self.namespace, self.names, self.notes = name, namespace, names, notes

    def read(self) -> None:
        """Take each property, or note why not."""
        notes, properties = self.notes, self.properties
        for key, value in [*properties.items()]:
            if isinstance(value, str) and _EXPRESSION.fullmatch(value):
                notes.lost(key, properties.pop(key), f"the import computes no expressions: {_DEPLOY}")
            elif key in _KINDS:
                del properties[key]
                with notes.reading(key, value):
                    properties[key] = _KINDS[key](value, at(self.place, key))
        for key, value in properties.items():
            row = rows("servicebus").get(key)
            if row is None or not row.by_code:
                notes.take_setting("servicebus", key, key, value, at(self.place, key))
        for key, option, default in (("lockDuration", "lease", "1m"), ("maxDeliveryCount", "max_deliveries", 10)):
            if key not in properties:
                notes.take(option, default, key, None, because="the default of Service Bus")
        if "maxSizeInMegabytes" not in properties:
            notes.left_out("maxSizeInMegabytes", None, "Service Bus has a limit by default; rqttl sets none unasked")
        if "max_length_bytes" in notes.options:
            because = "a full queue of Service Bus refuses messages"
            notes.take("overflow", "reject-publish", "maxSizeInMegabytes", None, because=because)
        self._status()
        self._duplicates()
        self._dead_letters(self._forward() if _FORWARD in properties else None)

    def _status(self) -> None:
        status = self.properties.get("status")
        if status is None:
            return
        word = status.lower()
        if word == "active":
            self.notes.taken("status", status, "")
        elif word in ("receivedisabled", "disabled"):
            self.notes.take("paused", True, "status", status)
        if word not in ("active", "receivedisabled"):
            text = "rqttl stops no senders of a queue: stop them, or limit their rights in Redis"
            self.notes.left_out("status", status, text)

    def _duplicates(self) -> None:
        required, text = self.properties.get(_DUPLICATES), self.properties.get(_WINDOW)
        if required:
            self.notes.translated(_DUPLICATES, required, "duplicate_window: for messages with an id")
            if text is None:
                self.notes.take("duplicate_window", "10m", _WINDOW, None, because="the default of Service Bus")
            else:
                with self.notes.reading(_WINDOW, text):
                    length = as_text(read_duration(text, at(self.place, _WINDOW)))
                    self.notes.take("duplicate_window", length, _WINDOW, text)
            return
        if required is False:
            self.notes.taken(_DUPLICATES, required, "no duplicate_window")
        if text is not None:
            self.notes.left_out(_WINDOW, text, f"it does nothing without {_DUPLICATES}")

    def _forward(self) -> str | None:
        """The queue that gets the dead letters, if the source forwards them to one."""
        forward: str = self.properties[_FORWARD]
        known = self.namespace.queues.get(forward.lower())
        target = self.names.names.get(known.segments[1]) if known else translate(forward, _LONGEST)
        if not target or forward.lower() in self.namespace.topics:
            self.notes.lost(_FORWARD, forward, f"{forward!r} is not a queue of the import: rqttl has no topics yet")
        elif target == self.name:
            self.notes.lost(_FORWARD, forward, "a queue cannot be its own target")
        else:
            self.notes.translated(_FORWARD, forward, f"dead letters go to {target!r} at once")
            return target
        return None

    def _dead_letters(self, forward: str | None) -> None:
        used = self.names.names.values()
        own = [word for word in ("dead", "dead-letters", "deadletterqueue") if f"{self.name}/{word}" not in used]
        expired = self.properties.get(_EXPIRED)
        target = forward or (f"{{queue}}/{own[0]}" if own else None)
        if target is None:
            text = "no dead-letter queue: no free name was left for it; set dead_letter yourself"
            self.notes.lost("", None, text)
            return
        for option in ("dead_letter_delivery_limit", "dead_letter_rejected"):
            self.notes.take(option, target, "", None, because="the dead-letter queue of Service Bus")
        if expired:
            self.notes.take("dead_letter_expired", target, _EXPIRED, expired)
        elif expired is not None:
            self.notes.taken(_EXPIRED, expired, "expired messages are dropped, and counted")
