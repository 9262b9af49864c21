"""The plan of a batch: the ranges of its servers, and their tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rqttl.protocol.keys import Keyspace
from spark_connectors.logs import log_text
from spark_connectors.options.options import Options
from spark_connectors.ranges import Range
from spark_connectors.read import plan
from spark_connectors.read.plan import FilterBounds, QueueSnapshot
from spark_connectors.read.replica import check_replica
from spark_connectors.read.servers import SERVER_LOST, merge_tasks, naming, refuse_same_data, shares_of_tasks
from spark_connectors.read.watch import WatchedRange, now_ms, present_birth
from spark_connectors.redis.bulk_reader import BulkReader


class ServerPlan:
    """The plan of a batch on one server. Close it: it keeps its connection for the division into tasks."""

    def __init__(self, options: Options, bounds: FilterBounds) -> None:
        self.keys = Keyspace(options.text("namespace"))
        self.reader = BulkReader(options)
        self.birth = ""
        self.queues: dict[str, QueueSnapshot] = {}
        self._ranges: list[Range] = []
        self._options, self._bounds = options, bounds

    def read(self, *, required: bool) -> None:
        """Read the state of the queues. If all named queues are `required`, raises `NoSuchQueue`. Raises others."""
        options, reader, keys = self._options, self.reader, self.keys
        self.birth = present_birth(reader, keys)
        self.queues = plan.select_queues(options, reader, keys, self._bounds, required=required)
        self._ranges = plan.plan_ranges(options, reader, keys, self.queues.values(), self._bounds)
        plan.check_read_access(reader, keys, self._ranges)
        check_replica(options, keys, self.birth)

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(part.rows for part in self._ranges)

    def tasks(self, options: Options, *, splits: bool) -> list[list[WatchedRange]]:
        """Divide the ranges into tasks. `options` has the limits of their number."""
        tasks = plan.partitions(options, self.reader, self.keys, self._ranges, splits=splits)
        return [[self._watched(part) for part in task] for task in tasks]

    def _watched(self, part: Range) -> WatchedRange:
        """Watch a range. Messages that were lost before the snapshot are not in the batch."""
        queue = self.queues[part.queue]
        return WatchedRange(
            part,
            queue.created_at,
            queue.trimmed_upto,
            now_ms(),
            queue.enqueued,
            self.birth,
            queue.removed,
            self._options.server,
        )


def plan_tasks(options: Options, bounds: FilterBounds, *, splits: bool) -> list[list[WatchedRange]]:
    """Plan the tasks of a batch. Raises all errors that are known before a task starts."""
    if options.is_composed:
        return _plan_composed(options, bounds, splits=splits)
    if not bounds.admits(options.address.server):
        return []
    whole = ServerPlan(options, bounds)
    with whole.reader:
        whole.read(required=True)
        return whole.tasks(options, splits=splits)


def _plan_composed(options: Options, bounds: FilterBounds, *, splits: bool) -> list[list[WatchedRange]]:
    """Plan the servers that the filters choose, each by itself.

    With `onServerLost=skip`, leave out those that are away, but not all.
    """
    all_servers = options.of_servers()
    of_servers = {server: of_server for server, of_server in all_servers.items() if bounds.admits(server)}
    if not of_servers:
        return []
    plans = {server: ServerPlan(of_server, bounds) for server, of_server in of_servers.items()}
    planned: dict[str, ServerPlan] = {}
    lost: dict[str, Exception] = {}
    try:
        for server, server_plan in plans.items():
            try:
                with naming(server):
                    server_plan.read(required=False)
                planned[server] = server_plan
            except SERVER_LOST as error:
                lost[server] = error
                if options.text("onServerLost") == "fail" or len(lost) == len(plans):
                    raise
        for cause in lost.values():
            log_text(
                logging.WARNING, f"{str(cause).rstrip('.')}. This read goes on without the server (onServerLost=skip)"
            )
        _check_together(options, bounds, planned, complete=not lost and len(planned) == len(all_servers))
        rows = {server: server_plan.rows for server, server_plan in planned.items()}
        tasks = plan.task_count(options, sum(rows.values()))
        parts = []
        for server, count in shares_of_tasks(rows, tasks).items():
            with naming(server):
                parts += planned[server].tasks(of_servers[server].replaced(numPartitions=count), splits=splits)
    finally:
        for server_plan in plans.values():
            server_plan.reader.close()
    return merge_tasks(parts, max(1, tasks))


def _check_together(
    options: Options, bounds: FilterBounds, planned: Mapping[str, ServerPlan], *, complete: bool
) -> None:
    """Refuse servers with the same data, and if all servers are planned, names of queues that none has."""
    refuse_same_data({server: server_plan.birth for server, server_plan in planned.items()})
    known = {name for server_plan in planned.values() for name in server_plan.queues}
    admitted = [name for name in options.queues if bounds.queues is None or name in bounds.queues]
    if complete and (missing := [name for name in admitted if name not in known]):
        first = next(iter(planned.values()))
        raise plan.no_such_queue(first.reader, first.keys, missing)
