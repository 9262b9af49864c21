"""Notes about the parts of a definitions file that have no counterpart. Secrets are not shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rqttl.imports.rabbitmq.definitions import DEFAULT_VHOST, LISTS, OPERATOR_POLICY
from rqttl.imports.report import Notes
from rqttl.imports.source import objects

_RIGHTS = "rqttl has no users and rights of its own: use the ACLs of Redis"
_EXCHANGE = "rqttl has no exchanges: a sender names the queue, and topics come later"
_COMPONENTS = {
    "shovel": "rqttl has no shovels: a program that receives from one queue and sends to the other does it",
    "federation-upstream": "rqttl has no federation: use the replication of Redis",
    "federation-upstream-set": "rqttl has no federation: use the replication of Redis",
    "vhost-limits": "rqttl limits queues, with max_length, and not vhosts",
}
_LISTED = ("users", "permissions", "topic_permissions", "global_parameters")
#: Parts of a file that tell of the file and of the server.
_ABOUT_THE_FILE = frozenset(
    {
        "rabbit_version",
        "rabbitmq_version",
        "product_name",
        "product_version",
        "rabbitmq_definition_format",
        "original_cluster_name",
        "original_vhost_name",
        "default_queue_type",
        "explanation",
        "description",
        "metadata",
        "tags",
        "limits",
    }
)
_VHOST_READ = frozenset({"name", "default_queue_type"})


def note_leftovers(table: Mapping[str, Any], notes: Notes) -> None:
    """Note each object without a counterpart."""
    of_vhost = {"vhost": table.get("original_vhost_name", DEFAULT_VHOST)}
    for name, describe in _DESCRIBE.items():
        for _, item in objects(table, name):
            described = describe({**of_vhost, **item})
            if described:
                notes.left_out(*described)
    for _, item in objects(table, "vhosts"):
        _note_vhost(item, notes)
    for key in sorted(table.keys() - {*LISTS, *_LISTED}):
        known = key in _ABOUT_THE_FILE
        text = (
            "it says nothing about a queue or a policy" if known else "RabbitMQ exports no such part, as far as known"
        )
        notes.left_out("definitions", key, table[key], text)


def _note_vhost(item: Mapping[str, Any], notes: Notes) -> None:
    subject = f"vhost {item['name']!r}"
    notes.taken(subject, "name", item["name"], "a deployment of its own")
    if item.get("default_queue_type") is not None:
        text = "the type of each queue without one; rqttl has one type of queue"
        notes.translated(subject, "default_queue_type", item["default_queue_type"], text)
    for key in sorted(item.keys() - _VHOST_READ):
        text = _COMPONENTS["vhost-limits"] if key == "limits" else "it says nothing about a queue or a policy"
        notes.left_out(subject, key, item[key], text)


_Described = tuple[str, str, object, str]


def _user(item: Mapping[str, Any]) -> _Described:
    return f"user {item.get('name')!r}", "", None, _RIGHTS


def _permission(item: Mapping[str, Any]) -> _Described:
    return f"vhost {item.get('vhost')!r}: permission of user {item.get('user')!r}", "", None, _RIGHTS


def _topic_permission(item: Mapping[str, Any]) -> _Described:
    subject = f"vhost {item.get('vhost')!r}: topic permission of user {item.get('user')!r}"
    return f"{subject} on exchange {item.get('exchange')!r}", "", None, _RIGHTS


def _global_parameter(item: Mapping[str, Any]) -> _Described:
    return f"global parameter {item.get('name')!r}", "", None, "it is about the server"


def _parameter(item: Mapping[str, Any]) -> _Described | None:
    component = str(item.get("component"))
    if component == OPERATOR_POLICY:
        return None
    subject = f"vhost {item.get('vhost')!r}: {component} {item.get('name')!r}"
    return subject, "", None, _COMPONENTS.get(component, "rqttl has no parameters of plugins")


def _exchange(item: Mapping[str, Any]) -> _Described:
    return f"vhost {item.get('vhost')!r}: exchange {item.get('name')!r}", "", None, _EXCHANGE


def _binding(item: Mapping[str, Any]) -> _Described:
    ends = f"{item.get('source')!r} to {item.get('destination')!r} by {item.get('routing_key')!r}"
    return f"vhost {item.get('vhost')!r}: binding of {ends}", "", None, _EXCHANGE


_DESCRIBE: Mapping[str, Callable[[Mapping[str, Any]], _Described | None]] = {
    "users": _user,
    "permissions": _permission,
    "topic_permissions": _topic_permission,
    "global_parameters": _global_parameter,
    "parameters": _parameter,
    "exchanges": _exchange,
    "bindings": _binding,
}
