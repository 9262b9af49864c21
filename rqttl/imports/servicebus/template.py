"""An ARM template as deployments: one for each namespace of Service Bus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rqttl.errors import InvalidImport, InvalidInput
from rqttl.imports.names import NameTable, namespaces
from rqttl.imports.report import Imported, ImportedDeployment, Notes
from rqttl.imports.servicebus.parameters import assigned
from rqttl.imports.servicebus.queues import LONGEST, Namespace, QueueReader
from rqttl.imports.servicebus.resources import Reader, Resource
from rqttl.imports.servicebus.values import readable, unknown_part
from rqttl.imports.source import at, load
from rqttl.options import QueueOptions

#: Members of a resource that the import reads, or that have notes of their own.
_READ = frozenset({"type", "name", "properties", "resources", "condition", "copy"})
_WHOLE = {
    "namespaces/topics": (
        "topic",
        "rqttl has no topics yet; they come later: until then a sender sends to each queue itself",
    ),
    "namespaces/topics/subscriptions": (
        "subscription",
        (
            "rqttl has no subscriptions yet; they come later with topics, and no queue was made of it: until then "
            "declare a queue for it, and let the senders of the topic send to it, too"
        ),
    ),
    "namespaces/topics/subscriptions/rules": (
        "rule",
        "rqttl has no rules of subscriptions yet; they come later with topics: until then the sender chooses the queue",
    ),
}
_RIGHTS = "rqttl has no rights of its own: use the ACLs of Redis"
_OTHER = "rqttl has nothing like it: it is about the server"


def read_template(
    text: str, parameters: Mapping[str, object] | None = None, texts: Mapping[str, str] | None = None
) -> Imported:
    """Read the text of an ARM template. `parameters` are values for its parameters, by name.

    `texts` are more of them as texts, which the types of the parameters read.
    Raises `InvalidImport`, which names the place of a fault. A value that needs a deployment to Azure is left out, with
    a note. Each queue's options are valid for `declare_queue`.
    """
    template = load(text, "an ARM template")
    if "resources" not in template:
        raise InvalidImport("$", "expected an ARM template, which has 'resources'")
    return _Import(template, assigned(template, parameters or {}, texts or {})).run()


class _Import:
    def __init__(self, template: Mapping[str, Any], parameters: Mapping[str, object]) -> None:
        self.notes = Notes()
        self.reader = Reader(self.notes, template, parameters)
        #: by namespace in small letters: its name, its queues by their names in small letters, its topics
        self.names: dict[str, str] = {}
        self.queues: dict[str, dict[str, Resource]] = {}
        self.topics: dict[str, set[str]] = {}

    def run(self) -> Imported:
        for resource in self.reader.resources():
            self._sort(resource)
        valid = namespaces(self.names.values())
        deployments = {name: self._deployment(spelling, valid[name]) for spelling, name in self.names.items()}
        return Imported(deployments, self.notes.as_tuple())

    def _sort(self, resource: Resource) -> None:
        """Keep a queue for later, because others may name it. Note any other resource."""
        kind, segments = resource.kind, resource.segments
        namespace = readable(segments[0]).lower()
        self.names.setdefault(namespace, readable(segments[0]))
        queues = self.queues.setdefault(namespace, {})
        topics = self.topics.setdefault(namespace, set())
        if kind == "namespaces":
            self._note_namespace(resource)
        elif kind == "namespaces/queues":
            self._keep(resource, queues)
        elif kind in _WHOLE:
            if kind == "namespaces/topics":
                topics.add(segments[1].lower())
            noun, text = _WHOLE[kind]
            self.notes.left_out(f"{noun} {resource.name!r}", "", None, text)
        else:
            text = _RIGHTS if kind.endswith("/authorizationrules") else _OTHER
            self.notes.left_out(f"{kind} {resource.name!r}", "", None, text)

    def _note_namespace(self, resource: Resource) -> None:
        subject = f"namespace {resource.name!r}"
        reason = unknown_part(resource.segments[0])
        if reason:
            self.notes.translated(subject, "name", resource.body["name"], f"the name is unknown: {reason}")
        else:
            self.notes.taken(subject, "name", resource.body["name"], "a deployment of its own")
        unread = sorted(resource.body.keys() - (_READ - {"properties"}))
        if unread:
            self.notes.left_out(subject, ", ".join(unread), None, _OTHER)

    def _keep(self, resource: Resource, queues: dict[str, Resource]) -> None:
        name = resource.segments[1]
        reason = unknown_part(name)
        subject = f"queue {resource.name!r}"
        if reason:
            self.notes.left_out(subject, "name", resource.body["name"], f"the name is unknown: {reason}")
            return
        if name.lower() in queues:
            first = queues[name.lower()].place
            raise InvalidImport(at(resource.place, "name"), f"expected each queue once: {first} has this name, too")
        queues[name.lower()] = resource

    def _deployment(self, spelling: str, valid: str) -> ImportedDeployment:
        queues, topics = self.queues[spelling], self.topics[spelling]
        names = NameTable.of((queue.segments[1] for queue in queues.values()), LONGEST)
        by_spelling = {name: queue.segments[1] for name, queue in queues.items()}
        namespace = Namespace(names, by_spelling, frozenset(topics), frozenset(names.names.values()))
        options = {}
        for resource in queues.values():
            source, subject = resource.segments[1], f"queue {resource.name!r}"
            if source in names.refused:
                self.notes.left_out(subject, "", None, f"the queue is not imported: {names.refused[source]}")
                continue
            self._note_queue(resource, subject, names)
            read = QueueReader(resource, namespace, self.notes).options()
            try:
                QueueOptions.read(names.names[source], read)
            except InvalidInput as error:
                self.notes.left_out(subject, "", None, f"the queue is not imported: {error}")
            else:
                options[names.names[source]] = read
        return ImportedDeployment(options, namespace=valid)

    def _note_queue(self, resource: Resource, subject: str, names: NameTable) -> None:
        source = resource.segments[1]
        note = self.notes.taken if names.names[source] == source else self.notes.translated
        note(subject, "name", resource.body["name"], names.note(source))
        unread = sorted(resource.body.keys() - _READ)
        if unread:
            self.notes.left_out(subject, ", ".join(unread), None, "it is about Azure only")
