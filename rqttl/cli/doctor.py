"""`rqttl doctor`: checks of the server and of the queues, and repairs."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output, terminal
from rqttl.cli.common.exits import REFUSED
from rqttl.cli.common.option_text import with_flags
from rqttl.cli.common.params import any_queues_argument, json_flag
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector.select import select_names

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.doctor import Finding, Repair

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
#: Cells of the two columns before the text: the level, and the check.
LEVEL, CHECK = 9, 16


@click.command(epilog="\b\nExample: rqttl doctor orders --repair")
@any_queues_argument
@click.option("--repair", is_flag=True, help="Repair the damage that can be repaired, after a question.")
@yes_flag
@dry_run_flag
@json_flag
@connecting
@click.pass_context
def doctor(
    context: click.Context,
    queues: tuple[str, ...],
    repair: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Check the server, and that queues are sound.

    The command checks all queues, or those named or matched by a QUEUE (with
    *, ? and [...]). It prints a line for each check: ok, warning or problem,
    with the remedy. Without --repair it changes nothing. The exit code is 3 if
    a problem is left.
    """
    if (yes or dry_run) and not repair:
        raise click.UsageError(f"{'--yes' if yes else '--dry-run'} goes with --repair", context)
    with settings.using() as broker:
        names = tuple(select_names(broker, queues)) if queues else ()
        if queues and not names:
            output.note_no_queue(queues)
        findings = list(_examine(broker, names, as_json)) if names or not queues else []
        repairs = list(dict.fromkeys(finding.repair for finding in findings if finding.repair)) if repair else []
        done: list[dict[str, str]] = []
        left = findings
        if repairs and dry_run:
            done = [_print_planned(planned, as_json) for planned in repairs]
        elif repairs:
            _ask(repairs, yes=yes)
            done = [_repair(broker, planned, as_json) for planned in repairs]
            left = _examine_again(broker, findings, repairs)
    if as_json:
        output.answer_json({**_counts(left), "findings": [_to_json(finding) for finding in findings], "repairs": done})
    else:
        _print_summary(left, findings, repair=repair, dry_run=dry_run, done=bool(done))
    if _counts(left)["problems"]:
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


def _ask(repairs: list[Repair], *, yes: bool) -> None:
    if not yes:
        for planned in repairs:
            output.note(f"{planned.queue}: {planned.text}")
    confirm(f"Repair {text.plural(len(repairs), 'thing')}?", yes=yes)


def _print_planned(planned: Repair, as_json: bool) -> dict[str, str]:
    if not as_json:
        _print_line("would", planned.queue, planned.text)
    return {"queue": planned.queue, "repair": planned.kind, "would": planned.text}


def _repair(broker: Broker, planned: Repair, as_json: bool) -> dict[str, str]:
    from rqttl.doctor import repair

    done = repair(broker, planned)
    if not as_json:
        _print_line("repaired", planned.queue, done)
    return {"queue": planned.queue, "repair": planned.kind, "done": done}


def _examine_again(broker: Broker, findings: Iterable[Finding], repairs: Sequence[Repair]) -> list[Finding]:
    """The findings after repairs: new ones of the repaired queues, the old ones of the server and of other queues."""
    from rqttl.doctor import examine_queues

    repaired = {planned.queue for planned in repairs}
    existing = repaired & set(broker.queues())
    of_server = [finding for finding in findings if finding.queue is None and finding.repair not in repairs]
    others = [finding for finding in findings if finding.queue is not None and finding.queue not in repaired]
    again = examine_queues(broker, sorted(existing)) if existing else ()
    return of_server + others + [finding for finding in again if finding.queue is not None]


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    levels = Counter(finding.level for finding in findings)
    return {"problems": levels["problem"], "warnings": levels["warning"], "ok": levels["ok"]}


def _to_json(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "queue": finding.queue,
        "level": finding.level,
        "result": finding.result,
        "advice": finding.advice or None,
        "repair": finding.repair and finding.repair.text,
    }


def _print_summary(left: list[Finding], findings: list[Finding], *, repair: bool, dry_run: bool, done: bool) -> None:
    counts = _counts(left)
    problems, warnings = text.plural(counts["problems"], "problem"), text.plural(counts["warnings"], "warning")
    summary = f"{problems}, {warnings}, {text.format_count(counts['ok'])} ok"
    if done and not dry_run:
        summary = f"after the repairs: {summary}"
    elif repair and not done:
        summary += "; nothing to repair"
    output.answer(summary)
    if not repair and any(finding.repair for finding in findings):
        output.note("--repair repairs damage, after a question; --repair --dry-run only lists them")
