"""Plans of a deployment: read from a namespace, shown, asked for and carried out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.deployment import carrying
from rqttl.cli.deployment.carrying import Effect
from rqttl.deployments import Deployment, Plan, Step, make_plan
from rqttl.flows.steps import Driver
from rqttl.options import OPTIONS

if TYPE_CHECKING:
    from rqttl.broker import Broker

file_argument = click.argument("file", type=click.Path(allow_dash=True))


class Planned(NamedTuple):
    """The plan for one namespace."""

    namespace: str
    plan: Plan


def read_file(file: str) -> bytes:
    """The bytes of a file, or of stdin for `-`."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None


def present(broker: Broker) -> Deployment:
    """The deployment of a namespace; see `carrying.present`."""
    driver = _driver(broker)
    return driver.perform(carrying.present(driver.keyspace))


def plan_for(broker: Broker, desired: Deployment, *, prune: bool = False) -> Planned:
    """The steps from the present state of a namespace to a deployment."""
    plan = make_plan(desired, present(broker), prune=prune)
    return Planned(_driver(broker).keyspace.namespace, plan)


def _driver(broker: Broker) -> Driver:
    from rqttl.store.driver import driver_of  # slow to load; the broker has loaded it

    return driver_of(broker)


def run(
    planned: Sequence[tuple[Broker, Planned]], *, yes: bool, dry_run: bool, as_json: bool, origin: str | None = None
) -> Effect:
    """Print the plans, ask once, carry them out unless `dry_run`, and print the effect. Raises as `confirm` does.

    The question is about messages and queues that would be deleted, and about a file from `origin`, another namespace.
    """
    steps = sum(len(one.plan.steps) for _, one in planned)
    if not as_json:
        for _, one in planned:
            _print_plan(one)
    drivers = [(_driver(broker), one.plan) for broker, one in planned]
    effect = Effect()
    if dry_run or not yes:
        destructive = [(driver, plan) for driver, plan in drivers if plan.destructive]
        effect = _total([driver.perform(carrying.preview(driver.keyspace, plan)) for driver, plan in destructive])
    if not dry_run:
        if not yes:
            foreign = origin is not None and any(one.namespace != origin for _, one in planned) and steps
            _ask(
                [one.plan for _, one in planned],
                effect,
                f"the file was exported from namespace {origin}" if foreign else "",
            )
        effect = _total([driver.perform(carrying.carry_out(driver.keyspace, plan)) for driver, plan in drivers])
    if not as_json:
        if steps and not dry_run:
            output.answer(f"{text.plural(steps, 'step')} taken")
        for line in output.deaths(*effect[:3], ahead=dry_run):
            output.answer(line)
    return effect


def _total(effects: Sequence[Effect]) -> Effect:
    return Effect(
        sum(effect.expired for effect in effects),
        sum(effect.trimmed for effect in effects),
        sum(effect.deleted for effect in effects),
        tuple(queue for effect in effects for queue in effect.unfinished),
    )


def _ask(plans: Sequence[Plan], effect: Effect, origin: str) -> None:
    losses = output.deaths(*effect[:3], ahead=True)
    if origin:
        losses.append(origin)
    if gone := sum(step.kind == "queue" and step.action == "delete" for plan in plans for step in plan.steps):
        losses.append(f"{text.plural(gone, 'queue')} would be deleted")
    steps = sum(len(plan.steps) for plan in plans)
    output.confirm_losses(f"Take {'this step' if steps == 1 else f'these {steps:,} steps'}?", losses)


def _print_plan(planned: Planned) -> None:
    """Print the steps, those marked that may expire messages."""
    plan = planned.plan
    if plan.steps:
        rows = [row for step in plan.steps for row in _rows(step)]
        output.print_table(["step", "name", "change"], rows)
    steps, destructive = len(plan.steps), len(plan.destructive)
    count = f"{destructive:,} of them" if destructive else "none"
    summary = f"{text.plural(steps, 'step')}, {count} may expire messages" if steps else "nothing changes"
    output.answer_sentence(f"namespace {planned.namespace}: {summary}")


def plan_to_json(planned: Planned) -> dict[str, Any]:
    """A plan with its namespace. Values are as in a deployment file; `null` is no value."""
    plan = planned.plan
    return {
        "namespace": planned.namespace,
        "steps": [
            {
                "action": step.action,
                "kind": step.kind,
                "name": step.name,
                "changes": {
                    name.replace("_", "-"): {"before": before, "after": after}
                    for name, (before, after) in step.changes.items()
                },
                "dangers": list(step.dangers),
            }
            for step in plan.steps
        ],
        "kept": [{"kind": kind, "name": name} for kind, name in plan.kept],
    }


def _rows(step: Step) -> list[list[str]]:
    lines = [_difference(step, name, values) for name, values in step.changes.items()]
    lines = ["" if step.action == "delete" else "no option"] if not lines or step.action == "delete" else lines
    dangers = [danger.partition(": ") for danger in step.dangers]
    lines += [f"may expire messages: {name.replace('_', '-')}{colon}{rule}" for name, colon, rule in dangers]
    first = [step.action, f"{step.kind} {step.name}"]
    return [[*(first if i == 0 else ["", ""]), line] for i, line in enumerate(line for line in lines if line)]


def _difference(step: Step, name: str, values: tuple[object, object]) -> str:
    before, after = map(_value, values)
    label = name.replace("_", "-") if name in OPTIONS else name.replace("_", " ")
    return f"{label} {after}" if step.before is None else f"{label} {before} -> {after}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "(none)" if value is None else text.escape(str(value)) or "(drop)"
