"""Checks of the rights of this user, and of the scripts. They change nothing, on any server; see `Rehearse`."""

import re
from collections.abc import Iterator, Sequence

from redis.exceptions import NoPermissionError, ResponseError

from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.flows import steps
from rqttl.flows.steps import Flow
from rqttl.protocol import commands, replies
from rqttl.protocol import scripts as linker
from rqttl.protocol.commands import Word
from rqttl.protocol.keys import RESULT, Keyspace
from rqttl.protocol.roles import ROLES, inner, plain_calls
from rqttl.text import first_few, plural

CHECK = "rights"
#: Arguments behind the key of the commands that scripts call, so that Redis finds the key and accepts the call.
ARGUMENTS: dict[str, tuple[Word, ...]] = {
    command: words
    for commands, words in (
        ("EXISTS GET HGETALL HLEN HVALS LLEN LPOP RPOP SMEMBERS UNLINK XLEN ZCARD", ()),
        ("HDEL HEXISTS HGET HMGET HSTRLEN", ("f",)),
        ("HINCRBY", ("f", 1)),
        ("HSET HSETNX", ("f", "v")),
        ("SADD SISMEMBER SMISMEMBER SREM ZMSCORE ZRANK ZREM ZSCORE", ("m",)),
        ("HSCAN SSCAN ZSCAN", (0,)),
        ("BLPOP LINDEX PEXPIRE", (1,)),
        ("RPUSH SET", ("v",)),
        ("XADD", ("*", "f", "v")),
        ("XDEL", ("0-0",)),
        ("XRANGE", ("-", "+")),
        ("XREVRANGE", ("+", "-")),
        ("XTRIM", ("MAXLEN", 1)),
        ("ZADD", (0, "m")),
        ("ZCOUNT ZRANGE ZRANGEBYSCORE ZREMRANGEBYSCORE", (0, 0)),
        ("ZRANGEBYLEX", ("-", "+")),
    )
    for command in commands.split()
}
#: The roles that a user may have and not be an admin.
PROGRAMS = ("producer", "consumer", "reaper")
#: The scripts of a user who may look at messages and may call no other.
_VIEWED = {*ROLES["viewer"].scripts.split()}
_ADVICE = f"`rqttl acl generate --role ROLE` makes a user for {', '.join(PROGRAMS)} or admin"
#: What each client needs to load the scripts.
_LOADING = ("SCRIPT LOAD", "meta")


def words(keyspace: Keyspace, queue: str, command: str, part: str = "meta") -> tuple[Word, ...]:
    """A call of a command on a part of a queue, or on a shared key."""
    key = keyspace.place(queue, part)
    special: dict[str, tuple[Word, ...]] = {
        "TIME": ("TIME",),
        "PUBLISH": ("PUBLISH", keyspace.due_channel, ""),
        "XINFO": ("XINFO", "STREAM", key),
        "SCRIPT LOAD": ("SCRIPT", "LOAD", "return 1"),
    }
    return special.get(command) or (command, key, *ARGUMENTS[command])


def ask(calls: Sequence[Sequence[Word]]) -> Flow[list[str]]:
    """The reason of refusal for each call, empty for a permitted one. Raises `ResponseError` if Redis cannot tell."""
    refusals = yield steps.Rehearse(calls)
    # a call that Redis refuses for another reason is for other checks to tell
    return [str(refusal) if isinstance(refusal, NoPermissionError) else "" for refusal in refusals]


def may_write(keyspace: Keyspace, queue: str) -> Flow[bool]:
    """Tell whether this user may write. The test removes a field that no queue has, so nothing changes."""
    calls = [("HDEL", keyspace.key(queue, "meta"), ""), ("ZREM", keyspace.key(queue, "leases"), "")]
    answers = yield steps.Write(calls, keep_errors=True)
    return not all(isinstance(answer, NoPermissionError) and " to run " in str(answer) for answer in answers)


def rights(keyspace: Keyspace, queue: str) -> Flow[list[Finding]]:
    """Find the roles of this user, or what it lacks for any, and scripts that would stop in the middle."""
    user = yield from _user()
    if not (yield from may_write(keyspace, queue)):
        return [ok(CHECK, f"{user} may look at queues and change nothing")]
    scripts = [linker.load(name) for name in linker.names()]
    commands = sorted({command for script in scripts for command in inner(script)})
    calls: list[tuple[Word, ...]] = [
        ("EVALSHA", s.sha, len(s.keys), *[keyspace.place(queue, part) for part in s.keys]) for s in scripts
    ]
    calls += [words(keyspace, queue, command) for command in commands]
    # a program without results works without their rights, which earlier users have not
    others = [(command, part) for part, command in plain_calls(PROGRAMS) if part not in ("", RESULT)]
    others.append(_LOADING)
    calls += [words(keyspace, queue, command, part) for command, part in others]
    calls.append(("SUBSCRIBE", keyspace.due_channel))
    try:
        denied = yield from ask(calls)
    except ResponseError as error:
        advice = "give this user +multi +exec: this check needs them, and batches of messages"
        return [warning(CHECK, f"{user}: cannot be checked: {error}", advice)]
    answers = iter(denied)
    outer = {script.name: next(answers) for script in scripts}
    within = {command for command in commands if next(answers)}
    around = {(command, part) for command, part in others if next(answers)}
    why_deaf = next(answers)
    torn = [s.name for s in scripts if not outer[s.name] and within & set(inner(s))]
    if torn:
        missing = sorted(name.lower() for name in within)
        text = f"{user} may not run {first_few(missing, 8)}: {first_few(torn)} would stop in the middle, half done"
        return [problem(CHECK, text, _ADVICE)]
    shut = [name for name, why in outer.items() if why]
    if not (shut or around or why_deaf):
        return [ok(CHECK, f"{user} has all rights that rqttl needs")]
    roles = [
        name
        for name in PROGRAMS
        if not any(outer[script] for script in ROLES[name].scripts.split())
        and not around & {*((command, part) for part, command in plain_calls([name])), _LOADING}
        and not (why_deaf and name == "reaper")
    ]
    if len(shut) == len(outer) - len(_VIEWED) and not _VIEWED & {*shut} and _LOADING not in around:
        roles = ["viewer"]
    if roles:
        return [ok(CHECK, f"{user} has the role{'s' * (len(roles) > 1)} {' and '.join(roles)}")]
    return list(_lacking(user, shut, outer, sorted({name.lower() for name, _ in around}), why_deaf))


def _lacking(user: str, shut: list[str], outer: dict[str, str], around: list[str], why_deaf: str) -> Iterator[Finding]:
    """What a user without a whole role may not do."""
    if shut:
        why = "not its keys" if all("key" in outer[name] for name in shut) else "not the script"
        level = problem if len(shut) == len(outer) else warning
        yield level(CHECK, f"{user} may not {first_few(shut, 8)} ({why})", _ADVICE)
    if around:
        yield warning(CHECK, f"{user} may not run {first_few(around, 8)}", _ADVICE)
    if why_deaf:
        yield warning(CHECK, f"{user} may not listen: a reaper that runs as this user gets no hints", _ADVICE)


def _user() -> Flow[str]:
    try:
        name = yield from steps.execute(replies.data, "ACL", "WHOAMI")
    except ResponseError:
        return "this user"
    return name.decode("utf-8", "backslashreplace")


def scripts(keyspace: Keyspace, queue: str) -> Flow[list[Finding]]:
    """Check that the scripts can be loaded and run."""
    if not (yield from may_write(keyspace, queue)):
        text = "this user may only read, so scripts are not checked"
        return [warning("scripts", text, "check again as the user of the programs that send and receive")]
    findings: list[Finding] = []
    try:
        for name in linker.names():
            script = linker.load(name)
            sha = yield from steps.execute(replies.data, "SCRIPT", "LOAD", script.text)
            if sha.decode() != script.sha:
                text = f"the server knows {name} by another name than its SHA-1"
                advice = "a program between client and server changes the text: connect without it"
                return [problem("scripts", text, advice)]
    except ResponseError as error:
        if re.search(r"unknown (sub)?command|engine", str(error), re.IGNORECASE):
            advice = "use a server with Lua: on Valkey load its Lua module; other servers may have none"
            return [problem("scripts", f"this server has no Lua: {error}", advice)]
        findings.append(warning("scripts", f"cannot be loaded: {error}", _ADVICE))
    try:
        yield commands.lookup(keyspace, queue)
    except ResponseError as error:
        return [*findings, problem("scripts", f"cannot be run: {error}", _ADVICE)]
    return findings or [ok("scripts", f"{plural(len(linker.names()), 'script')} loaded, and they run")]
