"""`rqttl queue update`: change some options of a queue, and say what that changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rqttl.cli import output, text
from rqttl.cli.asking import dry_run_flag
from rqttl.cli.queue_options import complete_names, flag, queue_options, read_names, shown
from rqttl.cli.shared import Settings, connecting, json_flag, queue_name_argument
from rqttl.options import OPTIONS, QueueOptions


@click.command(epilog="Example: rqttl queue update orders --message-ttl 5m --unset max-length")
@queue_name_argument
@queue_options
@click.option("--unset", multiple=True, metavar="OPTION", callback=read_names, shell_complete=complete_names,
              help="Put this option back to its default; may be repeated.")  # fmt: skip
@dry_run_flag
@json_flag
@connecting
def update(name: str, unset: list[str], dry_run: bool, as_json: bool, settings: Settings, **options: Any) -> None:
    """Change options of a queue.

    What is not given stays as it is. A change acts at once, also on messages
    that are there already.
    """
    changes = _changes({option: value for option, value in options.items() if value is not None}, unset)
    with settings.using() as broker:
        handle = broker.queue(name)
        before = handle.options()
        if dry_run:
            after = before.changed(changes)
        else:
            handle.update(**changes)
            after = handle.options()
    if as_json:
        output.answer_json({
            "queue": name, "dry_run": dry_run, "changed": list(before.differences(after)),
            "before": dict(before), "after": dict(after),
        })  # fmt: skip
        return
    changed = len(before.differences(after))
    would = "would be " if dry_run else ""
    output.answer(f"queue {name}: {text.plural(changed, 'option') if changed else 'nothing'} {would}changed")
    output.facts(_lines(before, after, changes))


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
