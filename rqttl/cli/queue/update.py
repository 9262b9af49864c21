"""`rqttl queue update`: change some options of a queue, and say what that changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.option_text import flag, json_name, option_facts, shown
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting, json_flag, queue_name_argument
from rqttl.cli.queue.options import complete_names, queue_options, read_names
from rqttl.options import OPTIONS, QueueOptions, UpdateResult


@click.command(epilog="\b\nExample: rqttl queue update orders --message-ttl 5m --unset max-length")
@queue_name_argument
@queue_options
@click.option("--unset", multiple=True, metavar="OPTION", callback=read_names, shell_complete=complete_names,
              help="Put this option back to its default; may be repeated.")  # fmt: skip
@yes_flag
@dry_run_flag
@json_flag
@connecting
def update(
    name: str, unset: list[str], yes: bool, dry_run: bool, as_json: bool, settings: Settings, **options: Any
) -> None:
    """Change options of a queue.

    Options that are not given stay as they are. A change acts at once, also on
    messages that are there already: a shorter --message-ttl and a lower limit
    let messages die. The command counts them and asks first.
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
        output.answer_json({
            "queue": name, "dry_run": dry_run, "changed": list(map(json_name, _differences(result))),
            "expired": result.expired, "trimmed": result.trimmed,
            "before": option_facts(result.before), "after": option_facts(result.after),
        })  # fmt: skip
        return
    changed = len(_differences(result))
    would = "would be " if dry_run else ""
    output.answer(f"queue {name}: {text.plural(changed, 'option') if changed else 'nothing'} {would}changed")
    output.facts(_lines(result.before, result.after, changes))
    for line in _deaths(result, ahead=dry_run):
        output.answer(line)


def _ask(name: str, preview: UpdateResult) -> None:
    """Ask if messages would die. Raises as `confirm` does."""
    deaths = _deaths(preview, ahead=True)
    for line in deaths:
        output.note(line)
    if deaths:
        confirm(f"Update {name}?", yes=False)


def _deaths(result: UpdateResult, *, ahead: bool) -> list[str]:
    """A line for each reason for which messages die, with the queue that they go to; `ahead` of the update or after."""
    kinds = (
        (result.expired, "expired", "would expire" if ahead else "expired", "--message-ttl"),
        (result.trimmed, "maxlen", "would be pushed out" if ahead else "pushed out", "a limit"),
    )
    lines = []
    for count, reason, verb, cause in kinds:
        if count:
            target = result.after.target(reason)
            where = f"dead-lettered to {target}" if target else "dropped"
            lines.append(f"{text.plural(count, 'message')} {verb} by {cause} ({where})")
    return lines


def _differences(result: UpdateResult) -> list[str]:
    return list(result.before.differences(result.after))


def _changes(given: Mapping[str, Any], unset: list[str]) -> dict[str, Any]:
    both = [name for name in unset if name in given]
    if both:
        raise click.UsageError(f"{flag(both[0])} is given a value and unset")
    changes = {**given, **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("nothing to change: give an option, or --unset OPTION")
    return changes


def _lines(before: QueueOptions, after: QueueOptions, changes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each option that has changed, and each that was to be changed and is as before."""
    lines = []
    for name, option in OPTIONS.items():
        if before[name] != after[name]:
            lines.append((flag(name), f"{shown(option, before[name])} -> {shown(option, after[name])}"))
        elif name in changes:
            lines.append((flag(name), f"{shown(option, after[name])}, as before"))
    return lines
