"""The resources of an ARM template, in one list: nested and flat ones, symbolic names, and templates in templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rqttl.errors import InvalidImport
from rqttl.imports.report import Notes
from rqttl.imports.servicebus.values import Unknown, Values, readable, split, unknown_part
from rqttl.imports.source import at, member, optional_object, read_list, read_object, read_text

SERVICE_BUS = "microsoft.servicebus/"
_DEPLOYMENTS = "microsoft.resources/deployments"
#: Templates inside each other.
_MAX_TEMPLATES = 10
_ABOUT_TEMPLATE = ("$schema", "apiProfile", "contentVersion", "definitions", "languageVersion", "metadata", "outputs")


@dataclass(frozen=True)
class Resource:
    """A resource of Service Bus. `kind` is its type in small letters, without `microsoft.servicebus/`.

    `segments` has a name for each word of `kind`. An unknown part of a name is in marks (`values.unknown_part`).
    """

    place: str
    kind: str
    segments: tuple[str, ...]
    body: Mapping[str, Any]
    values: Values

    @property
    def name(self) -> str:
        """The name for people."""
        return readable("/".join(self.segments))


class Reader:
    """Reads one template, and the templates that it deploys."""

    def __init__(self, notes: Notes, template: Mapping[str, Any], assigned: Mapping[str, object]) -> None:
        self._notes = notes
        self._template = template
        self._from_caller = assigned

    def resources(self) -> Iterator[Resource]:
        """The resources of Service Bus. All others are noted."""
        yield from self._of_template(self._template, "$", self._from_caller, 0)

    def _of_template(
        self, template: Mapping[str, Any], place: str, assigned: Mapping[str, object], depth: int
    ) -> Iterator[Resource]:
        if depth > _MAX_TEMPLATES:
            raise InvalidImport(place, f"expected at most {_MAX_TEMPLATES} templates inside each other")
        values = Values(template, place, assigned)
        self._note_template(template, place, values)
        yield from self._of_list(member(template, "resources", place), f"{place}.resources", values, None, depth)

    def _of_list(
        self, listed: object, place: str, values: Values, parent: Resource | None, depth: int
    ) -> Iterator[Resource]:
        if isinstance(listed, dict):
            items = [(at(place, key), item) for key, item in listed.items()]
        else:
            items = [(at(place, i), item) for i, item in enumerate(read_list(listed, place))]
        for where, item in items:
            yield from self._read_one(read_object(item, where), where, values, parent, depth)

    def _read_one(
        self, body: Mapping[str, Any], place: str, values: Values, parent: Resource | None, depth: int
    ) -> Iterator[Resource]:
        kind = read_text(member(body, "type", place), at(place, "type"))
        full = kind.lower() if parent is None or "." in kind.partition("/")[0] else _below(parent, kind)
        subject = f"resource {kind!r} at {place}"
        if not self._is_deployed(body, place, values, subject):
            return
        if full == _DEPLOYMENTS:
            yield from self._nested_template(body, place, values, depth)
            return
        if not full.startswith(SERVICE_BUS):
            self._notes.left_out(subject, "", None, "it is no resource of Service Bus")
            return
        kind = full.removeprefix(SERVICE_BUS)
        name = values.text(read_text(member(body, "name", place), at(place, "name")))
        if not isinstance(name, str):
            raise InvalidImport(at(place, "name"), "expected a text, or an expression that gives one")
        segments = (*(parent.segments if parent else ()), *split(name))
        missing = kind.count("/") + 1 - len(segments)
        if missing > 0 and unknown_part(name):
            self._notes.left_out(subject, "name", body["name"], f"the name is unknown: {unknown_part(name)}")
            return
        if missing > 0 or not all(segments):
            raise InvalidImport(
                at(place, "name"), f"expected a name of {kind.count('/') + 1} parts with / between them"
            )
        segments = _merged(segments, kind)
        resource = Resource(place, kind, segments, body, values)
        yield resource
        if "resources" in body:
            yield from self._of_list(body["resources"], at(place, "resources"), values, resource, depth)

    def _is_deployed(self, body: Mapping[str, Any], place: str, values: Values, subject: str) -> bool:
        """Return false for a loop and for a condition that is false. Note both, and a condition that is unknown."""
        if "copy" in body:
            self._notes.left_out(
                subject, "copy", body["copy"], "the import runs no loops: write each resource, or deploy"
            )
            return False
        condition = values.resolve(body.get("condition", True))
        if condition is False:
            self._notes.left_out(subject, "condition", body["condition"], "the condition is false: nothing is deployed")
            return False
        if isinstance(condition, Unknown):
            text = f"taken as true, because it is unknown: {condition.reason}"
            self._notes.translated(subject, "condition", body["condition"], text)
        elif "condition" in body and condition is not True:
            raise InvalidImport(at(place, "condition"), "expected true or false, or an expression that gives it")
        elif "condition" in body:
            self._notes.taken(subject, "condition", body["condition"], "the condition is true")
        return True

    def _nested_template(self, body: Mapping[str, Any], place: str, values: Values, depth: int) -> Iterator[Resource]:
        subject = f"deployment at {place}"
        properties = optional_object(body, "properties", place)
        if "template" not in properties:
            self._notes.left_out(subject, "", None, "its template is in another file: import that file, too")
            return
        where = at(at(place, "properties"), "template")
        template = read_object(properties["template"], where)
        options = optional_object(properties, "expressionEvaluationOptions", at(place, "properties"))
        self._notes.taken(subject, "", None, "the resources of its template are read")
        if str(options.get("scope")).lower() == "inner":
            assigned = _inner_parameters(properties, place, values)
            yield from self._of_template(template, where, assigned, depth + 1)
        elif depth >= _MAX_TEMPLATES:
            raise InvalidImport(where, f"expected at most {_MAX_TEMPLATES} templates inside each other")
        else:
            self._note_template(template, where, values)
            listed = member(template, "resources", where)
            yield from self._of_list(listed, f"{where}.resources", values, None, depth + 1)

    def _note_template(self, template: Mapping[str, Any], place: str, values: Values) -> None:
        subject = f"template at {place}"
        about = [key for key in _ABOUT_TEMPLATE if key in template]
        if about:
            self._notes.left_out(subject, ", ".join(about), None, "it says nothing about queues")
        for key in sorted(template.keys() - {*_ABOUT_TEMPLATE, "parameters", "variables", "resources"}):
            self._notes.left_out(subject, key, template[key], "the import does not read it")
        for kind in ("parameters", "variables"):
            for name in optional_object(template, kind, place):
                self._note_value(subject, kind, name, values)

    def _note_value(self, subject: str, kind: str, name: str, values: Values) -> None:
        value = values.named(kind, name)
        reason = value.reason if isinstance(value, Unknown) else unknown_part(value) if isinstance(value, str) else ""
        if reason:
            self._notes.left_out(subject, f"{kind}.{name}", None, reason)
        else:
            secret = kind == "parameters" and values.is_secret(name)
            self._notes.taken(subject, f"{kind}.{name}", None if secret else value, "its value is used")


def _below(parent: Resource, kind: str) -> str:
    return f"{SERVICE_BUS}{parent.kind}/{kind.lower()}"


def _merged(segments: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """A name for each word of the type. The names of queues and topics may have slashes of their own."""
    words = kind.split("/")
    if len(segments) == len(words):
        return segments
    if words[-1] in ("queues", "topics"):
        return (*segments[: len(words) - 1], "/".join(segments[len(words) - 1 :]))
    topic = len(segments) - len(words) + 2
    return (segments[0], "/".join(segments[1:topic]), *segments[topic:])


def _inner_parameters(properties: Mapping[str, Any], place: str, values: Values) -> dict[str, object]:
    """The parameters of an inner template, computed in the outer one."""
    assigned: dict[str, object] = {}
    where = at(place, "properties")
    for name, entry in optional_object(properties, "parameters", where).items():
        body = read_object(entry, at(at(where, "parameters"), name))
        if "value" in body:
            assigned[name] = values.resolve(body["value"])
    return assigned
