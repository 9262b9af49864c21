"""The same action for each of several queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.errors import explain
from rqttl.cli.common.exits import Refused
from rqttl.errors import QueueInUse, QueueNotFound, RqttlError
from rqttl.types import QueueStats, State

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue

#: The result of an action on one queue, for `json_text.dump`.
Result = dict[str, Any]


def handles(broker: Broker, names: Sequence[str]) -> list[Queue]:
    """A handle for each name, once. Raises `InvalidName` for the first invalid one, before any action."""
    return [broker.queue(name) for name in dict.fromkeys(names)]


def for_each(
    queues: Sequence[Queue], act: Callable[[Queue], Result], describe: Callable[[Queue, Result], str], *, as_json: bool
) -> None:
    """Act on each queue, and print each result as `describe` has it. A refusal of one queue does not stop the others.

    Raises the refusal of a single queue, or `Refused` for some of several. An action that is cut short still prints the
    results so far.
    """
    results: list[Result] = []
    refusals: list[RqttlError] = []
    try:
        for queue in queues:
            try:
                result = act(queue)
            except (QueueNotFound, QueueInUse) as error:
                refusals.append(error)
                results.append({"queue": queue.name, "error": error.code})
                if len(queues) > 1:
                    output.note(explain(error)[1])
            else:
                results.append({"queue": queue.name, **result})
                if not as_json:
                    output.answer(describe(queue, result))
    finally:
        if as_json:
            output.answer_json(results)
    if refusals and len(queues) == 1:
        raise refusals[0]
    if refusals:
        raise Refused(f"{len(refusals)} of {text.plural(len(queues), 'queue')} refused; the lines above say why")


def describe_contents(stats: QueueStats) -> str:
    """The messages and consumers of a queue, in a few words."""
    states = [f"{text.format_count(n)} {state}" for state in get_args(State) if (n := getattr(stats, state))]
    users = [text.plural(stats.consumers, "consumer")] if stats.consumers else []
    return ", ".join((states or ["empty"]) + users)
