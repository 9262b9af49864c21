"""Findings of the doctor, in a form that tests can compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from redis.exceptions import NoPermissionError

from rqttl import Broker
from rqttl.doctor import Finding, examine, examine_queues, repair
from rqttl.doctor.server_info import SETTINGS, ServerInfo


class Told(ServerInfo):
    """ServerInfo as a server might tell them that no test can start. A setting that is missing is hidden."""

    def __init__(self, info: Mapping[str, Any], settings: Mapping[str, str] | None = None) -> None:
        hidden = dict.fromkeys(SETTINGS, NoPermissionError("hidden"))
        super().__init__(info, {**hidden, **(settings or {})})


def of(findings: Iterable[Finding], check: str) -> list[tuple[str, str]]:
    """Level and text of the findings of one check."""
    return [(one.level, one.result) for one in findings if one.check == check]


def only(findings: Iterable[Finding], check: str) -> tuple[str, str, str]:
    """Level, text and advice of the one finding of a check. Whatever is not ok comes with advice."""
    [one] = [one for one in findings if one.check == check]
    assert bool(one.advice) == (one.level != "ok")
    return one.level, one.result, one.advice


def server(broker: Broker, check: str) -> tuple[str, str, str]:
    return only(examine(broker), check)


def wrong(broker: Broker, *names: str) -> list[tuple[str | None, str, str]]:
    """Queue, level and text of all that is not ok in queues."""
    return [(one.queue, one.level, one.result) for one in examine_queues(broker, names) if one.level != "ok"]


def repaired(broker: Broker, *names: str) -> dict[tuple[str, str], str]:
    """Carry out all repairs that are offered; afterwards none is. Returns what they say, by queue and kind."""
    wanted = dict.fromkeys(one.repair for one in examine_queues(broker, names) if one.repair is not None)
    done: dict[tuple[str, str], str] = {(one.queue, one.kind): repair(broker, one) for one in wanted}
    left = set(names) & set(broker.queues())
    if left or not names:
        assert [one for one in examine_queues(broker, sorted(left)) if one.repair] == []
    return done
