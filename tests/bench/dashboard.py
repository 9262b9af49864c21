"""What the dashboard costs: a tick of its sampler, the memory of its process, and a page."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import redis

import rqttl
from rqttl.dashboard.access import ByHost
from rqttl.dashboard.application import application
from rqttl.dashboard.sampler import MOST, PAUSE, Sampler
from rqttl.dashboard.visit import Dashboard
from tests.bench.measure import BODY, Table

TIMES = 15


def redis_cost(client: redis.Redis) -> tuple[int, float]:
    """Commands since the last look, and the milliseconds of Redis in them."""
    stats: Any = client.info("commandstats")
    found = [one for name, one in stats.items() if not name.startswith(("cmdstat_info", "cmdstat_config"))]
    client.config_resetstat()
    return sum(one["calls"] for one in found), sum(one["usec"] for one in found) / 1000


def dashboard(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Ticks and pages with 1,000, 20,000 and 100,000 queues, of which each tenth has messages."""
    client.flushall()
    filled, pages = 0, list[float]()
    for queues, most, longest_round in ((1_000, 70, 0), (20_000, 0, 120), (100_000, 150, 240)):
        for n in range(filled, queues):
            queue = broker.declare_queue(f"tenant-{n % 997:03}.orders-{n:06}", max_length=1_000 + n % 5)
            queue.enqueue_many([BODY] * (0 if n % 10 else 1 + n % 3))
        filled = queues
        run = [sys.executable, "-m", "tests.bench.dashboard", str(client.connection_pool.connection_kwargs["path"])]
        answer = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True)
        commands, ms, cpu, mb, longest, seconds, wall, page = map(float, answer.stdout.split())
        pages.append(page)
        if queues == MOST:
            table.row("a tick of 1,000 queues, ms of Redis", ms, "<= 6", f"{commands:,.0f} commands")
            table.row("its share of Redis, %", ms / PAUSE / 10, "<= 0.5", f"{commands / PAUSE:,.0f} commands a second")
            table.row("its share of a core here, %", cpu / PAUSE / 10, "<= 3")
        if most:
            table.row(f"memory of a dashboard of {queues:,} queues, MB", mb, f"<= {most}")
        if longest_round:
            note = f"here and now {wall:.2f} s on the wall"
            goal = "<= 0.3" if queues == 20_000 else "<= 0.6"
            table.row(f"longest tick of {queues:,} queues, s of the processor", longest, goal, note)
            table.row(f"a round of {queues:,} queues with such ticks, s", seconds, f"<= {longest_round}")
    table.row("/queues of 1,000, ms of the processor", pages[0], "<= 20")
    table.row("/queues of 100,000 / of 1,000", pages[-1] / pages[0], "<= 1.5")


def main(path: str) -> None:
    """Go round twice, then ask for a page. Prints what a tick of the second round costs, and then the rest."""
    client = redis.Redis(unix_socket_path=path)
    # on the wall a busy machine would show, and little else: Redis takes a twentieth of the processor time
    sampler, ticks, parts = Sampler(rqttl.Broker(client), clock=time.process_time), list[tuple[float, ...]](), 1
    while len(ticks) < max(TIMES, 2 * parts):
        redis_cost(client)
        began, cpu = time.perf_counter(), time.process_time()
        pause = sampler.tick()
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        ticks.append((*redis_cost(client), cpu * 1000, pause, wall))
        parts = -(-len(sampler.sample.names) // MOST)
    mb = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    *costs, pauses, walls = zip(*ticks[-max(parts, TIMES - 1) :], strict=True)
    seconds = sum(pauses[-parts:]) + sum(costs[-1][-parts:]) / 1000

    from starlette.testclient import TestClient  # no part of the memory

    sampler.look = lambda *_: None  # type: ignore[method-assign]  # no tick comes between
    pages, visitor = [], TestClient(application(Dashboard(sampler.broker, ByHost(lambda _: "look"), sampler)))
    for _ in range(TIMES):
        cpu = time.process_time()
        if visitor.get("/queues?sort=depth").status_code == 200:
            pages.append((time.process_time() - cpu) * 1000)
    print(*map(statistics.median, costs), mb, max(costs[-1]) / 1000, seconds, max(walls), statistics.median(pages))


if __name__ == "__main__":
    main(sys.argv[1])
