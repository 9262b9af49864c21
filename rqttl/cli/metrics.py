"""`rqttl metrics`: the metrics of queues for Prometheus, by HTTP or once."""

from __future__ import annotations

import threading

import click

from rqttl.cli.common import output
from rqttl.cli.common.params import json_flag, limit_option, log_format_option, verbose_flag
from rqttl.cli.common.running import logging_to_stderr, serving
from rqttl.cli.common.settings import Settings, connecting

#: The default place to listen at: this machine only.
LISTEN = "127.0.0.1:9471"


@click.command(
    short_help="Serve the metrics of queues to Prometheus.",
    epilog="\b\nExample: rqttl metrics --listen 127.0.0.1:9471 --queues 'orders.*'",
)
@click.option("--listen", default=LISTEN, show_default=True, metavar="HOST:PORT", help="Serve /metrics here.")
@click.option("--queues", multiple=True, metavar="PATTERN", help="Only queues of this name or pattern.  [default: all]")
@limit_option(1000, "Number of queues at most, the busiest first.")
@click.option("--once", is_flag=True, help="Print the metrics, and end.")
@log_format_option
@verbose_flag
@json_flag
@connecting
def metrics(
    listen: str,
    queues: tuple[str, ...],
    limit: int,
    once: bool,
    log_format: str,
    verbose: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Serve the metrics of queues to Prometheus, at the path /metrics.

    The command only reads, at each scrape anew, and sweeps nothing. Without
    Redis it goes on, and rqttl_up is 0. If more queues than --limit match, it
    serves those with the most messages since their creation. SIGTERM or
    Ctrl-C ends it. The text format needs the extra `metrics`; --json prints
    the samples as JSON and needs --once.
    """
    if as_json and not once:
        raise click.UsageError("--json is for --once")
    from rqttl.metrics import collector
    from rqttl.runtime.stop_signals import StopSignals
    from rqttl.worker.metrics import answer

    with settings.using() as broker, logging_to_stderr(log_format, verbose=verbose):
        source = collector(broker, queues=queues, limit=limit)
        if as_json:
            samples = [sample for family in source.read() for sample in family.samples]
            output.answer_json([{"metric": one.name, "labels": one.labels, "value": one.value} for one in samples])
        elif once:
            from rqttl.metrics.collecting import as_text

            output.answer(as_text(source.read).rstrip("\n"))
        else:
            stop = threading.Event()
            routes = {"/metrics": lambda headers: answer(headers, source.collect)}
            with StopSignals(stop.set, ends_process=True), serving(listen, "listen", routes):
                stop.wait()
