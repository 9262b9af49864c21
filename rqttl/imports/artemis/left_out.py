"""Settings of Artemis without a counterpart in rqttl, each with the reason.

Each entry names the values for which both systems behave alike; such a setting is noted as taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rqttl.imports.report import Notes
from rqttl.text import did_you_mean


class LeftOut(NamedTuple):
    """The reason, and the values that need no counterpart, in small letters."""

    reason: str
    alike: tuple[str, ...] = ()


_ADDRESSES = "rqttl has queues and no addresses"
_CREATION = "queues are declared; only a dead letter creates its target by itself"
_RELOAD = "`rqttl apply --prune` removes what a file no longer names"
_PAGES = "rqttl has no pages on disk: Redis holds all messages in memory"
_SLOW = "rqttl does not watch the speed of consumers; `rqttl stats` shows rates"
_GROUPS = "rqttl has no message groups"
_DISPATCH = "a receive takes messages at once, however many consumers there are"
_LAST_VALUE = "rqttl has no last-value queues"
_SINGLE = "several consumers may share each queue"
_DESTRUCTIVE = "an ack removes the message; `peek` looks without removing"
_PURGE = "messages wait for the next consumer; option `expires` deletes a queue without use"
_CONSUMERS = "rqttl does not limit the number of consumers"
_MANAGEMENT = "it configures the management of the broker"

ADDRESS_SETTINGS: Mapping[str, LeftOut] = {
    "auto-create-addresses": LeftOut(_CREATION),
    "auto-create-jms-queues": LeftOut(_CREATION),
    "auto-create-jms-topics": LeftOut(_CREATION),
    "auto-create-queues": LeftOut(_CREATION),
    "auto-delete-addresses": LeftOut(_ADDRESSES),
    "auto-delete-addresses-delay": LeftOut(_ADDRESSES),
    "auto-delete-addresses-skip-usage-check": LeftOut(_ADDRESSES),
    "auto-delete-jms-queues": LeftOut("it is deprecated; auto-delete-queues with a delay becomes option `expires`"),
    "auto-delete-jms-topics": LeftOut("it is deprecated, and rqttl has no topics"),
    "config-delete-addresses": LeftOut(_RELOAD),
    "config-delete-diverts": LeftOut("rqttl has no diverts"),
    "config-delete-queues": LeftOut(_RELOAD),
    "default-address-routing-type": LeftOut(_ADDRESSES),
    "default-consumer-window-size": LeftOut("each consumer has its own `prefetch`"),
    "default-consumers-before-dispatch": LeftOut(_DISPATCH, ("0",)),
    "default-delay-before-dispatch": LeftOut(_DISPATCH, ("-1",)),
    "default-exclusive-queue": LeftOut(_SINGLE, ("false",)),
    "default-group-buckets": LeftOut(_GROUPS),
    "default-group-first-key": LeftOut(_GROUPS),
    "default-group-rebalance": LeftOut(_GROUPS),
    "default-group-rebalance-pause-dispatch": LeftOut(_GROUPS),
    "default-last-value-key": LeftOut(_LAST_VALUE),
    "default-last-value-queue": LeftOut(_LAST_VALUE, ("false",)),
    "default-max-consumers": LeftOut(_CONSUMERS, ("-1",)),
    "default-non-destructive": LeftOut(_DESTRUCTIVE, ("false",)),
    "default-purge-on-no-consumers": LeftOut(_PURGE, ("false",)),
    "default-queue-routing-type": LeftOut(_ADDRESSES),
    "enable-ingress-timestamp": LeftOut("each message has its time of arrival: `delivery.enqueued_at`"),
    "enable-metrics": LeftOut("`rqttl stats` shows the figures of each queue"),
    "id-cache-size": LeftOut("duplicates are measured by a window of time: option `duplicate-window`"),
    "initial-queue-buffer-size": LeftOut("it sizes a buffer of the broker"),
    "intermediate-message-buffer-initial-size": LeftOut("it sizes a buffer of the broker"),
    "last-value-queue": LeftOut(_LAST_VALUE, ("false",)),
    "management-browse-page-size": LeftOut(_MANAGEMENT),
    "management-message-attribute-size-limit": LeftOut(_MANAGEMENT),
    "max-read-page-bytes": LeftOut(_PAGES),
    "max-read-page-messages": LeftOut(_PAGES),
    "max-size-bytes-reject-threshold": LeftOut("a queue refuses messages at `max-length-bytes`", ("-1",)),
    "message-counter-history-day-limit": LeftOut("rqttl keeps counters, and no history of them"),
    "page-full-policy": LeftOut(_PAGES),
    "page-limit-bytes": LeftOut(f"{_PAGES}; option `max-length-bytes` limits a queue", ("-1",)),
    "page-limit-messages": LeftOut(f"{_PAGES}; option `max-length` limits a queue", ("-1",)),
    "page-max-cache-size": LeftOut(_PAGES),
    "page-size-bytes": LeftOut(_PAGES),
    "prefetch-page-bytes": LeftOut(_PAGES),
    "prefetch-page-messages": LeftOut(_PAGES),
    "redistribution-delay": LeftOut("there is one store, Redis: no node keeps messages from the consumers of another"),
    "retroactive-message-count": LeftOut("rqttl keeps no messages for queues to come", ("0",)),
    "send-to-dla-on-no-route": LeftOut("a sender names a queue; a queue that does not exist is an error", ("false",)),
    "slow-consumer-check-period": LeftOut(_SLOW),
    "slow-consumer-policy": LeftOut(_SLOW),
    "slow-consumer-threshold": LeftOut(_SLOW, ("-1",)),
    "slow-consumer-threshold-measurement-unit": LeftOut(_SLOW),
}

QUEUE: Mapping[str, LeftOut] = {
    "consumers-before-dispatch": LeftOut(_DISPATCH, ("0",)),
    "delay-before-dispatch": LeftOut(_DISPATCH, ("-1",)),
    "durable": LeftOut("all queues are as durable as their Redis", ("true",)),
    "enabled": LeftOut("each queue takes messages", ("true",)),
    "exclusive": LeftOut(_SINGLE, ("false",)),
    "filter": LeftOut("a queue takes each message that is sent to it; rqttl has no filters"),
    "group-buckets": LeftOut(_GROUPS),
    "group-first-key": LeftOut(_GROUPS),
    "group-rebalance": LeftOut(_GROUPS),
    "group-rebalance-pause-dispatch": LeftOut(_GROUPS),
    "last-value": LeftOut(_LAST_VALUE, ("false",)),
    "last-value-key": LeftOut(_LAST_VALUE),
    "max-consumers": LeftOut(_CONSUMERS, ("-1",)),
    "non-destructive": LeftOut(_DESTRUCTIVE, ("false",)),
    "purge-on-no-consumers": LeftOut(_PURGE, ("false",)),
    "user": LeftOut("queues have no owner; Redis has users with rights (ACL)"),
}

_REDIS_STORES = "Redis stores the messages: see its settings `save`, `appendonly` and `maxmemory`"
_REDIS_SERVES = "Redis serves the clients: see its settings `bind`, `port` and `tls-port`"
_REDIS_REPLICATES = "replication and failover are those of Redis: replicas, Sentinel, Cluster"
_REDIS_GUARDS = "users and rights are those of Redis (ACL); `rqttl doctor` lists the rights that rqttl needs"
_ROUTES = "rqttl does not copy or forward messages between queues"
_PROCESS = "it configures the process of the broker, not queues"

#: Beginnings of the names of other children of `core`, the longest first.
CORE: Mapping[str, str] = {
    "accept": _REDIS_SERVES,
    "connect": _REDIS_SERVES,
    "remoting": _REDIS_SERVES,
    "async-connection": _REDIS_SERVES,
    "journal": _REDIS_STORES,
    "create-": _REDIS_STORES,
    "bindings": _REDIS_STORES,
    "paging": _REDIS_STORES,
    "page": _REDIS_STORES,
    "large-messages": _REDIS_STORES,
    "persist": _REDIS_STORES,
    "store": _REDIS_STORES,
    "global-max": _REDIS_STORES,
    "max-disk": _REDIS_STORES,
    "min-disk": _REDIS_STORES,
    "disk-scan": _REDIS_STORES,
    "read-whole-page": _REDIS_STORES,
    "node-manager": _REDIS_STORES,
    "max-redelivery-records": _REDIS_STORES,
    "ha-policy": _REDIS_REPLICATES,
    "cluster": _REDIS_REPLICATES,
    "broadcast": _REDIS_REPLICATES,
    "discovery": _REDIS_REPLICATES,
    "network-check": _REDIS_REPLICATES,
    "allow-failback": _REDIS_REPLICATES,
    "check-for-": _REDIS_REPLICATES,
    "max-saved-replicated": _REDIS_REPLICATES,
    "mirror": _REDIS_REPLICATES,
    "security": _REDIS_GUARDS,
    "mask-password": _REDIS_GUARDS,
    "password": _REDIS_GUARDS,
    "populate-validated-user": _REDIS_GUARDS,
    "reject-empty-validated-user": _REDIS_GUARDS,
    "view-permission": _REDIS_GUARDS,
    "resource-limit": _REDIS_GUARDS,
    "divert": _ROUTES,
    "bridge": _ROUTES,
    "broker-connections": _ROUTES,
    "federations": _ROUTES,
    "grouping-handler": _GROUPS,
    "id-cache-size": ADDRESS_SETTINGS["id-cache-size"].reason,
    "metrics": ADDRESS_SETTINGS["enable-metrics"].reason,
    "message-counter": ADDRESS_SETTINGS["message-counter-history-day-limit"].reason,
    "jmx": _MANAGEMENT,
    "management": _MANAGEMENT,
    "queues": "it is deprecated; name each queue in `addresses`, with its routing type",
    "wild-card-routing-enabled": "it is about the routing of messages, and rqttl sends to queues by their names",
    "uuid-namespace": "rqttl names no queues by itself",
}


def core_reason(name: str) -> str:
    """The reason for a child of `core` that no other module reads."""
    fitting = [beginning for beginning in CORE if name.startswith(beginning)]
    return CORE[max(fitting, key=len)] if fitting else _PROCESS


def note_left_out(
    notes: Notes, table: Mapping[str, LeftOut], subject: str, setting: str, value: str, known: tuple[str, ...] = ()
) -> None:
    """Note a setting that has no counterpart: as taken if its value needs none."""
    entry = table.get(setting.lower())
    if entry is None:
        hint = did_you_mean(setting, (*table, *known), ignore_case=True)
        notes.left_out(subject, setting, value, f"it is no documented setting{hint}")
    elif value.lower() in entry.alike:
        notes.taken(subject, setting, value, "queues of rqttl behave so")
    else:
        notes.left_out(subject, setting, value, entry.reason)
