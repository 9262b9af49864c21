"""Checks of memory: what Redis does when it is full, and how full it is."""

from __future__ import annotations

from collections.abc import Iterator

from rqttl.doctor.facts import Facts
from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.text import plural
from rqttl.units import as_size

#: How full is nearly full, of `maxmemory` and of the machine.
NEARLY, OF_MACHINE = 0.9, 0.6
#: Fragmentation matters from this ratio on, if so many bytes are lost to it.
FRAGMENTED, LOST = 1.5, 500_000_000


def policy(facts: Facts) -> Iterator[Finding]:
    """Whether Redis throws queues away to make room."""
    word, limit = facts.text("maxmemory_policy"), facts.number("maxmemory")
    if not word or limit is None:
        return
    check, evicted = "memory policy", facts.number("evicted_keys") or 0
    said = f"maxmemory-policy is {word}" + (f"; {plural(evicted, 'key')} evicted since the start" if evicted else "")
    advice = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
    if word == "noeviction":
        if evicted:
            yield warning(check, said, "what was evicted earlier may have been parts of queues: see below")
        else:
            yield ok(check, said)
    elif word.startswith("volatile-"):
        # keys of queues have no expiry of Redis', so nothing of them is ever chosen
        yield warning(check, f"{said}: queues are safe, since their keys have no expiry; others' keys go", advice)
    elif limit:
        yield problem(check, f"{said}: when memory is full, Redis throws keys of queues away, untold", advice)
    else:
        yield warning(check, f"{said}: harmless only as long as maxmemory is 0", advice)


def left(facts: Facts) -> Iterator[Finding]:
    """How much memory is left."""
    used, limit, machine = (facts.number(n) for n in ("used_memory", "maxmemory", "total_system_memory"))
    if used is None:
        return
    check = "memory"
    if limit and used >= limit:
        yield problem(
            check,
            f"{as_size(used)} of {as_size(limit)} used: producers are refused now",
            "consume or purge, or raise maxmemory",
        )
    elif limit and used >= NEARLY * limit:
        yield warning(
            check,
            f"{as_size(used)} of {as_size(limit)} used: producers are refused soon",
            "consume or purge, or raise maxmemory; max_length bounds a queue",
        )
    elif limit:
        yield ok(check, f"{as_size(used)} of {as_size(limit)} used")
    elif machine and used >= OF_MACHINE * machine:
        yield warning(
            check,
            f"{as_size(used)} used without a limit, on a machine with {as_size(machine)}",
            "set maxmemory to what the machine can spare, or the system will end Redis",
        )
    else:
        yield ok(
            check, f"{as_size(used)} used, no limit" + (f" (the machine has {as_size(machine)})" if machine else "")
        )
    yield from _fragmentation(facts, used)


def _fragmentation(facts: Facts, used: int) -> Iterator[Finding]:
    held, ratio = facts.number("used_memory_rss"), facts.ratio("mem_fragmentation_ratio")
    if held is not None and ratio is not None and ratio > FRAGMENTED and held - used > LOST:
        yield warning(
            "memory",
            f"fragmented: Redis holds {as_size(held)} for {as_size(used)}",
            "CONFIG SET activedefrag yes, or restart Redis at a quiet time",
        )
