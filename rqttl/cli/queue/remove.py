"""`rqttl queue purge` and `delete`, and calls on several queues, each with a result of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.errors import Refused, explain
from rqttl.cli.common.params import dry_run_flag, json_flag, queues_argument, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import QueueInUse, QueueNotFound, RqttlError
from rqttl.types import QueueStats, State
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue

#: The result of an action on one queue, for `text.dump_json`.
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


def _of(queue: Queue, stats: Mapping[str, QueueStats]) -> QueueStats:
    if queue.name not in stats:
        raise QueueNotFound(queue.name)
    return stats[queue.name]


def _contents(stats: QueueStats) -> str:
    states = [f"{text.format_count(n)} {state}" for state in get_args(State) if (n := getattr(stats, state))]
    users = [text.plural(stats.consumers, "consumer")] if stats.consumers else []
    return ", ".join((states or ["empty"]) + users)


def _ask(verb: str, queues: Mapping[str, QueueStats], what: Callable[[QueueStats], str]) -> None:
    """Ask about the queues that exist; without one, every action will be refused."""
    if len(queues) == 1:
        ((name, stats),) = queues.items()
        output.confirm(f"{verb} {name} ({what(stats)})?", yes=False)
    elif queues:
        for name, stats in queues.items():
            output.note(f"{name}: {what(stats)}")
        output.confirm(f"{verb} these {len(queues)} queues?", yes=False)


@click.command(epilog="\b\nExample: rqttl queue purge orders --dry-run")
@queues_argument
@yes_flag
@dry_run_flag
@json_flag
@connecting
def purge(queues: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool, settings: Settings) -> None:
    """Remove the ready messages of queues.

    The messages are gone: nothing is dead-lettered. Leased and delayed messages
    stay.
    """
    with settings.using() as broker:
        targets = handles(broker, queues)
        if dry_run or not yes:
            stats = broker.stats([queue.name for queue in targets])
        if not dry_run and not yes:
            _ask("Purge", stats, lambda one: f"{text.format_count(one.ready)} ready, {as_size(one.ready_bytes)}")
        key, removed = ("would_purge", "would be removed") if dry_run else ("purged", "removed")
        for_each(
            targets,
            lambda queue: {key: _of(queue, stats).ready if dry_run else queue.purge()},
            lambda queue, result: f"queue {queue.name}: {text.plural(result[key], 'ready message')} {removed}",
            as_json=as_json,
        )


@click.command(epilog="\b\nExample: rqttl queue delete orders --if-unused --if-empty")
@queues_argument
@click.option("--if-unused", is_flag=True, help="Only if it has no consumers.")
@click.option("--if-empty", is_flag=True, help="Only if it holds no message in any state.")
@yes_flag
@dry_run_flag
@json_flag
@connecting
def delete(
    queues: tuple[str, ...],
    if_unused: bool,
    if_empty: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Delete queues with all their messages.

    Messages in any state are gone: nothing is dead-lettered.
    """
    with settings.using() as broker:
        targets = handles(broker, queues)
        if dry_run or not yes:
            stats = broker.stats([queue.name for queue in targets])
        if dry_run:
            for_each(
                targets,
                lambda queue: _would_delete(queue.name, _of(queue, stats), if_unused=if_unused, if_empty=if_empty),
                lambda queue, _: f"queue {queue.name} would be deleted ({_contents(stats[queue.name])})",
                as_json=as_json,
            )
            return
        if not yes:
            _ask("Delete", stats, _contents)
        for_each(
            targets,
            lambda queue: {"deleted": True, "ready": queue.delete(if_unused=if_unused, if_empty=if_empty)},
            lambda queue, result: f"queue {queue.name} deleted, with {text.plural(result['ready'], 'ready message')}",
            as_json=as_json,
        )


def _would_delete(name: str, stats: QueueStats, *, if_unused: bool, if_empty: bool) -> Result:
    """The result that `delete` would have. Raises `QueueInUse` as it would."""
    if if_unused and stats.consumers:
        raise QueueInUse(name, "if_unused", stats.consumers)
    if if_empty and stats.depth:
        raise QueueInUse(name, "if_empty", stats.depth)
    return {
        "would_delete": True,
        **{state: getattr(stats, state) for state in get_args(State)},
        "consumers": stats.consumers,
    }
