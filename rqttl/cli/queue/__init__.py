"""`rqttl queue`: create queues, change them, look at them, remove them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output, params
from rqttl.cli.common.params import (
    OPTION_NAME,
    QueueOptionsCommand,
    dry_run_flag,
    flag,
    format_value,
    json_flag,
    json_name,
    queue_name_argument,
    queue_options,
    queues_argument,
    yes_flag,
)
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.queue.remove import Result, delete, for_each, handles, purge
from rqttl.cli.queue.show import list_queues, show
from rqttl.errors import QueueNotFound
from rqttl.options import OPTIONS, UpdateResult

if TYPE_CHECKING:
    from rqttl.queue import Queue
    from rqttl.types import Declared

#: The outcomes of a declaration, for people.
DECLARED: dict[Declared, str] = {
    "created": "created",
    "existing": "exists already, with these options",
    "adopted": "declared; a dead letter had created it",
}


@click.group(epilog="\b\nExample: rqttl queue ls 'orders.*'")
def queue() -> None:
    """Create queues, change them, look at them."""


@queue.command(
    cls=QueueOptionsCommand, epilog="\b\nExample: rqttl queue declare orders --expires 1h --dead-letter '{queue}/dead'"
)
@queue_name_argument
@queue_options
@json_flag
@connecting
def declare(name: str, as_json: bool, settings: Settings, **options: Any) -> None:
    """Create a queue, unless it exists with these options.

    If it exists with other options nothing changes, and the exit code is 3.
    """
    arguments = {option: value for option, value in options.items() if value is not None}
    with settings.using() as broker:
        declared, in_force = broker.declare_queue(name, **arguments), None
        if as_json:
            with suppress(QueueNotFound):  # its --expires is over already
                in_force = params.to_json(declared.options())
    if as_json:
        output.answer_json({"queue": name, "declared": declared.declared, "options": in_force})
    else:
        output.answer(f"queue {name} {DECLARED[declared.declared or 'existing']}")


for command in (list_queues, show, purge, delete):
    queue.add_command(command)


@queue.command(short_help="Mark queues as used.", epilog="\b\nExample: rqttl queue touch orders")
@queues_argument
@json_flag
@connecting
def touch(queues: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Mark queues as used, so that --expires and --auto-delete-on-idle start again."""

    def mark(handle: Queue) -> Result:
        handle.touch()
        return {"touched": True}

    with settings.using() as broker:
        for_each(handles(broker, queues), mark, lambda handle, _: f"queue {handle.name} touched", as_json=as_json)


@queue.command(
    cls=QueueOptionsCommand, epilog="\b\nExample: rqttl queue update orders --message-ttl 5m --unset max-length"
)
@queue_name_argument
@queue_options
@click.option(
    "--unset",
    multiple=True,
    type=OPTION_NAME,
    metavar="OPTION",
    help="Put this option back to its default; may be repeated.",
)
@yes_flag
@dry_run_flag
@json_flag
@connecting
def update(
    name: str, unset: list[str], yes: bool, dry_run: bool, as_json: bool, settings: Settings, **options: Any
) -> None:
    """Change options of a queue.

    All other options stay as they are. A change acts at once, also on stored
    messages: a shorter --message-ttl and a lower limit let messages die. The
    command counts them and asks first.
    """
    changes = {option: value for option, value in options.items() if value is not None}
    for option in dict.fromkeys(unset):
        if option in changes:
            raise click.UsageError(f"{flag(option)} is given a value and unset")
        changes[option] = None
    if not changes:
        raise click.UsageError("nothing to change: give an option, or --unset OPTION")
    with settings.using() as broker:
        target = broker.queue(name)
        if dry_run:
            result = target.preview_update(**changes)
        else:
            if not yes:
                output.confirm_losses(f"Update {name}?", _deaths(target.preview_update(**changes), ahead=True))
            result = target.update(**changes)
    _print_update(name, changes, result, dry_run=dry_run, as_json=as_json)


def _print_update(name: str, changes: Iterable[str], result: UpdateResult, *, dry_run: bool, as_json: bool) -> None:
    changed = list(result.before.differences(result.after))
    if as_json:
        output.answer_json(
            {
                "queue": name,
                "dry_run": dry_run,
                "changed": list(map(json_name, changed)),
                "expired": result.expired,
                "trimmed": result.trimmed,
                "before": params.to_json(result.before),
                "after": params.to_json(result.after),
            }
        )
        return
    count = text.plural(len(changed), "option") if changed else "nothing"
    output.answer(f"queue {name}: {count} {'would be ' if dry_run else ''}changed")
    pairs = []
    for option, rule in OPTIONS.items():
        before, after = (format_value(rule, options[option]) for options in (result.before, result.after))
        if option in changed:
            pairs.append((flag(option), f"{before} -> {after}"))
        elif option in changes:
            pairs.append((flag(option), f"{after}, as before"))
    output.print_pairs(pairs)
    for line in _deaths(result, ahead=dry_run):
        output.answer(line)


def _deaths(result: UpdateResult, *, ahead: bool) -> list[str]:
    """A line for each reason of deaths, with the target of the letters; `ahead` of the update or after it."""
    kinds = (
        (result.expired, "expired", "would expire" if ahead else "expired", "--message-ttl"),
        (result.trimmed, "maxlen", "would be pushed out" if ahead else "pushed out", "a limit"),
    )
    lines = []
    for count, reason, verb, cause in kinds:
        if count:
            target = result.after.target(reason)
            outcome = f"dead-lettered to {target}" if target else "dropped"
            lines.append(f"{text.plural(count, 'message')} {verb} by {cause} ({outcome})")
    return lines
