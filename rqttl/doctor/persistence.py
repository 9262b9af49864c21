"""Checks of persistence: the messages that a crash can lose."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from rqttl.doctor.findings import Finding, ok, problem, warning
from rqttl.doctor.server_info import ServerInfo
from rqttl.text import format_age, plural

CHECK = "persistence"
_ON = "CONFIG SET appendonly yes, and the same in redis.conf"


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
        yield ok(CHECK, "append-only file, appendfsync always: a crash loses nothing that was confirmed")
    elif when == "everysec":
        text = "a crash of the machine, or a kill -9 of redis-server alone while the disk is busy, loses up to 2 s"
        yield ok(CHECK, f"append-only file, appendfsync everysec: {text}{late}")
    elif when == "no":
        text = "append-only file, appendfsync no: a crash of the machine loses half a minute or so"
        yield warning(CHECK, text, "CONFIG SET appendfsync everysec")
    else:
        yield warning(CHECK, "append-only file, appendfsync cannot be read", "see that it is everysec or always")


def _saved(info: ServerInfo) -> Iterator[Finding]:
    points = info.setting("save")
    if points == "":
        yield problem(CHECK, "none: a crash or a restart loses every message and every queue", _ON)
        return
    changes, last = info.number("rdb_changes_since_last_save"), info.number("rdb_last_save_time")
    ago = "" if last is None or info.now is None else f", {format_age(timedelta(seconds=max(0, info.now - last)))} ago"
    lost = f"{changes:,} changes now" if changes is not None else "an unknown number of changes"
    guess = "" if points else " (if any are made: `save` cannot be read)"
    yield warning(CHECK, f"snapshots only{guess}: a crash loses all since the last one{ago}, {lost}", _ON)


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
