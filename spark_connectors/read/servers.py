"""Reads of several servers: their tasks, their column, and errors that name the server.

Each server has a plan of its own, made with its own options. The modules for one server know nothing of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TypeAlias

import pyarrow as pa

from spark_connectors.columns.schema import SERVER
from spark_connectors.errors import InvalidOption, RefusedForNow, SourceError, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.read.watch import WatchedRange

#: The errors of a server that is away, or that refuses commands for now.
SERVER_LOST = (Unreachable, RefusedForNow)
#: The ranges of one task.
Task: TypeAlias = Sequence[WatchedRange]


@contextmanager
def naming(server: str) -> Iterator[None]:
    """Put the name of the server, if it has one, into the texts of errors that do not have it."""
    try:
        yield
    except SourceError as error:
        if not server:
            raise
        text, prefix = str(error).removeprefix(f"[{error.code}] "), f"server {server!r}: "
        if text.startswith(prefix):
            raise
        raise type(error)(prefix + text) from None


def refuse_same_data(births: Mapping[str, str]) -> None:
    """Refuse two servers whose data have the same name: each message would be read twice."""
    servers: dict[str, str] = {}
    for server, birth in sorted(births.items()):
        if birth and (other := servers.setdefault(birth, server)) != server:
            raise InvalidOption(
                f"url: servers {other!r} and {server!r} have the same data, {birth}: both are one server, or one is a "
                "replica of the other. Each message would be read twice"
            )


def shares_of_tasks(rows: Mapping[str, int], tasks: int) -> dict[str, int]:
    """Return the number of tasks of each server, one at least, given the rows of each."""
    total = max(1, sum(rows.values()))
    return {server: max(1, round(tasks * count / total)) for server, count in rows.items()}


def merge_tasks(tasks: Sequence[Task], most: int) -> list[list[WatchedRange]]:
    """Merge neighbours until there are `most` tasks or fewer. The order stays, and no task is empty."""
    if len(tasks) <= most:
        return [list(task) for task in tasks]
    loads = [sum(watched.range.rows + 1 for watched in task) for task in tasks]
    share, load = sum(loads) / most, 0.0
    merged: dict[int, list[WatchedRange]] = {}
    for task, rows in zip(tasks, loads, strict=True):
        # the middle of a task decides
        merged.setdefault(min(most - 1, int((load + rows / 2) / share)), []).extend(task)
        load += rows
    return list(merged.values())


def by_server(options: Options, task: Task) -> Iterator[tuple[Options, list[WatchedRange]]]:
    """Yield the ranges of each server of a task, with the options of this server."""
    of_servers = options.of_servers()
    for server, ranges in groupby(task, lambda watched: watched.server):
        yield (of_servers[server] if server else options), list(ranges)


class ServerColumn:
    """Adds the column `server` to the batches of one server, if the columns of a read have it.

    `others` are the columns that the batches need before: all other ones, and one at least.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self.others = tuple(name for name in columns if name != SERVER) or ("queue",)

    def add(self, batches: Iterator[pa.RecordBatch], server: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches with all columns, in order."""
        if SERVER not in self._columns:
            yield from batches
            return
        for batch in batches:
            name = pa.repeat(pa.scalar(server, pa.string()), batch.num_rows)
            columns = [name if column == SERVER else batch.column(column) for column in self._columns]
            yield pa.RecordBatch.from_arrays(columns, names=list(self._columns))
