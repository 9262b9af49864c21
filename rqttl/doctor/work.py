"""Checks of what runs on the server: the scripts, and the reapers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from redis.exceptions import ResponseError

from rqttl import flows
from rqttl.doctor import reader
from rqttl.doctor.facts import Facts
from rqttl.doctor.findings import Finding, ok, problem, some, warning
from rqttl.protocol import replies
from rqttl.protocol import scripts as linker
from rqttl.protocol.commands import repair
from rqttl.store.driver import Driver
from rqttl.text import plural
from rqttl.units import as_text

#: What has been due for longer than this many ms, nobody sweeps.
OVERDUE = 5_000


def scripts(facts: Facts, queue: str) -> Iterator[Finding]:
    """Whether the scripts can be loaded, and run."""
    driver = facts.driver
    if not reader.may_write(driver, queue):
        yield warning(
            "scripts",
            "this user may only look, so scripts are not checked",
            "ask once more as the user of the programs that send and receive",
        )
        return
    try:
        for name in linker.names():
            script = linker.load(name)
            known = _load(driver, script.text)
            if known != script.sha:
                yield problem(
                    "scripts",
                    f"the server knows {name} by another name than its SHA-1",
                    "something between client and server changes what is sent: connect without it",
                )
                return
    except ResponseError as error:
        yield warning(
            "scripts",
            f"cannot be loaded: {error}",
            "give this user +script|load, or load them as another one after each restart",
        )
    try:
        driver.store.run(repair.audit(driver.keyspace, queue, "log", "", 1))
    except ResponseError as error:
        yield problem("scripts", f"cannot be run: {error}", "give this user +evalsha, and the keys of the namespace")
    else:
        yield ok("scripts", f"{plural(len(linker.names()), 'script')} known, and they run")


def _load(driver: Driver, text: str) -> str:
    return driver.store.call(replies.data, "SCRIPT", "LOAD", text).decode()


def reapers(facts: Facts, dues: Mapping[str, int | None]) -> Iterator[Finding]:
    """Whether due work gets done. `dues` are next due times of queues, as lower bounds: late ones are looked at."""
    driver = facts.driver
    now = driver.server_time()
    suspects = {name: due for name, due in dues.items() if due is not None and now - due > OVERDUE}
    looks = driver.perform(flows.look(driver.keyspace, list(suspects)))
    # the lifetime of a queue that is not among the looks is over, and nobody has deleted it
    waits = {name: now - due for name, due in suspects.items() if due and name not in looks.damaged}
    waits |= {name: stats.overdue // timedelta(milliseconds=1) for name, stats in looks.items()}
    late = {name: ms for name, ms in waits.items() if ms > OVERDUE}
    try:
        count: int | None = driver.reaper_count()
    except ResponseError:
        count = None
    listen = "it cannot be seen whether a reaper listens" if count is None else _listening(count)
    if not late:
        yield ok("reaper", f"{listen}; nothing is overdue")
        return
    names = sorted(late, key=lambda name: -late[name])
    said = f"{listen}; overdue by up to {as_text(late[names[0]] // 1000 * 1000)}: {some(names)}"
    if count:
        yield warning("reaper", said, "its log says why it does not keep up; another one may be started beside it")
    else:
        yield warning("reaper", said, "start one: `rqttl reaper`, as a service; or `rqttl reaper --once` from cron")


def _listening(count: int) -> str:
    return f"{plural(count, 'reaper')} listen{'s' * (count == 1)}" if count else "no reaper listens"
