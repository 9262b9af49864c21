"""All imports: nothing is dropped silently, equal files give equal imports, and bad files are refused with a place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rqttl.errors import InvalidImport
from rqttl.imports.rabbitmq import read_definitions
from rqttl.imports.report import Imported
from rqttl.imports.servicebus import read_resources
from rqttl.options import QueueOptions
from rqttl.policies.policy import Policy

Read = Callable[[str], Imported]
#: Keys that name an object, and that its deployment, subject or list shows.
IDENTITY = {"vhost", "component", "type", "name"}
LISTED = {"rabbit": ("queues", "policies", "vhosts"), "service": ("resources",)}


def reader(name: str) -> Read:
    return read_definitions if name.startswith("rabbit") else read_resources


NAMES = ["rabbitmq_cluster.json", "rabbitmq_vhost.json", "servicebus_az.json", "servicebus_template.json"]


def settings(item: dict[str, Any]) -> Iterator[str]:
    """The settings of one object of a file: its keys, and those of the tables inside."""
    for key, value in item.items():
        if key in ("arguments", "definition", "properties") and isinstance(value, (dict, list)):
            yield from dict(value)
        elif key == "value" and isinstance(value, dict):
            yield from settings(value)
        elif key not in IDENTITY and key != "resources":
            yield key


def objects(name: str, table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object that has settings, with a word that is in the subject of its notes."""
    if name.startswith("rabbit"):
        for kind in ("queues", "policies", "vhosts", "exchanges", "users", "global_parameters"):
            yield from ((repr(item["name"]), item) for item in table.get(kind, []))
        yield from ((f"{item['component'].replace('_', ' ')} {item['name']!r}", item) for item in table["parameters"])
        yield from ((f"{item['source']!r} to {item['destination']!r}", item) for item in table.get("bindings", []))
        return
    listed = table["resources"]
    for item in listed if isinstance(listed, list) else listed.values():
        yield item["name"].strip("[]").rpartition("/")[2].strip("')]"), item
        yield from objects(name, {"resources": item.get("resources", [])})
        if "template" in item.get("properties", {}):
            yield from objects(name, item["properties"]["template"])


def covered(imported: Imported, word: str) -> set[str]:
    """The settings with a note, for subjects with a word. `*` stands for the whole object."""
    found = {note.setting or "*" * (note.kind == "left out") for note in imported.notes if word in note.subject}
    return {setting for listed in found for setting in listed.split(", ")}


@pytest.mark.parametrize("name", ["rabbitmq_cluster.json", "rabbitmq_vhost.json"])
def test_every_key_of_definitions_has_a_note(fixtures: dict[str, str], name: str) -> None:
    table = json.loads(fixtures[name])
    imported = read_definitions(fixtures[name])
    noted = [(note.subject, note.setting, note.kind) for note in imported.notes]
    silent = []
    for word, item in objects(name, table):
        vhost = repr(item["vhost"]) if "vhost" in item else ""
        own = [(subject, setting, kind) for subject, setting, kind in noted if word in subject and vhost in subject]
        whole = any(setting in ("", "apply-to", "pattern") and kind == "left out" for _, setting, kind in own)
        known = {setting for _, setting, _ in own}
        silent += [(word, setting) for setting in settings(item) if not whole and setting not in known]

    assert silent == []
    top = {setting for subject, setting, _ in noted if subject == "definitions"}
    lists = {key for key, value in table.items() if isinstance(value, list)}
    assert table.keys() - top - lists == set()


def test_every_property_of_a_template_has_a_note(fixtures: dict[str, str]) -> None:
    name = "servicebus_template.json"
    table = json.loads(fixtures[name])
    imported = read_resources(fixtures[name])
    places = {"orders": "shop-prod/orders", "queue": "shop-prod/old/queue", "invoices": "shop-prod/invoices"}
    queues = {"orders": "orders", "queue": "queue", "invoices": "invoices"}
    silent = []
    for word, item in objects(name, table):
        if word in queues:
            known = covered(imported, repr(places[queues[word]]))
            silent += [(word, key) for key in settings(item) if key not in known | {"condition"}]
    assert len(silent) == 0, silent
    whole = [note.subject.partition(" ")[0] for note in imported.notes if not note.setting and note.kind == "left out"]
    assert whole.count("topic") == whole.count("subscription") == whole.count("rule") == 1
    assert {key for note in imported.notes if note.subject == "template" for key in note.setting.split(", ")} >= (
        table.keys() - {"resources"}
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_queue_and_policy_of_an_import_can_be_declared(fixtures: dict[str, str], name: str) -> None:
    for deployment in reader(name)(fixtures[name]).deployments.values():
        for queue, options in deployment.queues.items():
            QueueOptions.read(queue, options)
        for policy, entry in (*deployment.policies.items(), *deployment.operator_policies.items()):
            parts: dict[str, Any] = {key.replace("-", "_"): value for key, value in entry.items()}
            read = Policy.read(policy, parts.pop("pattern"), parts.pop("definition"), **parts)
            assert read.definition


def deep(levels: int) -> str:
    return '{"queues": ' + "[" * levels + "]" * levels + ', "resources": []}'


BAD = [
    ("", "$"),
    ("[]", "$"),
    ('{"queues": 1' + "0" * 5000 + "}", "$"),
    ('{"a": {"b": 1, "b": 2}}', "$..b"),
    (deep(200), "$"),
    (deep(100_000), "$"),
    ('{"queues": [], "resources": [], "x": "\\ud800"}', "$"),
]


@pytest.mark.parametrize("text,place", BAD)
@pytest.mark.parametrize("read", [read_definitions, read_resources])
def test_a_text_that_is_no_file_is_refused(read: Read, text: str, place: str) -> None:
    with pytest.raises(InvalidImport) as refused:
        read(text)

    assert refused.value.place == place
    assert str(refused.value).startswith(f"{place}: ")


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def replaced(value: Any, path: tuple[str | int, ...], wrong: object) -> Any:
    copy = json.loads(json.dumps(value))
    if not path:
        return wrong
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = wrong
    return copy


@pytest.mark.parametrize("wrong", [None, "[x", [[1]], {"a": {}}, 10**30], ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_type_at_any_place_is_an_import_or_a_typed_refusal(
    fixtures: dict[str, str], name: str, wrong: object
) -> None:
    table = json.loads(fixtures[name])
    refused: list[str] = []
    for path in paths(table):
        text = json.dumps(replaced(table, path, wrong))
        try:
            reader(name)(text)
        except InvalidImport as error:
            refused.append(error.place)

    assert refused
    assert [place for place in refused if not place.startswith("$")] == []


QUEUE = "Microsoft.ServiceBus/namespaces/queues"
PLACES = [
    (
        read_definitions,
        {"queues": [{"name": "q", "arguments": {"x-message-ttl": "1"}}]},
        "$.queues[0].arguments.x-message-ttl",
    ),
    (read_definitions, {"queues": [{"name": "q"}, {"name": "q"}]}, "$.queues[1]"),
    (read_definitions, {"queues": [{"name": 7}]}, "$.queues[0].name"),
    (read_definitions, {"queues": {}}, "$.queues"),
    (read_definitions, {"policies": [{"name": "p", "pattern": "a"}]}, "$.policies[0]"),
    (
        read_definitions,
        {"policies": [{"name": "p", "pattern": "a", "definition": {"max-length": 1.5}}]},
        "$.policies[0].definition.max-length",
    ),
    (
        read_definitions,
        {"bindings": [{"source": "a", "destination": "b", "destination_type": "c"}]},
        "$.bindings[0].destination_type",
    ),
    (read_definitions, {"vhosts": [{"name": "a"}, {"name": "a"}]}, "$.vhosts[1]"),
    (read_resources, {"resources": [{"type": QUEUE}]}, "$.resources[0]"),
    (read_resources, {"resources": {"q": {"type": 1}}}, "$.resources.q.type"),
    (
        read_resources,
        {"resources": [{"type": QUEUE, "name": "a/q"}, {"type": QUEUE, "name": "A/Q"}]},
        "$.resources[1].name",
    ),
]


@pytest.mark.parametrize("read,table,place", PLACES)
def test_a_refusal_names_the_place(read: Read, table: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidImport) as refused:
        read(json.dumps(table))

    assert refused.value.place == place


def many_queues(n: int) -> str:
    arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": "dlx"}
    return json.dumps(
        {
            "queues": [*({"name": f"q.{i}", "arguments": arguments} for i in range(n)), {"name": "dead"}],
            "exchanges": [{"name": "dlx", "type": "topic"}, {"name": "all", "type": "fanout"}],
            "bindings": [
                {"source": source, "destination": "dead", "destination_type": "queue", "routing_key": f"q.{i}"}
                for i in range(n)
                for source in ("dlx", "all")
            ],
            "policies": [{"name": f"p{i}", "pattern": f"^q.{i}", "definition": {"max-length": 5}} for i in range(5)],
        }
    )


def many_resources(n: int) -> str:
    queues = [{"type": QUEUE, "name": f"bus/q{i}"} for i in range(n)]
    return json.dumps({"resources": queues})


def calls(read: Read, text: str) -> int:
    """The number of calls of Python functions during an import: a measure of work that no other process changes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        read(text)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("read,text", [(read_definitions, many_queues), (read_resources, many_resources)])
def test_twice_as_many_queues_take_twice_the_work(read: Read, text: Callable[[int], str]) -> None:
    read(text(10))  # modules and caches

    assert calls(read, text(400)) < 2.3 * calls(read, text(200))
