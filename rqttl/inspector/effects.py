"""What changes and actions do to messages, in words: ahead of them, by a dry run, and after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from rqttl import text
from rqttl.inspector.queues import aggregate
from rqttl.options import UpdateResult
from rqttl.types import QueueStats, RedriveResult, State
from rqttl.units import as_text

if TYPE_CHECKING:
    from rqttl.broker import Broker


def losses(result: UpdateResult, *, ahead: bool) -> list[str]:
    """A line for each reason of deaths, with the target of the dead letters; `ahead` of the update or after it."""
    kinds = (
        (result.expired, "expired", "would expire" if ahead else "expired", "--message-ttl"),
        (result.trimmed, "maxlen", "would be pushed out" if ahead else "pushed out", "a limit"),
    )
    lines = []
    for count, reason, verb, cause in kinds:
        if count:
            target = result.after.target(reason)
            outcome = f"dead-lettered to {target}" if target else "dropped"
            lines.append(f"{text.plural(count, 'message')} {verb} by {cause} ({outcome})")
    return lines if result.ends_after_ms is None else [*lines, will_end(result.ending, result.ends_after_ms)]


def deaths(result: Any, *, ahead: bool) -> list[str]:
    """A line for each kind of messages that a change ends, from a `PolicyResult` or the `Effect` of a plan."""
    kinds = (
        (result.expired, "would expire", "expired"),
        (result.trimmed, "would be pushed out by a limit", "pushed out by a limit"),
        (getattr(result, "deleted", 0), "would be deleted with their queues", "deleted with their queues"),
    )
    lines = [f"{text.plural(count, 'message')} {would if ahead else did}" for count, would, did in kinds if count]
    if result.ends_after_ms is not None:
        where = f" in {text.plural(result.ending_queues, 'queue')}"
        lines.append(will_end(result.ending, result.ends_after_ms, where))
    return lines


def will_end(messages: int, after: int, where: str = "") -> str:
    """A line for messages that a change ends later, `after` so many ms."""
    return f"{text.plural(messages, 'message')}{where} would end after {as_text(after)} without a consumer"


def summary(stats: QueueStats) -> str:
    """What is in a queue, and who uses it."""
    states = [f"{text.format_count(n)} {state}" for state in get_args(State) if (n := getattr(stats, state))]
    users = [text.plural(stats.consumers, "consumer")] if stats.consumers else []
    return ", ".join((states or ["empty"]) + users)


def subscriptions(broker: Broker, stats: Mapping[str, QueueStats]) -> dict[str, Mapping[str, QueueStats]]:
    """The subscriptions that are deleted with each topic among some queues."""
    topics = [name for name, one in stats.items() if one.passes_on]
    options = broker.options(topics) if topics else {}
    return {name: broker.stats(one.subscriptions) for name, one in options.items() if one.subscriptions}


def deleted(stats: QueueStats, subscriptions: Mapping[str, QueueStats] | None) -> str:
    """What goes with a queue that is deleted."""
    if not subscriptions:
        return summary(stats)
    number = text.plural(len(subscriptions), "subscription")
    return f"{summary(stats)}; with {number}: {summary(aggregate(subscriptions.values()))}"


def stayed(results: Iterable[RedriveResult]) -> tuple[list[str], str]:
    """A line for each reason for which dead letters stayed, and the code of the error if queues did not take some."""
    remaining = Counter((result.origin, result.outcome, result.limit or "") for result in results)
    words = {"no_origin": "{} does not exist (see --to)", "same_queue": "{} is the queue that holds them (see --to)"}
    lines, code = [], ""
    for (origin, outcome, limit), n in sorted(remaining.items()):
        several = text.plural(n, "dead letter")
        if outcome == "unavailable":
            lines.append(f"{several} gone or no longer ready meanwhile: left alone")
            continue
        full = f"{origin} has no room (--{limit.replace('_', '-')})"
        lines.append(f"{several} left alone: {full if outcome == 'full' else words[outcome].format(origin)}")
        code = "queue_full" if outcome == "full" else code or "not_found"
    return lines, code
