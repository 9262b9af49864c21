"""The nemeses: the failures in a campaign. Each one does its harm, and heals it before it returns.

A nemesis is a function that takes the stage and a source of chance. Those that harm servers strike one after the
other; those that harm clients and the line strike at the same time in another thread.
"""

import os
import random
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from tests.chaos.cast import ACCOUNTED, POLICY
from tests.chaos.journal import HOUR, SECOND, now
from tests.chaos.stage import Stage
from tests.chaos.wire import SLOW
from tests.servers import SentinelSet, Server, role_of
from tests.waiting import until

Nemesis = Callable[[Stage, random.Random], None]


# On clients and the line


def kill_client(stage: Stage, chance: random.Random) -> None:
    """End a client at once."""
    stage.kill(chance.choice(stage.victims()))
    stage.journal.count("client kills")


def pause_client(stage: Stage, chance: random.Random) -> None:
    """Let a client sleep past its leases, and go on as if nothing had happened."""
    name = chance.choice(stage.victims())
    stage.send(name, signal.SIGSTOP)
    time.sleep(0.1 + 1.2 * chance.random())
    stage.send(name, signal.SIGCONT)
    stage.journal.count("client pauses")


def bad_line(stage: Stage, chance: random.Random) -> None:
    """Let the lines lose and delay for a while."""
    before = sum((wire.faults for wire in stage.wires), Counter[str]())
    rate = chance.choice((0.01, 0.05, 0.3))
    for wire in stage.wires:
        wire.rate = rate
    time.sleep(0.1 + 0.5 * chance.random())
    for wire in stage.wires:
        wire.rate = 0.0
    for fault, times in (sum((wire.faults for wire in stage.wires), Counter[str]()) - before).items():
        stage.journal.count("slow spells" if fault in SLOW else "cuts", times)


def cut_connections(stage: Stage, chance: random.Random) -> None:
    """Let each server end all connections, several times in a row."""
    for _ in range(chance.randint(1, 5)):
        for kind in ("normal", "pubsub"):
            _tell_all(stage, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        time.sleep(0.05 * chance.random())
        stage.journal.count("cuts")


def forget_scripts(stage: Stage, chance: random.Random) -> None:
    """Let each server forget all scripts, several times in a row."""
    for _ in range(chance.randint(1, 4)):
        _tell_all(stage, "SCRIPT", "FLUSH")
        stage.journal.count("scripts forgotten")
        time.sleep(0.05 * chance.random())


def _tell_all(stage: Stage, *words: str) -> None:
    for server in stage.on.servers:
        with server.client(socket_timeout=10) as admin:
            admin.execute_command(*words)


def step_clock(stage: Stage, chance: random.Random) -> None:
    """Set the clock of all servers forward, or not, then back for a while; it ends where it has been furthest.

    No step is as long as the week for which a queue of dead letters in another slot knows what came.
    """
    if not stage.clock.exists():
        return
    with stage.clock.open("r+b", buffering=0) as file:
        (was,) = struct.unpack("q", file.read())
        most = was + chance.choice((0, 0, HOUR, 24 * HOUR)) // SECOND
        for ahead, pause in ((most, 0.5), (most - chance.choice((HOUR, 100 * HOUR)) // SECOND, 2.0), (most, 0.0)):
            stage.journal.write("clock", was=was * SECOND, ahead=ahead * SECOND)
            os.pwrite(file.fileno(), struct.pack("q", ahead), 0)
            was = ahead
            time.sleep(pause * chance.random())
    stage.journal.count("clock steps", 3)


# On one server


def kill_server(stage: Stage, chance: random.Random) -> None:
    """End the server at once, and start it again after a moment."""
    stage.on.kill()
    stage.journal.write("note", text="killed the server")
    time.sleep(0.3 * chance.random() ** 2)
    stage.on.start()
    stage.journal.write("note", text="the server is back")
    stage.journal.count("server kills")


def pause_server(stage: Stage, chance: random.Random) -> None:
    """Let the server sleep, sometimes for longer than clients behind the line wait."""
    stage.on.process.send_signal(signal.SIGSTOP)
    time.sleep(chance.choice((0.1, 0.4, 2.3)))
    stage.on.process.send_signal(signal.SIGCONT)
    stage.journal.count("server pauses")


def refuse(stage: Stage, chance: random.Random) -> None:
    """Let the server refuse to serve for a while, in one of the ways that Redis has."""
    name = chance.choice(sorted(REFUSALS))
    stage.journal.write("note", text=f"{name} begins")
    with stage.on.client() as admin, REFUSALS[name](stage.on, admin):
        time.sleep(0.1 + chance.random() ** 2)
    stage.journal.write("note", text=f"{name} is over")
    stage.journal.count("refusals")


@contextmanager
def configured(admin: redis.Redis, name: str, value: object, after: object) -> Iterator[None]:
    """Set an option of Redis for the block."""
    admin.config_set(name, value)  # type: ignore[arg-type]  # text or a number
    try:
        yield
    finally:
        admin.config_set(name, after)  # type: ignore[arg-type]  # text or a number


@contextmanager
def _read_only(_: Server, admin: redis.Redis) -> Iterator[None]:
    admin.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        admin.replicaof("NO", "ONE")


@contextmanager
def _master_down(server: Server, admin: redis.Redis) -> Iterator[None]:
    with configured(admin, "replica-serve-stale-data", "no", "yes"), _read_only(server, admin):
        yield


@contextmanager
def _failed_save(server: Server, admin: redis.Redis) -> Iterator[None]:
    """The dump cannot be written, because a folder is in its place."""
    dump = Path(server.path, "dump.rdb")
    dump.unlink(missing_ok=True)
    dump.mkdir()
    try:
        _save(admin, "err")
        yield
    finally:
        dump.rmdir()
        _save(admin, "ok")


def _save(admin: redis.Redis, outcome: str) -> None:
    """Save in the background until that ends with an outcome."""

    def told() -> bool:
        info: Any = admin.info("persistence")
        if info["rdb_bgsave_in_progress"] or info["aof_rewrite_in_progress"]:
            return False
        if info["rdb_last_bgsave_status"] == outcome:
            return True
        with suppress(redis.ResponseError):  # a fork is under way
            admin.bgsave()
        return False

    until(told)


@contextmanager
def _busy(server: Server, admin: redis.Redis) -> Iterator[None]:
    """A script that never ends by itself; it has written nothing, so it can be killed."""
    with configured(admin, "lua-time-limit", 100, 5000), server.client(socket_timeout=None) as caller:
        connection = caller.connection_pool.get_connection()
        connection.send_command("EVAL", "while true do end", 0)
        try:
            yield
        finally:
            until(lambda: _killed(admin))
            with suppress(redis.RedisError):
                connection.read_response()
            caller.connection_pool.release(connection)


def _killed(admin: redis.Redis) -> bool:
    try:
        admin.script_kill()
    except redis.ResponseError as error:
        return "NOTBUSY" in str(error) and _answers(admin)
    return False


def _answers(admin: redis.Redis) -> bool:
    try:
        return bool(admin.ping())
    except redis.ResponseError:
        return False


#: Ways in which Redis refuses to serve, each for a block.
REFUSALS: dict[str, Callable[[Server, redis.Redis], AbstractContextManager[None]]] = {
    "NOREPLICAS": lambda _, admin: configured(admin, "min-replicas-to-write", 3, 0),
    "READONLY": _read_only,
    "MASTERDOWN": _master_down,
    "OOM": lambda _, admin: configured(admin, "maxmemory", 1, 0),
    "MISCONF": _failed_save,
    "BUSY": _busy,
}


# On a primary with replicas


def _choose(stage: Stage, chance: random.Random) -> tuple[Server, list[str], int]:
    """A primary, its queues, and an instant up to which its replicas have everything."""
    stage.on.settle()
    primary = chance.choice(stage.on.primaries())
    queues = [name for name in (*sorted(ACCOUNTED), POLICY) if stage.on.owner(stage.key_of(name)) is primary]
    since, offset = now(), _offset_of(primary)
    for replica in stage.on.replicas(primary):
        until(lambda replica=replica: _offset_of(replica) >= offset)  # type: ignore[misc]  # bound at once
    return primary, queues, since


def _offset_of(server: Server) -> int:
    """How much of the stream of replication a server has."""
    with server.client() as client:
        info: Any = client.info("replication")
    return int(info.get("slave_repl_offset", info["master_repl_offset"]))


def kill_primary(stage: Stage, chance: random.Random) -> None:
    """End a primary at once, now and then with a Sentinel. It comes back when another one has taken over."""
    primary, queues, since = _choose(stage, chance)
    if isinstance(stage.on, SentinelSet) and chance.random() < 0.5:
        chance.choice(stage.on.sentinels).kill()  # until all is settled
        stage.journal.count("Sentinels killed")
    primary.kill()
    stage.journal.write("forget", how="kill", since=since, until=now(), queues=queues)
    until(lambda: stage.on.is_replaced(primary))
    primary.start()
    _end_failover(stage, primary, "kill")
    stage.journal.count("server kills")


def pause_primary(stage: Stage, chance: random.Random) -> None:
    """Let a primary sleep until another one has taken over. Then it goes on as if nothing had happened."""
    primary, queues, since = _choose(stage, chance)
    primary.process.send_signal(signal.SIGSTOP)
    stage.journal.write("forget", how="pause", since=since, until=now(), queues=queues)
    until(lambda: stage.on.is_replaced(primary))
    time.sleep(chance.random())
    since = now()
    primary.process.send_signal(signal.SIGCONT)
    _end_failover(stage, primary, "pause", since, queues)


def pause_sentinel(stage: Stage, chance: random.Random) -> None:
    """Let a Sentinel sleep while all clients ask again for the primary. After 2 s it would not trust its own clock."""
    sentinel = chance.choice(stage.on.sentinels)
    sentinel.process.send_signal(signal.SIGSTOP)
    _tell_all(stage, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    time.sleep(0.5 + 0.7 * chance.random())
    sentinel.process.send_signal(signal.SIGCONT)
    stage.journal.count("Sentinels paused")


def hand_over(stage: Stage, chance: random.Random) -> None:
    """A planned failover. Behind Sentinel what the old primary confirms until it learns of it is lost."""
    primary, queues, since = _choose(stage, chance)
    stage.on.fail_over(primary)
    until(lambda: stage.on.is_replaced(primary))
    _end_failover(stage, primary, "planned", since, queues if isinstance(stage.on, SentinelSet) else ())


def _end_failover(stage: Stage, primary: Server, how: str, since: int = 0, queues: Sequence[str] = ()) -> None:
    """Wait until the old primary is a replica. What it confirmed until then may be forgotten."""
    if isinstance(stage.on, SentinelSet):
        stage.on.demote_others(stage.on.primary())  # Sentinel itself would take 8 s
    until(lambda: role_of(primary) == "slave")
    if queues:
        stage.journal.write("forget", how=how, since=since, until=now(), queues=queues)
    stage.journal.write("note", text=f"failover, {how}")
    stage.journal.count(f"failovers, {how}")
    stage.on.settle()


def move_slot(stage: Stage, chance: random.Random) -> None:
    """Move the slot of a queue to another node, some keys at a time."""
    queue = chance.choice(sorted(ACCOUNTED))
    key = stage.key_of(queue)
    target = chance.choice([one for one in stage.on.primaries() if one is not stage.on.owner(key)])
    stage.on.begin_move(key, target)
    while stage.on.move_keys(key, target, chance.randint(1, 6)):
        time.sleep(0.1 * chance.random() ** 2)
    stage.on.end_move(key, target)
    stage.journal.write("note", text=f"the slot of {queue} has moved")
    stage.journal.count("slot moves")


ByName = dict[str, tuple[Nemesis, ...]]
#: On clients and lines, in all topologies.
ON_CLIENTS: ByName = {
    "kills": (kill_client, kill_client, kill_client),
    "pauses": (pause_client,),
    "network": (bad_line, bad_line),
}
_NODES: ByName = {"network": (cut_connections,), "scripts": (forget_scripts,), "clock": (step_clock,)}
_REPLICATED: ByName = {**_NODES, "kills": (kill_primary,), "pauses": (pause_primary,), "failover": (hand_over,)}
#: On servers, by topology.
ON_SERVER: dict[str, ByName] = {
    "server": {
        **_NODES,
        "kills": (kill_server, kill_server),
        "pauses": (pause_server,),
        "refusals": (refuse, refuse, refuse),
    },
    "sentinel": {**_REPLICATED, "pauses": (pause_primary, pause_sentinel)},
    "cluster": {**_REPLICATED, "moves": (move_slot, move_slot, move_slot)},
}
#: The names of all campaigns of a topology.
NAMES = {on: tuple(dict.fromkeys((*ON_CLIENTS, *ON_SERVER[on]))) for on in ON_SERVER}
