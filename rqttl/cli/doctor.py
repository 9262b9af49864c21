"""`rqttl doctor`: checks of the server and of the queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.errors import REFUSED
from rqttl.cli.common.params import any_queues_argument, json_flag, with_flags
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector.queues import select_names

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.doctor import Finding

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
#: Cells of the two columns before the text: the level, and the check.
LEVEL, CHECK = 8, 14


@click.command(epilog="\b\nExample: rqttl doctor 'orders.*' --json")
@any_queues_argument
@json_flag
@connecting
@click.pass_context
def doctor(context: click.Context, queues: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Check the server, and that queues are sound.

    The command checks all queues, or those named or matched by a QUEUE (with
    *, ? and [...]). It prints a line for each check: ok, warning or problem,
    with the remedy. It changes nothing. The exit code is 3 if there is a
    problem.
    """
    with settings.looking() as broker:
        names = tuple(select_names(broker, queues)) if queues else ()
        if queues and not names:
            output.note_no_queue(queues)
        findings = list(_examine(broker, names, as_json)) if names or not queues else []
    levels = Counter(finding.level for finding in findings)
    if as_json:
        counts = {"problems": levels["problem"], "warnings": levels["warning"], "ok": levels["ok"]}
        documents = [{**asdict(finding), "advice": finding.advice or None} for finding in findings]
        output.answer_json({**counts, "findings": documents})
    else:
        problems, warnings = text.plural(levels["problem"], "problem"), text.plural(levels["warning"], "warning")
        output.answer(f"{problems}, {warnings}, {text.format_count(levels['ok'])} ok")
    if levels["problem"]:
        context.exit(REFUSED)


def _examine(broker: Broker, queues: tuple[str, ...], as_json: bool) -> Iterator[Finding]:
    """The findings, each printed at once. Several findings with the same advice have it only once."""
    from rich.table import Table

    from rqttl.doctor import examine

    before: tuple[str | None, str] = (None, "")
    for finding in examine(broker, queues):
        if not as_json:
            table = Table.grid(padding=(0, 1))
            table.add_column(width=LEVEL, style=STYLES[finding.level])
            table.add_column(width=CHECK)
            table.add_column(overflow="fold")
            subject = f"{finding.queue}: " if finding.queue is not None else ""
            table.add_row(finding.level, finding.check, text.escape(f"{subject}{finding.result}"))
            if finding.advice and (finding.queue, finding.advice) != before:
                table.add_row("", "", f"-> {text.escape(with_flags(finding.advice))}")
            output.print_rich(table)
        before = finding.queue, finding.advice
        yield finding
