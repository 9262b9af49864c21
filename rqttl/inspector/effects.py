"""What changes and actions do to messages, in words: ahead of them, by a dry run, and after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from rqttl import text
from rqttl.inspector.queues import aggregate
from rqttl.options import OPTIONS, UpdateResult
from rqttl.types import Outcome, PolicyResult, QueueStats, RedriveResult, State
from rqttl.units import as_size, as_text

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.inspector.dead_letters import DeadLetterGroup, DeadLetters


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


def changes(result: UpdateResult, *, ahead: bool) -> list[str]:
    """A line for each option that an update changes, then those of `losses`."""
    options = result.before.differences(result.after).items()
    lines = [f"{name}: {' -> '.join(map(OPTIONS[name].format, values))}" for name, values in options]
    return [*(lines or ["no option changes"]), *losses(result, ahead=ahead)]


def policy_changes(result: PolicyResult, *, ahead: bool, most: int = 20) -> list[str]:
    """The number of queues that policies change, a line for each of the first few, then those of `deaths`."""
    lines = [f"{text.plural(len(result.changed), 'queue')} {'would change' if ahead else 'changed'}"]
    for queue, options in sorted(result.changed.items())[:most]:
        of = (f"{name} {' -> '.join(map(OPTIONS[name].format, values))}" for name, values in options.items())
        lines.append(f"{queue}: {', '.join(of)}")
    later = {*result.unfinished, *result.denied}
    return [
        *lines,
        *deaths(result, ahead=ahead),
        *([f"a reaper goes on in {', '.join(sorted(later)[:most])}"] * bool(later)),
    ]


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


def forecast(
    broker: Broker, queue: str, groups: Iterable[DeadLetterGroup], to: str | None = None
) -> tuple[int, list[str]]:
    """How many of these dead letters of a queue can go back (or into `to`) now; and why others stay, and what follows.

    The number is exact while nobody uses the queues, but for a limit in bytes: a line says that some may stay.
    """
    numbers, sizes = Counter[str](), Counter[str]()
    for group in groups:
        numbers[to or group.source or ""] += group.count
        sizes[to or group.source or ""] += group.size
    options, stats = broker.options(numbers), broker.stats(numbers)
    stays: list[RedriveResult] = []
    lines = []
    for name, n in sorted(numbers.items()):
        if name == queue or name not in options or name not in stats:
            outcome: Outcome = "same_queue" if name == queue else "no_origin"
            stays += [RedriveResult("", name, outcome)] * n
            continue
        one, ready, size = options[name], stats[name].ready, stats[name].ready_bytes
        most, most_bytes = one.number("max_length"), one.number("max_length_bytes")
        over = 0 if most is None else min(n, max(0, ready + n - most))
        if one.overflow != "drop-head":
            stays += [RedriveResult("", name, "full", "max_length")] * over
            if most_bytes is not None and size + sizes[name] > most_bytes:
                lines.append(f"{name} has room for {as_size(max(0, most_bytes - size))}: some may stay")
        elif over or (most_bytes is not None and size + sizes[name] > most_bytes):
            lines.append(f"{name} has no room for all: a limit pushes its oldest messages out")
        if one.rate:
            lines.append(f"{name} gives them to consumers by its rate, {OPTIONS['rate'].format(one.rate)}")
        if one.paused:
            lines.append(f"{name} is paused: they wait there")
    return numbers.total() - len(stays), stayed(stays)[0] + lines


def left_alone(letters: DeadLetters) -> list[str]:
    """The matches that are not ready, and the ids without a dead letter."""
    states = {"leased": letters.leased, "delayed": letters.delayed}
    lines = [f"{text.plural(n, 'dead letter')} {state}: left alone" for state, n in states.items() if n]
    return [*lines, f"no such dead letter: {', '.join(sorted(letters.missing))}"] if letters.missing else lines


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
