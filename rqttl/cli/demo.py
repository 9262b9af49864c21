"""`rqttl demo`: queues, consumers and a reaper at work, on real data."""

from __future__ import annotations

import click

from rqttl.cli.common.params import debug_flag, json_flag, limit_option
from rqttl.cli.common.settings import Settings, named_server


@click.command(epilog="\b\nExample: rqttl demo --limit 5000")
@limit_option(50_000, "Number of departures to play.")
@click.option(
    "--spark/--no-spark",
    default=True,
    show_default=True,
    help="Let Spark count the dead letters by carrier and hour at the end, if it is installed.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File for the picture of these counts, a PNG.  [default: a file in a temporary folder]",
)
@json_flag
@click.option("--url", metavar="URL", help="Redis to use. The queues of the demo have a namespace of their own.")
@debug_flag
@click.pass_obj
def demo(settings: Settings, limit: int, spark: bool, picture: str | None, as_json: bool, url: str | None) -> int:
    """Show queues, consumers and a reaper at work, on real data.

    Departures of New York's airports become boarding calls that expire. Consumers handle some of them, a reaper moves
    the expired ones, and a table accounts for all. At the end Spark counts the dead letters by carrier and hour.
    """
    from rqttl.demo import run  # slow to load

    return run(limit, named_server(url or settings.url), as_json=as_json, spark=spark, picture=picture)
