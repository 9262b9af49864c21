"""`rqttl queue ls` and `show`: look at queues."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from rqttl import text
from rqttl.cli.common import output, params
from rqttl.cli.common.params import (
    any_queues_argument,
    flag,
    format_value,
    json_flag,
    json_name,
    queue_name_argument,
    utc_flag,
)
from rqttl.cli.common.settings import Settings, connecting
from rqttl.inspector.queues import LATE, LateWork, aggregate, deaths, existing_names, running_reapers, to_json
from rqttl.options import OPTIONS, REASONS, QueueOptions
from rqttl.policies import Explanation
from rqttl.protocol.keys import STATES
from rqttl.types import QueueStats
from rqttl.units import as_size

COLUMNS = ("queue", ">ready", ">leased", ">delayed", ">bytes", ">oldest", ">dead")


@click.command("ls", epilog="\b\nExample: rqttl queue ls 'orders.*'")
@any_queues_argument
@click.option("--quiet", "-q", is_flag=True, help="Print only names, one a line.")
@json_flag
@connecting
def list_queues(queues: tuple[str, ...], quiet: bool, as_json: bool, settings: Settings) -> None:
    """List queues.

    The list has all queues, or those named or matched by a QUEUE (with *, ?
    and [...]). Depth is the number of messages in any state; bytes and oldest
    are of the ready messages. The command only reads: expired messages count
    until a reaper or a consumer has swept them.
    """
    with settings.using() as broker:
        names = existing_names(broker, queues)
        stats: dict[str, QueueStats] = {}
        if not quiet:
            stats = broker.stats(names, sweep=False)
            names = sorted(stats)
        overdue = max((queue.overdue for queue in stats.values()), default=timedelta(0))
        reapers = running_reapers(broker) if overdue >= LATE else None
    if as_json:
        documents = [{"queue": name, **(to_json(stats[name]) if stats else {})} for name in names]
        output.answer_json(documents)
    elif not names:
        output.note_no_queue(queues)
    elif quiet:
        output.answer("\n".join(names))
    else:
        total = [text.plural(len(names), "queue"), *_cells(aggregate(stats.values()))] if len(names) > 1 else None
        output.print_table(COLUMNS, [[name, *_cells(stats[name])] for name in names], total)
    if overdue >= LATE:
        output.note(LateWork(overdue, reapers).advice)


def _cells(stats: QueueStats) -> list[str]:
    return [
        text.format_count(stats.ready),
        text.format_count(stats.leased),
        text.format_count(stats.delayed),
        as_size(stats.ready_bytes),
        text.format_age(stats.oldest_ready_age),
        text.format_count(deaths(stats)),
    ]


#: Counters in the order of a message's life.
COUNTERS = ("enqueued", "delivered", "redelivered", "acked", "refused", "purged", "redriven")


@click.command(epilog="\b\nExample: rqttl queue show orders --all")
@queue_name_argument
@click.option("--all", "every", is_flag=True, help="Show options at their defaults too.")
@utc_flag
@json_flag
@connecting
def show(name: str, every: bool, utc: bool, as_json: bool, settings: Settings) -> None:
    """Show one queue.

    The command prints its messages, its counters, the targets of its dead
    letters, and its options. It only reads: expired messages count until a
    reaper or a consumer has swept them.
    """
    with settings.using() as broker:
        handle = broker.queue(name)
        stats, options, now = handle.stats(sweep=False), handle.options(), broker.server_time()
        reapers = running_reapers(broker) if stats.overdue >= LATE else None
        explanation = handle.explain()
    if as_json:
        document = {
            "queue": name,
            **to_json(stats),
            "options": params.to_json(options),
            "dead_letters_go_to": {reason: options.target(reason) or None for reason in REASONS},
            "option_sources": [{"option": json_name(one), "source": explanation[one].source} for one in explanation],
        }
        output.answer_json(document)
        return
    output.print_pairs(_contents(name, stats, now, utc=utc))
    if stats.overdue >= LATE:
        output.note(LateWork(stats.overdue, reapers).advice)
    output.answer("")
    output.print_table(["death reason", ">died", ">dropped", "dead letters go to"], _deaths(stats, options))
    output.answer("")
    output.print_pairs(_options(options, explanation, every=every))


def _contents(name: str, stats: QueueStats, now: datetime, *, utc: bool) -> list[tuple[str, str]]:
    def time(at: datetime) -> str:
        return text.format_time(at, now, utc=utc)

    age = stats.oldest_ready_age
    oldest = f", the oldest from {time(now - age)}" if age is not None else ""
    pairs = [("queue", name), ("ready", f"{text.format_count(stats.ready)} ({as_size(stats.ready_bytes)}){oldest}")]
    for state in STATES.values():
        at = getattr(stats, state.end) if state.end else None
        event = "ready" if state.promoted else "lease ends"
        first = f", the first {event} {time(at)}" if at else ""
        pairs.append((state.name, f"{text.format_count(getattr(stats, state.name))}{first}"))
    if stats.overdue:
        pairs.append(("overdue", f"the oldest due work waits {text.format_age(stats.overdue)}"))
    pairs.append(("consumers", text.format_count(stats.consumers)))
    if stats.ends_at:
        pairs.append(("expires", f"{time(stats.ends_at)}, unless it is used"))
    counts = [f"{text.format_count(n)} {counter}" for counter in COUNTERS if (n := getattr(stats, counter))]
    return [*pairs, ("so far", ", ".join(counts) or "-")]


def _deaths(stats: QueueStats, options: QueueOptions) -> list[list[str]]:
    rows = []
    for reason in REASONS:
        died, dropped = text.format_count(stats.deaths[reason]), text.format_count(stats.dropped[reason])
        rows.append([reason, died, dropped, options.target(reason) or "(dropped)"])
    if stats.dropped["cycle"]:
        rows.append(["cycle", "-", text.format_count(stats.dropped["cycle"]), "(dropped)"])
    return rows


def _options(options: QueueOptions, explanation: Explanation, *, every: bool) -> list[tuple[str, str]]:
    """The options that differ from their defaults, or every option; with their sources where policies match."""
    matched = explanation.policies or explanation.operator_policies
    lines = []
    for name, option in OPTIONS.items():
        source = f" ({explanation[name].source})" if matched else ""
        if name in options.non_default:
            lines.append((flag(name), f"{format_value(option, options[name])}{source}"))
        elif every:
            default = " (default)" if option.default is not None else ""
            lines.append((flag(name), f"{format_value(option, option.default)}{default}"))
    return lines or [("options", "all at their defaults")]
