"""Flows that sweep a queue, in bounded steps."""

from __future__ import annotations

from collections.abc import Iterable

from rqttl.flows.steps import NOT_THERE, OUTDATED, Flow, GetConfig, Read, Register, dispatch
from rqttl.options import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Ok, Options, QueueConfig, Refused, Word
from rqttl.protocol.keys import Keyspace
from rqttl.types import SweepResult

#: The largest number of bounded steps of a sweep before a statistic.
SWEEPS = 50


def sweep(queue: str, *, rounds: int | None = None, now: Word = "") -> Flow[list[SweepResult]]:
    """Sweep in bounded steps until nothing is due, or `rounds` times."""
    done: list[SweepResult] = []
    while rounds is None or len(done) < rounds:
        done.append(swept((yield from _step(queue, now))))
        if not done[-1].more:
            break
    return done


def _step(queue: str, now: Word) -> Flow[Ok]:
    config = yield GetConfig(queue, for_sweep=True)
    while True:
        answer = yield from dispatch(commands.sweep(config, now=now), OUTDATED)
        if type(answer) is not Refused:
            return answer
        config = yield GetConfig(queue, fresh=True, for_sweep=True)


def swept(values: Ok) -> SweepResult:
    """The values of sweep.lua."""
    done = (values.reclaimed, values.promoted, values.expired, values.trimmed, values.compacted, values.activated)
    retired = None if values.retired == b"" else values.retired
    return SweepResult(values.now, int(values.due) if values.due else None, bool(values.more), *done, retired)


def retire(config: QueueConfig) -> Flow[None]:
    """Delete a queue at the end of its lifetime, in bounded steps. A queue that was used meanwhile lives on."""
    while True:
        answer = yield from dispatch(commands.sweep(config), OUTDATED)
        if type(answer) is Refused or not answer.more:  # after a refusal: another client was faster
            return


def config_if_exists(keyspace: Keyspace, queue: str, *, for_sweep: bool = False) -> Flow[QueueConfig | None]:
    """The config in force; `None` for a missing queue.

    A queue at the end of its lifetime is deleted first, unless a sweep is to do it.
    """
    command = commands.lookup(keyspace, queue)
    while True:
        answer = yield from dispatch(command, NOT_THERE)
        if type(answer) is not Refused:
            return config_of(keyspace, queue, answer)
        if answer.code == "not_found":
            return None
        version, in_force = answer.details
        options = QueueOptions.from_json(queue, in_force)
        ended = Options(options, options).config(keyspace, version)
        if for_sweep:
            return ended
        yield from retire(ended)


def config_of(keyspace: Keyspace, queue: str, answer: Ok) -> QueueConfig:
    """The config in the answer to a look-up."""
    return QueueConfig.read(keyspace, queue, answer.version, answer.options, answer.declared, answer.policies)


def given_up(before: QueueOptions, after: QueueOptions) -> set[str]:
    """The queues to which dead letters went before, and do not go any more."""
    return set() if before == after else before.targets() - after.targets() - {before.queue}


def register_missing(keyspace: Keyspace, queues: Iterable[str]) -> Flow[list[str]]:
    """Register the queues of these that exist and are missing in the registry. Returns those that were missing."""
    names = sorted(queues)
    calls: list[tuple[Word, ...]] = [("SISMEMBER", keyspace.registry, name) for name in names]
    calls += [("EXISTS", keyspace.key(name, "meta")) for name in names]
    replies = (yield Read(calls)) if calls else []
    states = zip(names, replies[: len(names)], replies[len(names) :], strict=True)
    missing = [name for name, is_listed, exists in states if exists and not is_listed]
    for name in missing:
        yield Register(name)
    return missing
