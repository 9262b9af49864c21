"""`rqttl worker ls`: the workers and reapers that live."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import json_flag, utc_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.types import WorkerInfo
from rqttl.units import as_size

COLUMNS = (
    "role",
    "host",
    ">pid",
    "queues",
    ">slots",
    ">running",
    ">handled",
    ">failed",
    ">memory",
    "last claim",
    "started",
)


@click.command("ls", short_help="List the workers and reapers that live.", epilog="\b\nExample: rqttl worker ls")
@utc_flag
@json_flag
@connecting
def list_workers(utc: bool, as_json: bool, settings: Settings) -> None:
    """List workers and reapers seen in the last 30 s.

    Memory is that of a worker and its children. The command only reads.
    """
    with settings.using() as broker:
        workers = broker.workers()
    now = datetime.now(timezone.utc)
    if as_json:
        output.answer_json([_to_json(worker) for worker in workers])
    elif not workers:
        output.note("no worker and no reaper runs")
    else:
        output.print_table(COLUMNS, [_row(worker, now, utc=utc) for worker in workers])


def _row(worker: WorkerInfo, now: datetime, *, utc: bool) -> list[str]:
    is_reaper = worker.role == "reaper"
    numbers = [
        "" if is_reaper else text.format_count(n)
        for n in (worker.slots, len(worker.running), worker.handled, worker.failed)
    ]
    return [
        text.escape(worker.role),
        text.escape(worker.host),
        str(worker.pid),
        text.escape(" ".join(worker.queues), 40),
        *numbers,
        as_size(worker.rss),
        "" if is_reaper else text.format_time(worker.last_claim, now, utc=utc),
        text.format_time(worker.started, now, utc=utc),
    ]


def _to_json(worker: WorkerInfo) -> dict[str, Any]:
    running = [{"queue": queue, "id": id, "started": started} for queue, id, started in worker.running]
    return {**asdict(worker), "running": running}
