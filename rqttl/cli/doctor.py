"""`rqttl doctor`: whether the server is fit for queues, and the queues are sound."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.errors import REFUSED
from rqttl.cli.common.option_text import with_flags
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.settings import Settings, any_queues_argument, connecting, json_flag
from rqttl.cli.queue.each import chosen

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.doctor import Finding, Repair

COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
#: The columns before the text: how it is, and what was looked at.
LEVEL, CHECK = 9, 16


@click.command(epilog="\b\nExample: rqttl doctor orders --repair")
@any_queues_argument
@click.option("--repair", is_flag=True, help="Put right what can be, after asking.")
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

    All queues, or those named or matched by a QUEUE (with *, ? and [...]),
    with a line for each check: ok, warning or problem, and what to do.
    Changes nothing without --repair. The exit code is 3 if a problem is left.
    """
    if (yes or dry_run) and not repair:
        raise click.UsageError(f"{'--yes' if yes else '--dry-run'} goes with --repair", context)
    with settings.using() as broker:
        names = tuple(chosen(broker, queues)) if queues else ()
        if queues and not names:
            output.note_no_queue(queues)
        findings = list(_told(broker, names, as_json)) if names or not queues else []
        wanted = list(dict.fromkeys(one.repair for one in findings if one.repair)) if repair else []
        done: list[dict[str, str]] = []
        left = findings
        if wanted and dry_run:
            done = [_planned(one, as_json) for one in wanted]
        elif wanted:
            _ask(wanted, yes=yes)
            done = [_repaired(broker, one, as_json) for one in wanted]
            left = [one for one in findings if one.queue is None] + _look_again(broker, findings, wanted)
    if as_json:
        output.answer_json({**_counts(left), "findings": [_facts(one) for one in findings], "repairs": done})
    else:
        _sum_up(left, findings, repair=repair, dry_run=dry_run, done=bool(done))
    if _counts(left)["problems"]:
        context.exit(REFUSED)


def _told(broker: Broker, queues: tuple[str, ...], as_json: bool) -> Iterator[Finding]:
    """The findings, each shown as it comes; what to do only once where it is the same for several."""
    from rqttl.doctor import examine

    before: tuple[str | None, str] = (None, "")
    for finding in examine(broker, queues):
        if not as_json:
            again = (finding.queue, finding.advice) == before
            _show(finding.level, _subject(finding.check, finding.queue), finding.found, "" if again else finding.advice)
        before = finding.queue, finding.advice
        yield finding


def _subject(check: str, queue: str | None) -> str:
    return check if queue is None else f"{check} {queue}" if check != "queue" else queue


def _show(level: str, subject: str, found: str, advice: str = "") -> None:
    """A line for people, and one with what to do; folded on a terminal."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    subject, found, advice = (text.visible(word) for word in (subject, found, with_flags(advice)))
    beside = subject if len(subject) < CHECK else ""
    rest = " " * (LEVEL + CHECK)
    fold = textwrap.TextWrapper(max(20, columns - len(rest)), break_on_hyphens=False)
    shown = fold.wrap(found) or [""]
    fold.initial_indent, fold.subsequent_indent = "-> ", "   "
    lines = [f"{level:<{LEVEL}}{beside:<{CHECK}}{shown[0]}" if beside else f"{level:<{LEVEL}}{subject}"]
    lines += [rest + line for line in (shown[1:] if beside else shown)]
    lines += [rest + line for line in fold.wrap(advice)]
    if output.coloured():
        lines[0] = click.style(level, fg=COLOURS.get(level), bold=level == "problem") + lines[0][len(level) :]
    output.answer("\n".join(lines))


def _ask(wanted: list[Repair], *, yes: bool) -> None:
    if not yes:
        for one in wanted:
            output.note(f"{one.queue}: {one.text}")
    confirm(f"Repair {text.plural(len(wanted), 'thing')}?", yes=yes)


def _planned(wanted: Repair, as_json: bool) -> dict[str, str]:
    if not as_json:
        _show("would", wanted.queue, wanted.text)
    return {"queue": wanted.queue, "repair": wanted.kind, "would": wanted.text}


def _repaired(broker: Broker, wanted: Repair, as_json: bool) -> dict[str, str]:
    from rqttl.doctor import repair

    done = repair(broker, wanted)
    if not as_json:
        _show("repaired", wanted.queue, done)
    return {"queue": wanted.queue, "repair": wanted.kind, "done": done}


def _look_again(broker: Broker, findings: Iterable[Finding], wanted: Iterable[Repair]) -> list[Finding]:
    """The findings of queues as they are after repairs: those of the others stay as they were."""
    from rqttl.doctor import examine_queues

    touched = {one.queue for one in wanted}
    there = touched & set(broker.queues())
    others = [one for one in findings if one.queue is not None and one.queue not in touched]
    again = examine_queues(broker, sorted(there)) if there else ()
    return others + [one for one in again if one.queue is not None]


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    levels = Counter(one.level for one in findings)
    return {"problems": levels["problem"], "warnings": levels["warning"], "ok": levels["ok"]}


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check, "queue": finding.queue, "level": finding.level, "found": finding.found,
        "advice": finding.advice or None, "repair": finding.repair and finding.repair.text,
    }  # fmt: skip


def _sum_up(left: list[Finding], findings: list[Finding], *, repair: bool, dry_run: bool, done: bool) -> None:
    counts = _counts(left)
    problems, warnings = text.plural(counts["problems"], "problem"), text.plural(counts["warnings"], "warning")
    said = f"{problems}, {warnings}, {text.count(counts['ok'])} ok"
    if done and not dry_run:
        said = f"after the repairs: {said}"
    elif repair and not done:
        said += "; nothing to repair"
    output.answer(said)
    if not repair and any(one.repair for one in findings):
        output.note("--repair puts right what it can, after asking; --repair --dry-run only says what")
