"""Queues and topics of Azure Service Bus: an ARM template with plain values, or the JSON of `az servicebus … list`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from rqttl.errors import InvalidImport, InvalidInput
from rqttl.filters import SUBJECT, Rule
from rqttl.imports.notes import Imported, ImportedDeployment, NameTable, Notes, namespaces, rows, translate
from rqttl.imports.routes import Routes
from rqttl.imports.source import at, load, member, read, read_duration, read_flag
from rqttl.imports.sql import both, read_sql
from rqttl.units import as_text

#: The longest name of a queue whose dead-letter queue `{queue}/dead` has a valid name, too.
_LONGEST = 128 - len("/dead")
_PROVIDER = "microsoft.servicebus/"
_EXPRESSION = re.compile(r"\[(?!\[).*\]", re.DOTALL)
_DEPLOY = "deploy the template, and import the JSON of `az servicebus queue list`"
_NAMESPACE = re.compile(r"/namespaces/(.+)", re.IGNORECASE)
#: Members of a resource that the import reads.
_READ = frozenset({"type", "name", "properties", "resources", "condition"})
_DUPLICATES, _WINDOW = "requiresDuplicateDetection", "duplicateDetectionHistoryTimeWindow"
_EXPIRED, _DEAD, _FORWARD = "deadLetteringOnMessageExpiration", "forwardDeadLetteredMessagesTo", "forwardTo"
_IDLE = "autoDeleteOnIdle"
_QUEUE, _TOPIC, _SUBSCRIPTION = "namespaces/queues", "namespaces/topics", "namespaces/topics/subscriptions"
_RULE = f"{_SUBSCRIPTION}/rules"
_NO_RULES = "it gets no messages: add its rules, which `az servicebus topic subscription rule list` prints"
#: System properties of a message, by their names in small letters, as headers.
_HEADERS = {
    name.lower(): name
    for name in ("contentType", "correlationId", "messageId", "replyTo", "replyToSessionId", "sessionId", "to")
} | {"label": SUBJECT, "subject": SUBJECT}
#: What the values of properties are that need more than a row of the table.
_KINDS: Mapping[str, Callable[[object, str], Any]] = {
    _DUPLICATES: read_flag,
    _EXPIRED: read_flag,
    _DEAD: partial(read, str),
    _FORWARD: partial(read, str),
    "status": partial(read, str),
}
#: The kind of a resource, and its names behind that of the namespace, in small letters with slashes between them.
_Key: TypeAlias = tuple[str, str]
#: The name of a namespace that a parameter gives, and the type of a template within a template.
_PARAMETER, _NESTED = re.compile(r"\[parameters\('([^']+)'\)\]"), "microsoft.resources/deployments"


@dataclass(frozen=True)
class _Resource:
    """A resource. `kind` is its type in small letters, without the provider; `segments` has a name for each word."""

    place: str
    kind: str
    segments: tuple[str, ...]
    body: Mapping[str, Any]

    @property
    def word(self) -> str:
        """The last word of the type, as one of its kind."""
        return self.kind.rpartition("/")[2].removesuffix("s")

    @property
    def subject(self) -> str:
        """The resource in a note."""
        return f"{self.word} {'/'.join(self.segments)!r}"


@dataclass
class _Namespace:
    """The queues, topics, subscriptions and rules of a namespace, and the names of those that are imported.

    Service Bus compares names without case, so the keys are in small letters.
    """

    name: str
    entities: dict[_Key, _Resource] = field(default_factory=dict)
    names: dict[_Key, str] = field(default_factory=dict)
    queues: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def read(self, notes: Notes) -> dict[str, Mapping[str, object]]:
        """The queues and topics of a deployment, with the topics' bindings."""
        tables = {}
        # the name of a topic leaves room for `/` and the 50 characters of a subscription
        for kind, longest in ((_QUEUE, _LONGEST), (_TOPIC, _LONGEST - 51), (_SUBSCRIPTION, _LONGEST)):
            sources = {key: source for key in self.entities if key[0] == kind and (source := self._source(key))}
            tables[kind] = table = NameTable.of(sources.values(), longest, self.names.values())
            self.names |= {key: table.names[source] for key, source in sources.items() if source in table.names}
        routes = Routes(name for key, name in self.names.items() if key[0] == _TOPIC)
        with_rules = {_parent(key) for key in self.entities}
        for key, one in sorted(self.entities.items(), key=lambda item: item[0][0]):  # topics come first
            about = notes.about(one.subject)
            parent = self.names.get(_parent(key), "")
            if key[0] in (_SUBSCRIPTION, _RULE) and not parent:
                about.lost("", None, "it is not imported: what it belongs to is not, or is not in the file")
            elif key[0] == _RULE:
                _bind(one, routes, parent, about)
            elif name := tables[key[0]].take(self._source(key), one.word, about):
                _Entity(one, name, self, about).read()
                options = about.queue(name)
                self.queues |= {} if options is None else {name: options}
                if key[0] == _SUBSCRIPTION and key not in with_rules and "id" in one.body:  # Service Bus wrote it
                    about.lost("rules", None, _NO_RULES)
                elif key[0] == _SUBSCRIPTION and key not in with_rules:
                    routes.bind(parent, name, lambda: None, about, "rules")
        return routes.deployed(self.queues)

    def _source(self, key: _Key) -> str:
        """The name in the source; that of a subscription behind the name of its topic in rqttl, if it has one."""
        segments, topic = self.entities[key].segments, self.names.get(_parent(key))
        return segments[1] if key[0] != _SUBSCRIPTION else f"{topic}/{segments[2]}" if topic else ""

    def target(self, path: str) -> str | None:
        """The name of a queue or topic to which others forward; `None` if it is refused."""
        keys = [key for key in ((_QUEUE, path.lower()), (_TOPIC, path.lower())) if key in self.entities]
        return self.names.get(keys[0]) if keys else translate(path, _LONGEST)


def _parent(key: _Key) -> _Key:
    return key[0].rpartition("/")[0], key[1].rpartition("/")[0]


def read_resources(text: str) -> Imported:
    """Read the text of an ARM template, or of the answer of `az servicebus queue list`, or of several in one list.

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
    deployments = {one.name: ImportedDeployment(one.read(notes), namespace=valid[one.name]) for one in by_name.values()}
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
    words, parts = kind.count("/"), name.split("/")
    last = len(parts) - max(words - 2, 0)
    segments = (*parent.segments, name) if parent else (parts[0], "/".join(parts[1:last]), *parts[last:])[:words]
    if found := _NAMESPACE.search(str(body.get("id", ""))):
        # the answer of `az` has the last part of the name only, and `~` for a slash in an id
        segments = (*(part.replace("~", "/") for part in found[1].split("/")[:-1:2]), name)
    if len(segments) < words or not all(segments):
        raise InvalidImport(at(place, "name"), f"expected a name of {words} parts with / between them")
    return segments


def _sort(resource: _Resource, by_name: dict[str, _Namespace], notes: Notes) -> None:
    """Keep a queue, or what belongs to topics, for later, because others may name it. Note any other resource."""
    kind, name = resource.kind, resource.segments[0]
    namespace = by_name.setdefault(name.lower(), _Namespace(name))
    key, about = (kind, "/".join(resource.segments[1:]).lower()), notes.about(resource.subject)
    if kind == "namespaces":
        about.taken("name", name, "a deployment of its own")
        _note_rest(resource, _READ - {"properties"}, about)
    elif kind in (_QUEUE, _TOPIC, _SUBSCRIPTION, _RULE):
        if first := namespace.entities.get(key):
            rule = f"expected each {resource.word} once: {first.place} has this name, too"
            raise InvalidImport(at(resource.place, "name"), rule)
        namespace.entities[key] = resource
    else:
        row = rows("servicebus resource").get(kind.rpartition("/")[2])
        about.left_out("", None, row.text if row else "rqttl has nothing like it: it is about the server")


def _note_rest(resource: _Resource, read: frozenset[str], notes: Notes) -> None:
    if unread := sorted(resource.body.keys() - read):
        notes.left_out(", ".join(unread), None, "it is about Azure only")


def _given(resource: _Resource, notes: Notes) -> tuple[dict[str, Any], str]:
    """The properties of a resource, with their place: those of `properties`, or its own ones as `az` prints them."""
    body, is_flat = resource.body, "properties" not in resource.body
    listed = body.keys() - _READ - rows("servicebus azure").keys() if is_flat else set()
    given = {key: body[key] for key in listed} if is_flat else member(body, "properties", resource.place, dict, {})
    _note_rest(resource, _READ | listed, notes)
    place = resource.place if is_flat else at(resource.place, "properties")
    return {key: value for key, value in sorted(given.items()) if value is not None}, place


def _bind(rule: _Resource, routes: Routes, queue: str, notes: Notes) -> None:
    """Bind a subscription, whose name begins with that of its topic, by one of its rules."""
    properties, place = _given(rule, notes)
    for unknown in sorted(properties.keys() - {"filterType", "sqlFilter", "correlationFilter", "action"}):
        notes.left_out(unknown, properties[unknown], "it is not a documented setting")
    action = properties.get("action")
    if isinstance(action, dict) and action.get("sqlExpression"):
        notes.lost("action", action, "rqttl changes no messages: the sender does, or a handler")
    correlated = str(properties.get("filterType", "")).lower() == "correlationfilter"
    setting, rules = ("correlationFilter", _correlation) if correlated else ("sqlFilter", _sql)
    make = partial(rules, properties.get(setting), at(place, setting))
    routes.bind(queue.rpartition("/")[0], queue, make, notes, setting, properties.get(setting))


def _sql(body: object, place: str) -> list[Rule]:
    return read_sql(member(read(dict, body, place), "sqlExpression", place, str), _header)


def _header(parts: Sequence[str]) -> str:
    """The header of a property in SQL, whose scope is `user` unless it is given."""
    scope, name = (parts[0].lower(), ".".join(parts[1:])) if len(parts) > 1 else ("user", parts[0])
    header = name if scope == "user" else _HEADERS.get(name.lower()) if scope == "sys" else None
    if header is None:
        raise InvalidInput(f"a message of rqttl has no {'.'.join(parts)}")
    return header


def _correlation(body: object, place: str) -> list[Rule]:
    rules: list[Rule] = [{}]
    for key, value in read(dict, body, place).items():
        if value is None or key == "requiresPreprocessing":
            continue
        name = _HEADERS.get(key.lower())
        if name is None and key != "properties":
            raise InvalidInput(f"a message of rqttl has no {key}")
        for header, wanted in ({name: value} if name else read(dict, value, at(place, key))).items():
            if isinstance(wanted, str) and _EXPRESSION.fullmatch(wanted):
                raise InvalidInput(f"the import computes no expressions: {_DEPLOY}")
            rules = both(rules, [{header: [wanted]}])
    return rules


class _Entity:
    """Reads the properties of one queue, topic or subscription."""

    def __init__(self, resource: _Resource, name: str, namespace: _Namespace, notes: Notes) -> None:
        self.properties, self.place = _given(resource, notes)
        self.kind, self.name, self.namespace, self.notes = resource.kind, name, namespace, notes

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
            section = "servicebus topic" if self.kind == _TOPIC and key in rows("servicebus topic") else "servicebus"
            row = rows(section).get(key)
            if row is None or not row.by_code:
                notes.take_setting(section, key, key, value, at(self.place, key))
        self._status()
        self._duplicates()
        if self.kind != _TOPIC:
            self._of_queue()

    def _of_queue(self) -> None:
        """Take what a topic does not have, with the defaults."""
        notes, properties = self.notes, self.properties
        for key, option, default in (("lockDuration", "lease", "1m"), ("maxDeliveryCount", "max_deliveries", 10)):
            if key not in properties:
                notes.take(option, default, key, None, because="the default of Service Bus")
        if self.kind == _SUBSCRIPTION:
            topic = self.namespace.queues.get(self.name.rpartition("/")[0], {})
            idle = topic.get("auto_delete_on_idle")
            if idle and "auto_delete_on_idle" not in notes.options:
                because = "that of its topic; time without a receive counts, whatever arrives"
                notes.take("auto_delete_on_idle", idle, _IDLE, properties.get(_IDLE), because=because)
        elif "maxSizeInMegabytes" not in properties:
            notes.left_out("maxSizeInMegabytes", None, "Service Bus has a limit by default; rqttl sets none unasked")
        if "max_length_bytes" in notes.options:
            because = "a full queue of Service Bus refuses messages"
            notes.take("overflow", "reject-publish", "maxSizeInMegabytes", None, because=because)
        if target := self._target(_FORWARD):
            notes.take("forward_to", target, _FORWARD, properties[_FORWARD], because="its messages go on")
        if dead := self._target(_DEAD):
            notes.translated(_DEAD, properties[_DEAD], f"dead letters go to {dead!r} at once")
        self._dead_letters(dead)

    def _status(self) -> None:
        status = self.properties.get("status")
        if status is None:
            return
        word = status.lower()
        if word == "active":
            self.notes.taken("status", status, "")
        elif word in ("receivedisabled", "disabled") and self.kind != _TOPIC:
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

    def _target(self, setting: str) -> str | None:
        """The queue or topic to which a setting forwards, if it is one of the import, or not in the file."""
        path = self.properties.get(setting)
        target = self.namespace.target(path) if path else None
        if path and (not target or target == self.name):
            self.notes.lost(
                setting, path, "a queue cannot be its own target" if target else f"{path!r} is not imported"
            )
            return None
        return target

    def _dead_letters(self, forward: str | None) -> None:
        used = self.namespace.names.values()
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
