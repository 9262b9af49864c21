"""`rqttl topic`: topics, and the queues that are bound to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.checks import check_subscription_name
from rqttl.cli import queue as queues
from rqttl.cli.common import output, params
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.params import json_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import InvalidInput, QueueMismatch, QueueNotFound
from rqttl.filters import Rule, check_filter
from rqttl.inspector import effects
from rqttl.inspector.queues import LATE, LateWork, facts, format_filter, marked, readable, running_reapers, to_json
from rqttl.types import QueueStats
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: Of the bound queues of a topic.
COLUMNS = ("queue", "filter", ">ready", ">leased", ">delayed", ">bytes", ">oldest")


def _read_filter(given: str) -> list[Rule]:
    """A pattern, or JSON where it begins with a brace or a bracket."""
    if not given.isprintable():
        raise InvalidInput(f"filter: expected printable text, got {text.format_value(given)}")
    if not given.startswith(("{", "[")):
        return check_filter(given)
    try:
        value = json.loads(given)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"filter: not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; too many levels
        raise InvalidInput(f"filter: not JSON that can be read: {error}") from None
    return check_filter(value)


def _complete_subscriptions(context: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    start = f"{context.params.get('topic')}/"
    return [name.removeprefix(start) for name in params.complete_queues(context, param, start + prefix)]


_topic_argument = click.argument("topic", shell_complete=params.complete_queues)
_subscription_argument = click.argument(
    "name", type=params.Read("name", check_subscription_name), shell_complete=_complete_subscriptions
)
FILTER = params.Read("filter", _read_filter)
_filter_option = click.option(
    "--filter",
    "rules",
    type=FILTER,
    metavar="FILTER",
    help="What the queue gets: a pattern of subjects such as 'orders.*.created' or 'orders.#', or JSON such as "
    """'{"size": ["large", "huge"]}'.  [default: everything]""",
)


@contextmanager
def _using(settings: Settings, topic: str, *, looks: bool = False) -> Iterator[Broker]:
    """`Settings.using`, or `looking`. The error for a missing topic says how to make one."""
    try:
        with settings.looking() if looks else settings.using() as broker:
            yield broker
    except QueueNotFound as error:
        if error.queue != topic:
            raise
        line = f"topic {topic!r} does not exist{error.place}: `rqttl topic declare {topic}` creates it"
        raise Refused(line, error.code) from error


@click.group(epilog="""\b\nExample: rqttl topic subscribe news europe --filter 'orders.eu.#'""")
def topic() -> None:
    """Send a message to many queues.

    A topic is a queue from which nobody receives: each queue that is bound to
    it gets a copy of each message that matches its filter. The commands for
    queues act on topics, too: `rqttl send news hello --subject orders.eu`,
    `rqttl queue ls`, `rqttl queue delete news`.
    """


@topic.command(cls=params.QueueOptionsCommand, epilog="\b\nExample: rqttl topic declare news --message-ttl 1h")
@_topic_argument
@params.queue_options
@json_flag
@connecting
def declare(topic: str, as_json: bool, settings: Settings, **options: Any) -> None:
    """Create a topic, unless it exists with these options.

    If it exists with other options, or is a queue, nothing changes, and the
    exit code is 3. What is bound to it stays bound.
    """
    arguments = {option: value for option, value in options.items() if value is not None}
    with settings.using() as broker:
        handle = broker.declare_topic(topic, **arguments)
        in_force = queues.in_force(handle) if as_json else None
    document = {"topic": topic, "declared": handle.declared, "options": in_force}
    output.answer_either(document, f"topic {topic} {queues.outcome(handle)}", as_json=as_json)


@topic.command(
    cls=params.QueueOptionsCommand, epilog="\b\nExample: rqttl topic subscribe news europe --filter 'orders.eu.#'"
)
@_topic_argument
@_subscription_argument
@_filter_option
@params.queue_options
@json_flag
@connecting
def subscribe(
    topic: str, name: str, rules: list[Rule] | None, as_json: bool, settings: Settings, **options: Any
) -> None:
    """Declare the queue TOPIC/NAME, and bind it to the topic.

    It gets copies of the messages that are sent from now on. The command can be
    repeated; with another filter or other options the exit code is 3. Without a
    lifetime of its own, the queue gets the --auto-delete-on-idle of the topic.
    """
    arguments = {option: value for option, value in options.items() if value is not None}
    with _using(settings, topic) as broker:
        queues.check_adoption(broker, f"{topic}/{name}", arguments)
        handle = broker.topic(topic).subscribe(name, rules, **arguments)
        in_force = queues.in_force(handle) if as_json else None
    document = {"topic": topic, "queue": handle.name, "declared": handle.declared, "filter": rules or []}
    line = f"queue {handle.name} {queues.outcome(handle)}; it gets {format_filter(rules or [])} of {topic}"
    output.answer_either({**document, "options": in_force}, line, as_json=as_json)


@topic.command(epilog="\b\nExample: rqttl topic unsubscribe news europe --dry-run")
@_topic_argument
@_subscription_argument
@params.yes_flag
@params.dry_run_flag
@json_flag
@connecting
def unsubscribe(topic: str, name: str, yes: bool, dry_run: bool, as_json: bool, settings: Settings) -> None:
    """Unbind and delete the queue TOPIC/NAME.

    All its messages are gone: nothing is dead-lettered.
    """
    queue = f"{topic}/{name}"
    with _using(settings, topic) as broker:
        if dry_run or not yes:
            _bindings(broker, topic)
            stats = broker.queue(queue).stats()
        if not dry_run:
            if not yes:
                output.confirm(f"Delete {queue} ({effects.summary(stats)})?")
            ready = broker.topic(topic).unsubscribe(name)
    if dry_run:
        document = {"would_delete": True, "ready": stats.ready}
        line = f"queue {queue} would be unbound and deleted ({effects.summary(stats)})"
    else:
        document = {"deleted": True, "ready": ready}
        line = f"queue {queue} unbound and deleted, with {text.plural(ready, 'ready message')}"
    output.answer_either({"topic": topic, "queue": queue, **document}, line, as_json=as_json)


@topic.command(epilog='\b\nExample: rqttl topic bind news mails --filter \'{"kind": "mail"}\'')
@_topic_argument
@params.queue_argument
@_filter_option
@json_flag
@connecting
def bind(topic: str, queue: str, rules: list[Rule] | None, as_json: bool, settings: Settings) -> None:
    """Let an existing queue get messages of a topic.

    It gets copies of those that are sent from now on. On a cluster it must be
    in the slot of the topic. The command can be repeated; with another filter
    the exit code is 3: `rqttl topic set-filter` changes it.
    """
    with _using(settings, topic) as broker:
        broker.topic(topic).bind(queue, rules)
    line = f"queue {queue} is bound to {topic}; it gets {format_filter(rules or [])}"
    output.answer_either({"topic": topic, "queue": queue, "filter": rules or []}, line, as_json=as_json)


@topic.command(epilog="\b\nExample: rqttl topic unbind news mails")
@_topic_argument
@params.queue_argument
@json_flag
@connecting
def unbind(topic: str, queue: str, as_json: bool, settings: Settings) -> None:
    """Let a queue get no more messages of a topic. Those that it has stay.

    If it is not bound, the exit code is 3.
    """
    with _using(settings, topic) as broker:
        was_bound = broker.topic(topic).unbind(queue)
    if not was_bound:
        hint = f"`rqttl topic show {topic}` lists the queues that are"
        raise Refused(f"queue {queue!r} is not bound to {topic!r}: {hint}", "not_found")
    line = f"queue {queue} is not bound to {topic} any more"
    output.answer_either({"topic": topic, "queue": queue, "unbound": True}, line, as_json=as_json)


@topic.command("set-filter", epilog="\b\nExample: rqttl topic set-filter news europe 'orders.eu.#'")
@_topic_argument
@click.argument("name", shell_complete=_complete_subscriptions)
@click.argument("rules", metavar="FILTER", type=FILTER)
@json_flag
@connecting
def set_filter(topic: str, name: str, rules: list[Rule], as_json: bool, settings: Settings) -> None:
    """Give a bound queue another filter.

    NAME is a bound queue or the name of a subscription. FILTER is a pattern or
    JSON, as for `rqttl topic subscribe`; '{}' stands for everything. Messages
    that are stored stay where they are.
    """
    with _using(settings, topic) as broker:
        broker.topic(topic).set_filter(name, rules)
    line = f"{name} gets {format_filter(rules)} of {topic} from now on"
    output.answer_either({"topic": topic, "name": name, "filter": rules}, line, as_json=as_json)


@topic.command(epilog="\b\nExample: rqttl topic show news")
@_topic_argument
@params.utc_flag
@json_flag
@connecting
def show(topic: str, utc: bool, as_json: bool, settings: Settings) -> None:
    """Show a topic and its bound queues.

    What waits at the topic comes first, then its counters: copied are copies in
    bound queues, unrouted are messages that none of them wanted. The numbers of
    a queue are of all its messages. The command only reads.
    """
    with _using(settings, topic, looks=True) as broker:
        bindings = _bindings(broker, topic)
        handle, now = broker.queue(topic), broker.server_time()
        stats, explanation = handle.stats(sweep=False), handle.explain()
        found, away = readable(lambda: broker.stats(bindings, sweep=False))
        reapers = running_reapers(broker) if stats.overdue >= LATE else None
    if as_json:
        bound = [
            {"queue": name, "filter": rules, "stats": to_json(found[name]) if name in found else None}
            for name, rules in bindings.items()
        ]
        output.answer_json({"topic": topic, **to_json(stats), "bindings": bound})
    else:
        output.print_pairs([("topic", topic), *facts(topic, stats, explanation, now, utc=utc)[1:]])
        output.answer("")
        if bindings:
            output.print_table(COLUMNS, [_row(name, bindings[name], found.get(name)) for name in bindings])
        else:
            output.answer(f"no queue is bound: `rqttl topic subscribe {topic} NAME` makes one")
        if stats.overdue >= LATE:
            output.note(LateWork(stats.overdue, reapers).advice)
        elif stats.ready and not stats.paused:
            output.note("if messages go on waiting here, `rqttl doctor` says which queue is full")
    if away:
        raise away


def _bindings(broker: Broker, topic: str) -> dict[str, list[Rule]]:
    """The bindings of a topic, read without a script, so that a reader may do it."""
    bindings = broker.queue(topic).options().bindings
    if bindings is None:
        raise QueueMismatch(topic, {}, text=f"queue {topic!r} is no topic: `rqttl queue show {topic}` shows it")
    return dict(bindings)


def _row(name: str, rules: list[Rule], stats: QueueStats | None) -> list[str]:
    if stats is None:
        return [f"{name} (missing)", format_filter(rules), "", "", "", "", ""]
    counts = map(text.format_count, (stats.ready, stats.leased, stats.delayed))
    waits = as_size(stats.ready_bytes), text.format_age(stats.oldest_ready_age)
    return [marked(name, stats), format_filter(rules), *counts, *waits]
