"""The cost of a scrape of many queues: `make bench-metrics`. Server time is from `INFO commandstats`."""

from __future__ import annotations

import sys
import time

import redis

import rqttl
from rqttl.metrics import collector
from rqttl.metrics.exposition import as_text
from tests.servers import Server, find_binary

#: The numbers of queues of the rows, and the largest number with metrics of their own.
QUEUES, LIMIT, ROUNDS = (1_000, 20_000), 1_000, 5
#: What a scrape of the first number may take. Both are times on the wall, so a busy machine shows in them.
SERVER_MS, WALL_MS = 5, 150


def scrape(broker: rqttl.Broker, client: redis.Redis) -> tuple[float, float, int, str]:
    """Server ms, wall ms, commands and the number of queues left out, of the cheapest of some scrapes."""
    source, rows = collector(broker, limit=LIMIT), []
    for _ in range(ROUNDS):
        client.config_resetstat()
        began = time.perf_counter()
        text = as_text(source.collect)
        wall = time.perf_counter() - began
        stats = client.info("commandstats").values()
        (left,) = [line.split()[1] for line in text.splitlines() if line.startswith("rqttl_queues_left_out ")]
        rows.append((sum(one["usec"] for one in stats) / 1000, wall * 1000, sum(one["calls"] for one in stats), left))
    return min(rows)


def main() -> None:
    """Print the table."""
    binary = find_binary("7.0")
    if binary is None:
        sys.exit("no redis-server 7.0")
    server, made = Server(binary), 0
    try:
        with server.client() as client, rqttl.connect(server.url) as broker:
            print(f"{'queues':>8} {'server ms':>10} {'wall ms':>10} {'commands':>10} {'left out':>10}")
            for number in QUEUES:
                for name in range(made, number):
                    broker.declare_queue(f"q{name}").enqueue(b"x" * 50)
                made = number
                server_ms, wall_ms, commands, left = scrape(broker, client)
                missed = number == QUEUES[0] and (server_ms > SERVER_MS or wall_ms > WALL_MS)
                goal = f"  (goal {SERVER_MS} and {WALL_MS} ms){' !' * missed}" if number == QUEUES[0] else ""
                print(f"{number:>8,} {server_ms:>10.1f} {wall_ms:>10.0f} {commands:>10,} {float(left):>10,.0f}{goal}")
    finally:
        server.remove()


if __name__ == "__main__":
    main()
