"""`rqttl doctor`: checks of the server and of the queues."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output, terminal
from rqttl.cli.common.exits import REFUSED
from rqttl.cli.common.option_text import with_flags
from rqttl.cli.common.params import any_queues_argument, json_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector.queues import select_names

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.doctor import Finding

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
#: Cells of the two columns before the text: the level, and the check.
LEVEL, CHECK = 9, 16


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
    with settings.using() as broker:
        names = tuple(select_names(broker, queues)) if queues else ()
        if queues and not names:
            output.note_no_queue(queues)
        findings = list(_examine(broker, names, as_json)) if names or not queues else []
    levels = Counter(finding.level for finding in findings)
    if as_json:
        counts = {"problems": levels["problem"], "warnings": levels["warning"], "ok": levels["ok"]}
        output.answer_json({**counts, "findings": [_to_json(finding) for finding in findings]})
    else:
        problems, warnings = text.plural(levels["problem"], "problem"), text.plural(levels["warning"], "warning")
        output.answer(f"{problems}, {warnings}, {text.format_count(levels['ok'])} ok")
    if levels["problem"]:
        context.exit(REFUSED)


def _examine(broker: Broker, queues: tuple[str, ...], as_json: bool) -> Iterator[Finding]:
    """The findings, each printed at once. Several findings with the same advice have it only once."""
    from rqttl.doctor import examine

    before: tuple[str | None, str] = (None, "")
    for finding in examine(broker, queues):
        if not as_json:
            again = (finding.queue, finding.advice) == before
            subject = _subject(finding.check, finding.queue)
            _print_line(finding.level, subject, finding.result, "" if again else finding.advice)
        before = finding.queue, finding.advice
        yield finding


def _subject(check: str, queue: str | None) -> str:
    return check if queue is None else f"{check} {queue}" if check != "queue" else queue


def _print_line(level: str, subject: str, result: str, advice: str = "") -> None:
    """Print a line for people, and one with the advice; folded on a terminal."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    subject, result, advice = (text.escape(part) for part in (subject, result, with_flags(advice)))
    beside = subject if len(subject) < CHECK else ""
    indent = " " * (LEVEL + CHECK)
    fold = textwrap.TextWrapper(max(20, columns - len(indent)), break_on_hyphens=False)
    folded = fold.wrap(result) or [""]
    fold.initial_indent, fold.subsequent_indent = "-> ", "   "
    lines = [f"{level:<{LEVEL}}{beside:<{CHECK}}{folded[0]}" if beside else f"{level:<{LEVEL}}{subject}"]
    lines += [indent + line for line in (folded[1:] if beside else folded)]
    lines += [indent + line for line in fold.wrap(advice)]
    if terminal.coloured():
        lines[0] = click.style(level, fg=COLOURS.get(level), bold=level == "problem") + lines[0][len(level) :]
    output.answer("\n".join(lines))


def _to_json(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "queue": finding.queue,
        "level": finding.level,
        "result": finding.result,
        "advice": finding.advice or None,
    }
