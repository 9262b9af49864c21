"""The writers, as Spark knows them: for a batch, and for each micro-batch of a stream.

The driver makes one, and pickles it into every task; `commit` and `abort` run in yet another process, on a copy. So it
holds plain values only, and a process imports no more than it needs: Spark starts one for each of these steps. What
tasks do is in `write_task`.
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

from spark_connectors.errors import RowsRefused
from spark_connectors.options.options import Options
from spark_connectors.write.report import Report

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("spark_connectors")


@dataclass
class Written(WriterCommitMessage):
    """What a task that ended well has written."""

    report: Report


class _Writer:
    """What both writers are. Making one raises whatever is wrong with options, columns, queue or connection."""

    def __init__(self, schema: StructType, options: Options, *, overwrite: bool) -> None:
        from spark_connectors.write import plan

        self._options = options
        self._plan = plan.plan(schema, options, overwrite=overwrite)
        plan.check_queue(options, self._plan.queue)
        self._job = secrets.token_hex(4)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task. Rows that cannot be written are counted; whatever else goes wrong raises."""
        from spark_connectors.write import task as write_task

        return Written(write_task.run(self._options, self._plan, iterator, _attempt(self._job)))

    def _told(self, messages: Sequence[WriterCommitMessage | None]) -> Report:
        return Report.total(message.report for message in messages if isinstance(message, Written))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], which: str = "") -> None:
        total = self._told(messages)
        _tell(logging.INFO, f"{self._plan.operation}{which}: {total.told()}, by {len(messages)} tasks")
        if late := total.counts["late"]:
            _tell(
                logging.WARNING,
                f"{self._plan.operation}{which}: {late:,} of the rows stored were past their expires_at, and expired "
                "at once. Rows that were read from a dead-letter queue have the one that they missed: leave this "
                "column out, or put letters back with operation=redrive",
            )
        if not total.refused:
            return
        text = (
            f"{self._plan.operation}{which}: {total.refused.total():,} rows could not be written: {total.complaint()}"
        )
        if self._options.maybe_text("rejectedPath") is None and self._options.text("onRefused") == "error":
            raise RowsRefused(
                f"{text}. All others were written; rejectedPath keeps such rows, onRefused=report only logs them"
            )
        _tell(logging.WARNING, text + "".join(f"; {file}" for file in total.files))

    def _abort(self, messages: Sequence[WriterCommitMessage | None], which: str = "") -> None:
        done = [message for message in messages if message is not None]
        others = "" if len(done) == len(messages) else "; the others may have written too"
        _tell(
            logging.WARNING,
            f"{self._plan.operation}{which} failed: {len(done)} of {len(messages)} tasks had ended, with "
            f"{self._told(done).told()}{others}. Nothing is undone: writing the same rows again writes what is missing",
        )


class RqttlBatchWriter(_Writer, DataSourceArrowWriter):
    """For `df.write`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written. Raises `RowsRefused`."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written before a task failed for good."""
        self._abort(messages)


class RqttlStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """For `df.writeStream`. A micro-batch that is replayed writes only what is missing."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log what was written. Raises `RowsRefused`, which ends the query."""
        self._commit(messages, f" of batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log what was written before a task failed for good."""
        self._abort(messages, f" of batch {batchId}")


def _attempt(job: str) -> str:
    """A name for this attempt of this task; in a replayed micro-batch the same as the first time."""
    task = TaskContext.get()
    if task is None:
        return job
    query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    return f"{f'{query}-{batch}' if query else job}-{task.partitionId()}-{task.attemptNumber()}"


def _tell(level: int, text: str) -> None:
    """Log. The process that commits is Spark's own, where nobody sets logging up; its errors go to the driver's."""
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s rqttl %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
    _log.log(level, "%s", text)
