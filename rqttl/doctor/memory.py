"""Checks of memory: the policy of a full server, and the space that is left."""

from __future__ import annotations

from collections.abc import Iterator

from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.doctor.server_info import ServerInfo
from rqttl.text import plural
from rqttl.units import as_size

#: Parts of `maxmemory` and of the machine from which on memory is nearly full.
NEARLY, OF_MACHINE = 0.9, 0.6


def policy(info: ServerInfo) -> Iterator[Finding]:
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


def left(info: ServerInfo) -> Iterator[Finding]:
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
