"""The figures of topics: a part of `make bench`."""

import shutil
import tempfile
import timeit
from pathlib import Path
from typing import Any

import redis

import rqttl
from rqttl.filters import Bindings, check_filter
from rqttl.flows.steps import GetConfig
from rqttl.flows.topics import rebind
from rqttl.store.driver import driver_of
from tests.bench import instructions
from tests.bench.measure import Table, cost, slowest_call
from tests.bench.workloads import LARGE, PUBLISHED

#: Server instructions of a copy / those of a message with an id in a batch of this size, at most.
GOALS = dict(zip(PUBLISHED, (1.8, 1.0, 0.8, 0.65, 1.4, 0.8, 0.6), strict=True))
BASES = {1: "enqueue of 1 kB, id", 100: "enqueue_many of 100 of 1 kB, id"}
FORWARDS = {"forward of one": (1, 1.8), "forward of a backlog of 100": (100, 2.0)}
#: Batch, queues and bytes of calls that are the largest in one way each.
BOUNDS = ((1, 100, 1_000), (100, 10, 1_000), (1, 80, 50_000), (1, 4, 1_000_000), (40, 25, 1_000))


def publishing(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Topics: server work by valgrind; the longest calls; round trips; filters and bindings in the client."""
    if shutil.which("valgrind"):
        count_instructions(table)
    else:
        table.row("no valgrind, so no instructions (Debian: apt-get install valgrind)", 1, "<= 0")
    client.flushall()
    longest = {f"{m} x {n} of {size // 1000} kB": slowest(client, broker, m, n, size) for m, n, size in BOUNDS}
    note = ", ".join(f"{name} {ms:.1f}" for name, ms in longest.items())
    table.row("longest script call of a publish, ms", max(longest.values()), "<= 5", note)
    trips = cost(client, lambda: [broker.queue("bound").enqueue(LARGE) for _ in range(100)]).calls
    table.row("round trips of a publish", trips / 100, "<= 1")

    bindings = Bindings({f"q{i}": check_filter([f"orders.s{i}.*", {"size": {"not": "l"}}]) for i in range(100)})
    headers = [{"subject": f"orders.s{i}.made", "size": "l"} for i in range(2_000)]
    for name, of, count in (("a known message", headers[:100], 100), ("a new one, a binding", headers, 200_000)):
        us = min(timeit.repeat(lambda of=of: [bindings.find(one) for one in of], number=1)) / count * 1e6  # type: ignore[misc]
        table.row(f"filters for {name}, us", us, "<= 1")
    topic, driver = broker.declare_topic("many"), driver_of(broker)
    bound = {f"many/{i}": check_filter(f"orders.s{i}.*") for i in range(999)}
    driver.perform(rebind(driver.keyspace, driver.step(GetConfig("many")), bound))
    ms = timeit.timeit(lambda: topic.subscribe("last", "orders.eu.*"), number=1) * 1e3
    table.row(f"subscribe at {len(topic.bindings()):,} bindings, ms", ms, "<= 100")


def count_instructions(table: Table) -> None:
    goals = {f"publish {m} x {n}": (m, goal) for (m, n), goal in GOALS.items()} | FORWARDS
    names = [*BASES.values(), *goals, "pass on 100 x 3"]
    with tempfile.TemporaryDirectory(prefix="rqttl-instructions-") as folder:
        found = instructions.measure([instructions.ROOT], names, Path(folder), ["server"])["server"][0]
    for name, (batch, goal) in goals.items():
        copy, message = found[name], found[BASES[batch]]
        note = f"{copy:,.0f} instructions against {message:,.0f}"
        table.row(f"{name}, a copy / an enqueue with an id", copy / message, f"<= {goal}", note)
    passed = found["pass on 100 x 3"]
    table.row("pass on 100 x 3, with its enqueue / publish", passed / found["publish 100 x 3"], "<= 1.7")


def slowest(client: redis.Redis, broker: rqttl.Broker, batch: int, queues: int, size: int) -> float:
    """The longest call in ms, in the best of five publishes; one with 25 queues pushes as much out of each."""
    full: dict[str, Any] = {"max_length": batch, "dead_letter": "bound/dead"} if queues == 25 else {}
    client.flushall()
    topic, found = broker.declare_topic("bound"), []
    for i in range(queues):
        topic.subscribe(f"{i}", **full)
    for _ in range(6):
        with slowest_call(client) as longest:
            topic.enqueue_many([bytes(size)] * batch)
            found.append(longest())
    return min(found[1:])
