"""`rqttl queue show`: all that is known of one queue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.option_text import flag, option_facts, shown
from rqttl.cli.common.settings import Settings, connecting, json_flag, queue_name_argument, utc_flag
from rqttl.cli.queue.each import running_reapers
from rqttl.cli.stats.totals import stats_facts
from rqttl.cli.stats.trend import LATE, waiting
from rqttl.options import OPTIONS, REASONS, QueueOptions
from rqttl.types import QueueStats

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: Counters in the order of a message's life.
COUNTERS = ("enqueued", "delivered", "redelivered", "acked", "refused", "purged", "redriven")


@click.command(epilog="\b\nExample: rqttl queue show orders --all")
@queue_name_argument
@click.option("--all", "every", is_flag=True, help="Show options at their defaults too.")
@click.option("--sources", is_flag=True, help="Show which queues' dead letters come here; asks all queues.")
@utc_flag
@json_flag
@connecting
def show(name: str, every: bool, sources: bool, utc: bool, as_json: bool, settings: Settings) -> None:
    """Show one queue.

    What it holds, what has happened in it, where its dead letters go, and its
    options. The command only reads: expired messages count until a reaper or
    a consumer has swept them.
    """
    with settings.using() as broker:
        handle = broker.queue(name)
        stats, options, now = handle.stats(sweep=False), handle.options(), broker.time()
        reapers = running_reapers(broker) if stats.overdue >= LATE else None
        come_from = _sources(broker, name) if sources else None
    targets = {reason: options.target(reason) for reason in REASONS}
    if as_json:
        output.answer_json(_facts(name, stats, options, targets) | (
            {} if come_from is None else {"dead_letters_come_from": come_from}
        ))  # fmt: skip
        return
    output.facts(_holds(name, stats, now, utc=utc))
    if stats.overdue >= LATE:
        output.note(waiting(stats.overdue, reapers))
    output.answer("")
    output.table(["death reason", ">died", ">dropped", "dead letters go to"], _deaths(stats, targets))
    if come_from is not None:
        output.answer("")
        output.table(["dead letters come from", "for"], [[queue, _reasons(why)] for queue, why in come_from.items()]
                     or [["(no queue)", "-"]])  # fmt: skip
    output.answer("")
    output.facts(_in_force(options, every=every))


def _facts(name: str, stats: QueueStats, options: QueueOptions, targets: Mapping[str, str]) -> dict[str, Any]:
    return {
        "queue": name,
        **stats_facts(stats),
        "options": option_facts(options),
        "dead_letters_go_to": {reason: target or None for reason, target in targets.items()},
    }


def _sources(broker: Broker, name: str) -> dict[str, list[str]]:
    """The queues whose dead letters come to `name`, and for which reasons."""
    found = {
        queue: [reason for reason in REASONS if options.target(reason) == name]
        for queue, options in broker.options().items()
    }
    return {queue: reasons for queue, reasons in found.items() if reasons}


def _reasons(reasons: list[str]) -> str:
    return "every reason" if len(reasons) == len(REASONS) else ", ".join(reasons)


def _holds(name: str, stats: QueueStats, now: datetime, *, utc: bool) -> list[tuple[str, str]]:
    age = stats.oldest_ready_age
    oldest = f", the oldest from {text.moment(now - age, now, utc=utc)}" if age is not None else ""
    leased, delayed = (
        f", the first {until} {text.moment(at, now, utc=utc)}" if at else ""
        for until, at in (("lease ends", stats.next_lease_end), ("ready", stats.next_delay_end))
    )
    happened = [f"{text.count(getattr(stats, word))} {word}" for word in COUNTERS if getattr(stats, word)]
    overdue = [("overdue", f"the oldest due work waits {text.age(stats.overdue)}")] if stats.overdue else []
    ends = [("expires", f"{text.moment(stats.ends_at, now, utc=utc)}, unless it is used")] if stats.ends_at else []
    return [
        ("queue", name),
        ("ready", f"{text.count(stats.ready)} ({text.size(stats.ready_bytes)}){oldest}"),
        ("leased", f"{text.count(stats.leased)}{leased}"),
        ("delayed", f"{text.count(stats.delayed)}{delayed}"),
        *overdue,
        ("consumers", text.count(stats.consumers)),
        *ends,
        ("so far", ", ".join(happened) or "-"),
    ]


def _deaths(stats: QueueStats, targets: Mapping[str, str]) -> list[list[str]]:
    rows = [
        [reason, text.count(stats.deaths[reason]), text.count(stats.dropped[reason]), targets[reason] or "(dropped)"]
        for reason in REASONS
    ]
    if stats.dropped["cycle"]:
        rows.append(["cycle", "-", text.count(stats.dropped["cycle"]), "(dropped)"])
    return rows


def _in_force(options: QueueOptions, *, every: bool) -> list[tuple[str, str]]:
    lines = []
    for name, option in OPTIONS.items():
        if name in options.given:
            lines.append((flag(name), shown(option, options[name])))
        elif every:
            default = " (default)" if option.default is not None else ""
            lines.append((flag(name), f"{shown(option, option.default)}{default}"))
    return lines or [("options", "all at their defaults")]
