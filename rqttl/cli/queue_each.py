"""Commands of several queues: which of them are meant, and doing one thing to each: purge, delete, touch."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rqttl.cli import output, text
from rqttl.cli.errors import Refused, explain
from rqttl.errors import QueueInUse, QueueNotFound, RqttlError
from rqttl.types import QueueStats

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue

Facts = dict[str, Any]


def handles(broker: Broker, names: Sequence[str]) -> list[Queue]:
    """A handle for each name, once. Raises `InvalidName` for the first that is none, before anything is done."""
    return [broker.queue(name) for name in dict.fromkeys(names)]


def matching(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """The names that match any of the patterns. Raises `QueueNotFound` for a name that is not there, `InvalidName`."""
    every = broker.queues()
    there = set(every)
    for pattern in patterns:
        if pattern not in there and not set(pattern) & set("*?["):
            raise QueueNotFound(broker.queue(pattern).name)
    return [name for name in every if not patterns or any(fnmatch.fnmatchcase(name, one) for one in patterns)]


def for_each(
    queues: Sequence[Queue], act: Callable[[Queue], Facts], tell: Callable[[Queue, Facts], str], *, as_json: bool
) -> None:
    """Do it to each queue, and tell each one's outcome: a refusal of one neither stops nor hides the others.

    `act` returns the facts of what it did, `tell` makes a line of them. Raises the refusal of a single queue, or
    `Refused` where some of several were. When it is cut short, what was done is still told.
    """
    done: list[Facts] = []
    refused: list[RqttlError] = []
    try:
        for queue in queues:
            try:
                facts = act(queue)
            except (QueueNotFound, QueueInUse) as error:
                refused.append(error)
                done.append({"queue": queue.name, "error": error.code})
                if len(queues) > 1:
                    output.note(explain(error)[1])
            else:
                done.append({"queue": queue.name, **facts})
                if not as_json:
                    output.answer(tell(queue, facts))
    finally:
        if as_json:
            output.answer_json(done)
    if refused and len(queues) == 1:
        raise refused[0]
    if refused:
        raise Refused(f"{len(refused)} of {text.plural(len(queues), 'queue')} refused; the lines above say why")


@contextmanager
def hinting(broker: Broker) -> Iterator[None]:
    """Where a queue is not found, say which one with nearly the same name there is."""
    try:
        yield
    except QueueNotFound as error:
        near = difflib.get_close_matches(error.queue, broker.queues(), n=1, cutoff=0.75)
        if not near:
            raise
        raise Refused(f"queue {error.queue!r} does not exist; did you mean {near[0]}?", error.code) from error


def contents(stats: QueueStats) -> str:
    """What a queue holds and who uses it, in a few words."""
    states = [f"{text.count(n)} {state}" for state in ("ready", "leased", "delayed") if (n := getattr(stats, state))]
    users = [text.plural(stats.consumers, "consumer")] if stats.consumers else []
    return ", ".join((states or ["empty"]) + users)
