"""The work of a write task: batches of rows, one of the three operations, one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Protocol

import pyarrow as pa

from spark_connectors.options.options import Options
from spark_connectors.redis.broker import open_broker
from spark_connectors.redis.relaxed_gc import relaxed_gc
from spark_connectors.write.enqueue import Enqueue
from spark_connectors.write.letters import Purge, Redrive
from spark_connectors.write.plan import Plan
from spark_connectors.write.rejected import Rejected
from spark_connectors.write.report import Report, ServerReport
from spark_connectors.write.rows import RowBatch
from spark_connectors.write.sender import Backpressure, WriteTask
from spark_connectors.write.servers import Targets


class Operation(Protocol):
    """One of the three operations. It marks refused rows in their batch."""

    def write(self, batch: RowBatch) -> None:
        """Write a batch."""

    def row_name(self, batch: RowBatch, row: int) -> str:
        """Return the name of a refused row."""


OPERATIONS: Mapping[str, Callable[[WriteTask], Operation]] = {"enqueue": Enqueue, "redrive": Redrive, "purge": Purge}


def run(options: Options, plan: Plan, batches: Iterable[pa.RecordBatch], attempt: str) -> Report:
    """Write batches. `attempt` is a name for this attempt of this task, unique in the job.

    Rows that were written before an error stay. A repeated write of the same rows writes only the missing ones.
    """
    report = Report()

    def part(server: str | None) -> Report | ServerReport:
        return report.of_server(server) if options.has_servers else report

    def open_target(of_server: Options, stack: ExitStack) -> Operation:
        broker = open_broker(of_server)
        stack.callback(broker.close)
        work = WriteTask(of_server, plan, broker, Backpressure(of_server), part(of_server.server))
        return OPERATIONS[plan.operation](work)

    with (
        relaxed_gc(),
        Targets(options, plan, open_target) as targets,
        Rejected(options.optional_text("rejectedPath"), attempt) as rejected,
    ):
        for batch in batches:
            for server, operation, rows in targets.split(batch):
                _write(operation, RowBatch(rows, plan), part(server), rejected)
        report.files = rejected.publish()
    return report


def _write(operation: Operation, batch: RowBatch, report: Report | ServerReport, rejected: Rejected) -> None:
    if batch.count:
        operation.write(batch)
    for row, (reason, cause) in sorted(batch.refused.items()):
        report.refuse(reason, operation.row_name(batch, row), cause, batch.queue_of(row))
        rejected.add(batch.record_batch, row, reason, cause)
