"""Checks for a user who may only read: no script compares the parts of a queue for such a user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis.exceptions import NoPermissionError, ResponseError

from rqttl import flows
from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.doctor.inventory import Stock
from rqttl.errors import QueueNotFound
from rqttl.flows import Driver
from rqttl.text import plural
from rqttl.units import as_size


def may_write(driver: Driver, queue: str) -> bool:
    """Whether this user may run commands that write: the question removes what no queue has, so nothing is changed."""
    keys = {part: driver.keyspace.key(queue, part) for part in ("meta", "leases")}
    answers = driver.step(flows.Write([("HDEL", keys["meta"], ""), ("ZREM", keys["leases"], "")], keep_errors=True))
    return not all(isinstance(one, NoPermissionError) and " to run " in str(one) for one in answers)


def take(driver: Driver, names: Sequence[str], error: ResponseError) -> Stock:
    """The queues of the registry, or these, where `error` forbids to list keys. Raises `QueueNotFound`."""
    stock = Stock(findings=[
        warning("keys", f"cannot be listed: {error}", "give this user +scan +sscan +sismember +type +multi +exec")
    ])  # fmt: skip
    try:
        stock.sound = list(names) or driver.perform(flows.names(driver.keyspace))
        looks = driver.perform(flows.options_of(driver.keyspace, stock.sound))
    except NoPermissionError as denied:
        advice = "give this user the rights of one who may look: deploy/README.md has them"
        stock.findings = [problem("keys", f"cannot be read: {denied}", advice)]
        return stock
    for name in names:
        if name not in looks and name not in looks.damaged:
            raise QueueNotFound(name)
    stock.dues = dict.fromkeys(looks, 0)  # nobody has asked when, so each is looked at
    return stock


def look(driver: Driver, queue: str) -> Iterator[Finding]:
    """Look at a queue. Says nothing if it has gone meanwhile."""
    looks = driver.perform(flows.look(driver.keyspace, [queue]))
    for name, damage in looks.damaged.items():
        yield problem("queue", f"cannot be read: {damage.damage}", "ask as a user who may repair it", queue=name)
    for name, stats in looks.items():
        messages = plural(stats.ready + stats.leased + stats.delayed, "message")
        size = as_size(stats.ready_bytes)
        yield ok("queue", f"{messages}, {stats.ready:,} ready ({size}); its parts were not compared", queue=name)
