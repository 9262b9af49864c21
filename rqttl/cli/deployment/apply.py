"""`rqttl apply`: make the queues and policies of a namespace those of a file."""

from __future__ import annotations

import click

from rqttl.cli.common import output
from rqttl.cli.common.params import dry_run_flag, json_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.deployment import plans
from rqttl.deployments import read_deployment


@click.command(epilog="\b\nExample: rqttl apply queues.yaml --dry-run")
@plans.file_argument
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
    desired = read_deployment(plans.read_file(file))
    with settings.using() as broker:
        planned = plans.plan_for(broker, desired, prune=prune)
        plan = planned.plan
        if not as_json:
            plans.print_plan(planned)
        effect = plans.preview(broker, plan) if dry_run or not yes else None
        origin = None if desired.namespace == planned.namespace else desired.namespace
        if not dry_run:
            if effect is not None:
                plans.ask([plan], effect, yes=yes, origin=origin)
            effect = plans.carry_out(broker, plan)
    assert effect is not None  # noqa: S101  # for the type checker
    if as_json:
        output.answer_json({"dry_run": dry_run, **plans.plan_to_json(planned), **plans.effect_to_json(effect)})
        return
    plans.print_effect([plan], effect, dry_run=dry_run)
    plans.note_kept(plan)
