"""Checks of scripts and reapers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from redis.exceptions import ResponseError

from rqttl import flows
from rqttl.doctor import reader
from rqttl.doctor.findings import Finding, first_few, ok, problem, warning
from rqttl.flows import Flow
from rqttl.protocol import replies
from rqttl.protocol import scripts as linker
from rqttl.protocol.commands import repair
from rqttl.protocol.keys import Keyspace
from rqttl.text import plural
from rqttl.units import as_text

#: Milliseconds after which due work counts as overdue: no reaper keeps up with it.
OVERDUE = 5_000


def scripts(keyspace: Keyspace, queue: str) -> Flow[list[Finding]]:
    """Check that the scripts can be loaded and run."""
    if not (yield from reader.may_write(keyspace, queue)):
        return [
            warning(
                "scripts",
                "this user may only read, so scripts are not checked",
                "check again as the user of the programs that send and receive",
            )
        ]
    findings = yield from _loaded()
    if any(finding.level == "problem" for finding in findings):
        return findings
    try:
        yield repair.audit(keyspace, queue, "log", "", 1)
    except ResponseError as error:
        advice = "give this user +evalsha, and the keys of the namespace"
        return [*findings, problem("scripts", f"cannot be run: {error}", advice)]
    return [*findings, ok("scripts", f"{plural(len(linker.names()), 'script')} loaded, and they run")]


def _loaded() -> Flow[list[Finding]]:
    """Load all scripts."""
    try:
        for name in linker.names():
            script = linker.load(name)
            sha = yield from flows.execute(replies.data, "SCRIPT", "LOAD", script.text)
            if sha.decode() != script.sha:
                return [
                    problem(
                        "scripts",
                        f"the server knows {name} by another name than its SHA-1",
                        "a program between client and server changes the text: connect without it",
                    )
                ]
    except ResponseError as error:
        return [
            warning(
                "scripts",
                f"cannot be loaded: {error}",
                "give this user +script|load, or load them as another one after each restart",
            )
        ]
    return []


def reapers(keyspace: Keyspace, dues: Mapping[str, int | None]) -> Flow[list[Finding]]:
    """Check that due work gets done. `dues` are lower bounds of next due times; queues that seem late are looked at."""
    now = yield from flows.server_time()
    suspects = {name: due for name, due in dues.items() if due is not None and now - due > OVERDUE}
    looks = yield from flows.look(keyspace, list(suspects))
    # a queue without a look is past its lifetime, and no client has deleted it
    waits = {name: now - due for name, due in suspects.items() if due and name not in looks.damaged}
    waits |= {name: stats.overdue // timedelta(milliseconds=1) for name, stats in looks.items()}
    late = {name: ms for name, ms in waits.items() if ms > OVERDUE}
    try:
        count: int | None = yield from flows.reaper_count(keyspace)
    except ResponseError:
        count = None
    listen = "it cannot be seen whether a reaper listens" if count is None else _listening(count)
    if not late:
        return [ok("reaper", f"{listen}; nothing is overdue")]
    names = sorted(late, key=lambda name: -late[name])
    state = f"{listen}; overdue by up to {as_text(late[names[0]] // 1000 * 1000)}: {first_few(names)}"
    if count:
        return [warning("reaper", state, "its log says why it does not keep up; another one may be started beside it")]
    return [warning("reaper", state, "start one: `rqttl reaper`, as a service; or `rqttl reaper --once` from cron")]


def _listening(count: int) -> str:
    return f"{plural(count, 'reaper')} listen{'s' * (count == 1)}" if count else "no reaper listens"
