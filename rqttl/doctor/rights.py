"""What this user may do: asked without doing it, on every server.

Redis decides on rights when a command is queued in a transaction, so each command is queued, and the connection closed
before anything is carried out. (`ACL DRYRUN` would do too, but only from 7.0 on, and only for administrators.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from redis.exceptions import NoPermissionError, ResponseError

from rqttl.doctor.facts import Facts
from rqttl.doctor.findings import Finding, ok, problem, some, warning
from rqttl.doctor.reader import may_write
from rqttl.protocol import replies
from rqttl.protocol import scripts as linker
from rqttl.protocol.commands import Word
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import Driver

CHECK = "rights"
#: What follows the key in the commands that scripts call, so that Redis finds the key and takes their number of words.
REST: dict[str, tuple[Word, ...]] = {
    "BLPOP": (1,), "EXISTS": (), "HDEL": ("f",), "HEXISTS": ("f",), "HGET": ("f",), "HGETALL": (), "HINCRBY": ("f", 1),
    "HLEN": (), "HMGET": ("f",), "HSCAN": (0,), "HSET": ("f", "v"), "LLEN": (), "LPOP": (), "PEXPIRE": (1,),
    "RPUSH": ("v",), "SADD": ("m",), "SMEMBERS": (), "SISMEMBER": ("m",), "SMISMEMBER": ("m",), "SREM": ("m",),
    "SSCAN": (0,), "UNLINK": (),
    "XADD": ("*", "f", "v"), "XDEL": ("0-0",), "XLEN": (), "XRANGE": ("-", "+"), "XREVRANGE": ("+", "-"),
    "XTRIM": ("MAXLEN", 1),
    "ZADD": (0, "m"), "ZCARD": (), "ZCOUNT": (0, 0), "ZMSCORE": ("m",), "ZRANGE": (0, 0), "ZRANGEBYSCORE": (0, 0),
    "ZREM": ("m",), "ZREMRANGEBYSCORE": (0, 0), "ZSCAN": (0,), "ZSCORE": ("m",),
}  # fmt: skip
#: What clients call beside scripts: on the bell, on the record, on the registry.
AROUND = {"wakeup": ("BLPOP",), "meta": ("EXISTS", "HMGET"), "": ("SADD", "SREM", "SISMEMBER", "SMEMBERS", "SSCAN")}
_INNER = re.compile(r"'([A-Z]{3,})'")


def inner(script: linker.Script) -> list[str]:
    """The commands that a script calls."""
    return sorted(set(_INNER.findall(script.text)) & {*REST, "PUBLISH", "TIME", "XINFO"})


def words(keyspace: Keyspace, queue: str, command: str, part: str = "meta") -> tuple[Word, ...]:
    """A call of a command, on a part of a queue; on the registry if `part` is empty."""
    key = keyspace.key(queue, part) if part else keyspace.registry
    special: dict[str, tuple[Word, ...]] = {
        "TIME": ("TIME",), "PUBLISH": ("PUBLISH", keyspace.due_channel, ""), "XINFO": ("XINFO", "STREAM", key),
        "SCRIPT LOAD": ("SCRIPT", "LOAD", "return 1"),
    }  # fmt: skip
    return special.get(command) or (command, key, *REST[command])


def ask(driver: Driver, calls: Sequence[Sequence[Word]]) -> list[str]:
    """For each call why it would be denied, empty if it would not be. Raises `ResponseError` if that cannot be told."""
    denied: list[str] = []
    # never `clean`, so it is closed at the end, and with it goes the transaction
    with driver.store.connections.hold() as held:
        connection = held.connection
        connection.connect()
        connection.send_packed_command(connection.pack_command("MULTI"), check_health=False)
        connection.read_response()  # raises where MULTI itself is denied: what follows would be carried out
        connection.send_packed_command(connection.pack_commands(calls), check_health=False)
        for _ in calls:
            try:
                connection.read_response()
                denied.append("")
            except NoPermissionError as error:
                denied.append(str(error))
            except ResponseError:
                denied.append("")  # refused for another reason, which other checks tell
    return denied


def listening(driver: Driver) -> str:
    """Why a reaper could not listen, empty if it could."""
    subscription = driver.store.client.pubsub()
    try:
        subscription.subscribe(driver.keyspace.due_channel)
        subscription.get_message(timeout=5.0)
    except NoPermissionError as error:
        return str(error)
    finally:
        subscription.close()
    return ""


def rights(facts: Facts, queue: str) -> Iterator[Finding]:
    """Which scripts this user may not run, and which would stop in the middle."""
    driver, keyspace = facts.driver, facts.driver.keyspace
    user = _user(driver)
    if not may_write(driver, queue):
        yield ok(CHECK, f"{user} may look at queues and change nothing")
        return
    scripts = [linker.load(name) for name in linker.names()]
    commands = sorted({command for script in scripts for command in inner(script)})
    calls: list[tuple[Word, ...]] = [
        ("EVALSHA", s.sha, len(s.keys), *[keyspace.key(queue, part) for part in s.keys]) for s in scripts
    ]
    calls += [words(keyspace, queue, command) for command in commands]
    others = [(command, part) for part, names in AROUND.items() for command in names]
    others.append(("SCRIPT LOAD", ""))
    calls += [words(keyspace, queue, command, part) for command, part in others]
    try:
        denied = ask(driver, calls)
    except ResponseError as error:
        yield warning(
            CHECK,
            f"{user}: cannot be checked: {error}",
            "give this user +multi +exec: this check needs them, and batches of messages",
        )
        return
    answers = iter(denied)
    outer = {script.name: next(answers) for script in scripts}
    within = {command for command in commands if next(answers)}
    around = [command for command, _ in others if next(answers)]
    found = list(_denied(user, scripts, outer, within, around, listening(driver), keyspace))
    yield from found or [ok(CHECK, f"{user} may do all that rqttl does")]


def _denied(user: str, scripts: Sequence[linker.Script], outer: dict[str, str], within: set[str], around: list[str],
            deaf: str, keyspace: Keyspace) -> Iterator[Finding]:  # fmt: skip
    torn = [s.name for s in scripts if not outer[s.name] and within & set(inner(s))]
    shut = [name for name, why in outer.items() if why]
    if torn:
        missing = sorted(name.lower() for name in within)
        yield problem(
            CHECK,
            f"{user} may not run {some(missing, 8)}: {some(torn)} would stop in the middle, half done",
            f"ACL SETUSER {user} {' '.join(f'+{name}' for name in missing)} ~{keyspace.everything} "
            f"&{keyspace.due_channel}",
        )
    if shut:
        why = "not its keys" if all("key" in outer[name] for name in shut) else "not the script"
        level = problem if len(shut) == len(scripts) else warning
        yield level(
            CHECK,
            f"{user} may not {some(shut, 8)} ({why})",
            f"if it should: ACL SETUSER {user} +evalsha ~{keyspace.everything}",
        )
    if around:
        yield warning(
            CHECK,
            f"{user} may not run {some([name.lower() for name in around], 8)}",
            f"ACL SETUSER {user} {' '.join('+' + name.lower().replace(' ', '|') for name in around)} "
            f"~{keyspace.everything}",
        )
    if deaf:
        yield warning(
            CHECK,
            f"{user} may not listen: a reaper that runs as this user is told nothing",
            f"ACL SETUSER {user} +subscribe &{keyspace.due_channel}",
        )


def _user(driver: Driver) -> str:
    try:
        name = driver.store.call(replies.data, "ACL", "WHOAMI")
    except ResponseError:
        return "this user"
    return name.decode("utf-8", "backslashreplace")
