"""Checks of the server: its kind, its role, its time limits and its replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.doctor.server_info import ServerInfo, moment
from rqttl.embedded.folder import is_claimed
from rqttl.flows import Flow
from rqttl.text import plural

LEAST = (6, 2)
#: Releases that close a hole through which a script takes over the server (CVE-2025-49844).
SAFE: dict[str, dict[tuple[int, ...], int]] = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(8, 0): 6},
}
#: Seconds by which two clocks may differ.
CLOCKS = 1.0
#: Milliseconds. A script of rqttl takes some ms, so a server with a shorter limit answers BUSY for no reason.
SHORTEST_PATIENCE = 100
#: Seconds. A server with a shorter `timeout` closes connections of working consumers too.
SHORTEST_TIMEOUT = 30


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def kind(info: ServerInfo) -> Iterator[Finding]:
    """Check the kind of the server, its version and its mode."""
    if info.why_no_info:
        yield warning(
            "server",
            f"INFO cannot be read: {info.why_no_info}",
            "give this user +info; until then version, memory and persistence are not checked",
        )
        return
    valkey = info.text("valkey_version")
    version = valkey or info.text("redis_version")
    name = "Valkey" if valkey else "Redis"
    mode = info.text("redis_mode") or "unknown mode"
    release = f"{name} {version}, {mode}"
    if mode == "cluster":
        yield problem("server", release, "Redis Cluster is not supported: use one server, or one primary with replicas")
    elif mode == "sentinel":
        yield problem("server", release, "this is a Sentinel, it keeps no queues: connect to the primary it watches")
    elif not valkey and _version(version) < LEAST:
        yield problem("server", release, "Redis 6.2 or later is needed")
    else:
        yield from _patched(info, release, name, _version(version))


def _patched(info: ServerInfo, release: str, name: str, version: tuple[int, ...]) -> Iterator[Finding]:
    least = SAFE[name.lower()].get(version[:2])
    if least is not None and (*version, 0)[2] < least:
        safe = f"{version[0]}.{version[1]}.{least}"
        if _is_private(info):
            yield ok(
                "server",
                f"{release}; CVE-2025-49844 (closed in {safe}) is for strangers who may run scripts: here only the "
                "server's own user can connect, through a unix socket",
            )
            return
        yield warning(
            "server",
            f"{release}; before {safe} a script could take over the server (CVE-2025-49844)",
            f"update to {safe} or later, unless your distribution has closed it; let no stranger run scripts",
        )
    else:
        yield ok("server", release)


def _is_private(info: ServerInfo) -> bool:
    """Tell whether a server listens on a unix socket of its own user and nowhere else, as an embedded one does."""
    return (
        info.setting("port") == "0"
        and info.setting("tls-port") in (None, "0")  # a server without TLS has no such setting
        and bool(info.setting("unixsocket"))
        and info.setting("unixsocketperm") == "700"
    )


def is_embedded(info: ServerInfo) -> bool:
    """Tell whether this is an embedded server: only its own user can connect, and its folder has the mark of rqttl."""
    return _is_private(info) and is_claimed(Path(info.setting("dir") or ""))


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
        yield problem(
            "replicas",
            f"{copies}; {good} in step, {least} needed: every write is refused",
            "bring the replicas back, or lower min-replicas-to-write",
        )
    elif count and not least:
        yield warning(
            "replicas",
            f"{copies}, but no write waits for one: a failover may lose seconds of messages",
            "set min-replicas-to-write 1 and min-replicas-max-lag 2",
        )
    else:
        yield ok("replicas", f"{copies}, {least} needed for writes" if least else copies)


def patience(info: ServerInfo) -> Iterator[Finding]:
    """Check the time limits of scripts and connections."""
    name = "busy-reply-threshold" if _version(info.text("redis_version")) >= (7,) else "lua-time-limit"
    limit = info.whole(name)
    if limit is not None and 0 < limit < SHORTEST_PATIENCE:
        yield warning(
            "script time",
            f"{name} is {limit} ms: others are told BUSY while a script does its work",
            f"set {name} to its default, 5000",
        )
    elif limit is not None:
        yield ok("script time", f"{name} is {limit} ms")
    idle = info.whole("timeout")
    if idle is not None and 0 < idle < SHORTEST_TIMEOUT:
        yield warning(
            "connections",
            f"timeout is {idle} s: connections of idle producers are closed all the time",
            "set timeout 0, or some minutes",
        )
    alive = info.whole("tcp-keepalive")
    if alive == 0:
        yield warning(
            "connections",
            "tcp-keepalive is 0: a client behind a cut network is never noticed",
            "set tcp-keepalive to its default, 300",
        )
    elif idle is not None and alive is not None and not 0 < idle < SHORTEST_TIMEOUT:
        yield ok("connections", f"timeout is {idle} s, tcp-keepalive {alive} s")


def clock(wall: Callable[[], float] = time.time, timer: Callable[[], float] = time.perf_counter) -> Flow[list[Finding]]:
    """Compare the clock of Redis, which decides, with the clock of this machine, which may give `expires_at`."""
    trip, ahead = yield from _compare(wall, timer)
    for _ in range(2):
        trip, ahead = min((trip, ahead), (yield from _compare(wall, timer)))
    if abs(ahead) - trip / 2 > CLOCKS:
        return [
            warning(
                "clock",
                f"Redis is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine",
                "an `expires_at` of a client here is off by as much: let NTP keep both clocks",
            )
        ]
    return [ok("clock", f"within {max(abs(ahead), trip, 0.001):.3f} s of this machine")]


def _compare(wall: Callable[[], float], timer: Callable[[], float]) -> Flow[tuple[float, float]]:
    """Seconds of a round trip, and seconds by which Redis is ahead if it read its clock in the middle of the trip."""
    asked, started = wall(), timer()
    remote = yield from moment()
    trip = timer() - started
    return trip, remote - (asked + trip / 2)
