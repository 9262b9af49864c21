"""The figures of workers against `consume` by hand, on the same server in the same run: `make bench-worker`.

The rows come in turn, and a figure is the median over the rounds. Bodies have 200 bytes. CPU times are of the worker's
process and of its children, for each message, without their start. `of slots` is the part of the time for which the
slots worked on messages, by the clocks of the handlers themselves.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import rqttl
from rqttl.runtime.memory import resident_bytes
from tests.bench.measure import BODY, running_server
from tests.waiting import until

N, ROUNDS = 20_000, 5


class Cost(NamedTuple):
    """The seconds of one run: of the wall clock, and of the CPU in this process and in its children."""

    wall: float
    own: float
    children: float
    slots: float = 0.0


def now(pids: Sequence[int] = ()) -> Cost:
    """The clocks, with those of these children."""
    # the clock of the CPU time of another process: see clock_getcpuclockid(3)
    children = sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)
    return Cost(time.perf_counter(), time.process_time(), children)


def between(began: Cost, ended: Cost) -> Cost:
    return Cost(*(end - begin for begin, end in zip(began, ended, strict=True)))


def empty(_: object) -> None:
    """Handle a message without work."""


def millisecond(_: object) -> None:
    """Take a millisecond, or what the system makes of it."""
    time.sleep(0.001)


async def yielding(_: object) -> None:
    """Give the loop one turn."""
    await asyncio.sleep(0)


def by_hand(broker: rqttl.Broker) -> Cost:
    """The cost of a `consume` loop with an ack for each message."""
    began = now()
    with broker.queue("q").consume() as deliveries:
        for number, delivery in enumerate(deliveries, 1):
            delivery.ack()
            if number == N:
                break
    return between(began, now())


def worker(
    broker: rqttl.Broker,
    call: Callable[..., object],
    processes: int,
    coroutines: int | None = None,
    threads: int | None = None,
) -> Cost:
    """The cost from the moment at which all children are ready to the last outcome."""
    name = f"tests.bench.worker:{call.__name__}"
    running = rqttl.Worker(broker, "q", call=name, processes=processes, asyncio=coroutines, threads=threads, burst=True)
    in_flight, supervisor = running._in_flight, running._supervisor  # a stop watch inside
    room, settled, pids, looks = in_flight.room, running.counters.settled, list[int](), list[Cost]()

    def room_when_ready() -> int:
        if supervisor.ready < processes:
            return 0
        if not looks:
            pids.extend(child.pid for child in supervisor.children)
            looks.append(now(pids))
        return room()

    def note(queue: str, outcome: str, number: int = 1) -> None:
        settled(queue, outcome, number)
        if running.counters.totals().handled == N:
            looks.append(now(pids))

    in_flight.room = room_when_ready  # type: ignore[method-assign]  # as above
    running.counters.settled = note  # type: ignore[method-assign]  # as above
    running.run()
    cost, slots = between(*looks), max(1, processes) * (threads or coroutines or 1)
    return cost._replace(slots=running.counters.queues["q"].handling.total / cost.wall / slots)


ROWS: dict[str, Callable[[rqttl.Broker], Cost]] = {
    "consume by hand": by_hand,
    "worker, 1 ms, processes 2, threads 4": lambda broker: worker(broker, millisecond, 2, threads=4),
    "worker, processes 0": lambda broker: worker(broker, empty, 0),
    "worker, processes 1": lambda broker: worker(broker, empty, 1),
    "worker, processes 2": lambda broker: worker(broker, empty, 2),
    "worker, processes 1, asyncio 100": lambda broker: worker(broker, yielding, 1, 100),
    "worker, processes 2, asyncio 100": lambda broker: worker(broker, yielding, 2, 100),
}


def main() -> None:
    """Print the table."""
    costs = {name: list[Cost]() for name in ROWS}
    with running_server() as server, rqttl.connect(server.url) as broker:
        queue = broker.declare_queue("q")
        for _ in range(ROUNDS):
            for name, row in ROWS.items():
                for _ in range(N // 250):
                    queue.enqueue_many([BODY] * 250)
                costs[name].append(row(broker))
        memory = memory_of(broker, server.url)
    print(f"{'row':<36} {'messages/s':>10} {'of consume':>10} {'of slots':>8} {'CPU us here':>12} {'in children':>12}")
    hand = costs["consume by hand"]
    for name, own in costs.items():
        share = statistics.median(base.wall / other.wall for base, other in zip(hand, own, strict=True))
        wall, here, children, slots = (statistics.median(values) for values in zip(*own, strict=True))
        per = f"{here / N * 1e6:>12.1f} {children / N * 1e6:>12.1f}"
        print(f"{name:<36} {N / wall:>10,.0f} {share:>10.2f} {slots:>8.3f} {per}")
    print("RSS of the worker: {:.1f} MiB, of each child: {:.1f} MiB".format(*memory))


def memory_of(broker: rqttl.Broker, url: str) -> tuple[float, float]:
    """The MB of an idle `rqttl worker`, and the mean of its two children."""
    words = ["worker", "q", "--processes", "2", "--call", "builtins:repr"]
    command = [sys.executable, "-m", "rqttl.cli", *words]
    with subprocess.Popen(command, env={**os.environ, "RQTTL_URL": url}) as process:
        until(lambda: any(info.slots == 2 for info in broker.workers()))
        [info] = broker.workers()
        own = resident_bytes(process.pid)
        process.terminate()
    return own / 2**20, (info.rss - own) / 2**21


if __name__ == "__main__":
    main()
