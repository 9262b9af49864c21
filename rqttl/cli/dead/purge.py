"""`rqttl dead purge`: remove letters, those that were counted before the question and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.progress import Progress
from rqttl.cli.common.prompts import confirm, dry_run_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting, json_flag, queue_argument, utc_flag
from rqttl.cli.common.signals import Stop, Stopped, Stopping
from rqttl.cli.dead.filters import Groups, Wanted, letter_filters, note_targets, out, read, refuse_missing, show_groups

if TYPE_CHECKING:
    from datetime import datetime

    from rqttl.queue import Queue

T = TypeVar("T")

#: Letters that are removed together: what a Ctrl-C waits for.
TOGETHER = 1_000
#: Groups that a question names.
NAMED = 3


@dataclass
class Chosen:
    """What was found: places of the ready letters that are meant and where they died, missing ids, what stays, why."""

    groups: Groups = field(default_factory=Groups)
    places: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    leased: int = 0
    delayed: int = 0
    never_died: int = 0

    def facts(self) -> dict[str, Any]:
        """For `text.as_json`."""
        return {"groups": self.groups.facts(), "leased": self.leased, "delayed": self.delayed,
                "never_died": self.never_died}  # fmt: skip


@click.command(epilog="\b\nExample: rqttl dead purge orders.dead --older-than 7d --dry-run")
@queue_argument
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this letter; may be repeated.")
@letter_filters
@utc_flag
@yes_flag
@dry_run_flag
@json_flag
@connecting
def purge(
    queue: str, ids: tuple[str, ...], wanted: Wanted, utc: bool, yes: bool, dry_run: bool, as_json: bool,
    settings: Settings,
) -> None:  # fmt: skip
    """Remove letters of QUEUE, all or some.

    Only ready ones go; leased and delayed ones stay, as do messages that never
    died, and letters that arrive after they were counted.
    """
    wanted = replace(wanted, ids=frozenset(ids))
    with settings.using() as broker:
        source, now = broker.queue(queue), broker.time()
        chosen = choose(source, wanted, now)
        if dry_run:
            tell_dry(queue, chosen, now, utc=utc, as_json=as_json)
        elif chosen.places:
            confirm(_question(queue, chosen, everything=wanted.everything), yes=yes)
            _remove(source, chosen, as_json=as_json)
        else:
            _tell(queue, chosen, 0, as_json=as_json)
        if not chosen.places:
            note_targets(source)
    note_rest(chosen, everything=wanted.everything)
    refuse_missing(queue, chosen.missing)


def choose(queue: Queue, wanted: Wanted, now: datetime) -> Chosen:
    """Read all letters of a queue, and tell those that are meant."""
    chosen, meant = Chosen(missing=set(wanted.ids)), wanted.at(now)
    for message in read(queue):
        chosen.never_died += not message.deaths
        if not meant(message):
            continue
        chosen.missing.discard(message.id)
        if message.state == "ready":
            chosen.groups.add(message)
            chosen.places.append(message.sequence)
            chosen.sources.append(message.deaths[0].queue)
        chosen.leased += message.state == "leased"
        chosen.delayed += message.state == "delayed"
    return chosen


def _question(name: str, chosen: Chosen, *, everything: bool) -> str:
    return f"Remove {described(name, chosen, everything=everything)}?"


def described(name: str, chosen: Chosen, *, everything: bool) -> str:
    """The letters that are meant, in words, for a question."""
    groups = chosen.groups.ordered()
    said = [f"{text.count(group.count)} {group.reason} in {group.source}" for group in groups[:NAMED]]
    if len(groups) > NAMED:
        rest = sum(group.count for group in groups[NAMED:])
        said.append(f"{text.count(rest)} in {text.plural(len(groups) - NAMED, 'other group')}")
    every = "all " if everything else ""
    return f"{every}{text.plural(len(chosen.places), 'letter')} of {name} ({', '.join(said)})"


def in_steps(letters: Sequence[T], step: Callable[[Sequence[T]], None], tell: Callable[[], None]) -> Stop | None:
    """Do something to letters, some at a time, then `tell`, whatever ends it. Returns the signal that cut it short."""
    try:
        with Stopping() as stopping, Progress(len(letters), in_bytes=False) as progress:
            for start in range(0, len(letters), TOGETHER):
                some = letters[start : start + TOGETHER]
                with stopping.held():
                    step(some)
                progress.advance(len(some), len(some))
            stopping.finish()
    except Stop as stop:
        return stop
    finally:
        tell()
    return None


def _remove(queue: Queue, chosen: Chosen, *, as_json: bool) -> None:
    """Remove them in steps, and say how many went, also when it is cut short."""
    removed = 0

    def remove(some: Sequence[str]) -> None:
        nonlocal removed
        removed += queue.purge(some)

    stopped = in_steps(chosen.places, remove, lambda: _tell(queue.name, chosen, removed, as_json=as_json))
    if stopped:
        left = len(chosen.places) - removed
        raise Stopped(stopped, f": {text.plural(left, 'letter')} left")
    if removed < len(chosen.places):
        away = text.plural(len(chosen.places) - removed, "letter")
        output.note(f"{away} gone or no longer ready meanwhile: left alone")


def _tell(name: str, chosen: Chosen, removed: int, *, as_json: bool) -> None:
    if as_json:
        output.answer_json({"queue": name, "purged": removed, **chosen.facts()})
    else:
        output.answer(f"{text.plural(removed, 'letter')} of {name} removed")


def tell_dry(
    name: str,
    chosen: Chosen,
    now: datetime,
    *,
    utc: bool,
    as_json: bool,
    key: str = "would_purge",
    done: str = "removed",
) -> None:
    """Say what would be done to the letters, for `--dry-run`."""
    if as_json:
        output.answer_json({"queue": name, key: len(chosen.places), **chosen.facts()})
        return
    if chosen.places:
        show_groups(chosen.groups, now, utc=utc)
    output.answer(f"{text.plural(len(chosen.places), 'letter')} of {name} would be {done}")


def note_rest(chosen: Chosen, *, everything: bool, hint: str = " (`rqttl queue purge` removes all)") -> None:
    """Say what was left alone, and why."""
    if taken := out(chosen.leased, chosen.delayed):
        output.note(f"{taken}: not ready, left alone")
    if everything and chosen.never_died:
        never = text.plural(chosen.never_died, "message")
        output.note(f"{never} never died: left alone{hint}")
