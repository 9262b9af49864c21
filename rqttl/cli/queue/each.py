"""Commands that look at several queues, or do one thing to each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from rqttl.cli.common import output, text
from rqttl.cli.common.errors import Refused, explain
from rqttl.errors import QueueDamaged, QueueInUse, QueueNotFound, RqttlError
from rqttl.types import QueueStats

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue

Facts = dict[str, Any]


def handles(broker: Broker, names: Sequence[str]) -> list[Queue]:
    """A handle for each name, once. Raises `InvalidName` for the first that is none, before anything is done."""
    return [broker.queue(name) for name in dict.fromkeys(names)]


def plain(patterns: Sequence[str]) -> list[str]:
    """Those that are names and no patterns, each once."""
    return [one for one in dict.fromkeys(patterns) if not set(one) & set("*?[")]


def chosen(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """The names that were given, there or not, then those that match a pattern; without any, all there are."""
    names = plain(patterns)
    if patterns and len(names) == len(set(patterns)):
        return names
    found = [name for name in broker.queues() if not patterns or any(fnmatchcase(name, one) for one in patterns)]
    return list(dict.fromkeys([*names, *found]))


def matching(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """Names that are there and match, sorted. Raises `QueueNotFound` for a plain one that is not, `InvalidName`."""
    names = sorted(chosen(broker, patterns))
    there = set(broker.queues()) if plain(patterns) else ()
    for name in plain(patterns):
        if name not in there:
            raise QueueNotFound(broker.queue(name).name)
    return names


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


def refuse_damaged(damaged: Mapping[str, QueueDamaged]) -> None:
    """Raise an error that names the queues that cannot be read, if there are any. The answer has been printed."""
    errors = [error for _, error in sorted(damaged.items())]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        for error in errors:
            output.note(explain(error)[1])
        raise Refused(f"{text.plural(len(errors), 'queue')} cannot be read; the lines above say why")


def damaged_facts(damaged: Mapping[str, QueueDamaged]) -> list[Facts]:
    """The queues that cannot be read, for programs."""
    return [{"queue": name, "error": one.code, "damage": one.damage} for name, one in sorted(damaged.items())]


def running_reapers(broker: Broker) -> int | None:
    """The number of reapers that run; `None` if this user may not ask."""
    from redis.exceptions import ResponseError

    try:
        return broker.reapers()
    except ResponseError:
        return None


def contents(stats: QueueStats) -> str:
    """What a queue holds and who uses it, in a few words."""
    states = [f"{text.count(n)} {state}" for state in ("ready", "leased", "delayed") if (n := getattr(stats, state))]
    users = [text.plural(stats.consumers, "consumer")] if stats.consumers else []
    return ", ".join((states or ["empty"]) + users)
