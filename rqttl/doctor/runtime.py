"""Checks of scripts and reapers."""

from __future__ import annotations

import re
from datetime import timedelta

from redis.exceptions import ResponseError

from rqttl import flows
from rqttl.doctor import rights
from rqttl.doctor.findings import Finding, first_few, ok, problem, warning
from rqttl.doctor.queues import Queues
from rqttl.flows.steps import Flow
from rqttl.protocol import commands, replies
from rqttl.protocol import scripts as linker
from rqttl.protocol.keys import Keyspace
from rqttl.text import plural
from rqttl.units import as_text

#: Milliseconds after which due work counts as overdue: no reaper keeps up with it.
OVERDUE = 5_000


def scripts(keyspace: Keyspace, queue: str) -> Flow[list[Finding]]:
    """Check that the scripts can be loaded and run."""
    if not (yield from rights.may_write(keyspace, queue)):
        text = "this user may only read, so scripts are not checked"
        return [warning("scripts", text, "check again as the user of the programs that send and receive")]
    findings: list[Finding] = []
    try:
        for name in linker.names():
            script = linker.load(name)
            sha = yield from flows.steps.execute(replies.data, "SCRIPT", "LOAD", script.text)
            if sha.decode() != script.sha:
                text = f"the server knows {name} by another name than its SHA-1"
                advice = "a program between client and server changes the text: connect without it"
                return [problem("scripts", text, advice)]
    except ResponseError as error:
        if re.search(r"unknown (sub)?command|engine", str(error), re.IGNORECASE):
            advice = "use a server with Lua: on Valkey load its Lua module; other servers may have none"
            return [problem("scripts", f"this server has no Lua: {error}", advice)]
        advice = "give this user +script|load, or load them as another one after each restart"
        findings.append(warning("scripts", f"cannot be loaded: {error}", advice))
    try:
        yield commands.lookup(keyspace, queue)
    except ResponseError as error:
        advice = "give this user +evalsha, and the keys of the namespace"
        return [*findings, problem("scripts", f"cannot be run: {error}", advice)]
    return findings or [ok("scripts", f"{plural(len(linker.names()), 'script')} loaded, and they run")]


def reapers(keyspace: Keyspace, seen: Queues) -> Flow[list[Finding]]:
    """Check that due work gets done."""
    now = yield from flows.steps.server_time()
    waits = {name: stats.overdue // timedelta(milliseconds=1) for name, stats in seen.looks.items()}
    # a queue without statistics is past its lifetime, and nobody has deleted it
    waits |= {name: now - due for name, due in seen.dues.items() if due and name not in seen.looks}
    late = {name: ms for name, ms in waits.items() if ms > OVERDUE}
    try:
        count: int | None = yield from flows.steps.reaper_count(keyspace)
    except ResponseError:
        count = None
    listen = "no reaper listens" if count == 0 else f"{plural(count or 0, 'reaper')} listen{'s' * (count == 1)}"
    listen = "it cannot be seen whether a reaper listens" if count is None else listen
    if not late:
        return [ok("reaper", f"{listen}; nothing is overdue")]
    names = sorted(late, key=lambda name: -late[name])
    state = f"{listen}; overdue by up to {as_text(late[names[0]] // 1000 * 1000)}: {first_few(names)}"
    if count:
        return [warning("reaper", state, "its log says why it does not keep up; another one may be started beside it")]
    return [warning("reaper", state, "start one: `rqttl reaper`, as a service; or `rqttl reaper --once` from cron")]
