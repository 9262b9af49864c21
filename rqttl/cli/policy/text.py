"""Policies and their effects as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from rqttl import flows, text
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.option_text import format_value, json_name
from rqttl.cli.common.params import F
from rqttl.cli.common.queue_names import complete_names
from rqttl.errors import PolicyNotFound
from rqttl.options import OPTIONS
from rqttl.policies import Policy
from rqttl.policies.damage import Damage
from rqttl.policies.policy import check_policy_name
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
    return broker.operator_policies() if operator else broker.policies()


def damages(broker: Broker) -> tuple[Damage, ...]:
    """The stored policies that this rqttl cannot read."""
    from rqttl.store.driver import driver_of  # slow to load; the broker has loaded it

    driver = driver_of(broker)
    return driver.perform(flows.policies.current(driver.keyspace)).damaged


def stored(broker: Broker, name: str, *, operator: bool) -> Policy:
    """The policy of this name; one without options for a policy that cannot be read.

    The error for a missing one names another with nearly the same name.
    """
    check_policy_name(name, operator=operator)
    policies = {policy.name: policy for policy in of_kind(broker, operator=operator)}
    stand_ins = [damage.stand_in for damage in damages(broker)]
    policies |= {other.name: other for other in stand_ins if other and other.operator is operator}
    if name not in policies:
        error = PolicyNotFound(name, operator=operator)
        near = text.nearest(name, policies, 0.75)
        raise Refused(f"{error}; did you mean {near}?" if near else str(error), error.code)
    return policies[name]


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
        "damaged": sorted(result.damaged),
        "denied": list(result.denied),
    }


def _changes(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {json_name(name): {"before": before, "after": after} for name, (before, after) in changes.items()}


def _value(name: str, value: Any) -> str:
    return "none" if value is None else format_value(OPTIONS[name], value)
