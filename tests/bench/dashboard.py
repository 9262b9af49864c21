"""What the dashboard costs: Redis and the processor for a tick of its sampler, and the memory of its process."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import redis

import rqttl
from tests.bench.measure import BODY, Table

TICKS = 15


def fill(broker: rqttl.Broker, start: int, end: int) -> None:
    """Declare queues with these numbers; each tenth has messages."""
    for n in range(start, end):
        queue = broker.declare_queue(f"tenant-{n % 997:03}.orders-{n:06}", max_length=1_000 + n % 5)
        if n % 10 == 0:
            queue.enqueue_many([BODY] * (1 + n % 3))


def redis_cost(client: redis.Redis) -> tuple[int, float]:
    """Commands since the last look, and the milliseconds of Redis in them."""
    stats: Any = client.info("commandstats")
    found = [one for name, one in stats.items() if not name.startswith(("cmdstat_info", "cmdstat_config"))]
    client.config_resetstat()
    return sum(one["calls"] for one in found), sum(one["usec"] for one in found) / 1000


def dashboard(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Ticks with 1,006, 20,000 and 100,000 queues."""
    client.flushall()
    fill(broker, 0, 1_006)
    steady(client, broker, table)
    filled = 1_006
    for queues, memory in ((1_006, 70), (20_000, None), (100_000, 150)):
        fill(broker, filled, queues)
        filled = queues
        run = [sys.executable, "-m", "tests.bench.dashboard", str(client.connection_pool.connection_kwargs["path"])]
        answer = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True)
        mb, longest, seconds, cpu = map(float, answer.stdout.split())
        if memory is not None:
            table.row(f"memory of a dashboard of {queues:,} queues, MB", mb, f"<= {memory}")
        if queues > 1_006:
            note = f"mostly {cpu:.3f} s of the processor"
            table.row(f"longest tick of {queues:,} queues, s", longest, "<= 0.3", note)
            table.row(f"a round of {queues:,} queues, s", seconds, "<= 120" if queues == 20_000 else "<= 240")


def steady(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """The median of some ticks, as a share of the time between two of them."""
    from rqttl.dashboard.sampler import PAUSE, Sampler

    sampler, costs = Sampler(broker), []
    for _ in range(TICKS):
        redis_cost(client)
        cpu = time.process_time()
        sampler.tick()
        costs.append((*redis_cost(client), (time.process_time() - cpu) * 1000))
    commands, ms, cpu = (statistics.median(one) for one in zip(*costs, strict=True))
    table.row("a tick of 1,006 queues, ms of Redis", ms, "<= 6", f"{commands:,.0f} commands, {cpu:.0f} ms here")
    table.row("its share of Redis, %", ms / PAUSE / 10, "<= 0.5", f"{commands / PAUSE:,.0f} commands a second")
    table.row("its share of a core here, %", cpu / PAUSE / 10, "<= 3")


def main(path: str) -> None:
    """Go round twice. Prints MB of memory, and of the second round: longest tick, seconds, processor for a tick."""
    import jinja2  # noqa: F401  # they are part of the process whose memory is measured
    import starlette.applications  # noqa: F401
    import uvicorn  # noqa: F401

    from rqttl.dashboard.sampler import MOST, Sampler

    sampler, ticks, parts = Sampler(rqttl.Broker(redis.Redis(unix_socket_path=path))), list[tuple[float, ...]](), 1
    while len(ticks) < 2 * parts:
        began, cpu = time.perf_counter(), time.process_time()
        pause = sampler.tick()
        took = time.perf_counter() - began
        ticks.append((took, took + pause, time.process_time() - cpu))
        parts = -(-len(sampler.sample.names) // MOST)
    mb = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    tooks, rests, cpus = zip(*ticks[parts:], strict=True)
    print(mb, max(tooks), sum(rests), statistics.median(cpus))


if __name__ == "__main__":
    main(sys.argv[1])
