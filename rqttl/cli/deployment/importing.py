"""`rqttl import`: queues and policies from the definitions of RabbitMQ, Artemis and Service Bus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib import import_module
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import dry_run_flag, json_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.deployment import plans
from rqttl.deployments import Deployment, read_document
from rqttl.deployments.deployment import FORMAT

if TYPE_CHECKING:
    from rqttl.imports.notes import Imported, ImportedDeployment, Kind, Note


@click.group(epilog="\b\nExample: rqttl import rabbitmq definitions.json --dry-run")
def import_group() -> None:
    """Import queues and policies from another broker."""


def _add(name: str, reader: str, example: str, details: str) -> None:
    """Add the command for one broker. `reader` is a function of the module of this name in `rqttl.imports`."""

    @import_group.command(name, epilog=f"\b\nExample: rqttl import {name} {example} --dry-run")
    @plans.file_argument
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
            content = plans.read_file(file).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise click.BadParameter(f"expected text in UTF-8: {error.reason}", param_hint="FILE") from None
        read: Callable[[str], Imported] = getattr(import_module(f"rqttl.imports.{name}"), reader)  # slow to load
        imported = read(content)
        selected = _selected(imported.deployments, only, settings)
        with ExitStack() as stack:
            brokers = [stack.enter_context(settings.using()) for settings, _ in selected.values()]
            planned = [
                plans.plan_for(broker, desired) for broker, (_, desired) in zip(brokers, selected.values(), strict=True)
            ]
            if not as_json:
                _print_notes(imported.notes, verbose=verbose)
            effect = plans.run(planned, yes=yes, dry_run=dry_run, as_json=as_json)
        if as_json:
            deployments = [
                {"source": name, **plans.plan_to_json(plan)} for name, plan in zip(selected, planned, strict=True)
            ]
            notes = [asdict(note) for note in imported.notes]
            output.answer_json({"dry_run": dry_run, "notes": notes, "deployments": deployments, **effect._asdict()})

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
    "Import queues of Service Bus.\n\n"
    "FILE is the JSON of `az servicebus queue list`, or an ARM template with plain values; - is stdin. Each "
    "namespace of it becomes a namespace.",
)


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
    """Print the settings without a counterpart, each reason once; or all of them."""
    counts = Counter(note.kind for note in notes)
    kinds: tuple[Kind, ...] = ("taken", "translated", "left out")
    summary = ", ".join(f"{counts[kind]:,} {kind}" for kind in kinds)
    output.answer_sentence(f"settings: {summary}{'' if verbose else '; -v lists each'}")
    for kind in kinds if verbose else kinds[-1:]:
        chosen = [note for note in notes if note.kind == kind]
        rows = [[note.subject, f"{note.setting} {note.value}".strip(), note.text] for note in chosen]
        if not verbose:
            alike = Counter((note.setting or note.subject.partition(" ")[0], note.text) for note in chosen)
            rows = [[f"{count:,}", setting, why] for (setting, why), count in alike.items()]
        if rows:
            output.print_table([kind, "setting", "in rqttl"], [[text.escape(cell) for cell in row] for row in rows])
    output.answer("")
