"""`rqttl policy ls` and `show`: the policies that are set, and the queues that they match."""

from __future__ import annotations

import click

from rqttl.cli.common import output
from rqttl.cli.common.params import json_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.policy.text import format_definition, kind, of_kind, policy_argument, stored, to_json
from rqttl.text import format_count, plural

#: The number of queues that `show` names without `--json`.
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
