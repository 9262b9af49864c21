"""A campaign of cancellations: consumers are cancelled at random moments, and no message may be lost or come twice.

    python -m tests.aio.campaign --cancels 100000

Each row is one run: the loop, the kind of cancellation, the server, and the counts afterwards.
"""

import argparse
import asyncio
import gc
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import uvloop

import rqttl
from tests.servers import Server, find_binary

CONSUMERS = 8
MESSAGES = 1_500
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@dataclass
class Counts:
    """The counts of a run."""

    cancelled: int = 0
    done: Counter[int] = field(default_factory=Counter)
    redelivered: int = 0
    leased: int = 0
    deaths: int = 0
    connections: int = 0
    trouble: list[str] = field(default_factory=list)

    def faults(self) -> dict[str, Any]:
        """The counts that must be zero, without those that are."""
        lost = MESSAGES - len(self.done)
        twice = sum(count > 1 for count in self.done.values())
        named = {
            "lost": lost,
            "twice": twice,
            "redelivered": self.redelivered,
            "leased": self.leased,
            "deaths": self.deaths,
            # a consumer has one; Redis may be late to notice the end of one before, and of those of the last round
            "connections": max(0, self.connections - 4 * CONSUMERS - 4),
            "trouble": self.trouble,
        }
        return {name: value for name, value in named.items() if value}


async def cancelled_by_asyncio(work: Callable[[], Any], seconds: float) -> bool:
    """Do work for so long. Returns True if it was cancelled."""
    timeout: Any = vars(asyncio).get("timeout")  # Python 3.10 has none
    try:
        if timeout is None:
            await asyncio.wait_for(work(), seconds)
        else:
            async with timeout(seconds):
                await work()
    except asyncio.TimeoutError:
        return True
    return False


async def cancelled_by_anyio(work: Callable[[], Any], seconds: float) -> bool:
    """Do work within a cancel scope, whose cancellation comes again at every await."""
    with anyio.move_on_after(seconds) as scope:
        await work()
    return scope.cancelled_caught


SCOPES = {"asyncio.timeout": cancelled_by_asyncio, "anyio scope": cancelled_by_anyio}


async def campaign(url: str, scope: str, cancels: int, seed: int) -> Counts:
    """Handle all messages with consumers that are cancelled; in rounds, until there were so many cancellations."""
    counts, chance, before = Counts(), random.Random(seed), asyncio.all_tasks()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: counts.trouble.append(str(context)))
    while counts.cancelled < cancels:
        counts.done.clear()
        await _round(url, scope, counts, chance)
        if counts.faults():
            break
    others = asyncio.all_tasks() - before
    counts.trouble += [f"a task is left: {task}" for task in others]
    return counts


async def _round(url: str, scope: str, counts: Counts, chance: random.Random) -> None:
    async with rqttl.connect_async(url) as broker:
        queue = await broker.declare_queue("q", max_deliveries=3, lease="10m")
        await queue.purge()
        await queue.enqueue_many(list(range(MESSAGES)))
        await asyncio.gather(
            *[_consume(broker, SCOPES[scope], counts, random.Random(chance.random())) for _ in range(CONSUMERS)]
        )
    async with rqttl.connect_async(url) as broker:
        stats = await broker.queue("q").stats()
        counts.leased, counts.redelivered = stats.leased, stats.redelivered
        counts.deaths = sum(stats.deaths.values())


async def _consume(broker: rqttl.AsyncBroker, scope: Callable[..., Any], counts: Counts, chance: random.Random) -> None:
    queue = broker.queue("q")

    async def work() -> None:
        delivery = await queue.receive(wait="20ms" if chance.random() < 0.5 else None)
        if delivery is not None:
            # in the same step of the task: from here on the message counts as done, and its ack must arrive
            counts.done[delivery.decode()] += 1
            counts.redelivered += delivery.delivery_count > 1
            await delivery.ack()

    while len(counts.done) < MESSAGES:
        # Most moments are within the first millisecond: a message is received and acknowledged in that time, and work
        # that is done cancels nothing.
        was_cancelled = await scope(work, 0.0003 * chance.random() * 4 ** chance.randrange(4))
        counts.cancelled += was_cancelled  # Python would read the count before an `await` in this line


def run(server: Server, loop: str, scope: str, cancels: int, seed: int) -> Counts:
    """One run, with all warnings as errors."""
    with warnings.catch_warnings(), server.client() as client:
        warnings.simplefilter("error")
        client.flushall()
        client.config_resetstat()
        own = LOOPS[loop]()
        try:
            counts = own.run_until_complete(_watched(server, scope, cancels, seed))
            own.run_until_complete(own.shutdown_asyncgens())
        finally:
            own.close()
            gc.collect()
    return counts


async def _watched(server: Server, scope: str, cancels: int, seed: int) -> Counts:
    """The campaign, beside a look at the number of connections."""
    with server.client() as client:
        own = len(client.client_list())
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, len(client.client_list()) - own)
                await asyncio.sleep(0.05)

        looking = asyncio.ensure_future(look())
        await asyncio.sleep(0)
        task = asyncio.ensure_future(campaign(server.url, scope, cancels, seed))
        await asyncio.wait([task])
        looking.cancel()
        counts = task.result()
        counts.trouble = [text for text in counts.trouble if "look()" not in text]
        counts.connections = most
        return counts


def main(words: Sequence[str] | None = None) -> None:
    """Make all runs, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cancels", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", nargs="+", default=["7.0", "valkey"])
    chosen = parser.parse_args(words)
    failed = False
    for series in chosen.servers:
        binary = find_binary(series)
        if binary is None:
            raise SystemExit(f"no redis-server for {series}")
        server = Server(binary)
        try:
            for loop in LOOPS:
                for scope in SCOPES:
                    counts = run(server, loop, scope, chosen.cancels, chosen.seed)
                    faults = counts.faults()
                    failed = failed or bool(faults)
                    print(
                        f"redis {series}  {loop:8}  {scope:16}  {counts.cancelled:7} cancelled  "
                        f"{counts.connections} connections  {faults or 'no fault'}",
                        flush=True,
                    )
        finally:
            server.remove()
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
