"""All imports: nothing is dropped silently, equal files give equal imports, and bad files are refused with a place."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rqttl.deployments import Deployment, make_plan, read_document
from rqttl.errors import InvalidImport
from rqttl.imports.notes import Imported
from rqttl.imports.rabbitmq import read_definitions
from rqttl.imports.servicebus import read_resources
from rqttl.policies.policy import Policy

Read = Callable[[str], Imported]
NAMES = ["rabbitmq_cluster.json", "rabbitmq_vhost.json", "servicebus_az.json", "servicebus_template.json"]


def reader(name: str) -> Read:
    return read_definitions if name.startswith("rabbit") else read_resources


def settings(item: dict[str, Any]) -> set[str]:
    """The settings of one object of a file: its keys, and those of the tables inside."""
    found: set[str] = set()
    for key, value in item.items():
        if key in ("arguments", "definition", "properties", "value"):
            found |= settings(dict(value))
        elif key not in ("vhost", "component", "type", "name", "resources", "condition") and value is not None:
            found.add(key)
    return found


def objects(table: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each queue and policy of a file, with the subject of its notes."""
    if isinstance(table, dict) and "queues" in table:
        only = table.get("original_vhost_name", "/")
        operators = [item for item in table["parameters"] if item["component"] == "operator_policy"]
        for kind, items in (("queue", table["queues"]), ("policy", table["policies"]), ("operator policy", operators)):
            yield from ((f"vhost {item.get('vhost', only)!r}: {kind} {item['name']!r}", item) for item in items)
        return
    for item in table if isinstance(table, list) else table["resources"]:
        prefix = "" if isinstance(table, dict) else "shop/"
        yield f"queue {prefix + item['name']!r}", item
        for inner in item.get("resources", []):
            yield f"queue {item['name'] + '/' + inner['name']!r}", inner


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_every_object_has_a_note(fixtures: dict[str, str], name: str) -> None:
    table, imported = json.loads(fixtures[name]), reader(name)(fixtures[name])
    noted: dict[str, set[str]] = defaultdict(set)
    for note in imported.notes:
        noted[note.subject].update(name.partition(".")[0] for name in note.setting.split(", "))
    whole = ("", "apply-to", "pattern")
    refused = {note.subject for note in imported.notes if note.setting in whole and note.kind == "left out"}

    found = {subject: settings(item) for subject, item in objects(table) if subject in noted}
    assert len(found) > 1
    assert [subject for subject, keys in found.items() if subject not in refused and keys - noted[subject]] == []
    if isinstance(table, dict):
        known = noted["definitions"] | noted["template"]
        assert [key for key, value in table.items() if key not in known and not isinstance(value, list)] == []
    wholes = ("users", "permissions", "exchanges", "bindings", "global_parameters")
    subjects = {subject for subject in noted if re.match(r"user|global|.*: (permission|exchange|binding)", subject)}
    assert len(subjects) == sum(len(table.get(kind, [])) for kind in wholes if isinstance(table, dict))


@pytest.mark.parametrize("name", NAMES)
def test_every_queue_and_policy_of_an_import_can_be_declared(fixtures: dict[str, str], name: str) -> None:
    for deployment in reader(name)(fixtures[name]).deployments.values():
        document = {"rqttl": 1, "queues": deployment.queues}
        assert len(make_plan(read_document(document), Deployment()).steps) == len(deployment.queues)
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


@pytest.mark.parametrize("wrong", [None, "[x", [[1]], {"a": {}}], ids=repr)
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
TOPIC = "Microsoft.ServiceBus/namespaces/topics"
PLACES: dict[Read, list[tuple[object, str]]] = {
    read_definitions: [
        ({"queues": [{"name": "q"}, {"name": "q"}]}, "$.queues[1]"),
        ({"queues": [{"name": 7}]}, "$.queues[0].name"),
        ({"queues": {}}, "$.queues"),
        ({"policies": [{"name": "p", "pattern": "a"}]}, "$.policies[0]"),
        (
            {"bindings": [{"source": "a", "destination": "b", "destination_type": "c"}]},
            "$.bindings[0].destination_type",
        ),
        ({"vhosts": [{"name": "a"}, {"name": "a"}]}, "$.vhosts[1]"),
    ],
    read_resources: [
        ({"resources": [{"type": QUEUE}]}, "$.resources[0]"),
        ([{"type": f"{TOPIC}/subscriptions", "name": "s", "id": "/namespaces/shop/topics/t"}], "$[0].name"),
        ({"resources": {"q": {"type": 1}}}, "$.resources.q.type"),
        ({"resources": [{"type": QUEUE, "name": "a/q"}, {"type": QUEUE, "name": "A/Q"}]}, "$.resources[1].name"),
    ],
}


@pytest.mark.parametrize("read, table, place", [(read, *row) for read, rows in PLACES.items() for row in rows])
def test_a_refusal_names_the_place(read: Read, table: object, place: str) -> None:
    with pytest.raises(InvalidImport) as refused:
        read(json.dumps(table))

    assert refused.value.place == place
