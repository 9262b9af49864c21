"""Flows of checks for a user who may only read: no script compares the parts of a queue for such a user."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import NoPermissionError, ResponseError

from rqttl import flows
from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.doctor.key_inventory import KeyInventory
from rqttl.errors import QueueNotFound
from rqttl.flows import Flow
from rqttl.protocol.keys import Keyspace
from rqttl.text import plural
from rqttl.units import as_size


def may_write(keyspace: Keyspace, queue: str) -> Flow[bool]:
    """Tell whether this user may write. The test removes a field that no queue has, so nothing changes."""
    keys = {part: keyspace.key(queue, part) for part in ("meta", "leases")}
    answers = yield flows.Write([("HDEL", keys["meta"], ""), ("ZREM", keys["leases"], "")], keep_errors=True)
    return not all(isinstance(answer, NoPermissionError) and " to run " in str(answer) for answer in answers)


def take(keyspace: Keyspace, names: Sequence[str], error: ResponseError) -> Flow[KeyInventory]:
    """The named queues, or the queues of the registry, where `error` forbids to list keys. Raises `QueueNotFound`."""
    advice = f"give this user +scan +sscan +sismember +type +pttl +multi +exec ~{keyspace.everything}"
    inventory = KeyInventory(findings=[warning("keys", f"cannot be listed: {error}", advice)])
    try:
        inventory.sound = list(names) or (yield from flows.names(keyspace))
        looks = yield from flows.options_of(keyspace, inventory.sound)
    except NoPermissionError as denied:
        advice = "give this user the rights of a reader: deploy/README.md has them"
        inventory.findings = [problem("keys", f"cannot be read: {denied}", advice)]
        return inventory
    for name in names:
        if name not in looks and name not in looks.damaged:
            raise QueueNotFound(name)
    inventory.dues = dict.fromkeys(looks, 0)  # the times are unknown, so each queue is looked at
    return inventory


def check_queue(keyspace: Keyspace, queue: str) -> Flow[list[Finding]]:
    """Check a queue. Returns nothing if it was deleted meanwhile."""
    looks = yield from flows.look(keyspace, [queue])
    findings = [
        problem("queue", f"cannot be read: {damage.damage}", "ask as a user who may repair it", queue=name)
        for name, damage in looks.damaged.items()
    ]
    for name, stats in looks.items():
        messages, size = plural(stats.depth, "message"), as_size(stats.ready_bytes)
        content = f"{messages}, {stats.ready:,} ready ({size}); its parts were not compared"
        findings.append(ok("queue", content, queue=name))
    return findings
