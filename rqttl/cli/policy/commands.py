"""`rqttl policy` and `rqttl operator-policy`: the same commands for two kinds of policies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from rqttl import flows, text
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.option_text import format_value, json_name
from rqttl.cli.common.params import F, confirm, dry_run_flag, json_flag, yes_flag
from rqttl.cli.common.queue_names import complete_names
from rqttl.cli.common.settings import Settings, command_group, connecting
from rqttl.cli.option_flags import OptionNameType, QueueOptionsCommand, queue_options, unique
from rqttl.errors import InvalidPolicy, PolicyNotFound
from rqttl.options import OPTIONS
from rqttl.policies import Policy
from rqttl.policies.policy import check_policy_name
from rqttl.text import format_count, plural
from rqttl.types import PolicyResult

if TYPE_CHECKING:
    from rqttl.broker import Broker


def kind(operator: bool) -> str:
    """The kind of a policy, in words."""
    return "operator policy" if operator else "policy"


def policy_argument(*, operator: bool) -> Callable[[F], F]:
    """An argument with the name of a policy, completed from those that are set."""

    def names(broker: Broker) -> list[str]:
        return [policy.name for policy in of_kind(broker, operator=operator)]

    def complete(context: click.Context, param: click.Parameter, prefix: str) -> list[str]:
        return complete_names(context, param, prefix, names)

    return click.argument("name", shell_complete=complete)


def of_kind(broker: Broker, *, operator: bool) -> list[Policy]:
    """All policies of one kind."""
    return broker.policies(operator=operator)


def stored(broker: Broker, name: str, *, operator: bool) -> Policy:
    """The policy of this name. The error for a missing one names another with nearly the same name."""
    check_policy_name(name, operator=operator)
    from rqttl.store.driver import driver_of  # slow to load; the broker has loaded it

    driver = driver_of(broker)
    policy = driver.perform(flows.policies.current(driver.keyspace)).get(name, operator)
    if policy is None:
        policies = [other.name for other in of_kind(broker, operator=operator)]
        error = PolicyNotFound(name, operator=operator)
        near = text.nearest(name, policies, 0.75)
        raise Refused(f"{error}; did you mean {near}?" if near else str(error), error.code)
    return policy


def format_definition(policy: Policy) -> str:
    """The definition in one line."""
    return ", ".join(f"{name.replace('_', '-')} {_value(name, value)}" for name, value in policy.definition.items())


def format_difference(option: str, values: tuple[Any, Any]) -> str:
    """The values of an option before and after."""
    return " -> ".join(format_value(OPTIONS[option], value) for value in values)


def to_json(policy: Policy) -> dict[str, Any]:
    """A policy with names of options as in `queue show --json`. `null` is the word `none`."""
    return {
        "name": policy.name,
        "pattern": policy.pattern,
        "syntax": policy.syntax,
        "priority": policy.priority,
        "apply_to": policy.apply_to,
        "definition": {json_name(name): value for name, value in policy.definition.items()},
    }


def result_to_json(result: PolicyResult) -> dict[str, Any]:
    """The effect of a change."""
    return {
        "changed": {name: _changes(changes) for name, changes in sorted(result.changed.items())},
        "expired": result.expired,
        "trimmed": result.trimmed,
        "unfinished": list(result.unfinished),
        "denied": list(result.denied),
    }


def _changes(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {json_name(name): {"before": before, "after": after} for name, (before, after) in changes.items()}


def _value(name: str, value: Any) -> str:
    return "none" if value is None else format_value(OPTIONS[name], value)


#: The number of queues that a command names one by one.
LISTED = 20


def ls_command(*, operator: bool) -> click.Command:
    """The command `ls` for one kind of policies."""
    words = f"{kind(operator).removesuffix('y')}ies"
    group = kind(operator).replace(" ", "-")

    @click.command("ls", short_help=f"List all {words}.", epilog=f"\b\nExample: rqttl {group} ls")
    @json_flag
    @connecting
    def command(as_json: bool, settings: Settings) -> None:
        with settings.using() as broker:
            policies = of_kind(broker, operator=operator)
            queues = broker.queues()
        counts = {policy.name: sum(map(policy.matches, queues)) for policy in policies}
        if as_json:
            output.answer_json([to_json(policy) | {"queues": counts[policy.name]} for policy in policies])
        elif not policies:
            output.note(f"no {kind(operator)} yet: `rqttl {group} set NAME PATTERN` sets one")
        else:
            rows = [
                [
                    policy.name,
                    policy.pattern,
                    policy.syntax,
                    str(policy.priority),
                    format_count(counts[policy.name]),
                    format_definition(policy),
                ]
                for policy in sorted(policies, key=lambda policy: (-policy.priority, policy.name))
            ]
            output.print_table(["name", "pattern", "syntax", ">priority", ">queues", "definition"], rows)

    command.help = f"List all {words}, those of the highest priority first."
    return command


def show_command(*, operator: bool) -> click.Command:
    """The command `show` for one kind of policies."""
    group = kind(operator).replace(" ", "-")

    @click.command("show", epilog=f"\b\nExample: rqttl {group} show short-lived")
    @policy_argument(operator=operator)
    @json_flag
    @connecting
    def command(name: str, as_json: bool, settings: Settings) -> None:
        """Show one policy, the queues that it matches, and warnings."""
        with settings.using() as broker:
            policy = stored(broker, name, operator=operator)
            queues = [queue for queue in broker.queues() if policy.matches(queue)]
            warnings = broker.check_policy(policy)
        if as_json:
            output.answer_json(to_json(policy) | {"queues": queues, "warnings": warnings})
            return
        more = f"\nand {len(queues) - LISTED} more; --json names all" if len(queues) > LISTED else ""
        output.print_pairs(
            [
                (kind(operator), policy.name),
                ("pattern", f"{policy.pattern} ({policy.syntax})"),
                ("priority", str(policy.priority)),
                ("options", "\n".join(line for line in format_definition(policy).split(", "))),
                ("matches", plural(len(queues), "queue") + "".join(f"\n{queue}" for queue in queues[:LISTED]) + more),
            ]
        )
        for warning in warnings:
            output.note(f"warning: {warning}")

    return command


#: The flags of a policy that are no options of queues.
_FLAGS = (
    click.option(
        "--none",
        multiple=True,
        type=OptionNameType(),
        callback=unique,
        metavar="OPTION",
        help="Take this option from no policy that comes later; may be repeated.",
    ),
    click.option("--definition", metavar="JSON", help="Options as a JSON object, beside the flags."),
    click.option("--priority", type=int, default=0, show_default=True, metavar="N", help="Higher ones come first."),
    click.option("--regex", is_flag=True, help="PATTERN is a regular expression, searched in the name."),
    click.option("--apply-to", default="queues", show_default=True, metavar="KIND", help="Kind of the matching names."),
)


def _policy_flags(command: F) -> F:
    """Give a command the flags of a policy that are no options of queues."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def set_command(*, operator: bool) -> click.Command:
    """The command `set` for one kind of policies."""
    group = kind(operator).replace(" ", "-")

    @click.command(
        "set", cls=QueueOptionsCommand, epilog=f"\b\nExample: rqttl {group} set short-lived 'orders.#' --message-ttl 5m"
    )
    @click.argument("name")
    @click.argument("pattern")
    @queue_options
    @_policy_flags
    @yes_flag
    @dry_run_flag
    @json_flag
    @connecting
    def command(
        name: str, pattern: str, yes: bool, dry_run: bool, as_json: bool, settings: Settings, **flags: Any
    ) -> None:
        """Give options to all queues whose names match PATTERN.

        Words of PATTERN stand between dots: * is one word, # at the end is
        any number of words. The options act at once on existing queues and
        their messages. If messages would die by it, the command counts them
        and asks first. Each option of a queue comes from the first policy
        that has it: by priority, then the more specific pattern, then name.
        """
        policy = _policy(name, pattern, flags, operator=operator)
        with settings.using() as broker:
            warnings = broker.check_policy(policy)
            if dry_run:
                result = broker.preview_policy(policy)
            else:
                if not yes:
                    _ask(f"Set {kind(operator)} {name}?", broker.preview_policy(policy))
                result = broker.set_policy(name, **policy.as_arguments(), operator=operator)  # type: ignore[arg-type]  # they are those of a policy
        _print(f"{kind(operator)} {name} {'would be ' if dry_run else ''}set", result, dry_run, as_json, warnings)

    return command


def delete_command(*, operator: bool) -> click.Command:
    """The command `delete` for one kind of policies."""
    group = kind(operator).replace(" ", "-")

    @click.command("delete", epilog=f"\b\nExample: rqttl {group} delete short-lived")
    @policy_argument(operator=operator)
    @yes_flag
    @dry_run_flag
    @json_flag
    @connecting
    def command(name: str, yes: bool, dry_run: bool, as_json: bool, settings: Settings) -> None:
        """Delete a policy.

        The queues that it matches get the options that are left. If messages
        would die by it, the command counts them and asks first.
        """
        with settings.using() as broker:
            policy = stored(broker, name, operator=operator)
            if dry_run:
                result = broker.preview_policy(policy, delete=True)
            else:
                if not yes:
                    _ask(f"Delete {kind(operator)} {name}?", broker.preview_policy(policy, delete=True))
                result = broker.delete_policy(name, operator=operator)
        _print(f"{kind(operator)} {name} {'would be ' if dry_run else ''}deleted", result, dry_run, as_json, [])

    return command


def _policy(name: str, pattern: str, flags: dict[str, Any], *, operator: bool) -> Policy:
    """The policy of a command line. Flags that are no options of queues are removed from `flags`."""
    definition, none = flags.pop("definition"), flags.pop("none")
    priority, apply_to = flags.pop("priority"), flags.pop("apply_to")
    syntax = "regex" if flags.pop("regex") else "wildcard"
    options = _definition(definition, flags, none)
    return Policy.read(name, pattern, options, priority=priority, apply_to=apply_to, syntax=syntax, operator=operator)


def _definition(flags: str | None, options: Mapping[str, Any], none: list[str]) -> dict[str, Any]:
    """The options of the command line: flags, `--none` and JSON. Each option may stand in one of them."""
    definition = {name: value for name, value in options.items() if value is not None}
    for name in none:
        if name in definition:
            raise click.UsageError(f"{name.replace('_', '-')} is given as a flag and with --none")
        definition[name] = None
    if flags is not None:
        try:
            read: Any = json.loads(flags, object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError) as error:
            raise click.BadParameter(f"expected JSON: {error}", param_hint="--definition") from None
        if not isinstance(read, dict):
            raise click.BadParameter(
                f"expected a JSON object, got {text.format_value(flags)}", param_hint="--definition"
            )
        for name, value in read.items():
            if name.replace("-", "_") in definition:
                raise click.UsageError(f"{name.replace('_', '-')} is given in --definition and as a flag")
            definition[name] = value
    return definition


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice."""
    read = dict(pairs)
    for name, _ in pairs:
        if sum(name == other for other, _ in pairs) > 1:
            raise InvalidPolicy(f"definition: {text.format_value(name)} stands there twice")
    return read


def _ask(question: str, preview: PolicyResult) -> None:
    """Ask if messages would die. Raises as `confirm` does."""
    deaths = _deaths(preview, ahead=True)
    for line in deaths:
        output.note(line)
    if deaths:
        confirm(question, yes=False)


def _deaths(result: PolicyResult, *, ahead: bool) -> list[str]:
    lines = []
    for count, verb in ((result.expired, "expire"), (result.trimmed, "be pushed out by a limit")):
        if count:
            past = "expired" if verb == "expire" else "pushed out by a limit"
            lines.append(f"{text.plural(count, 'message')} {f'would {verb}' if ahead else past}")
    return lines


def _print(line: str, result: PolicyResult, dry_run: bool, as_json: bool, warnings: list[str]) -> None:
    if as_json:
        output.answer_json(result_to_json(result) | {"dry_run": dry_run, "warnings": warnings})
        return
    count = len(result.changed)
    none = "no queue has changed yet" if result.denied else "no queue changes"
    effect = f"{text.plural(count, 'queue')} {'would change' if dry_run else 'changed'}" if count else none
    output.answer_sentence(f"{line}: {effect}")
    rows = [
        [name if first else "", f"{json_name(option).removesuffix('_ms').replace('_', '-')}", change]
        for name, changes in sorted(result.changed.items())[:LISTED]
        for first, option, change in _differences(changes)
    ]
    if rows:
        output.print_table(["queue", "option", "change"], rows)
    if count > LISTED:
        output.answer_sentence(f"and {text.plural(count - LISTED, 'more queue')}; --json names all")
    for death in _deaths(result, ahead=dry_run):
        output.answer(death)
    if result.unfinished:
        output.note(f"more messages die in {text.plural(len(result.unfinished), 'queue')}: a reaper removes them")
    if result.denied:
        output.note(f"this user may not change {text.plural(len(result.denied), 'queue')}: a reaper does it")
    for warning in warnings:
        output.note(f"warning: {warning}")


def _differences(changes: Mapping[str, tuple[Any, Any]]) -> list[tuple[bool, str, str]]:
    return [(i == 0, option, format_difference(option, values)) for i, (option, values) in enumerate(changes.items())]


@command_group("rqttl policy set short-lived 'orders.#' --message-ttl 5m")
def policy() -> None:
    """Give options to all queues with matching names."""


@command_group("rqttl operator-policy set cap '#' --max-length 100000")
def operator_policy() -> None:
    """Give limits that win over declared options."""


def _add(group: click.Group, *, operator: bool) -> None:
    for command in (set_command, ls_command, show_command, delete_command):
        group.add_command(command(operator=operator))


_add(policy, operator=False)
_add(operator_policy, operator=True)
