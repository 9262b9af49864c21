"""`rqttl queue ls`: what many queues hold, in a table with totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.settings import Settings, any_queues_argument, connecting, json_flag
from rqttl.cli.queue.each import damaged_facts, matching, refuse_damaged, running_reapers
from rqttl.cli.stats.totals import stats_facts
from rqttl.cli.stats.trend import LATE, waiting
from rqttl.types import PerQueue, QueueStats

#: What to sort by, the largest first; a negative number, so that equal ones stay in the order of their names.
SORTS: dict[str, Callable[[QueueStats], Any]] = {
    "name": lambda _: 0,
    "depth": lambda stats: -(stats.ready + stats.leased + stats.delayed),
    "age": lambda stats: -(stats.oldest_ready_age if stats.oldest_ready_age is not None else timedelta(-1)),
    "bytes": lambda stats: -stats.ready_bytes,
    "dead": lambda stats: -sum(stats.deaths.values()),
}
COLUMNS = ("queue", ">ready", ">leased", ">delayed", ">bytes", ">oldest", ">dead")


@click.command("ls", epilog="\b\nExample: rqttl queue ls 'orders.*' --sort depth")
@any_queues_argument
@click.option(
    "--sort",
    "key",
    type=click.Choice(list(SORTS)),
    default="name",
    show_default=True,
    help="Sort by this, largest first.",
)
@click.option("--reverse", "-r", is_flag=True, help="The other way round.")
@click.option("--quiet", "-q", is_flag=True, help="Print names alone, one a line.")
@json_flag
@connecting
def list_queues(
    queues: tuple[str, ...], key: str, reverse: bool, quiet: bool, as_json: bool, settings: Settings
) -> None:
    """List queues.

    All of them, or those named or matched by a QUEUE (with *, ? and [...]).
    Depth is what a queue holds in any state; bytes and oldest are of its
    ready messages. The command only reads: expired messages count until a
    reaper or a consumer has swept them.
    """
    with settings.using() as broker:
        names = matching(broker, queues)
        found: PerQueue[QueueStats] = PerQueue()
        if not quiet or key != "name":
            found = broker.stats(names, sweep=False)
            names = sorted(found, key=lambda name: (SORTS[key](found[name]), name))
        overdue = max((stats.overdue for stats in found.values()), default=timedelta(0))
        reapers = running_reapers(broker) if overdue >= LATE else None
    if reverse:
        names = names[::-1]
    if as_json:
        facts = [{"queue": name, **(stats_facts(found[name]) if found else {})} for name in names]
        output.answer_json(facts + damaged_facts(found.damaged))
    elif not names and not found.damaged:
        output.note_no_queue(queues)
    elif quiet and names:
        output.answer("\n".join(names))
    elif names:
        total = [text.plural(len(names), "queue"), *_sums(found.values())] if len(names) > 1 else None
        output.table(COLUMNS, [[name, *_numbers(found[name])] for name in names], total)
    if overdue >= LATE:
        output.note(waiting(overdue, reapers))
    refuse_damaged(found.damaged)


def _numbers(stats: QueueStats) -> list[str]:
    return _shown(stats.ready, stats.leased, stats.delayed, stats.ready_bytes, stats.oldest_ready_age, _dead(stats))


def _sums(every: Iterable[QueueStats]) -> list[str]:
    """The numbers of all together; the oldest is the oldest of any."""
    listed = list(every)
    ages = [stats.oldest_ready_age for stats in listed if stats.oldest_ready_age is not None]
    ready, leased, delayed, size, dead = (
        sum(numbers)
        for numbers in zip(*((s.ready, s.leased, s.delayed, s.ready_bytes, _dead(s)) for s in listed), strict=True)
    )
    return _shown(ready, leased, delayed, size, max(ages, default=None), dead)


def _shown(ready: int, leased: int, delayed: int, size: int, oldest: timedelta | None, dead: int) -> list[str]:
    counts = (text.count(ready), text.count(leased), text.count(delayed))
    return [*counts, text.size(size), text.age(oldest), text.count(dead)]


def _dead(stats: QueueStats) -> int:
    return sum(stats.deaths.values())
