"""The writers, as Spark knows them: one for a batch, and one for the micro-batches of a stream.

The driver makes a writer and pickles it into every task; `commit` and `abort` run in another process, on a copy. So a
writer holds plain values only. Each process imports only the modules of its step, because Spark starts one for each.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rqttl.text import plural
from spark_connectors.errors import RowsRefused
from spark_connectors.logs import log_text
from spark_connectors.options.options import Options
from spark_connectors.write.report import Report

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of a successful task."""

    report: Report


class _Writer:
    """The common part of both writers. The constructor checks options, columns, queue and connection."""

    def __init__(self, schema: StructType, options: Options, *, overwrite: bool) -> None:
        from spark_connectors.write.plan import check_target, make_plan

        self._options = options
        self._plan = make_plan(schema, options, overwrite=overwrite)
        check_target(options, self._plan.queue)
        self._job = secrets.token_hex(4)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Refused rows are counted; all other failures raise."""
        from spark_connectors.write import task as write_task

        return TaskResult(write_task.run(self._options, self._plan, iterator, _attempt(self._job)))

    def _total(self, messages: Sequence[WriterCommitMessage | None]) -> Report:
        return Report.total(message.report for message in messages if isinstance(message, TaskResult))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: str = "") -> None:
        total = self._total(messages)
        log_text(logging.INFO, f"{self._plan.operation}{batch}: {total.summary()}, by {len(messages)} tasks")
        if late := total.counts["late"]:
            log_text(
                logging.WARNING,
                f"{self._plan.operation}{batch}: {late:,} of the stored rows were past their expires_at, and expired "
                "at once. Rows from a dead-letter queue hold the missed deadline: leave this column out, or put "
                "letters back with operation=redrive",
            )
        if not total.refused:
            return
        refused = plural(total.refused.total(), "refused row")
        text = f"{self._plan.operation}{batch}: {refused}: {total.refusal_summary()}"
        if self._options.optional_text("rejectedPath") is None and self._options.text("onRefused") == "error":
            raise RowsRefused(
                f"{text}. All other rows were written. rejectedPath keeps such rows, onRefused=report only logs them"
            )
        log_text(logging.WARNING, text + "".join(f"; {file}" for file in total.files))

    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch: str = "") -> None:
        done = [message for message in messages if message is not None]
        others = "" if len(done) == len(messages) else "; the other tasks may have written rows, too"
        log_text(
            logging.WARNING,
            f"{self._plan.operation}{batch} failed: {len(done)} of {len(messages)} tasks had ended, with "
            f"{self._total(done).summary()}{others}. Nothing is undone: write the same rows again to add missing ones",
        )


class RqttlBatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of `df.write`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the result. Raises `RowsRefused`."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the rows that were written before a task failed for good."""
        self._abort(messages)


class RqttlStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. A replayed micro-batch writes only the missing rows."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the result. Raises `RowsRefused`, which ends the query."""
        self._commit(messages, f" of batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log the rows that were written before a task failed for good."""
        self._abort(messages, f" of batch {batchId}")


def _attempt(job: str) -> str:
    """Return a name for this attempt of this task. A replayed micro-batch has the same names."""
    task = TaskContext.get()
    if task is None:
        return job
    query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    return f"{f'{query}-{batch}' if query else job}-{task.partitionId()}-{task.attemptNumber()}"
