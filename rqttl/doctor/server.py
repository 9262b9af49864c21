"""What a server tells about itself: checks of its kind, role, replicas, connections, memory and persistence.

A refusal is recorded and never an error: managed services hide a lot.
"""

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis.exceptions import RedisError, ResponseError

from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.flows import steps
from rqttl.flows.steps import Flow
from rqttl.protocol import replies
from rqttl.text import format_age, plural
from rqttl.units import as_size

LEAST = (6, 2)
#: The first release without the known holes in Lua, and the patches of older series that have closed them.
SOUND = {"Redis": (8, 8), "Valkey": (8, 1)}
PATCHES: dict[tuple[str, int, int], int] = {
    ("Redis", 6, 2): 20,
    ("Redis", 7, 2): 11,
    ("Redis", 7, 4): 9,
    ("Redis", 8, 0): 4,
    ("Redis", 8, 2): 6,
    ("Redis", 8, 6): 3,
    ("Valkey", 8, 0): 6,
}
HOLES = "CVE-2025-49844, CVE-2025-46817 to 46819, CVE-2026-23631"
#: Seconds by which two clocks may differ.
CLOCKS = 1.0
#: Seconds. A server with a shorter `timeout` closes connections of working consumers too.
SHORTEST_TIMEOUT = 30
_PERSISTENCE = "persistence"
_ON = "CONFIG SET appendonly yes, and the same in redis.conf"
#: Parts of `maxmemory` and of the machine from which on memory is nearly full.
NEARLY, OF_MACHINE = 0.9, 0.6
#: The settings that checks read.
SETTINGS = (
    "appendfsync",
    "cluster-require-full-coverage",
    "min-replicas-to-write",
    "port",
    "save",
    "stop-writes-on-bgsave-error",
    "tcp-keepalive",
    "timeout",
    "tls-port",
    "unixsocket",
    "unixsocketperm",
)


@dataclass
class ServerInfo:
    """Fields of INFO and settings of a server, as `read` has read them. A setting may be the refusal to show it.

    `now` is the clock of the server in seconds, when INFO was read, and `None` if it is hidden. `hidden` names the
    settings that a check needed and that were hidden.
    """

    fields: Mapping[str, int | float | str]
    settings: Mapping[str, str | ResponseError | None]
    now: float | None = None
    why_no_info: str = ""
    hidden: list[str] = field(default_factory=list)
    why_hidden: str = ""

    def text(self, name: str) -> str:
        """A field of INFO; empty if it is missing."""
        return str(self.fields.get(name, ""))

    @property
    def mode(self) -> str:
        """`standalone`, `cluster` or `sentinel`; Valkey calls the field by another name. Empty if it is missing."""
        return self.text("redis_mode") or self.text("server_mode")

    def number(self, name: str) -> int | None:
        """A field of INFO that is a number."""
        value = self.fields.get(name)
        return int(value) if isinstance(value, (int, float)) else None

    def setting(self, name: str) -> str | None:
        """A setting of `SETTINGS`; `None` if the server has no such setting or hides it."""
        value = self.settings[name]
        if isinstance(value, ResponseError):
            self.hidden.append(name)
            self.why_hidden = str(value)
            return None
        return value

    def whole(self, name: str) -> int | None:
        """A setting that is a whole number."""
        value = self.setting(name)
        return int(value) if value is not None and value.lstrip("-").isdigit() else None


def read(node: Hashable = None) -> Flow[ServerInfo]:
    """Read all that checks of the server need, in three round trips."""
    fields: Mapping[str, int | float | str] = {}
    now, why_no_info = None, ""
    try:
        (reply,) = yield steps.Read([("INFO",)], node=node)
        fields = replies.shaped("INFO", replies.info_fields, reply)
    except ResponseError as error:
        why_no_info = str(error)
    with suppress(ResponseError):  # the check of clocks tells it
        now = yield from moment(node)
    answers = yield steps.Read([("CONFIG", "GET", name) for name in SETTINGS], keep_errors=True, node=node)
    settings = {name: _setting(name, answer) for name, answer in zip(SETTINGS, answers, strict=True)}
    return ServerInfo(fields, settings, now=now, why_no_info=why_no_info)


def moment(node: Hashable = None) -> Flow[float]:
    """The clock of the server, in seconds."""
    (reply,) = yield steps.Read([("TIME",)], node=node)
    seconds, micros = replies.shaped("TIME", replies.moment, reply)
    return seconds + micros / 1e6


def _setting(name: str, answer: object) -> str | ResponseError | None:
    if isinstance(answer, ResponseError):
        return answer
    value = replies.shaped("CONFIG GET", replies.pairs, answer).get(name.encode())
    return None if value is None else str(value.decode("utf-8", "replace"))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def kind(info: ServerInfo) -> Iterator[Finding]:
    """Check the kind of the server, its version and its mode."""
    if info.why_no_info:
        advice = "version, memory and persistence are not checked; the role reader sees them (`rqttl acl generate`)"
        yield warning("server", f"INFO cannot be read: {info.why_no_info}", advice)
        return
    valkey = info.text("valkey_version")
    version, name = (valkey, "Valkey") if valkey else (info.text("redis_version"), "Redis")
    release = f"{name} {version}, {info.mode or 'unknown mode'}"
    if info.mode == "sentinel":
        advice = "this is a Sentinel, it keeps no queues: use redis+sentinel://host:port/service"
        yield problem("server", release, advice)
    elif not valkey and _version(version) < LEAST:
        yield problem("server", release, "Redis 6.2 or later is needed")
    else:
        major, minor, patch = (*_version(version), 0, 0)[:3]
        least = PATCHES.get((name, major, minor))
        if (major, minor) >= SOUND[name] or (least is not None and patch >= least):
            yield ok("server", release)
            return
        if _is_private(info):
            text = f"its holes in Lua ({HOLES}) are for strangers who may run scripts: here only the server's own user"
            yield ok("server", f"{release}; {text} can connect, through a unix socket")
            return
        safe = ".".join(map(str, SOUND[name] if least is None else (major, minor, least)))
        text = f"{release}; before {safe} scripts of strangers could take over the server ({HOLES})"
        advice = f"update to {safe} or later, unless your distribution has closed them; let no stranger run scripts"
        yield warning("server", text, advice)


def coverage(info: ServerInfo) -> Iterator[Finding]:
    """Check that a cluster goes on while some of its slots have no node."""
    if info.mode == "cluster" and info.setting("cluster-require-full-coverage") == "yes":
        text = "while one slot has no node, all nodes refuse all calls"
        yield warning("cluster", text, "CONFIG SET cluster-require-full-coverage no, and the same in redis.conf")


def _is_private(info: ServerInfo) -> bool:
    """Tell whether a server listens on a unix socket of its own user and nowhere else, as an embedded one does."""
    return (
        info.setting("port") == "0"
        and info.setting("tls-port") in (None, "0")  # a server without TLS has no such setting
        and bool(info.setting("unixsocket"))
        and info.setting("unixsocketperm") == "700"
    )


def role(info: ServerInfo) -> Iterator[Finding]:
    """Check that this server accepts writes."""
    if info.text("role") == "slave":
        link = info.text("master_link_status") or "unknown"
        yield problem("role", f"a replica, its link is {link}: it refuses writes", "connect to its primary")
    elif info.text("role"):
        yield ok("role", "primary")


def replicas(info: ServerInfo) -> Iterator[Finding]:
    """Check the loss in a failover, and that enough replicas are in step for writes."""
    count = info.number("connected_slaves")
    if count is None or info.text("role") == "slave":
        return
    least, good = info.whole("min-replicas-to-write") or 0, info.number("min_slaves_good_slaves")
    copies = plural(count, "replica") if count else "no replica: there is no other copy of the data"
    if good is not None and good < least:
        text = f"{copies}; {good} in step, {least} needed: every write is refused"
        yield problem("replicas", text, "bring the replicas back, or lower min-replicas-to-write")
    elif 0 < count <= least:
        text = f"{copies}, {least} needed for writes: after a failover one is missing, and every write is refused"
        yield warning("replicas", text, f"add a replica, or set min-replicas-to-write {count - 1}")
    elif count > 1 and not least:  # one replica alone is the next primary: see above
        text = f"{copies}, but no write waits for one: a failover may lose seconds of messages"
        yield warning("replicas", text, "set min-replicas-to-write 1 and min-replicas-max-lag 2")
    else:
        yield ok("replicas", f"{copies}, {least} needed for writes" if least else copies)


def shards(node: Hashable) -> Flow[list[Finding]]:
    """Check that no node of a cluster is away, and that its primaries have as many replicas each, as `node` sees it."""
    (reply,) = yield steps.Read([("CLUSTER", "NODES")], keep_errors=True, node=node)
    if isinstance(reply, ResponseError):  # no cluster, or no right to ask
        return []
    away, copies = list[str](), dict[str, int]()
    for line in sorted(replies.data(reply).decode().splitlines(), key=lambda line: "slave" in line):
        name, address, flags, primary, *_, link = words = line.split()[:8]
        has_slots, is_replica = len(line.split()) > len(words), "slave" in flags
        if has_slots and not is_replica:
            copies[name] = 0
        elif {"fail", "fail?"} & {*flags.split(",")} or link != "connected":
            away.append(address.partition("@")[0])
        elif primary in copies:
            copies[primary] += 1
    return list(_redundancy(away, copies.values()))


def _redundancy(away: Sequence[str], copies: Collection[int]) -> Iterator[Finding]:
    if away:
        text = f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} away: one copy fewer, should the primary die"
        yield warning("replicas", text, "start it again, or replace it")
    elif len({*copies}) > 1:
        text = f"some primaries have {max(copies)} in step, others {min(copies)}"
        yield warning("replicas", text, "give each primary as many: a slot is as safe as its shard")


def of_sentinels(service: Any) -> Iterator[Finding]:
    """Check that all replicas are there, and that enough Sentinels are, as the first of them sees it."""
    risk = "no failover follows if the primary dies"
    try:
        primary, copies, others = service.survey()
    except RedisError as error:
        yield warning("sentinel", f"{error}: {risk}", "start the Sentinels again")
        return
    known, seen = replies.pairs(primary), [[replies.pairs(one) for one in group] for group in (copies, others)]
    gone, deaf = [
        [one for one in group if b"down" in one[b"flags"] or b"disconnected" in one[b"flags"]] for group in seen
    ]
    yield from _redundancy([f"{one[b'ip'].decode()}:{one[b'port'].decode()}" for one in gone], ())
    count = 1 + len(others)
    needed, living = max(int(known[b"quorum"]), count // 2 + 1), count - len(deaf)
    if living < needed:
        text = f"{living} of {plural(count, 'Sentinel')} at work, {needed} needed: {risk}"
        yield warning("sentinel", text, "start the others again")


def connections(info: ServerInfo) -> Iterator[Finding]:
    """Check the time limits of connections."""
    idle, alive = info.whole("timeout"), info.whole("tcp-keepalive")
    if idle is not None and 0 < idle < SHORTEST_TIMEOUT:
        text = f"timeout is {idle} s: connections of idle producers are closed all the time"
        yield warning("connections", text, "set timeout 0, or some minutes")
    if alive == 0:
        text = "tcp-keepalive is 0: a client behind a cut network is never noticed"
        yield warning("connections", text, "set tcp-keepalive to its default, 300")
    elif idle is not None and alive is not None and not 0 < idle < SHORTEST_TIMEOUT:
        yield ok("connections", f"timeout is {idle} s, tcp-keepalive {alive} s")


def clock(
    wall: Callable[[], float] = time.time, timer: Callable[[], float] = time.perf_counter, node: Hashable = None
) -> Flow[list[Finding]]:
    """Compare the clock of Redis, which decides, with the clock of this machine, which may give `expires_at`."""
    trip, ahead = yield from compare_clocks(node, wall, timer)
    for _ in range(2):
        trip, ahead = min((trip, ahead), (yield from compare_clocks(node, wall, timer)))
    if abs(ahead) - trip / 2 > CLOCKS:
        text = f"Redis is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
        return [warning("clock", text, "an `expires_at` of a client here is off by as much: let NTP keep both clocks")]
    return [ok("clock", f"within {max(abs(ahead), trip, 0.001):.3f} s of this machine")]


def compare_clocks(
    node: Hashable, wall: Callable[[], float] = time.time, timer: Callable[[], float] = time.perf_counter
) -> Flow[tuple[float, float]]:
    """Seconds of a round trip, and seconds by which Redis is ahead if it read its clock in the middle of the trip."""
    asked, started = wall(), timer()
    remote = yield from moment(node)
    trip = timer() - started
    return trip, remote - (asked + trip / 2)


# Memory and persistence: what a full server does, and the messages that a crash can lose


def eviction(info: ServerInfo) -> Iterator[Finding]:
    """Check that Redis evicts no queues to make room."""
    word, limit = info.text("maxmemory_policy"), info.number("maxmemory")
    if not word or limit is None:
        return
    check, evicted = "memory policy", info.number("evicted_keys") or 0
    setting = f"maxmemory-policy is {word}" + (f"; {plural(evicted, 'key')} evicted since the start" if evicted else "")
    advice = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
    if word == "noeviction":
        if evicted:
            yield warning(check, setting, "the evicted keys may have been parts of queues: see below")
        else:
            yield ok(check, setting)
    elif word.startswith("volatile-"):
        # keys of queues have no expiry in Redis, so Redis never evicts them under this policy
        yield warning(check, f"{setting}: queues are safe, since their keys have no expiry; others' keys go", advice)
    elif limit:
        yield problem(check, f"{setting}: when memory is full, Redis evicts keys of queues without a word", advice)
    else:
        yield warning(check, f"{setting}: harmless only as long as maxmemory is 0", advice)


def memory(info: ServerInfo) -> Iterator[Finding]:
    """Check the memory that is left."""
    used, limit, machine = (info.number(n) for n in ("used_memory", "maxmemory", "total_system_memory"))
    if used is None:
        return
    text = f"{as_size(used)} of {as_size(limit)} used" if limit else f"{as_size(used)} used, no limit"
    if limit and used >= limit:
        yield problem("memory", f"{text}: producers are refused now", "consume or purge, or raise maxmemory")
    elif limit and used >= NEARLY * limit:
        advice = "consume or purge, or raise maxmemory; max_length bounds a queue"
        yield warning("memory", f"{text}: producers are refused soon", advice)
    elif not limit and machine and used >= OF_MACHINE * machine:
        advice = "set maxmemory to the memory that the machine can spare, or the system will end Redis"
        yield warning("memory", f"{text}, on a machine with {as_size(machine)}", advice)
    else:
        yield ok("memory", text + (f" (the machine has {as_size(machine)})" if machine and not limit else ""))


def persistence(info: ServerInfo) -> Iterator[Finding]:
    """Check the messages that a crash can lose."""
    appending = info.number("aof_enabled")
    if appending is None:
        return
    yield from (_appended(info) if appending else _saved(info))


def _appended(info: ServerInfo) -> Iterator[Finding]:
    when = info.setting("appendfsync")
    slow = info.number("aof_delayed_fsync") or 0
    late = f"; the disk was too slow for it {plural(slow, 'time')}" if slow else ""
    if when == "always":
        yield ok(_PERSISTENCE, "append-only file, appendfsync always: a crash loses nothing that was confirmed")
    elif when == "everysec":
        text = "a crash of the machine, or a kill -9 of redis-server alone while the disk is busy, loses up to 2 s"
        yield ok(_PERSISTENCE, f"append-only file, appendfsync everysec: {text}{late}")
    elif when == "no":
        text = "append-only file, appendfsync no: a crash of the machine loses half a minute or so"
        yield warning(_PERSISTENCE, text, "CONFIG SET appendfsync everysec")
    else:
        yield warning(_PERSISTENCE, "append-only file, appendfsync cannot be read", "see that it is everysec or always")


def _saved(info: ServerInfo) -> Iterator[Finding]:
    points = info.setting("save")
    if points == "":
        yield problem(_PERSISTENCE, "none: a crash or a restart loses every message and every queue", _ON)
        return
    changes, last = info.number("rdb_changes_since_last_save"), info.number("rdb_last_save_time")
    ago = "" if last is None or info.now is None else f", {format_age(timedelta(seconds=max(0, info.now - last)))} ago"
    lost = f"{changes:,} changes now" if changes is not None else "an unknown number of changes"
    guess = "" if points else " (if any are made: `save` cannot be read)"
    yield warning(_PERSISTENCE, f"snapshots only{guess}: a crash loses all since the last one{ago}, {lost}", _ON)


def disk(info: ServerInfo) -> Iterator[Finding]:
    """Check that the last writes to disk succeeded: otherwise Redis refuses all further writes."""
    room, refused = "make room on the disk of Redis, see its log", ": every write is refused"
    findings: list[Finding] = []
    if info.text("aof_last_write_status") == "err" and info.number("aof_enabled"):
        findings += [problem("disk", f"the last write to the append-only file failed{refused}", room)]
    if info.text("rdb_last_bgsave_status") == "err":
        goes_on = info.setting("stop-writes-on-bgsave-error") == "no" or info.setting("save") == ""
        text, advice = "the last snapshot failed", f"{room}; then BGSAVE"
        findings += [warning("disk", text, advice) if goes_on else problem("disk", f"{text}{refused}", advice)]
    if info.text("aof_last_bgrewrite_status") == "err":
        findings += [warning("disk", "the last rewrite of the append-only file failed: it grows on", room)]
    if not findings and info.text("rdb_last_bgsave_status"):
        findings += [ok("disk", "the last writes went well")]
    yield from findings
