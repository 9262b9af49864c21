"""The groups `rqttl policy` and `rqttl operator-policy`: the same commands for two kinds of policies."""

from __future__ import annotations

import click

from rqttl.cli.common.settings import command_group
from rqttl.cli.policy.change import delete_command, set_command
from rqttl.cli.policy.look import ls_command, show_command


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
