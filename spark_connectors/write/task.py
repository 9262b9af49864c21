"""The work of a write task: batches of rows, one of the three operations, one connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing

import pyarrow as pa

from spark_connectors.options.options import Options
from spark_connectors.redis.broker import open_broker
from spark_connectors.redis.relaxed_gc import relaxed_gc
from spark_connectors.write.enqueue import Enqueue
from spark_connectors.write.letters import Purge, Redrive
from spark_connectors.write.plan import Plan
from spark_connectors.write.rejected import Rejected
from spark_connectors.write.report import Report
from spark_connectors.write.rows import RowBatch
from spark_connectors.write.sender import Backpressure, WriteTask

#: The operations. Each marks refused rows in their batch.
OPERATIONS: Mapping[str, type[Enqueue | Redrive | Purge]] = {"enqueue": Enqueue, "redrive": Redrive, "purge": Purge}


def run(options: Options, plan: Plan, batches: Iterable[pa.RecordBatch], attempt: str) -> Report:
    """Write batches. `attempt` is a name for this attempt of this task, unique in the job.

    Rows that were written before an error stay. A repeated write of the same rows writes only the missing ones.
    """
    report, broker = Report(), open_broker(options)
    with relaxed_gc(), closing(broker), Rejected(options.optional_text("rejectedPath"), attempt) as rejected:
        operation = OPERATIONS[plan.operation](WriteTask(options, plan, broker, Backpressure(options), report))
        for rows in batches:
            batch = RowBatch(rows, plan)
            if batch.count:
                operation.write(batch)
            for row, (reason, cause) in sorted(batch.refused.items()):
                report.refuse(reason, operation.row_name(batch, row), cause, batch.queue_of(row))
                rejected.add(batch.record_batch, row, reason, cause)
        report.files = rejected.publish()
    return report
