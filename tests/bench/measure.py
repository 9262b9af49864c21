"""Tools of all benchmarks: a server of their own, interleaved repeats, medians, and the counters of Redis."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from tests.servers import Server, find_binary

BODY = bytes(range(200))


@contextmanager
def running_server(series: str = "7.0") -> Iterator[Server]:
    """A server for the block; the program ends where there is none of this series."""
    binary = find_binary(os.environ.get("RQTTL_TEST_REDIS", series))
    if binary is None:
        sys.exit("no redis-server: `make setup` says what to install")
    server = Server(binary)
    try:
        yield server
    finally:
        server.remove()


def xadd(client: redis.Redis, count: int, batch: int = 1000) -> None:
    """Send messages with redis-py, in pipelines."""
    for _ in range(count // batch):
        pipeline = client.pipeline(transaction=False)
        for _ in range(batch):
            pipeline.xadd("raw", {"b": BODY})
        pipeline.execute()


class Table:
    """The rows as they come."""

    def __init__(self) -> None:
        self.missed = 0
        print(f"{'figure':<62} {'reached':>9} {'to reach':>9}   per message")

    def row(self, name: str, value: float, goal: str, note: str = "") -> None:
        """Print one figure; `goal` is like `>= 0.75` or `<= 5`."""
        met = meets(value, goal)
        self.missed += not met
        print(f"{name:<62} {value:>9.3f} {goal:>9} {' ' if met else '!'} {note}", flush=True)


def meets(value: float, goal: str) -> bool:
    """Compare with a goal such as `>= 0.75`."""
    sign, _, limit = goal.partition(" ")
    return value >= float(limit) if sign == ">=" else value <= float(limit)


@dataclass(frozen=True)
class Cost:
    """One run: seconds on the wall, commands that arrived, and microseconds that Redis worked."""

    seconds: float
    calls: int
    server_us: float


def cost(client: redis.Redis, work: Callable[[], object]) -> Cost:
    """Run `work` once and count."""
    client.config_resetstat()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    stats: Any = client.info("commandstats")
    own = ("cmdstat_config", "cmdstat_info", "cmdstat_evalsha", "cmdstat_script")
    calls = sum(one["calls"] for name, one in stats.items() if not name.startswith(own))
    scripts = {name: one for name, one in stats.items() if name.startswith("cmdstat_evalsha")}
    if scripts:
        # what a script calls is counted inside its own time
        return Cost(seconds, sum(s["calls"] for s in scripts.values()), sum(s["usec"] for s in scripts.values()))
    busy = sum(one["usec"] for name, one in stats.items() if not name.startswith(own))
    return Cost(seconds, calls, busy)


def interleaved(
    client: redis.Redis, rounds: int, runs: Mapping[str, Callable[[], Callable[[], object]]]
) -> dict[str, list[Cost]]:
    """Run every candidate once per round, in turn. Each is a function that prepares and returns the work."""
    found: dict[str, list[Cost]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, prepare in runs.items():
            client.flushall()
            measured = cost(client, prepare())
            if turn:  # the first round warms up
                found[name].append(measured)
    return found


def middle(costs: list[Cost]) -> Cost:
    """The median of each figure."""
    return Cost(
        statistics.median(c.seconds for c in costs),
        round(statistics.median(c.calls for c in costs)),
        statistics.median(c.server_us for c in costs),
    )


def ratio(ours: list[Cost], raw: list[Cost]) -> float:
    """Speed against raw Redis on the wall: the median of the ratios of each round."""
    return statistics.median(r.seconds / o.seconds for o, r in zip(ours, raw, strict=True))


def memory(client: redis.Redis) -> int:
    """Return the memory of Redis in bytes, after it has freed unused pages."""
    client.script_flush("SYNC")
    client.execute_command("MEMORY", "PURGE")
    info: Any = client.info("memory")
    used: int = info["used_memory"]
    return used


@contextmanager
def slowest_call(client: redis.Redis) -> Iterator[Callable[[], float]]:
    """Record the longest single script call, in milliseconds."""
    client.config_set("slowlog-log-slower-than", 500)
    client.config_set("slowlog-max-len", 100_000)
    client.slowlog_reset()

    def slowest() -> float:
        entries: Any = client.slowlog_get(100_000)
        scripts = [entry["duration"] for entry in entries if entry["command"].startswith(b"EVALSHA")]
        return max(scripts, default=500) / 1000

    yield slowest
    client.config_set("slowlog-log-slower-than", 10_000)
