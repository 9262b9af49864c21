"""`rqttl export`: print the queues and policies of a namespace as a file for `rqttl apply`."""

from __future__ import annotations

import click

from rqttl.cli.common import output
from rqttl.cli.common.params import json_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.deployment import plans
from rqttl.deployments import write_yaml


@click.command(epilog="\b\nExample: rqttl export --namespace shop")
@json_flag
@connecting
def export(as_json: bool, settings: Settings) -> None:
    """Print a deployment file.

    The file has all declared queues and all policies of the namespace. It is
    YAML, or JSON with --json; `rqttl apply` takes both. Queues that only dead
    letters created are left out. The command only reads.
    """
    with settings.using() as broker:
        present = plans.present(broker)
    if as_json:
        output.answer_json(present.as_document())
    else:
        output.answer(write_yaml(present).rstrip("\n"))
