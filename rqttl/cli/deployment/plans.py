"""Plans of a deployment: read from a namespace, shown, asked for and carried out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.deployment import carrying
from rqttl.cli.deployment.carrying import Effect
from rqttl.deployments import Deployment, Plan, Step, make_plan
from rqttl.flows.steps import Driver, Flow
from rqttl.options import OPTIONS

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.protocol.keys import Keyspace

file_argument = click.argument("file", type=click.Path(allow_dash=True))


class Planned(NamedTuple):
    """A plan, and the driver of its namespace."""

    driver: Driver
    plan: Plan

    @property
    def namespace(self) -> str:
        """The name of the namespace."""
        return self.driver.keyspace.namespace


def read_file(file: str) -> bytes:
    """The bytes of a file, or of stdin for `-`."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None


def plan_for(broker: Broker, desired: Deployment, *, prune: bool = False) -> Planned:
    """The steps from the present state of a namespace to a deployment."""
    from rqttl.store.driver import driver_of  # slow to load; the broker has loaded it

    driver = driver_of(broker)
    return Planned(driver, make_plan(desired, driver.perform(carrying.present(driver.keyspace)), prune=prune))


def run(planned: Sequence[Planned], *, yes: bool, dry_run: bool, as_json: bool, origin: str | None = None) -> Effect:
    """Print the plans, ask once, carry them out unless `dry_run`, and print the effect. Raises as `confirm` does.

    The question is about messages and queues that would be deleted, and about a file from `origin`, another namespace.
    """
    steps = sum(len(one.plan.steps) for one in planned)
    if not as_json:
        for one in planned:
            _print_plan(one)
    effect = Effect()
    if dry_run or not yes:
        effect = _total(carrying.preview, [one for one in planned if one.plan.destructive])
    if not dry_run:
        if not yes:
            _ask(planned, effect, origin)
        effect = _total(carrying.carry_out, planned)
    if not as_json:
        if steps and not dry_run:
            output.answer(f"{text.plural(steps, 'step')} taken")
        for line in output.deaths(*effect[:3], ahead=dry_run):
            output.answer(line)
    return effect


def _total(flow: Callable[[Keyspace, Plan], Flow[Effect]], planned: Sequence[Planned]) -> Effect:
    effects = [one.driver.perform(flow(one.driver.keyspace, one.plan)) for one in planned]
    return Effect(
        sum(effect.expired for effect in effects),
        sum(effect.trimmed for effect in effects),
        sum(effect.deleted for effect in effects),
        tuple(queue for effect in effects for queue in effect.unfinished),
    )


def _ask(planned: Sequence[Planned], effect: Effect, origin: str | None) -> None:
    steps = [step for one in planned for step in one.plan.steps]
    losses = output.deaths(*effect[:3], ahead=True)
    if origin is not None and steps and any(one.namespace != origin for one in planned):
        losses.append(f"the file was exported from namespace {origin}")
    if gone := sum(step.kind == "queue" and step.action == "delete" for step in steps):
        losses.append(f"{text.plural(gone, 'queue')} would be deleted")
    output.confirm_losses(f"Take {'this step' if len(steps) == 1 else f'these {len(steps):,} steps'}?", losses)


def _print_plan(planned: Planned) -> None:
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
    lines = []
    for name, values in step.changes.items():
        label = name.replace("_", "-") if name in OPTIONS else name.replace("_", " ")
        before, after = map(_value, values)
        lines.append(f"{label} {after}" if step.before is None else f"{label} {before} -> {after}")
    lines = ["" if step.action == "delete" else "no option"] if not lines or step.action == "delete" else lines
    dangers = [danger.partition(": ") for danger in step.dangers]
    lines += [f"may expire messages: {name.replace('_', '-')}{colon}{rule}" for name, colon, rule in dangers]
    first = [step.action, f"{step.kind} {step.name}"]
    return [[*(first if i == 0 else ["", ""]), line] for i, line in enumerate(line for line in lines if line)]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "(none)" if value is None else text.escape(str(value)) or "(drop)"
