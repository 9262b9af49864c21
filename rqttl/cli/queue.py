"""`rqttl queue`: make queues and look at them."""

from __future__ import annotations

import fnmatch
from typing import Any

import click

from rqttl.broker import Broker
from rqttl.cli import output, text
from rqttl.cli.queue_options import flag, queue_options, shown
from rqttl.cli.shared import Settings, connecting, help_alone, json_flag
from rqttl.errors import QueueNotFound
from rqttl.options import OPTIONS, REASONS, QueueOptions
from rqttl.types import QueueStats


@click.group(invoke_without_command=True, epilog="Example: rqttl queue ls 'orders.*'")
@click.pass_context
def queue(context: click.Context) -> None:
    """Make queues and look at them."""
    help_alone(context)


@queue.command(epilog="Example: rqttl queue declare orders --message-ttl 60s --dead-letter orders.dead")
@click.argument("name")
@queue_options
@json_flag
@connecting
def declare(name: str, as_json: bool, settings: Settings, **options: Any) -> None:
    """Make a queue, or find it with these options.

    If it exists with other options nothing changes, and the exit code is 3.
    """
    given = {option: value for option, value in options.items() if value is not None}
    with settings.connect() as broker:
        in_force = broker.declare_queue(name, **given).options()
    if as_json:
        output.answer_json({"queue": name, "options": dict(in_force)})
    else:
        output.answer(f"queue {name} is there")


@queue.command("ls", epilog="Example: rqttl queue ls '*.dead'")
@click.argument("pattern", default="*")
@json_flag
@connecting
def list_queues(pattern: str, as_json: bool, settings: Settings) -> None:
    """List queues.

    All of them, or those that match PATTERN (with *, ? and [...]).
    """
    with settings.connect() as broker:
        found = _stats(broker, [name for name in broker.queues() if fnmatch.fnmatchcase(name, pattern)])
    if as_json:
        output.answer_json([{"queue": name, **_numbers(stats)} for name, stats in found.items()])
        return
    if not found:
        output.note("no queue" if pattern == "*" else f"no queue matches {text.visible(pattern)}")
        return
    total = [f"{text.plural(len(found), 'queue')}", *_sums(found)] if len(found) > 1 else None
    rows = [
        [name, text.count(s.ready), text.count(s.leased), text.count(s.delayed), text.size(s.ready_bytes),
         text.age(s.oldest_ready_age), text.count(sum(s.deaths.values()))]
        for name, s in found.items()
    ]  # fmt: skip
    output.table(["queue", ">ready", ">leased", ">delayed", ">bytes", ">oldest", ">dead"], rows, total)


def _stats(broker: Broker, names: list[str]) -> dict[str, QueueStats]:
    found = {}
    for name in names:
        try:
            found[name] = broker.queue(name).stats()
        except QueueNotFound:
            continue  # deleted meanwhile
    return found


def _sums(found: dict[str, QueueStats]) -> list[str]:
    every = found.values()
    ages = [s.oldest_ready_age for s in every if s.oldest_ready_age is not None]
    return [
        text.count(sum(s.ready for s in every)),
        text.count(sum(s.leased for s in every)),
        text.count(sum(s.delayed for s in every)),
        text.size(sum(s.ready_bytes for s in every)),
        text.age(max(ages, default=None)),
        text.count(sum(sum(s.deaths.values()) for s in every)),
    ]


def _numbers(stats: QueueStats) -> dict[str, Any]:
    age = stats.oldest_ready_age
    numbers = {name: getattr(stats, name) for name in QueueStats.__dataclass_fields__ if name != "oldest_ready_age"}
    return {
        **numbers,
        "oldest_ready_age_ms": None if age is None else round(age.total_seconds() * 1000),
        "deaths": dict(stats.deaths),
        "dropped": dict(stats.dropped),
    }


@queue.command(epilog="Example: rqttl queue show orders")
@click.argument("name")
@json_flag
@connecting
def show(name: str, as_json: bool, settings: Settings) -> None:
    """Show one queue.

    What it holds, what has happened in it, and its options.
    """
    with settings.connect() as broker:
        handle = broker.queue(name)
        stats, options = handle.stats(), handle.options()
    targets = {reason: options.target(reason) for reason in REASONS}
    if as_json:
        output.answer_json(
            {"queue": name, **_numbers(stats), "options": dict(options),
             "dead_letters_go_to": {reason: target or None for reason, target in targets.items()}}
        )  # fmt: skip
        return
    output.facts(_holds(name, stats))
    output.answer("")
    output.table(
        ["death reason", ">died", ">dropped", "dead letters go to"],
        [[reason, text.count(stats.deaths[reason]), text.count(stats.dropped[reason]), targets[reason] or "(dropped)"]
         for reason in REASONS]
        + [["cycle", "-", text.count(stats.dropped["cycle"]), "(dropped)"]] * bool(stats.dropped["cycle"]),
    )  # fmt: skip
    output.answer("")
    output.facts(_in_force(options))


def _holds(name: str, stats: QueueStats) -> list[tuple[str, str]]:
    done = ("enqueued", "delivered", "redelivered", "acked", "refused", "purged")
    so_far = [f"{text.count(getattr(stats, word))} {word}" for word in done if getattr(stats, word)]
    return [
        ("queue", name),
        ("ready", f"{text.count(stats.ready)} ({text.size(stats.ready_bytes)})"),
        ("oldest ready", text.age(stats.oldest_ready_age)),
        ("leased", text.count(stats.leased)),
        ("delayed", text.count(stats.delayed)),
        ("consumers", text.count(stats.consumers)),
        ("so far", ", ".join(so_far) or "-"),
    ]


def _in_force(options: QueueOptions) -> list[tuple[str, str]]:
    given = [(flag(name), shown(OPTIONS[name], options[name])) for name in OPTIONS if name in options.given]
    return given or [("options", "all at their defaults")]
