"""`rqttl queue purge` and `rqttl queue delete`: what they would do, asking, doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting, json_flag, queues_argument
from rqttl.cli.queue.each import Facts, contents, for_each, handles
from rqttl.errors import QueueInUse, QueueNotFound
from rqttl.types import QueueStats

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue


@click.command(epilog="\b\nExample: rqttl queue purge orders --dry-run")
@queues_argument
@yes_flag
@dry_run_flag
@json_flag
@connecting
def purge(queues: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool, settings: Settings) -> None:
    """Remove the ready messages of queues.

    They are gone: nothing is dead-lettered. Leased and delayed messages stay.
    """
    with settings.using() as broker:
        chosen = handles(broker, queues)
        if dry_run:
            found = _found(broker, chosen)
            for_each(chosen, lambda queue: {"would_purge": _there(found, queue).ready}, _purged, as_json=as_json)
            return
        if not yes:
            _ask_to_purge(_found(broker, chosen))
        for_each(chosen, lambda queue: {"purged": queue.purge()}, _purged, as_json=as_json)


def _ask_to_purge(found: dict[str, QueueStats]) -> None:
    if not found:
        return  # whatever is done to them is refused
    ready = text.plural(sum(stats.ready for stats in found.values()), "ready message")
    if len(found) == 1:
        confirm(f"Purge {ready} of {next(iter(found))}?", yes=False)
        return
    for name, stats in found.items():
        output.note(f"{name}: {text.count(stats.ready)} ready ({text.size(stats.ready_bytes)})")
    confirm(f"Purge these {ready} of {len(found)} queues?", yes=False)


def _purged(queue: Queue, facts: Facts) -> str:
    if "would_purge" in facts:
        return f"queue {queue.name}: {text.plural(facts['would_purge'], 'ready message')} would be removed"
    return f"queue {queue.name}: {text.plural(facts['purged'], 'ready message')} removed"


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
    """Delete queues with all that is in them.

    Messages in any state are gone: nothing is dead-lettered.
    """
    with settings.using() as broker:
        chosen = handles(broker, queues)
        if dry_run:
            found = _found(broker, chosen)
            for_each(
                chosen,
                lambda queue: _would_delete(queue.name, _there(found, queue), if_unused=if_unused, if_empty=if_empty),
                lambda queue, _: f"queue {queue.name} would be deleted ({contents(found[queue.name])})",
                as_json=as_json,
            )
            return
        if not yes:
            _ask_to_delete(_found(broker, chosen))
        for_each(
            chosen,
            lambda queue: {"deleted": True, "ready": queue.delete(if_unused=if_unused, if_empty=if_empty)},
            lambda queue, facts: f"queue {queue.name} deleted, with {text.plural(facts['ready'], 'ready message')}",
            as_json=as_json,
        )


def _ask_to_delete(found: dict[str, QueueStats]) -> None:
    if not found:
        return  # whatever is done to them is refused
    if len(found) == 1:
        ((name, stats),) = found.items()
        confirm(f"Delete {name} ({contents(stats)})?", yes=False)
        return
    for name, stats in found.items():
        output.note(f"{name}: {contents(stats)}")
    confirm(f"Delete these {len(found)} queues with all that is in them?", yes=False)


def _would_delete(name: str, stats: QueueStats, *, if_unused: bool, if_empty: bool) -> Facts:
    """What `delete` would find. Raises `QueueInUse` as it would."""
    messages = stats.ready + stats.leased + stats.delayed
    if if_unused and stats.consumers:
        raise QueueInUse(name, "if_unused", stats.consumers)
    if if_empty and messages:
        raise QueueInUse(name, "if_empty", messages)
    return {"would_delete": True, "ready": stats.ready, "leased": stats.leased, "delayed": stats.delayed,
            "consumers": stats.consumers}  # fmt: skip


def _found(broker: Broker, queues: list[Queue]) -> dict[str, QueueStats]:
    return broker.stats([queue.name for queue in queues])


def _there(found: dict[str, QueueStats], queue: Queue) -> QueueStats:
    if queue.name not in found:
        raise QueueNotFound(queue.name)
    return found[queue.name]
