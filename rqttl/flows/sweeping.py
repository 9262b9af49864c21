"""Flows that sweep a queue: they do its due work in bounded steps."""

from __future__ import annotations

from rqttl.flows.steps import OUTDATED, Flow, GetConfig, dispatch
from rqttl.protocol import commands
from rqttl.protocol.commands import Ok, QueueConfig, Refused, Word
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
    return SweepResult(
        values.now,
        int(values.due) if values.due else None,
        bool(values.more),
        values.reclaimed,
        values.promoted,
        values.expired,
        values.trimmed,
        values.compacted,
        None if values.retired == b"" else values.retired,
    )


def retire(config: QueueConfig, *, now: Word = "") -> Flow[None]:
    """Delete a queue at the end of its lifetime, in bounded steps. A queue that was used meanwhile lives on."""
    while True:
        answer = yield from dispatch(commands.sweep(config, now=now), OUTDATED)
        if type(answer) is Refused or not answer.more:  # after a refusal: another client was faster
            return
