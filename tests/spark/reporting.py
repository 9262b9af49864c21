"""Reports of writes in tests: writers as Spark makes them, results of tasks, and the numbers of a report."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from rqttl import Broker
from spark_connectors.options.options import Options
from spark_connectors.write.report import Report
from spark_connectors.write.writer import RqttlBatchWriter, RqttlStreamWriter, TaskResult
from tests.spark.writing import MESSAGES, columns

QUERY = "6cb3e6c2-2b1f-4d0e-8f0b-0f6d7c1f2a11"
NUMBERS = ("stored", "duplicates", "moved", "purged", "unavailable", "late", "refused")

Writer = RqttlBatchWriter | RqttlStreamWriter
Writers = Callable[..., Writer]


def batch_writers(broker: Broker, url: str) -> Writers:
    """Make the writer of a batch into the queue `q`, as it is after a copy by Spark."""
    broker.declare_queue("q")

    def make(path: Path | str, **options: str) -> Writer:
        texts = {"url": url, "queue": "q", "reportPath": str(path), **options}
        made = RqttlBatchWriter(columns(MESSAGES), Options.parse("write", texts), overwrite=False)
        copied: Writer = pickle.loads(pickle.dumps(made))  # noqa: S301  # as Spark does
        return copied

    return make


def stream_writers(broker: Broker, url: str) -> Writers:
    """Make the writer of a stream into the queue `q`."""
    broker.declare_queue("q")

    def make(path: Path | str, **options: str) -> Writer:
        parsed = Options.parse("write", {"url": url, "queue": "q", "reportPath": str(path), **options})
        return RqttlStreamWriter(columns(MESSAGES), parsed, overwrite=False)

    return make


def end(made: Writer, how: str, *reports: Report | None, batch: int = 7) -> None:
    messages: list[WriterCommitMessage | None] = [
        None if one is None else TaskResult(one, QUERY if isinstance(made, RqttlStreamWriter) else None)
        for one in reports
    ]
    getattr(made, how)(messages, *([batch] if isinstance(made, RqttlStreamWriter) else []))


def task(stored: int = 0, refused: int = 0, queue: str = "q") -> Report:
    made = Report()
    made.count(queue, "stored", stored)
    for i in range(refused):
        made.refuse("queue_full", f"'m-{i}'", "queue 'q' is full: max_length", queue)
    return made


def numbers(of: dict[str, Any]) -> dict[str, int]:
    """The numbers that are not 0."""
    return {name: of[name] for name in NUMBERS if of[name]}


def queues(of: dict[str, Any]) -> dict[str | None, dict[str, int]]:
    return {one["queue"]: numbers(one) for one in of["queues"]}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())
