"""The writers, as Spark knows them: one for a batch, and one for the micro-batches of a stream.

The driver makes a writer and pickles it into every task; `commit` and `abort` run in another process, on a copy. So a
writer holds plain values only. Each process imports only the modules of its step, because Spark starts one for each.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rqttl.text import plural
from spark_connectors.errors import ReportNotWritten, RowsRefused
from spark_connectors.logs import log_text
from spark_connectors.options.options import Options
from spark_connectors.versions import DataSourceStreamArrowWriter
from spark_connectors.write.report import LATE, Report
from spark_connectors.write.report_file import ReportTarget, content

if TYPE_CHECKING:
    import pyarrow as pa


#: The messages of the tasks of a write; `None` for a task that did not end.
Messages: TypeAlias = Sequence[WriterCommitMessage | None]

_QUERY_ID = "sql.streaming.queryId"
#: Spark's program that ends a micro-batch. It makes a writer of its own for each commit and each abort.
_SINK_RUNNER = "pyspark.sql.worker.python_streaming_sink_runner"


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of a successful task. `query` is the id of its streaming query."""

    report: Report
    query: str | None = None


class _Writer:
    """The common part of both writers. The constructor checks options, columns, queue, connection and report path."""

    _of_stream = False

    def __init__(self, schema: StructType, options: Options, *, overwrite: bool) -> None:
        from spark_connectors.write.plan import check_target, make_plan

        self._options = options
        path = options.optional_text("reportPath")
        # a report goes into the file behind a link, and error texts show the whole path
        self._target = None if path is None else ReportTarget(Path(os.path.realpath(path)), self._of_stream)
        begins = not _ends_micro_batch()
        if begins and self._target is not None:
            # before all other checks: a refused write must not leave the report of an earlier one
            self._target.prepare()
        self._plan = make_plan(schema, options, overwrite=overwrite)
        if begins:
            check_target(options, self._plan.queue)
        self._job = secrets.token_hex(4)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Refused rows are counted; all other failures raise."""
        from spark_connectors.write import task as write_task

        report = write_task.run(self._options, self._plan, iterator, _attempt(self._job))
        return TaskResult(report, _local_property(_QUERY_ID))

    def commit(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803  # Spark's name
        """Log and report the result. Raises `RowsRefused` or `ReportNotWritten`, which ends a streaming query."""
        name, total = self._name(batchId), _total(messages)
        log_text(logging.INFO, f"{name}: {total.summary()}, by {len(messages)} tasks")
        if late := total.counts[LATE]:
            log_text(
                logging.WARNING,
                f"{name}: {late:,} of the stored rows were past their expires_at, and expired "
                "at once. Rows from a dead-letter queue hold the missed deadline: leave this column out, or put "
                "letters back with operation=redrive",
            )
        if total.counts and total.counts.keys() == {"duplicates"} and not total.refused:
            log_text(
                logging.WARNING,
                f"{name}: nothing was stored, because Redis knows each message_id of these rows: they were written "
                "before, within idempotencyTtl or the duplicate_window of the queue",
            )
        refused = self._refusal(name, total)
        if total.refused and refused is None:
            log_text(logging.WARNING, _refused_rows(name, total) + "".join(f"; {file}" for file in total.files))
        unwritten = self._write_report(messages, total, batchId, refused, "refused" if refused else "succeeded")
        if problem := refused or unwritten:
            raise problem

    def abort(self, messages: Messages, batchId: int | None = None) -> None:  # noqa: N803  # Spark's name
        """Log and report the rows that were written before a task failed for good."""
        name, total = self._name(batchId), _total(messages)
        ended = sum(message is not None for message in messages)
        others = "" if ended == len(messages) else "; the other tasks may have written rows, too"
        log_text(
            logging.WARNING,
            f"{name} failed: {ended} of {len(messages)} tasks had ended, with "
            f"{total.summary()}{others}. Nothing is undone: write the same rows again to add missing ones",
        )
        if ended < len(messages):
            error = f"{len(messages) - ended} of {len(messages)} tasks failed or were stopped{others}"
            self._write_report(messages, total, batchId, error, "failed")
        elif refused := self._refusal(name, total):
            # Spark aborts a write also after its commit has raised
            self._write_report(messages, total, batchId, refused, "refused")
        else:
            self._write_report(messages, total, batchId, "all tasks ended, but the commit failed", "failed")

    def _write_report(
        self, messages: Messages, total: Report, batch: int | None, error: object, status: str
    ) -> ReportNotWritten | None:
        """Write the report of `reportPath`. Logs and returns the error of a report that cannot be written."""
        if self._target is None:
            return None
        query = next((task.query for task in messages if isinstance(task, TaskResult)), None)
        report = content(
            total,
            status=status,
            error=None if error is None else str(error),
            operation=self._plan.operation,
            tasks=messages,
            query=query,
            batch=batch,
        )
        try:
            self._target.write(report)
        except ReportNotWritten as unwritten:
            log_text(logging.WARNING, f"{self._name(batch)}: {unwritten}")
            return unwritten
        return None

    def _refusal(self, name: str, total: Report) -> RowsRefused | None:
        """Return the error for refused rows; `None` if there are none, or if the options accept them."""
        if not total.refused or self._options.optional_text("rejectedPath") is not None:
            return None
        return RowsRefused(f"{_refused_rows(name, total)}. All other rows were written. rejectedPath keeps such rows")

    def _name(self, batch: int | None) -> str:
        return self._plan.operation if batch is None else f"{self._plan.operation} of batch {batch}"


class RqttlBatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of `df.write`."""


class RqttlStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. A replayed micro-batch writes only the missing rows."""

    _of_stream = True


def _total(messages: Messages) -> Report:
    return Report.total(message.report for message in messages if isinstance(message, TaskResult))


def _refused_rows(name: str, total: Report) -> str:
    return f"{name}: {plural(total.refused.total(), 'refused row')}: {total.refusal_summary()}"


def _ends_micro_batch() -> bool:
    """Return True in Spark's program that ends a micro-batch. Its rows are written, so there is nothing to check.

    A check there would fail an abort while Redis is away, before the abort could report anything.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _SINK_RUNNER in sys.modules or getattr(main, "name", None) == _SINK_RUNNER


def _attempt(job: str) -> str:
    """Return a name for this attempt of this task. A replayed micro-batch has the same names."""
    task = TaskContext.get()
    if task is None:
        return job
    query, batch = _local_property(_QUERY_ID), _local_property("streaming.sql.batchId")
    return f"{f'{query}-{batch}' if query else job}-{task.partitionId()}-{task.attemptNumber()}"


def _local_property(name: str) -> str | None:
    task = TaskContext.get()
    return task.getLocalProperty(name) if task else None
