"""`rqttl policy` and `rqttl operator-policy`, the same commands for two kinds of policies; and `rqttl explain`."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.cli.common import output, params
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.params import flag, json_flag, json_name
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import PolicyNotFound, QueueNotFound
from rqttl.inspector import effects
from rqttl.inspector.message_view import deadline_text
from rqttl.options import OPTIONS
from rqttl.policies import Explained, Explanation, Policy
from rqttl.policies.policy import check_policy_name
from rqttl.types import PolicyResult
from rqttl.units import as_text

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: The number of queues that a command names one by one.
LISTED = 20


@click.group(epilog="\b\nExample: rqttl policy set short-lived 'orders.#' --message-ttl 5m")
def policy() -> None:
    """Give options to all queues with matching names."""


@click.group("operator-policy", epilog="\b\nExample: rqttl operator-policy set cap '#' --max-length 100000")
def operator_policy() -> None:
    """Give limits that win over declared options."""


def _is_operator() -> bool:
    group = click.get_current_context().parent
    return group is not None and group.command is operator_policy


def _kind() -> str:
    return "operator policy" if _is_operator() else "policy"


def _stored(broker: Broker, name: str) -> Policy:
    """The policy of this name. The error for a missing one names another with nearly the same name."""
    operator = _is_operator()
    check_policy_name(name, operator=operator)
    policies = broker.policies(operator=operator)
    found = next((one for one in policies if one.name == name), None)
    if found is None:
        error = PolicyNotFound(name, operator=operator)
        near = text.nearest(name, [one.name for one in policies], 0.75)
        raise Refused(f"{error}; did you mean {near}?" if near else str(error), error.code)
    return found


@click.command(
    "set",
    cls=params.QueueOptionsCommand,
    epilog="\b\nExample: rqttl policy set short-lived 'orders.#' --message-ttl 5m",
)
@click.argument("name")
@click.argument("pattern")
@params.policy_options
@click.option(
    "--none",
    multiple=True,
    type=params.OPTION_NAME,
    metavar="OPTION",
    help="Take this option from no policy that comes later; may be repeated.",
)
@click.option("--priority", type=int, default=0, show_default=True, metavar="N", help="Higher ones come first.")
@click.option("--regex", is_flag=True, help="PATTERN is a regular expression, searched in the name.")
@params.yes_flag
@params.dry_run_flag
@json_flag
@connecting
def set_policy(
    name: str, pattern: str, yes: bool, dry_run: bool, as_json: bool, settings: Settings, **flags: Any
) -> None:
    """Give options to all queues whose names match PATTERN.

    Words of PATTERN stand between dots: * is one word, # at the end is
    any number of words. The options act at once on existing queues and
    their messages. If messages would die by it, the command counts them
    and asks first. Each option of a queue comes from the first policy
    that has it: by priority, then the more specific pattern, then name.
    """
    operator, syntax = _is_operator(), "regex" if flags.pop("regex") else "wildcard"
    none, priority = flags.pop("none"), flags.pop("priority")
    options = {option: value for option, value in flags.items() if value is not None}
    for option in dict.fromkeys(none):
        if option in options:
            raise click.UsageError(f"{flag(option)[2:]} is given as a flag and with --none")
        options[option] = None
    wanted = Policy.read(name, pattern, options, priority=priority, syntax=syntax, operator=operator)
    with settings.using() as broker:
        warnings = broker.check_policy(wanted)
        if dry_run or not yes:
            result = broker.preview_policy(wanted)
        if not dry_run:
            if not yes:
                output.confirm_losses(f"Set {_kind()} {name}?", effects.deaths(result, ahead=True))
            result = broker.set_policy(name, **wanted.as_arguments(), operator=operator)  # type: ignore[arg-type]  # they are those of a policy
    _print(f"{_kind()} {name} {'would be ' if dry_run else ''}set", result, dry_run, as_json, warnings)


@click.command("ls", short_help="List all policies.", epilog="\b\nExample: rqttl policy ls")
@json_flag
@connecting
def list_policies(as_json: bool, settings: Settings) -> None:
    """List all policies, those of the highest priority first."""
    with settings.looking() as broker:
        policies, queues = broker.policies(operator=_is_operator()), broker.queues()
    counts = {one.name: sum(map(one.matches, queues)) for one in policies}
    if as_json:
        output.answer_json([_to_json(one) | {"queues": counts[one.name]} for one in policies])
    elif not policies:
        output.note(f"no {_kind()} yet: `rqttl {_kind().replace(' ', '-')} set NAME PATTERN` sets one")
    else:
        rows = [
            [one.name, one.pattern, one.syntax, str(one.priority), f"{counts[one.name]:,}", _format_definition(one)]
            for one in sorted(policies, key=lambda one: (-one.priority, one.name))
        ]
        output.print_table(["name", "pattern", "syntax", ">priority", ">queues", "definition"], rows)


@click.command(epilog="\b\nExample: rqttl policy show short-lived")
@click.argument("name")
@json_flag
@connecting
def show(name: str, as_json: bool, settings: Settings) -> None:
    """Show one policy, the queues that it matches, and warnings."""
    with settings.looking() as broker:
        found = _stored(broker, name)
        queues = [queue for queue in broker.queues() if found.matches(queue)]
        warnings = broker.check_policy(found)
    if as_json:
        output.answer_json(_to_json(found) | {"queues": queues, "warnings": warnings})
        return
    more = f"\nand {len(queues) - LISTED} more; --json names all" if len(queues) > LISTED else ""
    matches = "".join(f"\n{queue}" for queue in queues[:LISTED])
    output.print_pairs(
        [
            (_kind(), found.name),
            ("pattern", f"{found.pattern} ({found.syntax})"),
            ("priority", str(found.priority)),
            ("options", _format_definition(found).replace(", ", "\n")),
            ("matches", f"{text.plural(len(queues), 'queue')}{matches}{more}"),
        ]
    )
    for warning in warnings:
        output.note(f"warning: {warning}")


@click.command(epilog="\b\nExample: rqttl policy delete short-lived")
@click.argument("name")
@params.yes_flag
@params.dry_run_flag
@json_flag
@connecting
def delete(name: str, yes: bool, dry_run: bool, as_json: bool, settings: Settings) -> None:
    """Delete a policy.

    The queues that it matches get the options that are left. If messages
    would die by it, the command counts them and asks first.
    """
    with settings.using() as broker:
        gone = _stored(broker, name)
        if dry_run or not yes:
            result = broker.preview_policy(gone, delete=True)
        if not dry_run:
            if not yes:
                output.confirm_losses(f"Delete {_kind()} {name}?", effects.deaths(result, ahead=True))
            result = broker.delete_policy(name, operator=_is_operator())
    _print(f"{_kind()} {name} {'would be ' if dry_run else ''}deleted", result, dry_run, as_json, [])


for command in (set_policy, list_policies, show, delete):
    policy.add_command(command)
    same = copy(command)
    same.epilog = (command.epilog or "").replace("rqttl policy", "rqttl operator-policy")
    operator_policy.add_command(same)


def _format_definition(policy: Policy) -> str:
    return ", ".join(
        f"{flag(name)[2:]} {'none' if value is None else OPTIONS[name].format(value)}"
        for name, value in policy.definition.items()
    )


def _to_json(policy: Policy) -> dict[str, Any]:
    """A policy with names of options as in `queue show --json`. `null` is the word `none`."""
    return {
        "name": policy.name,
        "pattern": policy.pattern,
        "syntax": policy.syntax,
        "priority": policy.priority,
        "apply_to": policy.apply_to,
        "definition": {json_name(name): value for name, value in policy.definition.items()},
    }


def _print(line: str, result: PolicyResult, dry_run: bool, as_json: bool, warnings: list[str]) -> None:
    if as_json:
        changed = {
            queue: {json_name(name): {"before": before, "after": after} for name, (before, after) in changes.items()}
            for queue, changes in sorted(result.changed.items())
        }
        output.answer_json({**result._asdict(), "changed": changed, "dry_run": dry_run, "warnings": warnings})
        return
    count = len(result.changed)
    none = "no queue has changed yet" if result.denied else "no queue changes"
    effect = f"{text.plural(count, 'queue')} {'would change' if dry_run else 'changed'}" if count else none
    output.answer_sentence(f"{line}: {effect}")
    rows = [
        [queue if i == 0 else "", flag(name)[2:], " -> ".join(OPTIONS[name].format(value) for value in values)]
        for queue, changes in sorted(result.changed.items())[:LISTED]
        for i, (name, values) in enumerate(changes.items())
    ]
    if rows:
        output.print_table(["queue", "option", "change"], rows)
    if count > LISTED:
        output.answer_sentence(f"and {text.plural(count - LISTED, 'more queue')}; --json names all")
    for death in effects.deaths(result, ahead=dry_run):
        output.answer(death)
    if result.unfinished:
        output.note(f"more messages die in {text.plural(len(result.unfinished), 'queue')}: a reaper removes them")
    if result.denied:
        output.note(f"this user may not change {text.plural(len(result.denied), 'queue')}: a reaper does it")
    for warning in warnings:
        output.note(f"warning: {warning}")


@click.command(epilog="\b\nExample: rqttl explain orders --ttl 5s")
@params.queue_argument
@click.option("--ttl", type=params.DURATION, metavar="TIME", help="Explain the deadline of a message with this TTL.")
@click.option("--name-only", is_flag=True, help="Explain what policies give to this name; the queue need not exist.")
@click.option("--all", "every", is_flag=True, help="Show options at their defaults too.")
@json_flag
@connecting
def explain(queue: str, ttl: timedelta | None, name_only: bool, every: bool, as_json: bool, settings: Settings) -> None:
    """Explain the options of a queue.

    The command prints each option in force with its source: the declaration,
    a policy, an operator policy or the default. Below it stand the values
    that lost, and why. A queue that does not exist yet is explained by its
    name alone. The command only reads.
    """
    with settings.looking() as broker:
        existing = None if name_only else _explain_existing(broker, queue, ttl)
        explanation = existing or broker.explain(queue, ttl)
        now = broker.server_time()
    if as_json:
        output.answer_json(_explanation_json(explanation, now))
        return
    rows = [
        row
        for name, explained in explanation.items()
        if every or explained.source != "default" or explained.lost or explained.note
        for row in _option_rows(name, explained)
    ]
    policies = ", ".join(policy.source for policy in (*explanation.policies, *explanation.operator_policies))
    known = "as declared" if explanation.exists else "by its name alone"
    missing = "" if existing or name_only else "does not exist yet; "
    output.answer(f"queue {queue}: {missing}{known}{f', with {policies}' if policies else '; no policy matches'}")
    if rows:
        output.print_table(["option", "value", "source"], rows)
    else:
        output.answer("all options are at their defaults")
    output.answer("")
    steps = []
    for step in explanation.message.steps:
        rule = flag(step.option)[2:] if step.option else "message"
        source = f" ({explanation[step.option].source})" if step.option else ""
        steps.append([rule, "never expires" if step.ttl is None else as_text(step.ttl), f"{step.text}{source}"])
    output.print_table(["rule", "TTL after it", "effect"], steps)
    output.answer(deadline_text(explanation.message.ttl, now))
    reason = "the queue is not up to date with the policies; a reaper brings it there"
    for name, value in explanation.outdated.items():
        output.note(f"{flag(name)} is still {OPTIONS[name].format(value)} in force: {reason}")  # type: ignore[arg-type]  # the value of an option


def _explain_existing(broker: Broker, queue: str, ttl: timedelta | None) -> Explanation | None:
    """The explanation of an existing queue; `None` for a missing one, with a note of a nearly equal name."""
    try:
        return broker.queue(queue).explain(ttl)
    except QueueNotFound:
        if near := text.nearest(queue, broker.queues(), 0.75):
            output.note(f"queue {queue} does not exist; did you mean {near}?")
        return None


def _option_rows(name: str, explained: Explained) -> list[list[str]]:
    option = OPTIONS[name]
    lost = [
        ["", "none" if other.value is None else option.format(other.value), f"{other.source}, {other.reason}"]
        for other in explained.lost
    ]
    return [[flag(name)[2:], option.format(explained.value), explained.source], *lost]


def _explanation_json(explanation: Explanation, now: datetime) -> dict[str, Any]:
    ttl = explanation.message.ttl
    return {
        "queue": explanation.queue,
        "exists": explanation.exists,
        "policies": [policy.name for policy in explanation.policies],
        "operator_policies": [policy.name for policy in explanation.operator_policies],
        "options": {
            json_name(name): {
                "value": explained.value,
                "source": explained.source,
                "lost": [asdict(lost) for lost in explained.lost],
                "note": explained.note or None,
            }
            for name, explained in explanation.items()
        },
        "message": {
            "ttl_ms": explanation.message.ttl,
            "expires_at": None if ttl is None else now + timedelta(milliseconds=ttl),
            "steps": [
                {"option": step.option, "text": step.text, "ttl_ms": step.ttl} for step in explanation.message.steps
            ],
        },
        "outdated": {json_name(name): value for name, value in explanation.outdated.items()},
    }
