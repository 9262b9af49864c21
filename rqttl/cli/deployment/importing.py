"""`rqttl import`: queues and policies from the definitions of RabbitMQ, Artemis and Service Bus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import F, json_flag
from rqttl.cli.common.prompts import dry_run_flag, yes_flag
from rqttl.cli.common.settings import Settings, command_group, connecting
from rqttl.cli.deployment import plans
from rqttl.deployments import Deployment, read_document
from rqttl.deployments.deployment import FORMAT

if TYPE_CHECKING:
    from rqttl.flows.deploying import Effect
    from rqttl.imports.report import Imported, ImportedDeployment, Note

Reader = Callable[..., "Imported"]


@command_group("rqttl import rabbitmq definitions.json --dry-run")
def import_group() -> None:
    """Take queues and policies over from another broker."""


def _rabbitmq(definitions: str) -> Imported:
    from rqttl.imports.rabbitmq import read_definitions

    return read_definitions(definitions)


def _artemis(configuration: str) -> Imported:
    from rqttl.imports.artemis import read_broker

    return read_broker(configuration)


def _servicebus(template: str, parameter: dict[str, str], parameters: str | None) -> Imported:
    from rqttl.imports.servicebus import read_parameter_file, read_template

    values = {} if parameters is None else read_parameter_file(_text(parameters, "--parameters"))
    return read_template(template, values, parameter)


def _assignments(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """The values of `--parameter NAME=VALUE`, by name."""
    values: dict[str, str] = {}
    for text_ in texts:
        name, sign, value = text_.partition("=")
        if not name or not sign:
            raise click.BadParameter(f"expected NAME=VALUE, got {text.format_value(text_)}")
        if name.lower() in map(str.lower, values):
            raise click.BadParameter(f"{name} is given twice")
        values[name] = value
    return values


_PARAMETERS = (
    click.option(
        "--parameter",
        multiple=True,
        callback=_assignments,
        metavar="NAME=VALUE",
        help="Value of a parameter of the template; may be repeated.",
    ),
    click.option(
        "--parameters",
        type=click.Path(),
        metavar="FILE",
        help="Parameter file of the template; --parameter wins over it.",
    ),
)


def _add(name: str, read: Reader, example: str, summary: str, details: str, *flags: Callable[[F], F]) -> None:
    @click.command(name, epilog=f"\b\nExample: rqttl import {name} {example} --dry-run")
    @plans.file_argument
    @click.option(
        "--only", metavar="NAME", help="Take only this vhost, broker or namespace of the file, into --namespace."
    )
    @yes_flag
    @dry_run_flag
    @json_flag
    @connecting
    def command(
        file: str, only: str | None, yes: bool, dry_run: bool, as_json: bool, settings: Settings, **values: Any
    ) -> None:
        imported = read(_text(file), **values)
        selected = _selected(imported.deployments, only, settings)
        _carry_out(imported.notes, selected, yes=yes, dry_run=dry_run, as_json=as_json)

    for flag in reversed(flags):
        flag(command)
    command.help = (
        f"{summary}\n\n{details} The command prints what it takes, what it translates and what has no counterpart, and "
        "then the steps. If messages would die, it counts them and asks. The whole file is checked before "
        "anything changes. The same file again changes nothing."
    )
    import_group.add_command(command)


_add(
    "rabbitmq",
    _rabbitmq,
    "definitions.json",
    "Import definitions of RabbitMQ.",
    "FILE comes from `rabbitmqctl export_definitions`; - is stdin. Each vhost becomes a namespace.",
)
_add(
    "artemis",
    _artemis,
    "broker.xml",
    "Import the configuration of Artemis.",
    "FILE is its broker.xml; - is stdin. Address settings become policies.",
)
_add(
    "servicebus",
    _servicebus,
    "template.json",
    "Import a template of Service Bus.",
    "FILE is an ARM template; - is stdin. Each namespace of it becomes a namespace.",
    *_PARAMETERS,
)


def _text(file: str, hint: str = "FILE") -> str:
    try:
        return plans.read_file(file, hint).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"expected text in UTF-8: {error.reason}", param_hint=hint) from None


def _selected(
    deployments: Mapping[str, ImportedDeployment], only: str | None, settings: Settings
) -> dict[str, tuple[Settings, Deployment]]:
    """The deployments to take over, checked, each with the settings of its namespace."""
    if only is not None and only not in deployments:
        names = ", ".join(map(text.format_value, deployments)) or "none"
        raise click.BadParameter(f"the file has no {text.format_value(only)}: it has {names}", param_hint="--only")
    named = settings.namespace != Settings.namespace
    if named and only is None and len(deployments) > 1:
        names = ", ".join(map(text.format_value, deployments))
        raise click.UsageError(f"--namespace takes one of {names}: choose it with --only")
    taken = {only: deployments[only]} if only is not None else deployments
    alone = named or only is not None
    if unknown := [name for name in taken if "[" in name and not named]:
        raise click.UsageError(
            f"the name of the namespace {unknown[0]} is unknown: give its parameters with --parameter, or choose a "
            "namespace of rqttl with --namespace"
        )
    return {
        name: (settings if alone else replace(settings, namespace=imported.namespace), _read(imported))
        for name, imported in taken.items()
    }


def _read(imported: ImportedDeployment) -> Deployment:
    return read_document(
        {
            "rqttl": FORMAT,
            "queues": imported.queues,
            "policies": imported.policies,
            "operator-policies": imported.operator_policies,
        }
    )


def _carry_out(
    notes: Sequence[Note],
    selected: Mapping[str, tuple[Settings, Deployment]],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Plan all namespaces, ask once, and carry out the plans."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(settings.using()) for settings, _ in selected.values()]
        planned = [
            plans.plan_for(broker, desired) for broker, (_, desired) in zip(brokers, selected.values(), strict=True)
        ]
        if not as_json:
            _print_notes(notes)
            for plan in planned:
                plans.print_plan(plan)
        pairs = [(broker, plan.plan) for broker, plan in zip(brokers, planned, strict=True)]
        effect = plans.total([plans.preview(broker, plan) for broker, plan in pairs if dry_run or not yes])
        if not dry_run:
            plans.ask([plan for _, plan in pairs], effect, yes=yes)
            effect = plans.total([plans.carry_out(broker, plan) for broker, plan in pairs])
    if as_json:
        output.answer_json(_to_json(notes, list(selected), planned, effect, dry_run=dry_run))
        return
    plans.print_effect([plan.plan for plan in planned], effect, dry_run=dry_run)


def _to_json(
    notes: Sequence[Note], names: Sequence[str], planned: Sequence[plans.Planned], effect: Effect, *, dry_run: bool
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "notes": [
            {
                "kind": note.kind,
                "subject": note.subject,
                "setting": note.setting,
                "value": note.value,
                "text": note.text,
            }
            for note in notes
        ],
        "deployments": [
            {"source": name, **plans.plan_to_json(plan)} for name, plan in zip(names, planned, strict=True)
        ],
        **plans.effect_to_json(effect),
    }


def _print_notes(notes: Sequence[Note]) -> None:
    from rqttl.imports import report

    for kind in get_args(report.Kind):
        rows = [
            [
                text.escape(note.subject),
                text.escape(" ".join(part for part in (note.setting, note.value) if part)),
                text.escape(note.text),
            ]
            for note in notes
            if note.kind == kind
        ]
        if rows:
            output.print_table([cast("str", kind), "setting", "in rqttl"], rows)
            output.answer("")
