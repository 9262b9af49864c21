"""Whole queue states as data: before a command, and after it.

A state maps each queue to its parts, a part to its contents, all by name. A state has no empty parts.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import redis

from rqttl import Broker, QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Options, QueueConfig, Reply
from rqttl.protocol.keys import INSIDE, PARTS, STATES
from rqttl.store.driver import driver_of

State = dict[str, dict[str, Any]]
Entry = tuple[bytes, bytes]

#: The injected clock of all tests.
NOW = 1_700_000_000_000
VERSION = "v1"
#: The bytes that a message beyond the place of the last large one may have, header and body.
SMALL = 16_384


def place(ms: int = 0, serial: int = 0) -> str:
    """The sequence of message number `serial` of those that were enqueued `ms` after `NOW`."""
    return f"{NOW + ms:013d}-{100_000 + serial}"


def token(ms: int, grant: int = 0) -> int:
    """The token of a lease that ends `ms` after `NOW`."""
    return (NOW + ms) * 1000 + grant


def at(ms: int) -> bytes:
    """The packed header of a message whose own deadline is `ms` after `NOW`."""
    return b"%d" % (NOW + ms)


def plain(*places: str) -> dict[str, Entry]:
    """Messages without a header, each with the last digit of its place as body."""
    return {one: (b"", one[-1:].encode()) for one in places}


def everything(client: Any) -> dict[bytes, Any]:
    """Every key with its type and contents, as they are. (DUMP also shows in which order a hash happens to lie.)"""
    read = {
        b"hash": lambda key: sorted(client.hgetall(key).items()),
        b"set": lambda key: sorted(client.smembers(key)),
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"list": lambda key: client.lrange(key, 0, -1),
        b"stream": lambda key: (client.xrange(key), client.xinfo_stream(key)["last-generated-id"]),
        b"string": client.get,
    }
    kinds = {key: client.type(key) for key in client.scan_iter(count=1000)}
    return {key: (kind, read[kind](key)) for key, kind in kinds.items()}


def changed(before: State, queue: str = "orders", **parts: Any) -> State:
    """`before`, with parts of a queue changed: mappings are merged (`None` removes), lists are replaced."""
    after = deepcopy(before)
    state = after.setdefault(queue, {})
    for part, change in parts.items():
        if isinstance(change, Mapping):
            merged = {**state.get(part, {}), **change}
            state[part] = {name: value for name, value in merged.items() if value is not None}
        else:
            state[part] = change
        if not state[part]:
            del state[part]
    return {name: one for name, one in after.items() if one}


def plain_options(queue: str = "orders", /, **chosen: object) -> Options:
    """The options of a declaration to which no policy applies."""
    return Options.plain(QueueOptions.read_stored(queue, chosen))


class Lab:
    """One Redis server, spoken to in states and commands."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.broker = Broker(client)
        self.keyspace = driver_of(self.broker).keyspace
        self._options: dict[str, QueueOptions] = {}

    def seed(self, queue: str = "orders", options: Mapping[str, Any] | None = None, **parts: Any) -> State:
        """Declare a queue and put `parts` into it. Derived values are filled in, unless `meta` has them.

        Returns the whole state of the server.
        """
        self._options[queue] = QueueOptions.read_stored(queue, options or {})
        self.run(commands.declare(self.keyspace, Options.plain(self._options[queue]), now=NOW))
        meta = {**self._facts(queue, parts), **parts.pop("meta", {})}
        for part, contents in {"meta": meta, **parts}.items():
            self._write(part, self.keyspace.key(queue, part), contents)
        return self.snapshot()

    def known(self, queue: str = "orders", version: str = VERSION) -> QueueConfig:
        """Return the config of a client that has seen the seeded options."""
        return Options.plain(self._options[queue]).config(self.keyspace, version)

    def run(self, command: Command) -> Reply:
        """The reply of a command. It has as many values as the header of the script names."""
        reply = driver_of(self.broker).store.run(command)
        command.script.read(reply)
        return reply

    def refusal(self, command: Command) -> list[object]:
        """The words of a refusal; nothing in Redis may have changed by a single byte."""
        before = self.dump()
        reply = self.run(command)
        assert reply[0] == b"refused"
        assert self.dump() == before
        return list(reply[1:])

    def dump(self) -> dict[bytes, Any]:
        """Every byte that is in Redis."""
        return everything(self.client)

    def snapshot(self) -> State:
        """Everything that is in Redis."""
        state: State = {}
        for key in sorted(self.client.scan_iter(count=1000)):
            _, tagged, part = key.decode().split(":")
            assert part in PARTS
            if contents := self._read(part, key):  # a stream stays when its last entry goes
                state.setdefault(tagged.strip("{}"), {})[part] = contents
        return state

    def snapshot_of(self, queue: str, part: str) -> Any:
        """The contents of one part of a queue."""
        return self._read(part, self.keyspace.key(queue, part).encode())

    def _facts(self, queue: str, parts: Mapping[str, Any]) -> dict[str, Any]:
        entries = {**parts.get("log", {}), **parts.get("detached", {})}
        away = {one: score for part in INSIDE for one, score in parts.get(part, {}).items()}
        ready = [one for one in entries if one not in away]
        due = [score // state.per_ms for part, state in STATES.items() for score in parts.get(part, {}).values()]
        due += parts.get("expiry", {}).values()
        retention: Any = self._options[queue].message_ttl
        if retention is not None and ready:
            due.append(int(min(ready)[:13]) + retention)
        sizes = {one: len(header) + len(body) for one, (header, body) in entries.items()}
        large = {one: size for one, size in sizes.items() if size > SMALL}
        places = {"large_upto": max(large), "largest_bytes": max(large.values())} if large else {}
        scheduled = parts.get("scheduled", {})
        arrival = {"arrival_at": min(scheduled.values())} if scheduled else {}
        return {
            **places,
            **arrival,
            "version": VERSION,
            "last_id": max([*entries, *scheduled], default="0-0"),
            "cursor": max([*away, *parts.get("requeued", {})], default="0-0"),
            "ready_bytes": sum(len(entries[one][1]) for one in ready),
            "due_at": min(due, default=""),
            "has_waiters": int("waiters" in parts),
        }

    def _write(self, part: str, key: str, contents: Any) -> None:
        if part == "log":
            for one, (header, body) in sorted(contents.items()):
                self.client.execute_command("XADD", key, one, header, body)
        elif part in ("detached", "upcoming"):
            for one, (header, body) in contents.items():
                self.client.hset(key, one, b"%d:%b%b" % (len(header), header, body))
        elif PARTS[part].type == "hash":
            self.client.hset(key, mapping=contents)
        elif PARTS[part].type == "list":
            self.client.rpush(key, *contents)
        elif PARTS[part].type == "set":
            self.client.sadd(key, *contents)
        else:
            self.client.zadd(key, contents)

    def _read(self, part: str, key: bytes) -> Any:
        client: Any = self.client
        if part == "log":
            return {one.decode(): next(iter(fields.items())) for one, fields in client.xrange(key)}
        if part in ("detached", "upcoming"):
            found = {one.decode(): value.partition(b":") for one, value in client.hgetall(key).items()}
            return {one: (rest[: int(size)], rest[int(size) :]) for one, (size, _, rest) in found.items()}
        if PARTS[part].type == "hash":
            return {name.decode(): _number(value.decode()) for name, value in client.hgetall(key).items()}
        if PARTS[part].type == "list":
            return [one.decode() for one in client.lrange(key, 0, -1)]
        if PARTS[part].type == "set":
            return sorted(one.decode() for one in client.smembers(key))
        scores = client.zrange(key, 0, -1, withscores=True)
        return {one.decode(errors="backslashreplace"): int(score) for one, score in scores}


def enqueue(lab: Lab, *messages: object, queue: str = "orders", now: int = NOW) -> Command:
    """The call of a client that has seen the seeded options."""
    return commands.enqueue(lab.known(queue), [commands.pack(message) for message in messages], now=now)


def _number(text: str) -> str | int:
    return int(text) if text.isdigit() else text
