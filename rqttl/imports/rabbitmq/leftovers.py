"""Notes about the parts of a definitions file that have no counterpart. Secrets are not shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rqttl.imports import table as settings
from rqttl.imports.rabbitmq.definitions import DEFAULT_VHOST, LISTS, OPERATOR_POLICY
from rqttl.imports.report import Notes
from rqttl.imports.source import objects

#: Lists of objects that are noted as a whole, each with the words for one of them.
_OBJECTS = {
    "users": "user {name!r}",
    "permissions": "vhost {vhost!r}: permission of user {user!r}",
    "topic_permissions": "vhost {vhost!r}: topic permission of user {user!r} on exchange {exchange!r}",
    "global_parameters": "global parameter {name!r}",
    "parameters": "vhost {vhost!r}: {component} {name!r}",
    "exchanges": "vhost {vhost!r}: exchange {name!r}",
    "bindings": "vhost {vhost!r}: binding of {source!r} to {destination!r} by {routing_key!r}",
}
_NOTHING = "it says nothing about a queue or a policy"


class _Words(dict[str, Any]):
    def __missing__(self, key: str) -> None:
        return None


def note_leftovers(table: Mapping[str, Any], notes: Notes) -> None:
    """Note each object without a counterpart."""
    rows = settings.rows("rabbitmq object")
    vhost = table.get("original_vhost_name", DEFAULT_VHOST)
    for name, words in _OBJECTS.items():
        for _, item in objects(table, name):
            if item.get("component") != OPERATOR_POLICY:
                row = rows.get(str(item.get("component")), rows[name])
                notes.left_out(words.format_map(_Words({"vhost": vhost, **item})), "", None, row.text)
    for _, item in objects(table, "vhosts"):
        subject = f"vhost {item['name']!r}"
        notes.taken(subject, "name", item["name"], "a deployment of its own")
        for key in sorted(item.keys() - {"name"}):
            if key == "default_queue_type":
                notes.translated(subject, key, item[key], "the type of each queue without one; rqttl has one type")
            else:
                text = rows["vhost-limits"].text if key == "limits" else _NOTHING
                notes.left_out(subject, key, item[key], text)
    for key in sorted(table.keys() - {*LISTS, *_OBJECTS}):
        notes.left_out("definitions", key, table[key], _NOTHING)
