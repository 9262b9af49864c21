"""`rqttl demo`: the main job, end to end, on real input."""

from __future__ import annotations

import importlib
from typing import Any

import click

from rqttl.cli.errors import Refused
from rqttl.cli.shared import Settings, connecting


@click.command(epilog="Example: rqttl demo --limit 5000")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50_000, show_default=True, metavar="N",
    help="How many departures to send.",
)  # fmt: skip
@connecting
def demo(limit: int, settings: Settings) -> None:
    """Show the main job end to end, on real input.

    Departures of New York's airports become boarding calls that expire;
    consumers, a reaper and a table show what becomes of each.
    """
    try:
        runner: Any = importlib.import_module("rqttl.demo")  # slow to load, and needs an extra
        runner.run(limit=limit, url=settings.url)
    except ModuleNotFoundError as error:
        raise Refused(f"the demo needs {error.name}: pip install 'rqttl[demo]'") from error
