"""`rqttl apply` and `rqttl export`: the queues and policies of a namespace as a file. `rqttl import`: other brokers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import dry_run_flag, json_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.deployments import FORMAT, Deployment, Plan, Step, make_plan, read_deployment, read_document, write_yaml
from rqttl.filters import Rule, canonical_json
from rqttl.inspector import effects
from rqttl.inspector.queues import readable
from rqttl.options import BINDINGS, OPTIONS
from rqttl.types import Effect

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.imports.notes import Imported, ImportedDeployment, Kind, Note

_file_argument = click.argument("file", type=click.Path(allow_dash=True))


@click.command(epilog="\b\nExample: rqttl apply queues.yaml --dry-run")
@_file_argument
@click.option("--prune", is_flag=True, help="Delete queues and policies that the file does not name.")
@yes_flag
@dry_run_flag
@json_flag
@connecting
def apply(file: str, prune: bool, yes: bool, dry_run: bool, as_json: bool, settings: Settings) -> None:
    """Apply a deployment file.

    FILE is YAML or JSON, as `rqttl export` writes it; - is stdin. The command
    prints the steps first. If messages would die or queues would be deleted,
    it counts them and asks. It also asks if the file comes from another
    namespace. The whole file is checked before anything changes. The same
    file again changes nothing.
    """
    desired = read_deployment(_read_file(file))
    with settings.using() as broker:
        planned = _plan_for(broker, desired, prune=prune)
        effect = _run([planned], yes=yes, dry_run=dry_run, as_json=as_json, origin=desired.namespace)
    if as_json:
        output.answer_json({"dry_run": dry_run, **_plan_to_json(planned), **effect._asdict()})
        return
    if kept := planned.plan.kept:
        names = text.first_few([f"{kind} {name}" for kind, name in kept])
        output.note(f"not named by the file: {names}; --prune deletes them")


@click.command(epilog="\b\nExample: rqttl export --namespace shop")
@json_flag
@connecting
def export(as_json: bool, settings: Settings) -> None:
    """Print a deployment file.

    The file has all declared queues and all policies of the namespace. It is
    YAML, or JSON with --json; `rqttl apply` takes both. Queues that only dead
    letters created are left out. The command only reads.
    """
    with settings.looking() as broker:
        deployment, away = readable(broker.deployment)
    if as_json:
        output.answer_json(deployment.as_document())
    else:
        output.answer(write_yaml(deployment).rstrip("\n"))
    if away:
        output.note(f"left out: {', '.join(away.queues)}")
        raise away


@click.group(epilog="\b\nExample: rqttl import rabbitmq definitions.json --dry-run")
def import_group() -> None:
    """Import queues, topics and policies from another broker."""


def _add(name: str, reader: str, example: str, details: str) -> None:
    """Add the command for one broker. `reader` is a function of the module of this name in `rqttl.imports`."""

    @import_group.command(name, epilog=f"\b\nExample: rqttl import {name} {example} --dry-run")
    @_file_argument
    @click.option(
        "--only", metavar="NAME", help="Take only this vhost, broker or namespace of the file, into --namespace."
    )
    @click.option("--verbose", "-v", is_flag=True, help="Print each setting, also those that rqttl has.")
    @yes_flag
    @dry_run_flag
    @json_flag
    @connecting
    def command(
        file: str, only: str | None, verbose: bool, yes: bool, dry_run: bool, as_json: bool, settings: Settings
    ) -> None:
        try:
            content = _read_file(file).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise click.BadParameter(f"expected text in UTF-8: {error.reason}", param_hint="FILE") from None
        read: Callable[[str], Imported] = getattr(import_module(f"rqttl.imports.{name}"), reader)  # slow to load
        imported = read(content)
        selected = _selected(imported.deployments, only, settings)
        with ExitStack() as stack:
            planned = [_plan_for(stack.enter_context(own.using()), desired) for own, desired in selected.values()]
            if not as_json:
                _print_notes(imported.notes, verbose=verbose)
            effect = _run(planned, yes=yes, dry_run=dry_run, as_json=as_json)
        if as_json:
            notes = [asdict(note) for note in imported.notes]
            plans = [{"source": name, **_plan_to_json(one)} for name, one in zip(selected, planned, strict=True)]
            output.answer_json({"dry_run": dry_run, "notes": notes, "deployments": plans, **effect._asdict()})

    command.help = (
        f"{details} The command prints what has no counterpart and why, and then the steps. With -v it also prints "
        "what it takes and translates. If messages would die, it counts them and asks. The whole file is checked "
        "before anything changes. The same file again changes nothing."
    )


_add(
    "rabbitmq",
    "read_definitions",
    "definitions.json",
    "Import definitions of RabbitMQ.\n\n"
    "FILE comes from `rabbitmqctl export_definitions`; - is stdin. Each vhost becomes a namespace.",
)
_add(
    "artemis",
    "read_broker",
    "broker.xml",
    "Import the configuration of Artemis.\n\nFILE is its broker.xml; - is stdin. Address settings become policies.",
)
_add(
    "servicebus",
    "read_resources",
    "queues.json",
    "Import queues and topics of Service Bus.\n\n"
    "FILE is the JSON of `az servicebus queue list`, of topics, subscriptions and rules in the same list, or an ARM "
    "template with plain values; - is stdin. Each namespace of it becomes a namespace.",
)


def _selected(
    deployments: Mapping[str, ImportedDeployment], only: str | None, settings: Settings
) -> dict[str, tuple[Settings, Deployment]]:
    """The deployments to take over, checked, each with the settings of its namespace."""
    names = ", ".join(map(text.format_value, deployments)) or "none"
    if only is not None and only not in deployments:
        raise click.BadParameter(f"the file has no {text.format_value(only)}: it has {names}", param_hint="--only")
    named = settings.namespace != Settings.namespace
    if named and only is None and len(deployments) > 1:
        raise click.UsageError(f"--namespace takes one of {names}: choose it with --only")
    taken = {only: deployments[only]} if only is not None else deployments
    alone = named or only is not None
    selected = {}
    for name, imported in taken.items():
        document = {
            "rqttl": FORMAT,
            "queues": imported.queues,
            "policies": imported.policies,
            "operator-policies": imported.operator_policies,
        }
        own = settings if alone else replace(settings, namespace=imported.namespace)
        selected[name] = own, read_document(document)
    return selected


def _print_notes(notes: Sequence[Note], *, verbose: bool) -> None:
    """Print what the import has less, and each other reason for a setting without a counterpart; or all settings."""
    counts = Counter(note.kind for note in notes)
    kinds: tuple[Kind, ...] = ("taken", "translated", "left out")
    summary = ", ".join(f"{counts[kind]:,} {kind}" for kind in kinds)
    output.answer_sentence(f"settings: {summary}{'' if verbose else '; -v lists each'}")
    for kind in kinds if verbose else kinds[-1:]:
        chosen = [note for note in notes if note.kind == kind]
        named = chosen if verbose else [note for note in chosen if note.costs]
        rows = [[note.subject, f"{note.setting} {note.value}".strip(), note.text] for note in named]
        if not verbose:
            others = ((note.setting or note.subject.partition(" ")[0], note.text) for note in chosen if not note.costs)
            rows += [[f"{count:,}", setting, why] for (setting, why), count in Counter(others).items()]
        if rows:
            output.print_table([kind, "setting", "in rqttl"], [[text.escape(cell) for cell in row] for row in rows])
    output.answer("")


# Plans: read from a namespace, shown, asked for and carried out


class Planned(NamedTuple):
    """A plan, the name of its namespace, and the broker that carries it out."""

    broker: Broker
    namespace: str | None
    plan: Plan


def _read_file(file: str) -> bytes:
    """The bytes of a file, or of stdin for `-`."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None


def _plan_for(broker: Broker, desired: Deployment, *, prune: bool = False) -> Planned:
    """The steps from the present state of a namespace to a deployment."""
    present = broker.deployment()
    return Planned(broker, present.namespace, make_plan(desired, present, prune=prune))


def _run(planned: Sequence[Planned], *, yes: bool, dry_run: bool, as_json: bool, origin: str | None = None) -> Effect:
    """Print the plans, ask once, carry them out unless `dry_run`, and print the effect. Raises as `confirm` does.

    The question is about messages and queues that would be deleted, and about a file from `origin`, another namespace.
    """
    steps = sum(len(one.plan.steps) for one in planned)
    if not as_json:
        for one in planned:
            _print_plan(one)
    effect = Effect()
    if dry_run or not yes:
        effect = _total(one.broker.preview_plan(one.plan) for one in planned)
        _print_changed(effect, as_json=as_json)
    if not dry_run:
        if not yes:
            _ask(planned, effect, origin)
        effect = _total(one.broker.apply_plan(one.plan) for one in planned)
        if yes:
            _print_changed(effect, as_json=as_json)
    if not as_json:
        if steps and not dry_run:
            output.answer(f"{text.plural(steps, 'step')} taken")
        for line in effects.deaths(effect, ahead=dry_run):
            output.answer(line)
    return effect


def _print_changed(effect: Effect, *, as_json: bool) -> None:
    if effect.changed and not as_json:
        output.answer(f"policies change {text.plural(len(effect.changed), 'existing queue')}:")
        for name in effect.changed:
            output.answer_cut(f"  {name}")


def _total(of_plans: Iterable[Effect]) -> Effect:
    effects = list(of_plans)
    counts: dict[str, int] = {name: sum(getattr(effect, name) for effect in effects) for name in Effect._fields[:5]}
    times = [effect.ends_after_ms for effect in effects if effect.ends_after_ms is not None]
    unfinished = tuple(queue for effect in effects for queue in effect.unfinished)
    changed = tuple(queue for effect in effects for queue in effect.changed)
    return Effect(**counts, ends_after_ms=min(times, default=None), unfinished=unfinished, changed=changed)


def _ask(planned: Sequence[Planned], effect: Effect, origin: str | None) -> None:
    steps = [step for one in planned for step in one.plan.steps]
    losses = effects.deaths(effect, ahead=True)
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
    summary = text.plural(len(plan.steps), "step") if plan.steps else "nothing changes"
    output.answer_sentence(f"namespace {planned.namespace}: {summary}")


def _plan_to_json(planned: Planned) -> dict[str, Any]:
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
        if name != BINDINGS:
            lines.append(f"{label} {after}" if step.before is None else f"{label} {before} -> {after}")
        elif step.before is None:
            lines.append("a topic")
    lines += [_binding(name, *filters) for name, filters in step.bindings.items()]
    lines = ["" if step.action == "delete" else "no option"] if not lines or step.action == "delete" else lines
    first = [step.action, f"{step.kind} {step.name}"]
    return [[*(first if i == 0 else ["", ""]), line] for i, line in enumerate(line for line in lines if line)]


def _binding(queue: str, before: list[Rule] | None, after: list[Rule] | None) -> str:
    """The change of a binding."""
    old, new = (text.escape(canonical_json(rules)) for rules in (before, after))
    if before is None:
        return f"bind {queue} for {new}" if after else f"bind {queue}"
    return f"unbind {queue}" if after is None else f"filter of {queue} {old} -> {new}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "(none)" if value is None else text.escape(str(value)) or "(drop)"
