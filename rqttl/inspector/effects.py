"""What changes and actions do to messages, in words: ahead of them, by a dry run, and after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from rqttl import text
from rqttl.errors import QueueNotFound
from rqttl.inspector import message_view
from rqttl.inspector.queues import aggregate
from rqttl.options import OPTIONS, UpdateResult
from rqttl.types import ConsumerInfo, MessageView, Outcome, PolicyResult, Purged, QueueStats, RedriveResult, State
from rqttl.units import as_size, as_text

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.inspector.dead_letters import Counted, DeadLetterGroup


#: What a purge of a queue and its deletion count, and the participle for it.
ENDS = (("message", "removed"), ("ready message", "deleted with the queue"))


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


def ending(broker: Broker, name: str, state: Purged | None = None) -> list[str]:
    """What a purge of a queue, or without a `state` its deletion, would end. Raises `QueueNotFound`."""
    if not (stats := broker.stats([name])):
        raise QueueNotFound(name)
    one, more = stats[name], {} if state else subscriptions(broker, stats).get(name, {})
    n = one.ready * (state != "scheduled") + one.scheduled * (state in ("scheduled", "all"))
    n += sum(other.ready for other in more.values())
    noun, participle = ENDS[state is None]
    return [f"{text.plural(n, noun)} would be {participle}", f"{name}: {deleted(one, more)}"]


def listed(found: Sequence[MessageView], consumers: Iterable[ConsumerInfo], now: datetime, most: int = 20) -> list[str]:
    """A line for each of the first few messages: its id and its state, and who has it."""
    lines = []
    for one in found[:most]:
        held = f", held by {message_view.holder_text(one, message_view.holder(one, consumers), now)}"
        lines.append(f"{one.id}: {message_view.state_text(one, now)}{held * (one.state == 'leased')}")
    return lines


def forecast(
    broker: Broker, queue: str, groups: Iterable[DeadLetterGroup], to: str | None = None
) -> tuple[int, list[str]]:
    """How many of these dead letters of a queue can go back (or into `to`) now; and why others stay, and what follows.

    The number is exact while nobody uses the queues, but for a limit in bytes: a line says that some may stay.
    """
    numbers, sizes = Counter[str](), Counter[str]()
    for group in groups:
        numbers[to or group.source or ""] += group.count - group.leased - group.delayed
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


def selected(
    broker: Broker, queue: str, found: Counted, participle: str, to: str | None = None, *, purge: bool, most: int = 20
) -> list[str]:
    """What a purge, or a redrive (into `to`), of dead letters that were counted would do; empty if none is ready."""
    groups, leased, delayed = found.counts.ordered(), found.counts.total("leased"), found.counts.total("delayed")
    n, lines = found.counts.total() - leased - delayed, left_alone(leased, delayed)
    if not n and found.is_all:
        return []
    if not purge:
        n, more = forecast(broker, queue, groups, to)
        lines += more
    parts = [f"{one.count:,} {one.reason} in {one.source}" for one in groups[:most]]
    parts += [f"and {len(groups) - most:,} more groups"] * (len(groups) > most)
    least = "" if found.is_all else "at least "
    return [f"{least}{text.plural(n, 'dead letter')} of {queue} would be {participle}", *parts, *lines]


def left_alone(leased: int, delayed: int, missing: Iterable[str] = ()) -> list[str]:
    """Lines for the dead letters that are not ready, and for ids that none has."""
    states = ((leased, "leased"), (delayed, "delayed"))
    lines = [f"{text.plural(n, 'dead letter')} {state}: left alone" for n, state in states if n]
    return [*lines, f"no such dead letter: {', '.join(ids)}"] if (ids := sorted(missing)) else lines


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
