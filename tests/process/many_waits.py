"""Many threads that wait at once, in a process of its own: `python -m tests.process.many_waits <url> <kind> <threads>`.

`<kind>` is `connect`, or `default` for a client with the pool that redis-py makes by itself. Prints a line of JSON
when all of them have blocked in Redis at once, and each has got a message.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

import rqttl
from rqttl.store.driver import driver_of
from tests.waiting import PATIENCE, until


def wait(queue: rqttl.Queue) -> str:
    delivery = queue.receive(wait="10m", auto_ack=True)
    return delivery.body.decode() if delivery else ""


def main(url: str, kind: str, threads: int) -> dict[str, Any]:
    if kind == "connect":
        broker = rqttl.connect(url)
    else:
        broker = rqttl.Broker(redis.Redis(unix_socket_path=url.removeprefix("unix://"), socket_timeout=PATIENCE))
    waiting = threading.Semaphore(0)
    broker.events.subscribe(lambda _: waiting.release(), rqttl.WaitEvent)
    with broker, ThreadPoolExecutor(threads) as pool:
        queue = broker.declare_queue("q")
        futures = [pool.submit(wait, queue) for _ in range(threads)]
        try:
            for _ in range(threads):
                assert waiting.acquire(timeout=PATIENCE)
            until(lambda: blocked(broker) == threads)
            queue.enqueue_many([b"%d" % i for i in range(threads)])
            served = {future.result(timeout=PATIENCE) for future in futures}
        finally:
            broker.interrupt()
    return {"redis": redis.__version__, "served": len(served)}


def blocked(broker: rqttl.Broker) -> int:
    """The number of clients that block in Redis."""
    info: Any = driver_of(broker).store.client.info("clients")
    return int(info["blocked_clients"])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
