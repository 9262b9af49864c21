"""The nemeses: the failures in a campaign. Each one does its harm, and heals it before it returns.

A nemesis is a function that takes the stage and a source of chance. Those that harm the server strike one after the
other; those that harm clients and the line strike at the same time in another thread.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from tests.chaos.journal import now
from tests.chaos.stage import Stage
from tests.servers import Server
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
    stage.journal.count("pauses")


def bad_line(stage: Stage, chance: random.Random) -> None:
    """Let the line lose and delay for a while."""
    before = sum(stage.wire.faults.values())
    stage.wire.rate = chance.choice((0.01, 0.05, 0.3))
    time.sleep(0.1 + 0.5 * chance.random())
    stage.wire.rate = 0.0
    stage.journal.count("network faults", sum(stage.wire.faults.values()) - before)


def cut_connections(stage: Stage, chance: random.Random) -> None:
    """Let Redis end all connections, several times in a row."""
    with stage.admin() as admin:
        for _ in range(chance.randint(1, 5)):
            for kind in ("normal", "pubsub"):
                admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            time.sleep(0.05 * chance.random())
            stage.journal.count("network faults")


def forget_scripts(stage: Stage, chance: random.Random) -> None:
    """Let Redis forget all scripts, several times in a row."""
    with stage.admin() as admin:
        for _ in range(chance.randint(1, 4)):
            admin.script_flush()
            stage.journal.count("scripts forgotten")
            time.sleep(0.05 * chance.random())


# On the server


def kill_server(stage: Stage, chance: random.Random) -> None:
    """End the server at once, and start it again after a moment."""
    stage.server.kill()
    stage.journal.write("note", text="killed the server")
    time.sleep(0.3 * chance.random() ** 2)
    stage.server.start()
    stage.journal.write("note", text="the server is back")
    stage.journal.count("server kills")
    stage.journal.count("restarts")


def pause_server(stage: Stage, chance: random.Random) -> None:
    """Let the server sleep, sometimes for longer than clients behind the line wait."""
    stage.server.process.send_signal(signal.SIGSTOP)
    time.sleep(chance.choice((0.1, 0.4, 2.3)))
    stage.server.process.send_signal(signal.SIGCONT)
    stage.journal.count("pauses")


def refuse(stage: Stage, chance: random.Random) -> None:
    """Let the server refuse to serve for a while, in one of the ways that Redis has."""
    name = chance.choice(sorted(REFUSALS))
    stage.journal.write("note", text=f"{name} begins")
    with stage.admin() as admin, REFUSALS[name](stage.server, admin):
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


def fail_over(stage: Stage, chance: random.Random) -> None:
    """Promote a replica: planned, with writes paused until it has all, or unplanned, after a kill of the primary.

    The planned one loses nothing. What the unplanned one may forget is what came after a moment at which the replica
    was known to have everything.
    """
    other = stage.launch()
    try:
        planned = chance.random() < 0.5
        since = _replicate(stage, other)
        with stage.admin() as admin:
            if planned:
                admin.client_pause(20_000, all=False)
                _await_offset(other, admin)
        stage.server.kill()
        with other.client() as client:
            client.replicaof("NO", "ONE")
        other = stage.move_to(other)
        if not planned:
            stage.journal.write("forget", since=since, until=now())
        stage.journal.write("note", text=f"failover, {'planned' if planned else 'unplanned'}")
        stage.journal.count("failovers")
    finally:
        _remove(stage, other)


def _replicate(stage: Stage, other: Any) -> int:
    """Make another server a replica. Returns an instant up to which it has everything."""
    port = int(str(stage.server._config["port"]))
    with other.client() as client:
        client.replicaof("127.0.0.1", port)
        # a replica rewrites its append-only file after it has got everything; until then a crash would lose all
        rewrites = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
        until(lambda: (told := _info(client))["master_link_status"] == "up" and not any(map(told.get, rewrites)))
    with stage.admin() as admin:
        since = now()
        _await_offset(other, admin)
    return since


def _info(client: redis.Redis) -> Any:
    return {**client.info("replication"), **client.info("persistence")}


def _await_offset(other: Any, admin: redis.Redis) -> None:
    """Wait until a replica has all that its primary has now."""
    offset = int(_info(admin)["master_repl_offset"])
    with other.client() as client:
        until(lambda: int(_info(client).get("slave_repl_offset", 0)) >= offset)


def _remove(stage: Stage, other: Any) -> None:
    """End a server that nobody uses. The link of the round lies in the folder of the first one, which stays."""
    if other is stage.server:
        return
    if other.path == stage.link.parent:
        other.kill()
    else:
        other.remove()


#: Nemeses by the name of their campaign: those that strike clients, and those that strike the server.
ON_CLIENTS: dict[str, tuple[Nemesis, ...]] = {
    "kills": (kill_client, kill_client, kill_client),
    "pauses": (pause_client,),
    "network": (bad_line, bad_line),
}
ON_SERVER: dict[str, tuple[Nemesis, ...]] = {
    "kills": (kill_server, kill_server),
    "pauses": (pause_server,),
    "refusals": (refuse, refuse, refuse),
    "network": (cut_connections,),
    "scripts": (forget_scripts,),
    "failover": (fail_over,),
}
NAMES = (*dict.fromkeys((*ON_CLIENTS, *ON_SERVER)),)
