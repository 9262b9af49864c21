"""The plan of a batch: the ranges of its queues, and their tasks."""

from __future__ import annotations

from rqttl.protocol.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.read import plan
from spark_connectors.read.watch import WatchedRange, now_ms, present_birth
from spark_connectors.redis.bulk_reader import BulkReader


def plan_tasks(options: Options, *, splits: bool) -> list[list[WatchedRange]]:
    """Plan the tasks of a batch. Raises all errors that are known before a task starts.

    Messages that were lost before the snapshot are not in the batch.
    """
    keys = Keyspace(options.text("namespace"))
    with BulkReader(options) as reader:
        birth = present_birth(reader, keys)
        queues = plan.select_queues(options, reader, keys)
        ranges = plan.plan_ranges(options, reader, keys, queues.values())
        plan.check_read_access(reader, keys, ranges)
        tasks = plan.partitions(options, reader, keys, ranges, splits=splits)
    return [
        [
            WatchedRange(
                part,
                (queue := queues[part.queue]).created_at,
                queue.trimmed_upto,
                now_ms(),
                queue.enqueued,
                birth,
            )
            for part in task
        ]
        for task in tasks
    ]
