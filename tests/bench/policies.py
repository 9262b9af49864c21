"""The figures of policies: changes of the set, and the price of a set for programs that only send and receive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import redis

import rqttl
from rqttl import flows
from rqttl.policies import Policy
from rqttl.policies.patterns import Syntax
from rqttl.protocol import commands
from rqttl.store.driver import driver_of
from rqttl.types import Message
from tests.bench.measure import BODY, Cost, cost, middle, slowest_call

if TYPE_CHECKING:
    from tests.bench.core import Table

SHORT, LONG = 1_000, 1_000_000
QUEUES, POLICIES, TEAMS = 10_000, 200, 50
#: Calls of one operation in a round, and rounds.
CALLS, ROUNDS = 200, 31
HOUR = 3_600_000


def policies(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Change policies of a long queue and of many queues, and send and receive under many policies."""
    _retroactive(client, broker, table)
    _many_queues(client, broker, table)
    _unconcerned(client, table)


def set_many(broker: rqttl.Broker) -> None:
    """Set 200 policies in one call. A quarter match all queues, a quarter one team, a quarter one queue.

    The others are regular expressions for one team.
    """
    driver = driver_of(broker)
    many = [_policy(i) for i in range(POLICIES)]
    driver.perform(flows.policies.change(driver.keyspace, many))


def _policy(i: int) -> Policy:
    team = f"team{i % TEAMS}"
    kinds: Sequence[tuple[str, Syntax]] = (
        ("#", "wildcard"),
        (f"{team}.#", "wildcard"),
        (f"*.queue{i}", "wildcard"),
        (f"^{team}[.]", "regex"),
    )
    pattern, syntax = kinds[i % len(kinds)]
    definition = {"max_length": 1_000_000 + i}
    return Policy.read(f"policy-{i:03}", pattern, definition, priority=i % 7, syntax=syntax)


def _retroactive(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Shorten the TTL of a long and of a short queue, so that all messages are dead at once."""
    short = [_shorten(client, broker, SHORT) for _ in range(9)]
    long = [_shorten(client, broker, LONG) for _ in range(3)]
    one, other = middle(long).server_us, middle(short).server_us
    note = f"{one:,.0f} us against {other:,.0f} us, {middle(long).calls} calls"
    table.row("set_policy that shortens the TTL, 1,000,000 / 1,000, server us", one / other, "<= 2", note)


def _shorten(client: redis.Redis, broker: rqttl.Broker, size: int) -> Cost:
    client.flushall()
    queue = broker.declare_queue("q")
    driver = driver_of(broker)
    known = driver.step(flows.GetConfig("q", fresh=True))
    packed = [commands.pack(Message(BODY))] * 250
    begin = int(time.time() * 1000) - HOUR
    for i in range(size // len(packed)):
        driver.store.run(commands.enqueue(known, packed, now=begin + i))
    assert queue.stats(sweep=False).ready == size
    return cost(client, lambda: broker.set_policy("short", "q", {"message_ttl": "1m"}))


def _many_queues(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Change all, some and none of 10,000 queues under 200 policies."""
    client.flushall()
    set_many(broker)
    for i in range(QUEUES):
        broker.declare_queue(f"team{i % TEAMS}.queue{i}")
    all_changed: list[Cost] = []
    unmatched: list[Cost] = []
    unchanged: list[Cost] = []
    slowest = []
    for turn in range(1, 4):
        ttl = {"message_ttl": f"{turn}h"}
        with slowest_call(client) as longest:
            all_changed.append(cost(client, lambda: broker.set_policy("all", "#", ttl, priority=9)))  # noqa: B023
            slowest.append(longest())
        unmatched.append(cost(client, lambda: broker.set_policy("none", "other.#", ttl)))  # noqa: B023
        unchanged.append(cost(client, lambda: broker.set_policy("low", "#", ttl, priority=-9)))  # noqa: B023
    for name, costs, goal in (
        ("set_policy that changes 10,000 queues, 200 policies, s", all_changed, "<= 10"),
        ("set_policy that matches none of them, s", unmatched, "<= 0.5"),
        ("set_policy that matches all of them and changes none, s", unchanged, "<= 0.5"),
    ):
        found = middle(costs)
        note = f"{found.calls} script calls, {found.server_us / 1e6:.2f} s of the server"
        table.row(name, found.seconds, goal, note)
    note = "of three changes: " + ", ".join(f"{ms:.1f}" for ms in slowest)
    table.row("longest script call of the change of all, ms", min(slowest), "<= 5", note)


def _unconcerned(client: redis.Redis, table: Table) -> None:
    """Send, receive and declare in a namespace with 200 policies, and in one without, in turn.

    Both queues have the same options in force: a limit costs the same from wherever it comes.
    """
    client.flushall()
    brokers = {name: rqttl.Broker(client, namespace=name) for name in ("none", "many")}
    set_many(brokers["many"])
    limit = brokers["many"].declare_queue("team1.queue1").options().max_length
    works = {"none": _works(brokers["none"], {"max_length": limit}), "many": _works(brokers["many"], {})}
    found: dict[tuple[str, str], list[Cost]] = {}
    for turn in range(ROUNDS + 1):
        for work in works["none"]:
            for name in sorted(brokers, reverse=bool(turn % 2)):
                measured = cost(client, works[name][work])
                if turn:  # the first round warms up
                    found.setdefault((name, work), []).append(measured)
    for work in works["none"]:
        many, none = middle(found["many", work]), middle(found["none", work])
        us = 1e6 / CALLS
        note = f"{many.server_us / CALLS:.2f} us against {none.server_us / CALLS:.2f} us"
        note += f"; wall {many.seconds * us:.0f} us against {none.seconds * us:.0f} us"
        table.row(f"{work}, 200 policies / none, server us", many.server_us / none.server_us, "<= 1.02", note)


def _works(broker: rqttl.Broker, options: dict[str, Any]) -> dict[str, Callable[[], object]]:
    queue = broker.declare_queue("team1.queue1", **options)
    queue.enqueue(BODY)

    def settle() -> None:
        for _ in range(CALLS):
            delivery = queue.receive()
            assert delivery is not None  # the queue holds so many
            delivery.ack()

    return {
        "enqueue": lambda: [queue.enqueue(BODY) for _ in range(CALLS)],
        "receive + ack": settle,
        "declare": lambda: [broker.declare_queue("team1.queue1", **options) for _ in range(CALLS)],
    }
