"""The least that a wake-up takes whose consumer gets a lease: `BLPOP`, then one bare script, by redis-py."""

from __future__ import annotations

from typing import Any

import redis
import shared

from tests.bench.bound import BARE

PARTS = ("meta", "log", "requeued", "leases", "expiry", "failures", "waiters", "wakeup", "consumers")
KEYS = [f"{{q}}:{part}" for part in PARTS]
#: Store a message, and ring if a consumer waits.
ENQUEUE = BARE["enqueue"].replace(
    "return seq",
    """
    redis.call('ZCARD', KEYS[7])
    redis.call('LLEN', KEYS[8])
    redis.call('RPUSH', KEYS[8], '')
    return seq""",
)
#: Take the message under a lease, and show that the consumer does not wait.
RECEIVE = BARE["receive"].replace(
    "return page[1][1]",
    """
    redis.call('ZREM', KEYS[7], 'consumer')
    redis.call('ZADD', KEYS[9], '1732000000000', 'consumer')
    return {page[1][1], page[1][2][2]}""",
)


def consume(client: Any) -> None:
    receive, ack = client.script_load(RECEIVE), client.script_load(BARE["ack"])
    client.hset(KEYS[0], mapping={"version": "1", "option_set": "default", "cursor": "0-0", "due_at": ""})
    while True:
        client.zadd(KEYS[6], {"consumer": 1})
        client.blpop([KEYS[7]], timeout=0)
        sequence, body = client.evalsha(receive, len(KEYS), *KEYS)
        shared.handle(body.decode())
        client.evalsha(ack, len(KEYS), *KEYS, sequence)


def main() -> None:
    role, mode, count = shared.arguments()
    client: Any = redis.Redis.from_url(shared.URL, socket_timeout=None)
    if role == "consume":
        consume(client)
    enqueue = client.script_load(ENQUEUE)
    shared.produce(mode, count, lambda body: client.evalsha(enqueue, len(KEYS), *KEYS, body))


if __name__ == "__main__":
    main()
