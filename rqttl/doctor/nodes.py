"""The nodes of a server, a cluster or a Sentinel group as they are now, in figures. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError

from rqttl.broker import Broker
from rqttl.doctor import server
from rqttl.doctor.findings import Finding
from rqttl.doctor.server import ServerInfo
from rqttl.flows.steps import ReadEachNode
from rqttl.protocol import replies
from rqttl.store.driver import driver_of


@dataclass(frozen=True, slots=True)
class Node:
    """One node. What it does not tell, or what does not apply, is `None`; `trouble` is why.

    `ahead` are the seconds by which its clock is ahead of this machine's. A replica is `behind` by so many bytes, and
    `lag` is the age of its last sign.
    """

    address: str
    role: str = "primary"
    trouble: str = ""
    release: str = ""
    memory: int | None = None
    limit: int | None = None
    clients: int | None = None
    ahead: float | None = None
    behind: int | None = None
    lag: timedelta | None = None


def nodes(broker: Broker) -> tuple[list[Node], list[Finding]]:
    """The nodes with slots, each before its replicas in step; and what is wrong with the group.

    A node that does not answer, or does not tell, is among them. For a broker of `fail_fast` that does not take long.
    """
    driver = driver_of(broker)
    found, faults = list[Node](), None
    try:
        looks = driver.step(ReadEachNode([("INFO",)], keep_errors=True))
    except (ConnectionError, TimeoutError) as error:
        return [Node(broker.address.place, trouble=f"does not answer: {error}")], []
    for at, (reply,) in looks.items():
        node = Node(at.address.place)
        if isinstance(reply, Exception):
            what = "INFO cannot be read" if isinstance(reply, ResponseError) else "does not answer"
            found.append(replace(node, trouble=f"{what}: {reply}"))
            continue
        info = ServerInfo(replies.shaped("INFO", replies.info_fields, reply), {})
        try:
            _, ahead = driver.perform(server.compare_clocks(at))
            if faults is None:
                faults = list(server.of_sentinels(at.service)) if at.service else driver.perform(server.shards(at))
        except RedisError as error:
            found.append(replace(node, trouble=f"does not answer: {error}"))
            continue
        found += [_primary(node, info, ahead), *_replicas(info)]
    return found, faults or []


def _primary(node: Node, info: ServerInfo, ahead: float) -> Node:
    valkey, link = info.text("valkey_version"), info.text("master_link_status")
    is_replica = info.text("role") == "slave"
    return replace(
        node,
        role="replica" if is_replica else "primary",
        trouble=f"refuses writes; its link to the primary is {link}" if is_replica else "",
        release=f"Valkey {valkey}" if valkey else f"Redis {info.text('redis_version')}",
        memory=info.number("used_memory"),
        limit=info.number("maxmemory") or None,
        clients=info.number("connected_clients"),
        ahead=ahead,
    )


def _replicas(info: ServerInfo) -> Iterator[Node]:
    """The replicas of a node, as it sees them."""
    for n in range(info.number("connected_slaves") or 0):
        told = dict(pair.split("=", 1) for pair in info.text(f"slave{n}").split(",") if "=" in pair)
        behind = (info.number("master_repl_offset") or 0) - int(told.get("offset", 0))
        trouble = "" if told.get("state") == "online" else f"its state is {told.get('state')}"
        lag = timedelta(seconds=int(told["lag"])) if "lag" in told else None
        yield Node(f"{told.get('ip')}:{told.get('port')}", "replica", trouble, behind=max(0, behind), lag=lag)
