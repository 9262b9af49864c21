"""`rqttl reaper`: the reaper as a process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.logs import logging_to_stderr
from rqttl.cli.common.settings import Settings, connecting, json_flag, read_duration

if TYPE_CHECKING:
    from rqttl.reaper import Reaper, Totals


def _read_period(context: click.Context, option: click.Parameter, value: str) -> timedelta | None:
    return None if value == "-1" else read_duration(context, option, value)


@click.command(epilog="\b\nExample: rqttl reaper --log-format json")
@click.option(
    "--scan-period", callback=_read_period, default="5m", show_default=True, metavar="TIME",
    help="How often every queue is looked at, in case a hint was lost; -1 = no reaper.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Do all that is due now, say what was done, and end.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Of stderr.")
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
@json_flag
@connecting
def reaper(
    scan_period: timedelta | None, once: bool, log_format: str, verbose: bool, as_json: bool, settings: Settings
) -> None:
    """Make what is due in queues happen on time.

    Expired messages leave, lost leases come back, delayed messages return,
    limits act. Any number may run at once. SIGTERM or Ctrl-C ends it.
    """
    if scan_period is None:
        output.note("the reaper is disabled: --scan-period is -1")
        return
    from rqttl.reaper import Reaper

    with settings.using() as broker, logging_to_stderr(log_format, verbose=verbose):
        worker = Reaper(broker, scan_period=scan_period)
        with _ended_by_signals(worker):
            done = worker.run_once() if once else worker.run()
    if once:
        _tell(done, as_json)
        if done.failed:
            raise Refused(f"{text.plural(done.failed, 'queue')} could not be swept; the log above says why")


@contextmanager
def _ended_by_signals(worker: Reaper) -> Iterator[None]:
    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        worker.stop()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(done: Totals, as_json: bool) -> None:
    if as_json:
        output.answer_json({name: getattr(done, name) for name in done.__dataclass_fields__})
        return
    counts = [f"{duty} {text.count(n)}" for duty, n in done.by_duty().items()]
    if done.retired:
        counts.append(f"deleted {text.plural(done.retired, 'queue')} whose lifetime was over")
    output.answer(", ".join(counts) or "nothing was due")
