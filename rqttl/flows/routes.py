"""Flows about routes: the bindings of kombu, by which a queue gets what is sent to an exchange with a key.

All routes of a namespace are members of one sorted set, so those of an exchange are next to each other.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from rqttl.checks import check_queue_name
from rqttl.errors import InvalidInput
from rqttl.flows.steps import NOT_THERE, Flow, Read, Write, partly
from rqttl.flows.sweeping import config_if_exists
from rqttl.protocol import commands, replies
from rqttl.protocol.contract import Refused
from rqttl.protocol.keys import Keyspace
from rqttl.text import format_value

#: The number of routes that each new one looks through, on average.
LOOKED_THROUGH = 100


class Route(NamedTuple):
    """What is sent to `exchange` with a routing key that fits `key` goes to `queue`."""

    exchange: str
    queue: str
    key: str


def add(keyspace: Keyspace, route: Route) -> Flow[None]:
    """Add a route to a queue that exists. A new one takes those to missing queues out, of many only now and then."""
    check_queue_name(route.queue)
    if "\0" in route.exchange + route.key:
        raise InvalidInput(f"route: expected names without NUL, got {format_value(route)}")
    added, count = yield Write([("ZADD", keyspace.routes, 0, "\0".join(route)), ("ZCARD", keyspace.routes)])
    if added and random.random() * count < LOOKED_THROUGH:
        yield from remove_stale(keyspace, (yield from _read(keyspace, "-", "+")))


def remove(keyspace: Keyspace, routes: Collection[Route]) -> Flow[None]:
    """Remove routes."""
    if routes:
        yield Write([("ZREM", keyspace.routes, *map("\0".join, routes))])


def read(keyspace: Keyspace, exchange: str) -> Flow[list[Route]]:
    """All routes of an exchange."""
    return _read(keyspace, f"[{exchange}\0", f"({exchange}\1")


def remove_stale(keyspace: Keyspace, routes: Collection[Route]) -> Flow[None]:
    """Remove those of the routes whose queues do not exist. One to a queue that was made again meanwhile stays."""
    missing = yield from _missing(keyspace, {route.queue for route in routes})
    gone = [route for route in routes if route.queue in missing]
    yield from remove(keyspace, gone)
    made = missing - (yield from _missing(keyspace, missing))
    if back := [word for route in gone if route.queue in made for word in (0, "\0".join(route))]:
        yield Write([("ZADD", keyspace.routes, *back)])


def _read(keyspace: Keyspace, first: str, last: str) -> Flow[list[Route]]:
    (found,) = yield Read([("ZRANGEBYLEX", keyspace.routes, first, last)])
    return [Route(*member.decode().split("\0")) for member in replies.sequence(found)]


def _missing(keyspace: Keyspace, queues: Collection[str]) -> Flow[set[str]]:
    """Those of the queues that do not exist, or are at the end of their lifetime."""
    names = sorted(queues)
    answers = yield from partly([commands.lookup(keyspace, name) for name in names], NOT_THERE)
    missing = set()
    for name, answer in zip(names, answers, strict=True):
        if type(answer) is Refused and not (yield from config_if_exists(keyspace, name)):
            missing.add(name)
    return missing
