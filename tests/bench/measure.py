"""Tools of all benchmarks: a server of their own, interleaved repeats, medians, and the counters of Redis."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

BODY = bytes(range(200))


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
