"""Checks of the server: what it is, its role, its limits of time, its replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rqttl.doctor.facts import Facts
from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.embedded.folder import is_claimed
from rqttl.text import plural

LEAST = (6, 2)
#: From these releases on a known hole is closed, through which a script takes over the server (CVE-2025-49844).
SAFE: dict[str, dict[tuple[int, ...], int]] = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(8, 0): 6},
}
#: Seconds by which clocks may differ.
CLOCKS = 1.0
#: A script of rqttl takes milliseconds; a server that says BUSY before this many ms would say so for no reason.
SHORTEST_PATIENCE = 100
#: Seconds of idleness after which a server that closes connections closes those of working consumers too.
SHORTEST_TIMEOUT = 30


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def kind(facts: Facts) -> Iterator[Finding]:
    """Which server, which version, which mode."""
    if facts.why_no_info:
        yield warning(
            "server",
            f"INFO cannot be read: {facts.why_no_info}",
            "give this user +info; until then version, memory and persistence are not checked",
        )
        return
    valkey = facts.text("valkey_version")
    version = valkey or facts.text("redis_version")
    name = "Valkey" if valkey else "Redis"
    mode = facts.text("redis_mode") or "unknown mode"
    said = f"{name} {version}, {mode}"
    if mode == "cluster":
        yield problem("server", said, "Redis Cluster is not supported: use one server, or one primary with replicas")
    elif mode == "sentinel":
        yield problem("server", said, "this is a Sentinel, it keeps no queues: connect to the primary it watches")
    elif not valkey and _version(version) < LEAST:
        yield problem("server", said, "Redis 6.2 or later is needed")
    else:
        yield from _patched(facts, said, name, _version(version))


def _patched(facts: Facts, said: str, name: str, version: tuple[int, ...]) -> Iterator[Finding]:
    least = SAFE[name.lower()].get(version[:2])
    if least is not None and (*version, 0)[2] < least:
        release = f"{version[0]}.{version[1]}.{least}"
        if _is_private(facts):
            yield ok(
                "server",
                f"{said}; CVE-2025-49844 (closed in {release}) is for strangers who may run scripts: here only the "
                "server's own user can connect, through a unix socket",
            )
            return
        yield warning(
            "server",
            f"{said}; before {release} a script could take over the server (CVE-2025-49844)",
            f"update to {release} or later, unless your distribution has closed it; let no stranger run scripts",
        )
    else:
        yield ok("server", said)


def _is_private(facts: Facts) -> bool:
    """Tell whether a server listens on a unix socket of its own user and nowhere else, as an embedded one does."""
    return (
        facts.setting("port") == "0"
        and facts.setting("tls-port") in (None, "0")  # a server without TLS has no such setting
        and bool(facts.setting("unixsocket"))
        and facts.setting("unixsocketperm") == "700"
    )


def is_embedded(facts: Facts) -> bool:
    """Tell whether this is an embedded server: only its own user can connect, and its folder has the mark of rqttl."""
    return _is_private(facts) and is_claimed(Path(facts.setting("dir") or ""))


def role(facts: Facts) -> Iterator[Finding]:
    """Whether this is the server to write to."""
    if facts.text("role") == "slave":
        link = facts.text("master_link_status") or "unknown"
        yield problem("role", f"a replica, its link is {link}: it refuses writes", "connect to its primary")
    elif facts.text("role"):
        yield ok("role", "primary")


def replicas(facts: Facts) -> Iterator[Finding]:
    """What a failover can lose, and whether writes are refused for want of replicas."""
    count = facts.number("connected_slaves")
    if count is None or facts.text("role") == "slave":
        return
    least, good = facts.whole("min-replicas-to-write") or 0, facts.number("min_slaves_good_slaves")
    said = plural(count, "replica") if count else "no replica: there is no other copy of the data"
    if good is not None and good < least:
        yield problem(
            "replicas",
            f"{said}; {good} in step, {least} needed: every write is refused",
            "bring the replicas back, or lower min-replicas-to-write",
        )
    elif count and not least:
        yield warning(
            "replicas",
            f"{said}, but no write waits for one: a failover may lose seconds of messages",
            "set min-replicas-to-write 1 and min-replicas-max-lag 2",
        )
    else:
        yield ok("replicas", f"{said}, {least} needed for writes" if least else said)


def patience(facts: Facts) -> Iterator[Finding]:
    """Time limits of scripts and connections."""
    name = "busy-reply-threshold" if _version(facts.text("redis_version")) >= (7,) else "lua-time-limit"
    limit = facts.whole(name)
    if limit is not None and 0 < limit < SHORTEST_PATIENCE:
        yield warning(
            "script time",
            f"{name} is {limit} ms: others are told BUSY while a script does its work",
            f"set {name} to its default, 5000",
        )
    elif limit is not None:
        yield ok("script time", f"{name} is {limit} ms")
    idle = facts.whole("timeout")
    if idle is not None and 0 < idle < SHORTEST_TIMEOUT:
        yield warning(
            "connections",
            f"timeout is {idle} s: connections of idle producers are closed all the time",
            "set timeout 0, or some minutes",
        )
    alive = facts.whole("tcp-keepalive")
    if alive == 0:
        yield warning(
            "connections",
            "tcp-keepalive is 0: a client behind a cut network is never noticed",
            "set tcp-keepalive to its default, 300",
        )
    elif idle is not None and alive is not None and not 0 < idle < SHORTEST_TIMEOUT:
        yield ok("connections", f"timeout is {idle} s, tcp-keepalive {alive} s")


def clock(facts: Facts) -> Iterator[Finding]:
    """The clock of Redis, which decides, against the one of this machine, from which `expires_at` may come."""
    trip, ahead = min(_compare(facts) for _ in range(3))
    if abs(ahead) - trip / 2 > CLOCKS:
        yield warning(
            "clock",
            f"Redis is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine",
            "an `expires_at` of a client here is off by as much: let NTP keep both clocks",
        )
    else:
        yield ok("clock", f"within {max(abs(ahead), trip, 0.001):.3f} s of this machine")


def _compare(facts: Facts) -> tuple[float, float]:
    """Seconds that a question took, and how far Redis is ahead, if it looked at its clock in the middle of that."""
    asked, started = time.time(), time.perf_counter()
    there = facts.time()
    trip = time.perf_counter() - started
    return trip, there - (asked + trip / 2)
