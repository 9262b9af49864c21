"""Findings of the doctor, in a form that tests can compare."""

from collections.abc import Iterable

from rqttl import Broker
from rqttl.doctor import Finding, examine


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
    """Queue, level and text of all that is not ok in queues, in the registry and in policies."""
    mine = ("queues", "queue", "keys", "registry", "policies")
    found = [one for one in examine(broker, names) if one.check in mine and one.level != "ok"]
    assert all(one.advice for one in found)
    return [(one.queue, one.level, one.result) for one in found]
