"""`rqttl queue`: create queues, change them, look at them, remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

import click

from rqttl import text
from rqttl.cli.common import output, params
from rqttl.cli.common.errors import Refused, explain
from rqttl.cli.common.params import flag, json_flag, queues_argument
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import PolicyDecides, QueueInUse, QueueNotFound, QueuesAway, RqttlError
from rqttl.inspector import effects
from rqttl.inspector.queues import (
    CONSUMERS,
    LATE,
    LateWork,
    aggregate,
    consumer_row,
    consumer_to_json,
    death_rows,
    deaths,
    existing_names,
    facts,
    kinds,
    living_consumers,
    marked,
    readable,
    running_reapers,
    to_json,
)
from rqttl.options import OPTIONS, REASONS, QueueOptions, UpdateResult
from rqttl.policies import Explanation
from rqttl.types import Purged, QueueStats, State
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue
    from rqttl.types import Declared

#: The outcomes of a declaration, for people.
DECLARED: dict[Declared, str] = {
    "created": "created",
    "existing": "exists already, with these options",
    "adopted": "declared; a dead letter had created it",
}
#: `scheduled` is left out if no message is.
COLUMNS = ("queue", ">ready", ">leased", ">delayed", ">scheduled", ">bytes", ">oldest", ">dead")
#: The result of an action on one queue, for `text.dump_json`.
Result = dict[str, Any]


@click.group(epilog="\b\nExample: rqttl queue ls 'orders.*'")
def queue() -> None:
    """Create queues, change them, look at them."""


@queue.command(
    cls=params.QueueOptionsCommand,
    epilog="\b\nExample: rqttl queue declare orders --expires 1h --dead-letter '{queue}/dead'",
)
@params.queue_name_argument
@params.queue_options
@json_flag
@connecting
def declare(name: str, as_json: bool, settings: Settings, **options: Any) -> None:
    """Create a queue, unless it exists with these options.

    If it exists with other options nothing changes, and the exit code is 3.
    If only dead letters created it, it gets these options, unless messages
    would die by it.
    """
    arguments = {option: value for option, value in options.items() if value is not None}
    with settings.using() as broker:
        check_adoption(broker, name, arguments)
        handle = broker.declare_queue(name, **arguments)
        options_now = in_force(handle) if as_json else None
    document = {"queue": name, "declared": handle.declared, "options": options_now}
    output.answer_either(document, f"queue {name} {outcome(handle)}", as_json=as_json)


def in_force(queue: Queue) -> dict[str, Any] | None:
    """The options of a queue that was declared, for `text.dump_json`. `None` if its `--expires` is over already."""
    with suppress(QueueNotFound):
        return params.to_json(queue.options())
    return None


def outcome(queue: Queue) -> str:
    """The outcome of the declaration of a queue, for people."""
    return DECLARED[queue.declared or "existing"]


def check_adoption(broker: Broker, name: str, options: Any) -> None:
    """Raise `Refused` if only dead letters created the queue, and the options would end some of its messages."""
    adopted = broker.preview_declaration(name, **options)
    if adopted and (losses := effects.losses(adopted, ahead=True)):
        rest = f"declare it without options, then `rqttl queue update {name}` asks"
        raise Refused(f"dead letters created queue {name!r}, and {' and '.join(losses)}: {rest}")


@queue.command("ls", epilog="\b\nExample: rqttl queue ls 'orders.*'")
@params.any_queues_argument
@click.option("--quiet", "-q", is_flag=True, help="Print only names, one a line.")
@json_flag
@connecting
def list_queues(queues: tuple[str, ...], quiet: bool, as_json: bool, settings: Settings) -> None:
    """List queues.

    The list has all queues, or those named or matched by a QUEUE (with *, ?
    and [...]). Bytes and oldest are of the ready messages. The command only
    reads: expired messages count until a reaper or a consumer has swept them.
    """
    with settings.looking() as broker:
        names = existing_names(broker, queues)
        stats: Mapping[str, QueueStats] = {}
        away: QueuesAway | None = None
        if not quiet:
            stats, away = readable(lambda: broker.stats(names, sweep=False))
            names = sorted(stats)
        overdue = max((queue.overdue for queue in stats.values()), default=timedelta(0))
        reapers = running_reapers(broker) if overdue >= LATE else None
        marks = {} if as_json else kinds(broker, stats)
    if as_json:
        output.answer_json([{"queue": name, **(to_json(stats[name]) if stats else {})} for name in names])
    elif not names:
        output.note_no_queue(queues)
    elif quiet:
        output.answer("\n".join(names))
    else:
        together = aggregate(stats.values())
        later = together.scheduled > 0
        columns = [column for column in COLUMNS if later or column != ">scheduled"]
        total = [text.plural(len(names), "queue"), *_cells(together, later=later)] if len(names) > 1 else None
        rows = [[marked(name, stats[name], marks.get(name)), *_cells(stats[name], later=later)] for name in names]
        output.print_table(columns, rows, total)
    if overdue >= LATE:
        output.note(LateWork(overdue, reapers).advice)
    if away:
        raise away


def _cells(stats: QueueStats, *, later: bool) -> list[str]:
    counts = [stats.ready, stats.leased, stats.delayed, *([stats.scheduled] if later else [])]
    size, oldest = as_size(stats.ready_bytes), text.format_age(stats.oldest_ready_age)
    return [*map(text.format_count, counts), size, oldest, text.format_count(deaths(stats))]


@queue.command(epilog="\b\nExample: rqttl queue show orders --all")
@params.queue_name_argument
@click.option("--all", "every", is_flag=True, help="Show options at their defaults too.")
@params.utc_flag
@json_flag
@connecting
def show(name: str, every: bool, utc: bool, as_json: bool, settings: Settings) -> None:
    """Show one queue.

    The command prints its messages, its counters, the consumers and workers
    that live, the targets of its dead letters, and its options. It only reads:
    expired messages count until a reaper or a consumer has swept them. The
    numbers of a consumer are 10s old at most, those of an idle one 30s.
    """
    with settings.looking() as broker:
        handle = broker.queue(name)
        stats, options, now = handle.stats(sweep=False), handle.options(), broker.server_time()
        reapers = running_reapers(broker) if stats.overdue >= LATE else None
        explanation, consumers = handle.explain(), living_consumers(broker, name)
        node = broker.node_of(name)
    if as_json:
        document = {
            "queue": name,
            "node": node and node._asdict(),
            **to_json(stats),
            "living_consumers": None if consumers is None else list(map(consumer_to_json, consumers)),
            "options": params.to_json(options),
            "dead_letters_go_to": {reason: options.target(reason) or None for reason in REASONS},
            "option_sources": [
                {"option": params.json_name(one), "source": explanation[one].source} for one in explanation
            ],
        }
        output.answer_json(document)
        return
    pairs = facts(name, stats, explanation, now, utc=utc)
    if options.bindings is not None:
        bound = text.plural(len(options.bindings), "queue")
        pairs.insert(1, ("topic", f"messages go on to {bound}: `rqttl topic show {name}`"))
    elif options.forwards_to:
        pairs.insert(1, ("forwards", f"messages go on to {options.forwards_to}"))
    if node:
        replica = "with a replica" if node.replicated else "without a replica"
        pairs.insert(1, ("node", f"{node.address}, slot {node.slot}, {replica}"))
    output.print_pairs(pairs)
    if stats.overdue >= LATE:
        output.note(LateWork(stats.overdue, reapers).advice)
    if consumers is None:
        output.note(f"queue {name}: cannot read its consumers")
    elif consumers:
        output.answer("")
        output.print_table(CONSUMERS, [consumer_row(one, now, utc=utc) for one in consumers])
    output.answer("")
    output.print_table(["death reason", ">died", ">dropped", "dead letters go to"], death_rows(stats, options))
    output.answer("")
    output.print_pairs(_option_pairs(options, explanation, every=every))


def _option_pairs(options: QueueOptions, explanation: Explanation, *, every: bool) -> list[tuple[str, str]]:
    """The options that differ from their defaults, or every option; with their sources where policies match."""
    matched = explanation.policies or explanation.operator_policies
    lines = []
    for name, option in OPTIONS.items():
        source = f" ({explanation[name].source})" if matched else ""
        if name in options.non_default:
            lines.append((flag(name), f"{option.format(options[name])}{source}"))
        elif every:
            default = " (default)" if option.default is not None else ""
            lines.append((flag(name), f"{option.format(option.default)}{default}"))
    return lines or [("options", "all at their defaults")]


@queue.command(
    cls=params.QueueOptionsCommand, epilog="\b\nExample: rqttl queue update orders --message-ttl 5m --unset max-length"
)
@params.queue_name_argument
@params.queue_options
@click.option(
    "--unset",
    multiple=True,
    type=params.OPTION_NAME,
    metavar="OPTION",
    help="Put this option back to its default; may be repeated.",
)
@params.yes_flag
@params.dry_run_flag
@json_flag
@connecting
def update(
    name: str, unset: list[str], yes: bool, dry_run: bool, as_json: bool, settings: Settings, **options: Any
) -> None:
    """Change options of a queue.

    All other options stay as they are. A change acts at once, also on stored
    messages: a shorter --message-ttl, a lower limit and --expires let messages
    die. The command counts them and asks first. Programs that declare the queue
    with other options fail from then on; a policy changes options without that.
    """
    changes = {option: value for option, value in options.items() if value is not None}
    for option in dict.fromkeys(unset):
        if option in changes:
            raise click.UsageError(f"{flag(option)} is given a value and unset")
        changes[option] = None
    if not changes:
        raise click.UsageError("nothing to change: give an option, or --unset OPTION")
    with settings.using() as broker:
        target = broker.queue(name)
        if dry_run or not yes:
            result = target.preview_update(**changes)
        if not dry_run:
            if not yes:
                output.confirm_losses(f"Update {name}?", effects.losses(result, ahead=True))
            result = target.update(**changes)
    _print_update(name, changes, result, dry_run=dry_run, as_json=as_json)


def _print_update(name: str, changes: Iterable[str], result: UpdateResult, *, dry_run: bool, as_json: bool) -> None:
    changed = list(result.before.differences(result.after))
    if as_json:
        output.answer_json(
            {
                "queue": name,
                "dry_run": dry_run,
                "changed": list(map(params.json_name, changed)),
                "expired": result.expired,
                "trimmed": result.trimmed,
                "ending": result.ending,
                "ends_after_ms": result.ends_after_ms,
                "before": params.to_json(result.before),
                "after": params.to_json(result.after),
            }
        )
        return
    count = text.plural(len(changed), "option") if changed else "nothing"
    output.answer(f"queue {name}: {count} {'would be ' if dry_run else ''}changed")
    pairs = []
    for option, rule in OPTIONS.items():
        before, after = (rule.format(options[option]) for options in (result.before, result.after))
        if option in changed:
            pairs.append((flag(option), f"{before} -> {after}"))
        elif option in changes:
            pairs.append((flag(option), f"{after}, as before"))
    output.print_pairs(pairs)
    for line in effects.losses(result, ahead=dry_run):
        output.answer(line)
    if changed and not dry_run:
        others = f"programs that declare {name} with other options fail from now on"
        output.note(f"{others}; `rqttl policy set` changes options without that")


# Calls on several queues


def _for_each(
    broker: Broker,
    names: Sequence[str],
    act: Callable[[Queue], Result],
    describe: Callable[[Queue, Result], str],
    *,
    as_json: bool,
) -> None:
    """Act on each queue, and print each result as `describe` has it. A refusal of one queue does not stop the others.

    Raises `InvalidName` before any action, the refusal of a single queue, or `Refused` for some of several. An action
    that is cut short still prints the results so far.
    """
    queues = [broker.queue(name) for name in dict.fromkeys(names)]
    results: list[Result] = []
    refusals: list[RqttlError] = []
    try:
        for queue in queues:
            try:
                result = act(queue)
            except (QueueNotFound, QueueInUse, PolicyDecides) as error:
                refusals.append(error)
                results.append({"queue": queue.name, "error": error.code})
                if len(queues) > 1:
                    output.note(explain(error)[1])
            else:
                results.append({"queue": queue.name, **result})
                if not as_json:
                    output.answer(describe(queue, result))
    finally:
        if as_json:
            output.answer_json(results)
    if refusals and len(queues) == 1:
        raise refusals[0]
    if refusals:
        raise Refused(f"{len(refusals)} of {text.plural(len(queues), 'queue')} refused; the lines above say why")


@queue.command(short_help="Mark queues as used.", epilog="\b\nExample: rqttl queue touch orders")
@queues_argument
@json_flag
@connecting
def touch(queues: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Mark queues as used, so that --expires and --auto-delete-on-idle start again."""

    def mark(handle: Queue) -> Result:
        handle.touch()
        return {"touched": True}

    with settings.using() as broker:
        _for_each(broker, queues, mark, lambda handle, _: f"queue {handle.name} touched", as_json=as_json)


@queue.command(epilog="\b\nExample: rqttl queue pause 'orders.*'")
@queues_argument
@json_flag
@connecting
def pause(queues: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """Pause queues, named or matched by a QUEUE (with *, ? and [...]).

    Consumers get no message any more; they wait until the queue is resumed.
    Senders go on. A pause outlives restarts, also of workers that declare the
    queue.
    """
    _switch(queues, settings, paused=True, as_json=as_json)


@queue.command(epilog="\b\nExample: rqttl queue resume orders")
@queues_argument
@json_flag
@connecting
def resume(queues: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """End the pause of queues, named or matched by a QUEUE (with *, ? and [...]).

    A queue that a policy pauses stays paused: the error names the policy.
    """
    _switch(queues, settings, paused=False, as_json=as_json)


def _switch(queues: tuple[str, ...], settings: Settings, *, paused: bool, as_json: bool) -> None:
    def act(handle: Queue) -> Result:
        result = handle.pause() if paused else handle.resume()
        return {"paused": paused, "changed": result.before.paused is not result.after.paused}

    def describe(handle: Queue, result: Result) -> str:
        was = "" if result["changed"] else ", as before"
        return f"queue {handle.name} is {'paused' if paused else 'not paused'}{was}"

    with settings.using() as broker:
        names = existing_names(broker, queues)
        if not names:
            output.note_no_queue(queues)
        _for_each(broker, names, act, describe, as_json=as_json)


def _of(queue: Queue, stats: Mapping[str, QueueStats]) -> QueueStats:
    if queue.name not in stats:
        raise QueueNotFound(queue.name)
    return stats[queue.name]


def _ask(verb: str, queues: Mapping[str, str]) -> None:
    """Ask about the queues that exist, with what is lost of each; without one, every action will be refused."""
    if len(queues) == 1:
        ((name, loss),) = queues.items()
        output.confirm(f"{verb} {name} ({loss})?")
    else:
        losses = [f"{name}: {loss}" for name, loss in queues.items()]
        output.confirm_losses(f"{verb} these {len(queues)} queues?", losses)


@queue.command(epilog="\b\nExample: rqttl queue purge orders --dry-run")
@queues_argument
@click.option(
    "--state", type=click.Choice(get_args(Purged)), default="ready", show_default=True, help="The messages to remove."
)
@params.yes_flag
@params.dry_run_flag
@json_flag
@connecting
def purge(queues: tuple[str, ...], state: Purged, yes: bool, dry_run: bool, as_json: bool, settings: Settings) -> None:
    """Remove the ready messages of queues, the scheduled ones, or both.

    The messages are gone: nothing is dead-lettered. Leased and delayed messages
    stay.
    """

    def present(stats: QueueStats) -> str:
        ready = f"{text.format_count(stats.ready)} ready, {as_size(stats.ready_bytes)}"
        scheduled = f"{text.format_count(stats.scheduled)} scheduled"
        return {"ready": ready, "scheduled": scheduled, "all": f"{ready}, {scheduled}"}[state]

    def number(stats: QueueStats) -> int:
        return (stats.ready if state != "scheduled" else 0) + (stats.scheduled if state != "ready" else 0)

    noun = "message" if state == "all" else f"{state} message"
    with settings.using() as broker:
        if dry_run or not yes:
            stats = broker.stats(queues)
        if not dry_run and not yes:
            _ask("Purge", {name: present(one) for name, one in stats.items()})
        key, removed = ("would_purge", "would be removed") if dry_run else ("purged", "removed")
        _for_each(
            broker,
            queues,
            lambda queue: {key: number(_of(queue, stats)) if dry_run else queue.purge(state)},
            lambda queue, result: f"queue {queue.name}: {text.plural(result[key], noun)} {removed}",
            as_json=as_json,
        )


@queue.command(epilog="\b\nExample: rqttl queue delete orders --if-unused --if-empty")
@queues_argument
@click.option("--if-unused", is_flag=True, help="Only if it has no consumers.")
@click.option("--if-empty", is_flag=True, help="Only if it holds no message in any state.")
@params.yes_flag
@params.dry_run_flag
@json_flag
@connecting
def delete(
    queues: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool, settings: Settings, **conditions: bool
) -> None:
    """Delete queues with all their messages.

    Messages in any state are gone: nothing is dead-lettered. With a topic go
    its subscriptions, the queues TOPIC/NAME that are bound to it.
    """
    with settings.using() as broker:
        if dry_run or not yes:
            stats = broker.stats(queues)
            subscriptions = effects.subscriptions(broker, stats)
            losses = {name: effects.deleted(one, subscriptions.get(name)) for name, one in stats.items()}
        if not dry_run and not yes:
            _ask("Delete", losses)

        def act(queue: Queue) -> Result:
            if dry_run:
                ends = {queue.name: _of(queue, stats), **subscriptions.get(queue.name, {})}
                return _would_delete(ends, **conditions)
            return {"deleted": True, "ready": queue.delete(**conditions)}

        def describe(queue: Queue, result: Result) -> str:
            if dry_run:
                return f"queue {queue.name} would be deleted ({losses[queue.name]})"
            return f"queue {queue.name} deleted, with {text.plural(result['ready'], 'ready message')}"

        _for_each(broker, queues, act, describe, as_json=as_json)


def _would_delete(queues: Mapping[str, QueueStats], *, if_unused: bool, if_empty: bool) -> Result:
    """The result that `delete` of the first queue, and of its subscriptions, would have. Raises as it would."""
    for name, stats in queues.items():
        if if_unused and stats.consumers:
            raise QueueInUse(name, "if_unused", stats.consumers)
        if if_empty and stats.depth:
            raise QueueInUse(name, "if_empty", stats.depth)
    total = aggregate(queues.values())
    numbers = {name: getattr(total, name) for name in (*get_args(State), "consumers")}
    return {"would_delete": True, **numbers, "subscriptions": list(queues)[1:]}
