"""The figures of the core, against raw redis-py on the same server in the same run: `make bench`.

One table: each figure, its goal, commands and server microseconds per message.
"""

import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

import redis

import rqttl
from rqttl.flows import sweeping as sweeping_flows
from rqttl.flows.steps import GetConfig
from rqttl.protocol import commands
from rqttl.protocol.codec import NO_ENVELOPE, Envelope
from rqttl.store.driver import driver_of
from rqttl.types import Message
from tests.bench.dashboard import dashboard
from tests.bench.measure import (
    BODY,
    Cost,
    Table,
    cost,
    interleaved,
    memory,
    middle,
    ratio,
    running_server,
    slowest_call,
    xadd,
)
from tests.bench.publishing import publishing
from tests.ports import free_port
from tests.waiting import until

N = 10_000
START = 1_800_000_000_000
ROUNDS = 15
MILLION = 1_000_000
LATER = START + 3_600_000


def per_message(found: Cost, n: int) -> str:
    return f"{found.calls / n:.3f} calls, {found.server_us / n:.2f} us"


def sent(broker: rqttl.Broker, message: object, n: int, batch: int, **options: Any) -> Callable[[], object]:
    """The work of sending a message so many times, in batches, to a queue that has it once."""
    queue = broker.declare_queue("q", **options)
    queue.enqueue(message)
    if batch == 1:
        return lambda: [queue.enqueue(message) for _ in range(n)]
    return lambda: [queue.enqueue_many([message] * batch) for _ in range(n // batch)]


def sending(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Enqueue against XADD."""
    runs: dict[str, Callable[[], Callable[[], object]]] = {
        "raw": lambda: lambda: [client.xadd("raw", {"b": BODY}) for _ in range(N)],
        "ours": partial(sent, broker, BODY, N, 1),
        "raw batch": lambda: lambda: xadd(client, N, 100),
        "our batch": partial(sent, broker, BODY, N, 100),
    }
    found = interleaved(client, ROUNDS, runs)
    single, raw = middle(found["ours"]), middle(found["raw"])
    table.row(
        "enqueue one by one / raw xadd, speed",
        ratio(found["ours"], found["raw"]),
        ">= 0.75",
        f"{per_message(single, N)} (raw {raw.server_us / N:.2f} us)",
    )
    batch, raw = middle(found["our batch"]), middle(found["raw batch"])
    table.row(
        "enqueue_many by 100 / pipelined raw xadd, speed",
        ratio(found["our batch"], found["raw batch"]),
        ">= 1.5",
        f"{per_message(batch, N)} (raw {raw.server_us / N:.2f} us)",
    )
    table.row("round trips per enqueue", single.calls / N, "<= 1")
    table.row("round trips per enqueue_many(100)", batch.calls / (N / 100), "<= 1")


def confirming(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Enqueue to a queue with `durability=replica` against one without, with a replica on this machine."""
    with running_server() as replica, replica.client() as other:
        port = free_port()
        client.config_set("bind", "127.0.0.1")
        client.config_set("port", port)
        other.replicaof("127.0.0.1", str(port))
        until(lambda: other.info("replication")["master_link_status"] == "up")
        for batch in (1, 250):
            n = N // 10 * batch
            runs = {name: partial(sent, broker, BODY, n, batch, durability=name) for name in ("primary", "replica")}
            found = interleaved(client, ROUNDS, runs)
            cost = 1 / ratio(found["replica"], found["primary"])
            table.row(f"enqueue by {batch}, confirmed by a replica / plain, time", cost, "<= 1.4")
    client.config_set("port", 0)


def raw_group(client: redis.Redis) -> Callable[[], object]:
    """A consumer group that reads, acks and deletes by 100."""
    xadd(client, N)
    client.xgroup_create("raw", "g", id="0")

    def work() -> None:
        while True:
            answer: Any = client.xreadgroup("g", "c", {"raw": ">"}, count=100)
            if not answer:
                return
            ids = [id for id, _ in answer[0][1]]
            pipeline = client.pipeline(transaction=False)
            pipeline.xack("raw", "g", *ids)
            pipeline.xdel("raw", *ids)
            pipeline.execute()

    return work


def receiving(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Receive and ack, and consume, against a consumer group."""

    def filled() -> rqttl.Queue:
        q = broker.declare_queue("q")
        for _ in range(N // 1000):
            q.enqueue_many([BODY] * 1000)
        return q

    def ours() -> Callable[[], object]:
        q = filled()

        def work() -> None:
            while batch := q.receive_many(100):
                q.ack_many(batch)

        return work

    def consume() -> Callable[[], object]:
        q = filled()

        def work() -> None:
            with q.consume(prefetch=100, wait=0) as deliveries:
                for delivery in deliveries:
                    with delivery:
                        pass

        return work

    found = interleaved(client, ROUNDS, {"raw": lambda: raw_group(client), "ours": ours, "consume": consume})
    table.row(
        "receive_many(100) + ack_many / XREADGROUP + XACK + XDEL, speed",
        ratio(found["ours"], found["raw"]),
        ">= 0.5",
        f"{per_message(middle(found['ours']), N)} (raw {middle(found['raw']).server_us / N:.2f} us)",
    )
    loop = middle(found["consume"])
    table.row(
        "consume(prefetch=100), empty handler / the same, speed",
        ratio(found["consume"], found["raw"]),
        ">= 0.4",
        per_message(loop, N),
    )
    table.row("round trips per ack of 100 + next receive", loop.calls / (N / 100), "<= 1.05")


def weighing(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Memory per waiting message, and after all are settled."""
    n = 200_000
    weights = {}
    for name in ("raw", "plain", "ttl", "scheduled", "with an id"):
        client.flushall()
        q = broker.declare_queue("q")
        empty = memory(client)
        message: object = BODY if name == "plain" else Message(BODY, ttl="1h")
        if name == "raw":
            xadd(client, n)
        elif name in ("scheduled", "with an id"):
            schedule_at(broker, "q", n, named=name == "with an id")
        else:
            for _ in range(n // 1000):
                q.enqueue_many([message] * 1000)
        peak = memory(client)
        weights[name] = (peak - empty) / n
        if name == "ttl":
            while batch := q.receive_many(1000):
                q.ack_many(batch)
            rest = (memory(client) - empty) / (peak - empty)
    note = f"{weights['raw']:.0f} bytes raw, {weights['plain']:.0f} plain, {weights['ttl']:.0f} with a TTL"
    table.row("memory per waiting message / raw stream", weights["plain"] / weights["raw"], "<= 1.1", note)
    table.row("the same with a TTL of its own", weights["ttl"] / weights["raw"], "<= 1.75")
    table.row("memory after all are settled, share of the peak", rest, "<= 0.01")
    note = f"{weights['scheduled']:.0f} bytes, {weights['with an id']:.0f} with an id"
    table.row("memory per scheduled message / one with a TTL", weights["scheduled"] / weights["ttl"], "<= 1.3", note)
    table.row("the same, scheduled with an id", weights["with an id"] / weights["ttl"], "<= 1.5")


def fill_at(broker: rqttl.Broker, count: int, message: Callable[[int], object]) -> None:
    """Send messages as if it were the start, 250 in each millisecond."""
    known = driver_of(broker).step(GetConfig("q", fresh=True))
    packed = [commands.pack(message(k)) for k in range(250)]
    for i in range(count // 250):
        driver_of(broker).store.run(commands.enqueue(known, packed, now=START + i))


def surviving(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """A million messages of which 95 % expire, mixed with 5 % that stay."""
    longest = []
    for _ in range(3):
        client.flushall()
        broker.declare_queue("q")
        empty = memory(client)
        fill_at(broker, MILLION, lambda k: BODY if k % 20 == 7 else Message(BODY, ttl="1s"))
        with slowest_call(client) as slowest:
            sweeping = cost(client, lambda: driver_of(broker).perform(sweeping_flows.sweep("q", now=START + 100_000)))
            longest.append(slowest())
    # the best of three: a shared machine is taken to add pauses of its own, so the note tells the others too
    note = "of three runs: " + ", ".join(f"{ms:.1f}" for ms in longest)
    table.row("longest script call while 1,000,000 expire, ms", min(longest), "<= 5", note)
    left = (memory(client) - empty) / (MILLION // 20)
    client.flushall()
    base = memory(client)
    pipeline = client.pipeline(transaction=False)
    for i in range(MILLION // 20):
        pipeline.hset("alone", f"{START + i}-100000", BODY)
    pipeline.execute()
    alone = (memory(client) - base) / (MILLION // 20)
    note = f"{left:.0f} bytes against {alone:.0f}; sweep {sweeping.server_us / MILLION:.2f} us a message"
    table.row("memory of the 5 % that stay / alone in one hash", left / alone, "<= 2.5", note)


def backlog(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Compare the costs of a long and of a short queue."""
    found: dict[tuple[str, int], list[Cost]] = {}
    client.flushall()
    queues = {}
    for size in (1_000, MILLION):
        q = queues[size] = broker.declare_queue(f"q{size}")
        for _ in range(size // 1000):
            q.enqueue_many([BODY] * 1000)

    def settle(q: rqttl.Queue) -> None:
        for _ in range(200):
            delivery = q.receive()
            if delivery:
                delivery.ack()

    for _ in range(31):
        for size, q in queues.items():
            found.setdefault(("in", size), []).append(cost(client, lambda q=q: [q.enqueue(BODY) for _ in range(200)]))  # type: ignore[misc]  # bound at once
            found.setdefault(("out", size), []).append(cost(client, lambda q=q: settle(q)))  # type: ignore[misc]  # the same
    for way, name in (("in", "enqueue"), ("out", "receive + ack")):
        long, short = middle(found[(way, MILLION)]), middle(found[(way, 1_000)])
        note = f"{long.server_us / 200:.1f} us against {short.server_us / 200:.1f} us"
        table.row(
            f"{name} at a backlog of 1,000,000 / 1,000, server us", long.server_us / short.server_us, "<= 1.15", note
        )


def burying(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Measure the rate at which expired messages move into a dead-letter queue."""
    rates = []
    for _ in range(3):
        client.flushall()
        q = broker.declare_queue("q", dead_letter="q/dead")
        n = 100_000
        fill_at(broker, n, lambda _: Message(BODY, ttl="1s"))
        moving = cost(client, lambda: driver_of(broker).perform(sweeping_flows.sweep("q", now=START + 100_000)))
        assert broker.queue("q/dead").stats().ready == n
        assert q.stats().ready == 0
        rates.append(n / moving.server_us * 1e6)
    rates.sort()
    table.row("expired messages into a dead-letter queue, 1000 per server s", rates[1] / 1000, ">= 150")


def handing_over(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Reject into a queue of another slot against rejecting into one of the same slot."""

    def rejected(sender: rqttl.Broker) -> Callable[[], object]:
        q = sender.declare_queue("q", dead_letter="d")
        q.enqueue_many([BODY] * 250)
        return partial(q.reject_many, q.receive_many(250))

    slotted = rqttl.Broker(client, slotted=True)
    found = interleaved(client, ROUNDS, {"near": partial(rejected, broker), "far": partial(rejected, slotted)})
    costs = statistics.median(a.server_us / b.server_us for a, b in zip(found["far"], found["near"], strict=True))
    note = " us against ".join(f"{middle(found[way]).server_us / 250:.2f}" for way in ("far", "near"))
    table.row("reject by 250 into another slot / into the same slot, server us", costs, "<= 2.5", f"{note} us")
    table.row("round trips of it", middle(found["far"]).calls, "<= 4")


def scheduling(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Scheduled messages: their way in, beside that of messages with a TTL, and their arrival."""
    n = 2_000
    kinds = {"ttl": Message(BODY, ttl="1h"), "delay": Message(BODY, delay="1h")}
    runs = {f"{kind} {batch}": partial(sent, broker, kinds[kind], n, batch) for kind in kinds for batch in (1, 100)}
    found = interleaved(client, ROUNDS, runs)
    for batch, name in ((1, "schedule one by one"), (100, "schedule by 100")):
        ours, others = found[f"delay {batch}"], found[f"ttl {batch}"]
        note = f"{middle(ours).server_us / n:.2f} us against {middle(others).server_us / n:.2f} us"
        ratio = statistics.median(a.server_us / b.server_us for a, b in zip(ours, others, strict=True))
        table.row(f"{name} / enqueue with a TTL, server us", ratio, "<= 1.5", note)
    longest = []
    for named, goal in ((False, ">= 150"), (True, ">= 110")):
        costs = []
        for _ in range(5):
            client.flushall()
            q = broker.declare_queue("q")
            with slowest_call(client) as slowest:
                schedule_at(broker, "q", 100_000, named=named)
                costs.append(cost(client, lambda: driver_of(broker).perform(sweeping_flows.sweep("q", now=LATER))))
                longest.append(slowest())
            assert q.stats().ready == 100_000
        name = f"scheduled messages that arrive{' with an id' * named}, 1000 per server s"
        table.row(name, 100_000 / middle(costs).server_us * 1e3, goal)
    note = "of all runs: " + ", ".join(f"{ms:.1f}" for ms in longest)
    table.row("longest script call of schedules and arrivals, ms", min(longest), "<= 5", note)


def waiting_long(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Compare what very many scheduled messages add to a call with what they add to the raw commands on such keys."""
    client.flushall()
    has_memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 8 * 2**30
    many, few, n = (10 if has_memory else 2) * MILLION, 1_000, 100
    for size in (few, many):
        broker.declare_queue(f"q{size}")
        with slowest_call(client) as slowest:
            schedule_at(broker, f"q{size}", size, due=LATER)
        fill_raw(client, size)
    table.row(f"longest script call while {many:,} are scheduled, ms", slowest(), "<= 10")
    found: dict[str, dict[int, list[Cost]]] = {"schedule": {}, "cancel": {}, "arrival": {}, "add": {}, "remove": {}}
    store, ids = driver_of(broker).store, list[bytes]()

    def schedule(known: commands.QueueConfig, places: list[int]) -> None:
        for place in places:
            packed = [(b"@%d" % (LATER + place), NO_ENVELOPE, BODY)]
            ids.append(store.run(commands.schedule(known, packed, now=START))[2][0].split()[0])

    def cancel(known: commands.QueueConfig) -> None:
        while ids:
            store.run(commands.cancel(known.keyspace, known.name, ids.pop(), now=START))

    for _ in range(31):
        for size in (few, many):
            known = driver_of(broker).step(GetConfig(f"q{size}"))
            places = [random.randrange(size // 10) for _ in range(n)]
            costs = [cost(client, partial(schedule, known, places)), cost(client, partial(cancel, known))]
            store.run(commands.schedule(known, [(b"@%d" % START, NO_ENVELOPE, BODY)] * n, now=START))
            costs.append(cost(client, partial(store.run, commands.sweep(known, now=START))))
            costs += [cost(client, partial(add_each, client, size, places))]
            costs += [cost(client, partial(remove_each, client, size))]
            for name, one in zip(found, costs, strict=True):
                found[name].setdefault(size, []).append(one)
    stats = broker.queue(f"q{many}").stats(sweep=False)
    assert (stats.scheduled, stats.activated, stats.cancelled) == (many, 31 * n, 31 * n)
    long, short = ({name: middle(costs[size]).server_us / n for name, costs in found.items()} for size in (many, few))
    for name, raw in (("schedule", "add"), ("cancel", "remove"), ("arrival", "remove")):
        more = (long[name] - short[name]) / (long[raw] - short[raw])
        note = f"{long[name]:.2f} us against {short[name]:.2f} us, raw {long[raw]:.2f} us against {short[raw]:.2f} us"
        table.row(f"what {many:,} scheduled add to one {name} / to raw commands", more, "<= 2", note)


def fill_raw(client: redis.Redis, size: int) -> None:
    for i in range(0, size, 250):
        add_raw(client, size, [b"%020d" % place for place in range(i, i + 250)], [i // 10] * 250)


def add_raw(client: redis.Redis, size: int, names: list[bytes], places: list[int]) -> None:
    """Write as a schedule does, to raw keys of this size."""
    client.zadd(f"zset{size}", {name: LATER + place for name, place in zip(names, places, strict=True)})
    client.hset(f"hash{size}", mapping=dict.fromkeys(names, BODY))


def add_each(client: redis.Redis, size: int, places: list[int]) -> None:
    for i, place in enumerate(places):
        add_raw(client, size, [b"9%019d" % i], [place])


def remove_each(client: redis.Redis, size: int) -> None:
    for i in reversed(range(100)):
        client.zrem(f"zset{size}", b"9%019d" % i)
        client.hdel(f"hash{size}", b"9%019d" % i)


def calls_of(client: redis.Redis) -> int:
    """The calls of scripts so far."""
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


def controlling(client: redis.Redis, broker: rqttl.Broker, table: Table) -> None:
    """Consumers in threads, on a queue with a limit of leases, with a rate, and in a pause."""
    with ThreadPoolExecutor(108) as pool:
        limit_leases(client, broker, table, pool)
        limit_rate(client, broker, table, pool)
        pause(client, broker, table, pool)


def limit_leases(client: redis.Redis, broker: rqttl.Broker, table: Table, pool: ThreadPoolExecutor) -> None:
    """Eight consumers have five places."""
    most, stop, q = 5, threading.Event(), broker.declare_queue("limited", max_leased=5)
    q.enqueue_many([BODY] * 50_000)
    for _ in range(8):
        pool.submit(q.run, lambda _: time.sleep(random.uniform(0.001, 0.05)), prefetch=1, stop=stop, wait="1m")
    leased, idle, since = Counter[int](), 0.0, time.monotonic()
    ends = since + 10
    while (now := time.monotonic()) < ends:
        number = client.zcard("rqttl:{limited}:leases")
        leased[number] += 1
        since = now if number >= most else since
        idle = max(idle, now - since)
    table.row("most messages out with max_leased 5", max(leased), "<= 5", f"{leased.total():,} looks")
    share = f"full in {leased[most] / leased.total():.0%} of all looks"
    table.row("longest time with a free place, s", idle, "<= 0.1", share)
    stop.set()


def limit_rate(client: redis.Redis, broker: rqttl.Broker, table: Table, pool: ThreadPoolExecutor) -> None:
    """A hundred consumers wait for a rate, which lets no message go early."""
    rate, waiting = 20, 100
    q = broker.declare_queue("slow", rate=f"{rate}/1s", burst=1)
    left: list[float] = []
    takers = [pool.submit(q.receive, "1m", auto_ack=True) for _ in range(waiting)]
    while q.stats().consumers < waiting:
        time.sleep(0.01)
    before = calls_of(client)
    q.enqueue_many([BODY] * waiting)
    for taker in as_completed(takers):
        taker.result()
        left.append(time.monotonic())
    table.row(f"calls for each message, {waiting} waiting for a rate", (calls_of(client) - before) / waiting, "<= 2.1")
    share = (waiting - 1) / (left[-1] - left[0]) / rate
    table.row(f"messages in a second / rate of {rate}", share, "<= 1.02")
    table.row(f"messages in a second / rate of {rate}, at least", share, ">= 0.9")


def pause(client: redis.Redis, broker: rqttl.Broker, table: Table, pool: ThreadPoolExecutor) -> None:
    """Eight consumers at work are paused and resumed."""
    stop, q = threading.Event(), broker.declare_queue("busy")
    q.enqueue_many([BODY] * 20_000)
    for _ in range(8):
        pool.submit(q.run, lambda _: None, prefetch=1, stop=stop, wait="1m")
    while q.stats().delivered < 500:
        time.sleep(0.001)
    q.pause()
    delivered = q.stats().delivered
    time.sleep(1)
    before = calls_of(client)
    time.sleep(3)
    table.row("calls in 3 s of a pause, 8 consumers", calls_of(client) - before, "<= 0")
    table.row("messages claimed after a pause", q.stats().delivered - delivered, "<= 0")
    since = time.monotonic()
    q.resume()
    while q.stats().delivered == delivered:
        time.sleep(0.001)
    table.row("a resume until the next message, s", time.monotonic() - since, "<= 0.2")
    stop.set()


def schedule_at(broker: rqttl.Broker, queue: str, count: int, due: int = START, named: bool = False) -> None:
    """Schedule messages as if it were the start, ten for each millisecond from `due` on."""
    known = driver_of(broker).step(GetConfig(queue, fresh=True))
    for i in range(0, count, 250):
        numbers = range(i, i + 250)
        packed = [(b"@%d" % (due + k // 10), Envelope(id=b"%09d" % k if named else b""), BODY) for k in numbers]
        driver_of(broker).store.run(commands.schedule(known, packed, now=START))


def main() -> None:
    """Run the parts that the command line names, or all of them."""
    every = (
        sending,
        confirming,
        receiving,
        weighing,
        surviving,
        backlog,
        burying,
        handing_over,
        scheduling,
        waiting_long,
        controlling,
        publishing,
        dashboard,
    )
    parts = {part.__name__: part for part in every}
    table = Table()
    with running_server() as server, redis.Redis(unix_socket_path=str(server.socket)) as client:
        broker = rqttl.Broker(client)
        for name in sys.argv[1:] or parts:
            parts[name](client, broker, table)
    sys.exit(1 if table.missed else 0)


if __name__ == "__main__":
    main()
