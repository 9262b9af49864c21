"""The doctor checks the server and the queues, and names the remedy of each fault. `rqttl doctor` is its front.

The checks are flows that return findings, or functions of values that a flow has read. `examine` performs them, one
after the other. A check that Redis refuses is a finding, not an error.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.broker import Broker
from rqttl.checks import check_queue_name
from rqttl.doctor import queues, rights, server, topics
from rqttl.doctor.findings import Finding, Level, problem, warning
from rqttl.doctor.server import ServerInfo
from rqttl.errors import DataDamaged
from rqttl.flows.steps import Flow, ReadEachNode
from rqttl.store.driver import driver_of

__all__ = ["Finding", "Level", "examine"]

#: Checks of the server by its own answers, in the order of the report.
SERVER: tuple[Callable[[ServerInfo], Iterator[Finding]], ...] = (
    server.kind,
    server.coverage,
    server.role,
    server.eviction,
    server.memory,
    server.persistence,
    server.disk,
    server.replicas,
    server.connections,
)
#: Name of a queue for checks that need one, where no queue exists.
NO_QUEUE = "rqttl.doctor"


def examine(broker: Broker, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Check the server and the named queues, or all queues of the namespace. Changes nothing.

    Yields the findings of each check at once. A question that the user has no right to ask, or that the server does not
    answer, is a warning. Raises `InvalidName`, `QueueNotFound` for a name that has neither a key nor an entry in the
    registry, and redis-py's errors of the connection.
    """
    for name in names:
        check_queue_name(name)
    driver = driver_of(broker).failing_fast()
    keyspace = driver.keyspace
    seen = queues.Queues()
    # first of all, since it raises for a name without a queue
    check = partial(guarded, is_partial=keyspace.slotted)
    of_queues = driver.perform(check("queues", queues.check(keyspace, names, seen))) if names else None
    nodes: dict[Any, list[Finding]] = {}
    copies: list[Finding] | None = None
    for node, (reply,) in driver.step(ReadEachNode([("TIME",)], keep_errors=True)).items():
        if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            nodes[node] = [problem("node", f"does not answer: {reply}", "start it again; until then its queues wait")]
            continue
        info = driver.perform(server.read(node))
        nodes[node] = [finding for check in SERVER for finding in check(info)]
        nodes[node] += driver.perform(guarded("clock", server.clock(node=node)))
        if info.hidden:
            hidden = ", ".join(dict.fromkeys(info.hidden))
            advice = f"not checked: {hidden}; see them where the server is managed"
            nodes[node].append(warning("settings", f"cannot be read: {info.why_hidden}", advice))
        if info.mode == "sentinel":
            yield from nodes[node]
            return
        if copies is None:
            copies = list(server.of_sentinels(node.service)) if node.service else driver.perform(server.shards(node))
    yield from of_nodes({node.address.place: found for node, found in nodes.items()})
    yield from copies or ()
    if of_queues is None:
        of_queues = driver.perform(check("queues", queues.check(keyspace, names, seen)))
    if len(nodes) > 1:
        yield from queues.check_spread(seen, {name: driver.name_of(driver.node_of(name)) for name in seen.looks})
    yield from driver.perform(check("durability", queues.check_durability(seen)))
    queue = min(seen.dues, default=min(names, default=NO_QUEUE))
    yield from driver.perform(check("rights", rights.rights(keyspace, queue)))
    yield from driver.perform(check("scripts", rights.scripts(keyspace, queue)))
    yield from driver.perform(check("reaper", queues.check_reapers(keyspace, seen)))
    yield from of_queues
    yield from driver.perform(check("queues", queues.check_schedules(seen)))
    yield from driver.perform(check("queues", queues.check_controls(seen)))
    yield from driver.perform(check("queues", queues.check_outgoing(keyspace, seen)))
    yield from driver.perform(check("topics", topics.check(keyspace, seen)))
    yield from driver.perform(check("policies", queues.check_policies(keyspace, sorted(seen.looks))))


def of_nodes(findings: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """The findings of nodes, check by check. One that is not the same at all nodes names its node."""
    if len(findings) == 1:
        yield from next(iter(findings.values()))
        return
    places: dict[Finding, list[str]] = {}
    for place, found in findings.items():
        for finding in found:
            places.setdefault(finding, []).append(place)
    order = list(dict.fromkeys(finding.check for finding in places))
    for finding in sorted(places, key=lambda finding: order.index(finding.check)):
        where = ", ".join(places[finding])
        is_same = len(places[finding]) == len(findings)
        yield finding if is_same else replace(finding, result=f"{where}: {finding.result}")


def guarded(check: str, flow: Flow[list[Finding]], *, is_partial: bool = False) -> Flow[list[Finding]]:
    """The findings of a check, or one finding that Redis refused it. `is_partial`: or that a node did not answer."""
    try:
        return (yield from flow)
    except (ConnectionError, TimeoutError, ResponseError, DataDamaged) as error:
        if isinstance(error, ConnectionError | TimeoutError) and not is_partial:
            raise
        level = warning if "permission" in str(error).lower() else problem
        return [level(check, f"cannot be checked: {error}", "")]
