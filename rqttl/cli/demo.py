"""`rqttl demo`: the main job, end to end, on real input."""

from __future__ import annotations

import click

from rqttl.cli.common.settings import Settings, debug_flag, json_flag, note_default_server


@click.command(epilog="\b\nExample: rqttl demo --limit 5000")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50_000, show_default=True, metavar="N",
    help="How many departures to play.",
)  # fmt: skip
@click.option(
    "--spark/--no-spark", default=True, show_default=True,
    help="Whether Spark then counts the dead letters by carrier and hour, where it is installed.",
)  # fmt: skip
@click.option(
    "--picture", type=click.Path(dir_okay=False), metavar="FILE",
    help="Where the picture of that goes, a PNG; without it into a temporary folder.",
)  # fmt: skip
@json_flag
@click.option("--url", metavar="URL", help="Redis to use; the demo's queues have a namespace of their own in it.")
@debug_flag
@click.pass_obj
def demo(settings: Settings, limit: int, spark: bool, picture: str | None, as_json: bool, url: str | None) -> int:
    """Show the main job end to end, on real input.

    Departures of New York's airports become boarding calls that expire; consumers, a reaper and a table show what
    becomes of each. In the end Spark counts the dead letters by carrier and hour.
    """
    from rqttl.demo import run  # it loads much that no other command needs

    note_default_server(url or settings.url)
    return run(limit, url or settings.url, as_json=as_json, spark=spark, picture=picture)
