"""Checks of memory and persistence: what a full server does, and the messages that a crash can lose."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.doctor.server import ServerInfo
from rqttl.text import format_age, plural
from rqttl.units import as_size

_PERSISTENCE = "persistence"
_ON = "CONFIG SET appendonly yes, and the same in redis.conf"
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


def durability(info: ServerInfo) -> Iterator[Finding]:
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


def writing(info: ServerInfo) -> Iterator[Finding]:
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
