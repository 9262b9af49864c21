"""Writes to several servers: the column `server` of a row names the server in `url`.

A row of `redrive` or `purge` is a letter of one server. The same sequence may exist on another server, so such a row is
refused there, also by a write to a single server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_connectors.options.options import Options
from spark_connectors.write.plan import Plan
from spark_connectors.write.rows import RowBatch

T = TypeVar("T")

COLUMN = "server"
#: The reason of rows for a server that `url` does not have.
OTHER_SERVER = "other_server"


class OtherServer:
    """The operation for rows of a server that `url` does not have: it refuses all of them."""

    def __init__(self, server: str | None, known: Sequence[str]) -> None:
        self._cause = f"column server has {server!r}, and url has {', '.join(known)}"
        if server is not None and len(known) == 1:
            self._cause += f"; a name for it is written as {server}=redis://…"

    def write(self, batch: RowBatch) -> None:
        """Refuse all rows."""
        for row in range(batch.count):
            batch.refuse(row, OTHER_SERVER, self._cause)

    def row_name(self, batch: RowBatch, row: int) -> str:
        """Return the queue and the sequence or the id of a row, as far as it has them."""
        columns = (batch.column(name) for name in ("queue", "sequence", "message_id"))
        return "/".join(str(column[row].as_py())[:80] for column in columns if column is not None)


class Targets:
    """The operations of a task: one for each server that its rows name, made at the first row for it.

    `open_target` makes an operation for the options of one server, and leaves its connections to the stack.
    """

    def __init__(self, options: Options, plan: Plan, open_target: Callable[[Options, ExitStack], T]) -> None:
        self._options, self._open = options, open_target
        self._routed = COLUMN in plan.columns
        self._of_servers = options.of_servers()
        self._stack = ExitStack()
        self._opened: dict[str, Any] = {}

    def __enter__(self) -> Targets:
        if not self._routed:
            # a task without rows checks its connection, too
            self._only()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, Any, pa.RecordBatch]]:
        """Yield each server and its operation with its rows, which keep their order.

        The server is `None` for rows that name none of `url`, and empty if the write does not look at the column.
        """
        if not self._routed:
            yield "", self._only(), batch
            return
        coded = batch.column(batch.schema.get_field_index(COLUMN)).dictionary_encode(null_encoding="encode")
        servers = coded.dictionary.to_pylist()
        for code, server in enumerate(servers):
            rows = batch if len(servers) == 1 else batch.filter(pc.equal(coded.indices, code))
            yield server if server in self._of_servers else None, self._operation(server), rows

    def _only(self) -> Any:
        """Return the operation of the only server of a write that does not look at the column."""
        if not self._opened:
            self._opened[""] = self._open(self._options, self._stack)
        return self._opened[""]

    def _operation(self, server: str | None) -> Any:
        options = self._of_servers.get(server or "")
        if options is None:
            return OtherServer(server, list(self._of_servers))
        if options.server not in self._opened:
            self._opened[options.server] = self._open(options, self._stack)
        return self._opened[options.server]
