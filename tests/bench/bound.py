"""The bound for scripts: raw commands of redis-py, and scripts that make only the commands that the promises need.

A function gets a client of redis-py and the name of a new queue, and returns the work of a workload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BODY = bytes(range(200))

Work = Callable[[], object]


def raw_enqueue(client: Any, name: str) -> Work:
    return lambda: [client.xadd(name, {"": BODY}) for _ in range(100)]


def raw_receive_and_ack(client: Any, name: str) -> Work:
    client.xgroup_create(name, "group", mkstream=True)
    for _ in range(100):
        client.xadd(name, {"": BODY})

    def work() -> None:
        for _ in range(100):
            [[_, [[entry, _]]]] = client.xreadgroup("group", "me", {name: ">"}, count=1)
            pipeline = client.pipeline(transaction=False)
            pipeline.xack(name, "group", entry)
            pipeline.xdel(name, entry)
            pipeline.execute()

    return work


def raw_receive_and_ack_batches(client: Any, name: str) -> Work:
    client.xgroup_create(name, "group", mkstream=True)
    for _ in range(1000):
        client.xadd(name, {"": BODY})

    def work() -> None:
        for _ in range(10):
            [[_, page]] = client.xreadgroup("group", "me", {name: ">"}, count=100)
            ids = [entry for entry, _ in page]
            pipeline = client.pipeline(transaction=False)
            pipeline.xack(name, "group", *ids)
            pipeline.xdel(name, *ids)
            pipeline.execute()

    return work


#: Scripts that make only the commands that the promises need, with constants as their values, and reply one value.
BARE = {
    "enqueue": """
        local m = redis.call('HMGET', KEYS[1], 'version', 'option_set', 'has_waiters', 'last_id', 'ready_bytes',
          'enqueued')
        redis.call('TIME')
        local seq = redis.call('XADD', KEYS[2], '*', '', ARGV[1])
        redis.call('HSET', KEYS[1], 'last_id', seq, 'ready_bytes', '200', 'enqueued', '1')
        return seq""",
    "receive": """
        local m = redis.call('HMGET', KEYS[1], 'version', 'option_set', 'due_at', 'has_waiters', 'large_upto', 'cursor',
          'ready_bytes', 'lease_grants', 'delivered')
        redis.call('TIME')
        redis.call('EXISTS', KEYS[3])
        local page = redis.call('XRANGE', KEYS[2], '(' .. m[6], '+', 'COUNT', '1')
        redis.call('ZREM', KEYS[5], '')
        redis.call('ZADD', KEYS[4], '1732000000000001', page[1][1])
        redis.call('HSET', KEYS[1], 'cursor', page[1][1], 'ready_bytes', '200', 'lease_grants', '1', 'delivered', '1')
        return page[1][1]""",
    "ack": """
        redis.call('HGET', KEYS[1], 'option_set')
        redis.call('TIME')
        redis.call('ZMSCORE', KEYS[4], ARGV[1])
        redis.call('XDEL', KEYS[2], ARGV[1])
        redis.call('ZREM', KEYS[4], ARGV[1])
        redis.call('EXISTS', KEYS[6])
        redis.call('HINCRBY', KEYS[1], 'acked', '1')
        return 1""",
    "receive 100": """
        local m = redis.call('HMGET', KEYS[1], 'version', 'option_set', 'due_at', 'has_waiters', 'large_upto', 'cursor',
          'ready_bytes', 'lease_grants', 'delivered')
        redis.call('TIME')
        redis.call('EXISTS', KEYS[3])
        local page, leases, reply = redis.call('XRANGE', KEYS[2], '(' .. m[6], '+', 'COUNT', '100'), {}, {}
        for i = 1, 100 do
          local entry = page[i]
          leases[2 * i - 1], leases[2 * i] = '1732000000000001', entry[1]
          reply[2 * i - 1], reply[2 * i] = entry[1], entry[2][2]
        end
        redis.call('ZREM', KEYS[5], '')
        redis.call('ZADD', KEYS[4], '1732000000000001', string.rep('-', 100), unpack(leases))
        redis.call('ZREM', KEYS[4], string.rep('-', 100))
        redis.call('HSET', KEYS[1], 'cursor', leases[200], 'ready_bytes', '200', 'lease_grants', '1', 'delivered', '1')
        return reply""",
    "ack 100": """
        redis.call('HGET', KEYS[1], 'option_set')
        redis.call('TIME')
        redis.call('ZRANGEBYSCORE', KEYS[4], '1732000000000001', '1732000000000001', 'LIMIT', '0', '100')
        redis.call('XDEL', KEYS[2], unpack(ARGV))
        redis.call('ZREM', KEYS[4], unpack(ARGV))
        redis.call('EXISTS', KEYS[6])
        redis.call('HINCRBY', KEYS[1], 'acked', '100')
        return 1""",
}


def _bare(client: Any, name: str) -> Callable[[str, list[Any]], Any]:
    """Calls of bare scripts for a queue of its own."""
    keys = [f"{{{name}}}:{part}" for part in ("meta", "log", "requeued", "leases", "expiry", "failures")]
    client.hset(keys[0], mapping={"version": "1", "option_set": "default", "cursor": "0-0", "due_at": ""})
    client.zadd(keys[3], {"another": 1})
    hashes = {script: client.script_load(text) for script, text in BARE.items()}
    return lambda script, words: client.evalsha(hashes[script], len(keys), *keys, *words)


def bare_enqueue(client: Any, name: str) -> Work:
    call = _bare(client, name)
    return lambda: [call("enqueue", [BODY]) for _ in range(100)]


def bare_receive_and_ack(client: Any, name: str) -> Work:
    call = _bare(client, name)
    for _ in range(100):
        call("enqueue", [BODY])
    return lambda: [call("ack", [call("receive", [])]) for _ in range(100)]


def bare_receive_and_ack_batches(client: Any, name: str) -> Work:
    call = _bare(client, name)
    for _ in range(1000):
        call("enqueue", [BODY])
    return lambda: [call("ack 100", call("receive 100", [])[::2]) for _ in range(10)]
