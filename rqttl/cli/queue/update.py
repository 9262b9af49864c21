"""`rqttl queue update`: change some options of a queue, and print the effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rqttl import text
from rqttl.cli.common import option_text, output
from rqttl.cli.common.option_text import flag, format_value, json_name
from rqttl.cli.common.params import confirm, dry_run_flag, json_flag, queue_name_argument, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.option_flags import OptionNameType, QueueOptionsCommand, queue_options, unique
from rqttl.options import OPTIONS, QueueOptions, UpdateResult


@click.command(
    cls=QueueOptionsCommand, epilog="\b\nExample: rqttl queue update orders --message-ttl 5m --unset max-length"
)
@queue_name_argument
@queue_options
@click.option(
    "--unset",
    multiple=True,
    type=OptionNameType(),
    callback=unique,
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
    changes = _changes({option: value for option, value in options.items() if value is not None}, unset)
    with settings.using() as broker:
        queue = broker.queue(name)
        if dry_run:
            result = queue.preview_update(**changes)
        else:
            if not yes:
                _ask(name, queue.preview_update(**changes))
            result = queue.update(**changes)
    if as_json:
        output.answer_json(_to_json(name, result, dry_run=dry_run))
        return
    changed = len(_differences(result))
    would = "would be " if dry_run else ""
    output.answer(f"queue {name}: {text.plural(changed, 'option') if changed else 'nothing'} {would}changed")
    output.print_pairs(_pairs(result.before, result.after, changes))
    for line in _deaths(result, ahead=dry_run):
        output.answer(line)


def _to_json(name: str, result: UpdateResult, *, dry_run: bool) -> dict[str, Any]:
    return {
        "queue": name,
        "dry_run": dry_run,
        "changed": list(map(json_name, _differences(result))),
        "expired": result.expired,
        "trimmed": result.trimmed,
        "before": option_text.to_json(result.before),
        "after": option_text.to_json(result.after),
    }


def _ask(name: str, preview: UpdateResult) -> None:
    """Ask if messages would die. Raises as `confirm` does."""
    deaths = _deaths(preview, ahead=True)
    for line in deaths:
        output.note(line)
    if deaths:
        confirm(f"Update {name}?", yes=False)


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


def _differences(result: UpdateResult) -> list[str]:
    return list(result.before.differences(result.after))


def _changes(values: Mapping[str, Any], unset: list[str]) -> dict[str, Any]:
    both = [name for name in unset if name in values]
    if both:
        raise click.UsageError(f"{flag(both[0])} is given a value and unset")
    changes = {**values, **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("nothing to change: give an option, or --unset OPTION")
    return changes


def _pairs(before: QueueOptions, after: QueueOptions, changes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each option that has changed, and each one that a change left as it was."""
    pairs = []
    for name, option in OPTIONS.items():
        if before[name] != after[name]:
            pairs.append((flag(name), f"{format_value(option, before[name])} -> {format_value(option, after[name])}"))
        elif name in changes:
            pairs.append((flag(name), f"{format_value(option, after[name])}, as before"))
    return pairs
