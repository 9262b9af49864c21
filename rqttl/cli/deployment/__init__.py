"""`rqttl apply` and `rqttl export`: the queues and policies of a namespace as a file. `rqttl import`: other brokers."""

from __future__ import annotations

import click

from rqttl.cli.common import output
from rqttl.cli.common.params import dry_run_flag, json_flag, yes_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.deployment import carrying, plans
from rqttl.cli.deployment.importing import import_group
from rqttl.deployments import read_deployment, write_yaml

__all__ = ["apply", "export", "import_group"]


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
        effect = plans.run([planned], yes=yes, dry_run=dry_run, as_json=as_json, origin=desired.namespace)
    if as_json:
        output.answer_json({"dry_run": dry_run, **plans.plan_to_json(planned), **effect._asdict()})
        return
    if kept := planned.plan.kept:
        first = ", ".join(f"{kind} {name}" for kind, name in kept[:3])
        more = f" and {len(kept) - 3:,} more" if len(kept) > 3 else ""
        output.note(f"not named by the file, and kept: {first}{more}; --prune deletes them")


@click.command(epilog="\b\nExample: rqttl export --namespace shop")
@json_flag
@connecting
def export(as_json: bool, settings: Settings) -> None:
    """Print a deployment file.

    The file has all declared queues and all policies of the namespace. It is
    YAML, or JSON with --json; `rqttl apply` takes both. Queues that only dead
    letters created are left out. The command only reads.
    """
    from rqttl.store.driver import driver_of  # slow to load

    with settings.using() as broker:
        driver = driver_of(broker)
        present = driver.perform(carrying.present(driver.keyspace))
    if as_json:
        output.answer_json(present.as_document())
    else:
        output.answer(write_yaml(present).rstrip("\n"))
