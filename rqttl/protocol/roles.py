"""What each kind of program may do in Redis: a table of roles, and the ACL rules that follow from it.

The rules come from the headers and texts of the scripts of a role, and from the commands that it calls beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rqttl.protocol import scripts as linker
from rqttl.protocol.contract import Script
from rqttl.protocol.keys import DETACHED, INSIDE, PAIRED, PARTS, REQUEUED, RESULT, SHARED, TARGET_PARTS, Keyspace


@dataclass(frozen=True)
class Role:
    """A kind of program. `plain` has the commands that it calls beside its scripts, by part of a queue or shared key.

    `*` stands for all keys, and an empty name for commands without a key. One that is `bound` may call its scripts by
    their hashes, and load others but not call them.
    """

    may: str
    scripts: str = ""
    plain: Mapping[str, str] = field(default_factory=dict)
    bound: bool = False


_DECLARE = {
    "queues": "SADD SREM SISMEMBER",
    "dataset": "HSETNX",
    "policies": "HGET HGETALL",
    "meta": "EXISTS HMGET",
    "outgoing": "HGETALL",
}
_PASS_ON = {"log": "XRANGE", **dict.fromkeys((DETACHED, REQUEUED, *INSIDE), "EXISTS")}
_LOOK_AHEAD = {"scheduled": "ZCARD ZMSCORE ZRANGE ZRANK", "upcoming": "HMGET HSTRLEN"}
_ROUTES = {"routes": "ZADD ZCARD ZRANGEBYLEX ZREM"}
_RESULTS = {RESULT: "GET SET"}
_LIVE = {"workers": "HDEL HGETALL HLEN HSET"}
_LOOK = "EXISTS HGET HGETALL HLEN HMGET SISMEMBER SMEMBERS SSCAN XLEN XRANGE ZCARD ZCOUNT ZRANGE"
_SERVER = "CLUSTER|NODES INFO TIME"

ROLES = {
    "producer": Role(
        "declare queues and topics, bind, send, schedule, cancel",
        "accept cancel declare enqueue lookup peek publish relay reschedule schedule touch update",
        {
            **_DECLARE,
            **_PASS_ON,
            **_LOOK_AHEAD,
            **_RESULTS,
            **_ROUTES,
            "scheduled_ids": "HGET",
            "scheduled_more": "ZRANGEBYLEX",
        },
    ),
    "consumer": Role(
        "declare queues, receive, settle, renew, peek; run `rqttl worker`",
        "accept ack declare discard lookup nack peek publish receive reject relay renew touch update",
        {
            **_DECLARE,
            **_PASS_ON,
            **_LOOK_AHEAD,
            **_LIVE,
            **_ROUTES,
            **_RESULTS,
            "queues": "SADD SREM SISMEMBER SSCAN",
            "wakeup": "BLPOP LLEN",
            "waiters": "ZSCORE",
        },
    ),
    "reaper": Role(
        "run `rqttl reaper`",
        "accept declare lookup publish redrive_in redrive_out relay sweep update",
        {**_DECLARE, **_PASS_ON, **_LIVE, "queues": "SADD SREM SISMEMBER SMEMBERS SSCAN", "": "SUBSCRIBE UNSUBSCRIBE"},
    ),
    "reader": Role(
        "run `rqttl metrics`, `stats`, `queue ls`, `queue show`, `topic show`, "
        "`policy ls`, `explain`, `doctor`, completion",
        plain={"*": _LOOK, "": _SERVER},
    ),
    "viewer": Role(
        "do all that a reader may; look at messages: `peek`, `message show`, `dead ls`, `show`, `report`",
        "lookup peek",
        {"*": f"{_LOOK} HSTRLEN ZMSCORE ZRANGEBYLEX ZRANK", "": _SERVER},
        bound=True,
    ),
    "admin": Role(
        "do all that the others may; set policies, delete queues, purge, redrive, move single messages",
        "change_policies delete intervene move preview purge redrive stats",
        {"": "ACL|WHOAMI CLUSTER|NODES CONFIG|GET SCAN"},
    ),
    "spark": Role(
        "read messages with Spark",
        plain={"*": "HMGET HLEN HSCAN SMEMBERS XLEN XRANGE XREVRANGE ZRANGE", "": "INFO"},
    ),
}
#: Commands of `plain` that write.
_WRITES = {"BLPOP", "HDEL", "HSET", "HSETNX", "SADD", "SET", "SREM", "ZADD", "ZREM"}
#: What a connection needs, also on a cluster, without the commands that stop other connections.
_CONNECT = "+@connection -@dangerous +asking +cluster|slots +readonly +wait"
#: Redis 6.2 counts all of CLIENT as dangerous.
_CONNECT_6 = f"{_CONNECT} +client|id +client|setname"
_WORD = re.compile(r"'([A-Z]{3,})'")
#: Words in scripts that are no commands.
_NO_COMMANDS = {"COUNT", "LIMIT", "MAXLEN", "MINID", "STREAM", "WITHSCORES"}


def inner(script: Script) -> list[str]:
    """The commands that a script calls."""
    return sorted(set(_WORD.findall(script.text)) - _NO_COMMANDS)


def plain_calls(roles: Iterable[str]) -> list[tuple[str, str]]:
    """The commands that these roles call beside scripts, each behind its part or shared key; see `Role`."""
    pairs = ((part, names) for role in roles for part, names in ROLES[role].plain.items())
    return sorted({(part, name) for part, names in pairs for name in names.split()})


def holders(script: str) -> list[str]:
    """The roles that may call a script."""
    return [name for name, role in ROLES.items() if name == "admin" or script in role.scripts.split()]


def rules(roles: Iterable[str], keyspace: Keyspace, *, redis: str = "7.0") -> tuple[list[str], list[str]]:
    """The rules of a user with these roles, and the keys that the rules open wider than the roles need.

    Redis 6.2 cannot grant a key for reading alone: who writes anything may write these keys, too.
    """
    names = list(ROLES) if "admin" in roles else list(dict.fromkeys(roles))
    scripts = [linker.load(name) for role in names for name in ROLES[role].scripts.split()]
    scripts += [linker.load(one.copies) for one in scripts if one.copies]  # whose keys these scripts have, too
    plain = plain_calls(names)
    # Redis asks for both rights for each key of a script, also of one that only reads
    written = {part for one in scripts for part in (*one.keys, *one.source, *(TARGET_PARTS if one.targets else ()))}
    written |= {part for part, name in plain if name in _WRITES}
    read = {part for part, _ in plain if part} - written
    wider = read if redis == "6.2" and written else set()
    commands = {name for _, name in plain}
    bound = all(ROLES[name].bound for name in names if ROLES[name].scripts)
    if scripts:
        calls = {f"EVALSHA|{one.sha}" for one in scripts} if bound else {"EVALSHA"}
        commands |= {*calls, "EXEC", "MULTI", "SCRIPT|LOAD", "TIME", "TYPE"}
    # whoever may write its keys can call a script: without one of its commands it would stop half done
    every = scripts if bound else map(linker.load, linker.names())
    able = [one for one in every if "*" in wider or written | wider >= {*one.keys[: one.least]}]
    commands |= {name for one in able for name in inner(one)}
    rights = [f"~{keyspace.pattern(part)}" for part in _in_order(written)]
    rights += [f"{'~' if redis == '6.2' else '%R~'}{keyspace.pattern(part)}" for part in _in_order(read)]
    if commands & {"PUBLISH", "SUBSCRIBE"}:
        rights.append(f"&{keyspace.due_channel}")
    rights += (_CONNECT_6 if redis == "6.2" else _CONNECT).split()
    rights += [f"+{name.lower()}" for name in sorted(commands)]
    return rights, [keyspace.pattern(part) for part in _in_order(wider)]


def _in_order(parts: set[str]) -> list[str]:
    """Shared keys and results, then parts of queues; one pattern for all parts."""
    if "*" in parts:
        return ["*"]
    queues = ["{*"] if parts >= PARTS.keys() else [part for part in (*PARTS, *PAIRED) if part in parts]
    return [*(name for name in (*SHARED, RESULT) if name in parts), *queues]
