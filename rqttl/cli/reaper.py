"""`rqttl reaper`: a reaper in a process of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.params import Read, json_flag, log_format_option, verbose_flag
from rqttl.cli.common.running import logging_to_stderr, serving
from rqttl.cli.common.settings import Settings, connecting
from rqttl.runtime.stop_signals import StopSignals
from rqttl.units import as_timedelta, duration

if TYPE_CHECKING:
    from rqttl.reaper import Reaper


@click.command(
    short_help="Expire, reclaim and return messages on time.", epilog="\b\nExample: rqttl reaper --log-format json"
)
@click.option(
    "--scan-period",
    type=Read("duration", lambda value: None if value == "-1" else as_timedelta(duration(value, "period"))),
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Time between two looks at every queue, in case a hint was lost; -1 = no reaper.",
)
@click.option("--once", is_flag=True, help="Do all due work, print the counts, and end.")
@click.option("--health", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics here.")
@log_format_option
@verbose_flag
@json_flag
@connecting
def reaper(
    scan_period: timedelta | None,
    once: bool,
    health: str | None,
    log_format: str,
    verbose: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Expire messages, reclaim lost leases and return delayed messages on time.

    A reaper also enforces limits, and deletes queues whose lifetime is over.
    Any number of reapers may run at once. SIGTERM or Ctrl-C ends a reaper.
    """
    if as_json and not once:
        raise click.UsageError("--json: it prints the counts of --once; a reaper that runs on prints none")
    if scan_period is None:
        output.note("the reaper is disabled: --scan-period is -1")
        return
    from rqttl.reaper import Reaper

    with settings.using() as broker, logging_to_stderr(log_format, verbose=verbose):
        worker = Reaper(broker, scan_period=scan_period)
        with StopSignals(worker.stop, ends_process=True), _health(worker, health):
            totals = worker.run_once() if once else worker.run()
    if not once:
        return
    if as_json:
        output.answer_json({name: getattr(totals, name) for name in totals.__dataclass_fields__})
    else:
        counts = [f"{duty} {text.format_count(n)}" for duty, n in totals.by_duty().items()]
        if totals.retired:
            counts.append(f"deleted {text.plural(totals.retired, 'queue')} whose lifetime was over")
        output.answer(", ".join(counts) or "nothing was due")
    if totals.failed:
        raise Refused(f"{text.plural(totals.failed, 'queue')} could not be swept; the log above says why")


def _health(worker: Reaper, place: str | None) -> AbstractContextManager[None]:
    """A context in which the health and the metrics of a reaper are served."""
    if place is None:
        return nullcontext()
    from rqttl.reaper.report import families
    from rqttl.worker.health import judgement
    from rqttl.worker.metrics import answer

    routes = {
        "/livez": lambda _: judgement(worker.snapshot().trouble()),
        "/readyz": lambda _: judgement(worker.snapshot().obstacle()),
        "/metrics": lambda headers: answer(headers, lambda: families(worker.snapshot())),
    }
    return serving(place, "health", routes)
