"""What a task writes: batches of rows, by one of the three operations, with one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from spark_connectors.options.options import Options
from spark_connectors.redis.bulk_reader import keep_gc_quiet
from spark_connectors.redis.clients import open_broker
from spark_connectors.write.enqueue import Enqueue
from spark_connectors.write.letters import Purge, Redrive
from spark_connectors.write.pieces import Job, Patience
from spark_connectors.write.plan import Plan
from spark_connectors.write.rejected import Rejected
from spark_connectors.write.report import Report
from spark_connectors.write.rows import Batch


class Operation(Protocol):
    """One of the three. What is refused is noted in the batch."""

    def write(self, batch: Batch) -> None:
        """Write a batch."""

    def name(self, batch: Batch, row: int) -> str:
        """How a row is named where it was refused."""


OPERATIONS: Mapping[str, Callable[[Job], Operation]] = {"enqueue": Enqueue, "redrive": Redrive, "purge": Purge}


def run(options: Options, plan: Plan, batches: Iterable[pa.RecordBatch], attempt: str) -> Report:
    """Write these batches. `attempt` names this attempt of this task among all of the job.

    What was written before an error stays; whoever writes the same rows again writes only what is missing.
    """
    restore = keep_gc_quiet()
    broker = open_broker(options)
    job = Job(options, plan, broker, Patience(options))
    try:
        operation = OPERATIONS[plan.operation](job)
        with Rejected(options.maybe_text("rejectedPath"), attempt) as rejected:
            for batch in batches:
                _write(operation, Batch(batch, plan), job.report, rejected)
            job.report.files = rejected.done()
    finally:
        broker.close()
        restore()
    return job.report


def _write(operation: Operation, batch: Batch, report: Report, rejected: Rejected) -> None:
    if batch.count:
        operation.write(batch)
    for row, (reason, why) in sorted(batch.refused.items()):
        report.refuse(reason, operation.name(batch, row), why)
        rejected.add(batch.whole, row, reason, why)
