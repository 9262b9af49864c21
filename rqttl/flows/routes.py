"""Flows about routes: the bindings of kombu, by which a queue gets what is sent to an exchange with a key.

All routes of a namespace are members of one sorted set, so those of an exchange are next to each other.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from rqttl.checks import check_queue_name
from rqttl.errors import InvalidInput
from rqttl.flows.reading import missing_of
from rqttl.flows.steps import Flow, Read, Write
from rqttl.protocol import replies
from rqttl.protocol.keys import Keyspace

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
        raise InvalidInput("route: expected names without NUL")
    added, count = yield Write([("ZADD", keyspace.routes, 0, "\0".join(route)), ("ZCARD", keyspace.routes)])
    if added and random.random() * count < LOOKED_THROUGH:
        yield from tidy(keyspace)


def remove(keyspace: Keyspace, routes: Collection[Route]) -> Flow[None]:
    """Remove routes."""
    if routes:
        yield Write([("ZREM", keyspace.routes, *map("\0".join, routes))])


def read(keyspace: Keyspace, exchange: str | None = None) -> Flow[list[Route]]:
    """The routes of an exchange, or all."""
    first, last = ("-", "+") if exchange is None else (f"[{exchange}\0", f"({exchange}\1")
    (found,) = yield Read([("ZRANGEBYLEX", keyspace.routes, first, last)])
    return [Route(*member.decode().split("\0")) for member in replies.sequence(found)]


def tidy(keyspace: Keyspace, exchange: str | None = None) -> Flow[None]:
    """Remove routes of an exchange, or of all, to missing queues. One to a queue that is made meanwhile stays."""
    found = yield from read(keyspace, exchange)
    missing = yield from missing_of(keyspace, {route.queue for route in found})
    gone = [route for route in found if route.queue in missing]
    yield from remove(keyspace, gone)
    made = missing - (yield from missing_of(keyspace, missing))
    if back := [word for route in gone if route.queue in made for word in (0, "\0".join(route))]:
        yield Write([("ZADD", keyspace.routes, *back)])
