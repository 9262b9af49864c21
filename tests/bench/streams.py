"""The figures of streams: limits, against no limit, against a batch, and against a stream without any work."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from tests.bench.core import Table
from tests.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Limits of streams, in rows. Spark has the same fixed cost for a batch of each of them.
LIMITS = (20_000, 100_000, 500_000)
ROUNDS = 3


@dataclass(frozen=True)
class Run:
    """One query that has read the whole log: the ms of each of its batches, by their steps in Spark's report."""

    rows: int
    durations: list[dict[str, int]]

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.total * 1000

    @property
    def total(self) -> int:
        """Milliseconds of all batches."""
        return sum(batch["triggerExecution"] for batch in self.durations)

    def median(self, step: str) -> float:
        """Return the ms of a step of a batch. The first batch does not count: it starts processes."""
        return statistics.median(batch.get(step, 0) for batch in self.durations[1:] or self.durations)


class Streams:
    """Queries over the queue `dead`, and over a source that gives out one batch again and again."""

    def __init__(self, spark: SparkSession, server: Server, table: Table, rows: int) -> None:
        self._spark, self._server, self._table, self._rows = spark, server, table, rows
        self._client: redis.Redis = server.client()

    def measure(self, read_batch: Callable[[], object]) -> None:
        """Print the rows of the table. `read_batch` reads the log as a batch."""
        sent = self._sent()
        read_batch()
        batch_bytes = self._sent() - sent
        kinds = [(source, limit) for limit in (None, *LIMITS) for source in ("rqttl", "ready")]
        runs: dict[tuple[str, int | None], list[Run]] = {kind: [] for kind in kinds}
        traffic: dict[int | None, float] = {}
        for turn in range(ROUNDS + 1):
            for source, limit in kinds:
                sent = self._sent()
                run = self._run(source, limit)
                if source == "rqttl":
                    traffic[limit] = (self._sent() - sent) / batch_bytes
                if turn:  # the first round warms up
                    runs[source, limit].append(run)
        for limit in LIMITS:
            self._table.row(f"bytes of a stream, limit {limit:,}, to a batch", traffic[limit], "<= 1.15")
        self._print_rates(runs)
        self._print_fixed(runs)

    def _print_rates(self, runs: dict[tuple[str, int | None], list[Run]]) -> None:
        """Print the rates with a limit, as shares of the rate without one."""
        rates = {kind: statistics.median(run.rate for run in of_kind) for kind, of_kind in runs.items()}
        shares = {(source, limit): rates[source, limit] / rates[source, None] for source, limit in rates}
        large, small = LIMITS[2], LIMITS[1]
        rate, whole = rates["rqttl", large], rates["rqttl", None]
        note = f"{rate:,.0f}/s of {whole:,.0f}/s; without any work {shares['ready', large]:.3f}"
        self._table.row(f"rows/s of a stream, limit {large:,}, to none", shares["rqttl", large], ">= 0.8", note)
        note = f"{shares['rqttl', small]:.3f} of none; without any work {shares['ready', small]:.3f}"
        ratio = shares["rqttl", small] / shares["ready", small]
        self._table.row(f"the same, limit {small:,}, to a source without any work", ratio, ">= 0.9", note)

    def _print_fixed(self, runs: dict[tuple[str, int | None], list[Run]]) -> None:
        """Print the ms that a batch costs beyond its rows, and those of them that the source may change."""
        limit = LIMITS[0]
        fixed = {
            source: statistics.median(
                (run.total - whole.total) / (len(run.durations) - len(whole.durations))
                for run, whole in zip(runs[source, limit], runs[source, None], strict=True)
            )
            for source in ("rqttl", "ready")
        }
        note = ", ".join(f"{source} {ms:.0f} ms" for source, ms in fixed.items())
        name = f"fixed ms of a batch, limit {limit:,}, to those without any work"
        self._table.row(name, fixed["rqttl"] / fixed["ready"], "<= 1.25", note)
        steps = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
        for source in ("rqttl", "ready"):
            print(f"  {source}: " + ", ".join(f"{step} {_median(runs[source, limit], step):.0f} ms" for step in steps))

    def _run(self, source: str, limit: int | None) -> Run:
        """Read the log as a stream to Spark's sink that keeps nothing."""
        reader = self._spark.readStream.format(source).options(url=self._server.url, numPartitions="2")
        reader = reader.option("queues", "dead") if source == "rqttl" else reader.option("rows", str(self._rows))
        frame = (reader.option("maxEntriesPerTrigger", str(limit)) if limit else reader).load()
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            progress = [one for one in query.recentProgress if one["numInputRows"]]
        rows = sum(one["numInputRows"] for one in progress)
        if rows != self._rows:
            raise SystemExit(f"the stream {source} with the limit {limit} has read {rows} rows")
        return Run(rows, [one["durationMs"] for one in progress])

    def _sent(self) -> int:
        """Return the bytes that the server has sent."""
        info: Any = self._client.info("stats")
        return int(info["total_net_output_bytes"])


def _median(runs: Iterable[Run], step: str) -> float:
    return statistics.median(run.median(step) for run in runs)
