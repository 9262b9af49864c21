"""What Spark 4.0 and 4.1 lack: from 4.2 on a stream is told its start and its limit, and gets Arrow batches to write.

Before, Spark calls `latestOffset` without arguments, and only once under `Trigger.AvailableNow`. It loses an error of
`streamReader`, and an import that fails in the module of a source only says DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter

__all__ = [
    "TELLS_START",
    "DataSourceStreamArrowWriter",
    "FailedStreamReader",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]

#: True if Spark tells a stream its start and its limit.
TELLS_START = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or TELLS_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """A limit of a batch."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass(frozen=True)
    class ReadMinRows(ReadLimit):
        """The number of rows for which a batch waits."""

        min_rows: int

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """The largest number of rows."""

        max_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """The largest size."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Spark does not ask for this."""


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 asks for the second class first, and then gives Arrow batches to a stream, too."""


class FailedStreamReader(DataSourceStreamReader):
    """Raises the error of a stream where Spark shows it: before 4.2 an error of `streamReader` gets lost."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _fail(self, *_: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _fail  # type: ignore[assignment]  # noqa: N815  # Spark's names
