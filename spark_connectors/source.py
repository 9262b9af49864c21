"""The data source `rqttl`, as Spark knows it. It only reads options; what it does is in the readers and writers.

These are imported where they are made: Spark starts a process for each step, which waits for all its imports.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from spark_connectors.columns import schema as columns
from spark_connectors.errors import SourceError
from spark_connectors.options.options import Options, Use
from spark_connectors.options.secret import Secret

#: Options that may hold a secret.
_SECRETS = frozenset({"url", "password"})


class RqttlDataSource(DataSource):
    """`format("rqttl")`: messages of queues, dead letters above all, as rows; and rows as messages."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark pickles this object, and shows it where something goes wrong
        self._said: dict[str, str | Secret] = {
            name: Secret(text) if name.lower() in _SECRETS else text for name, text in options.items()
        }

    @classmethod
    def name(cls) -> str:
        """What follows `format`."""
        return "rqttl"

    def schema(self) -> str:
        """All columns. Spark asks only where the user has not given a schema."""
        try:
            options = self._options("batch")
        except SourceError as error:
            try:
                options = self._options("stream")
            except SourceError:
                raise error from None
        return columns.ddl(options.text("decode"))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from spark_connectors.read.batch import RqttlBatchReader, RqttlFilteringReader

        options = self._options("batch")
        kind = RqttlFilteringReader if options.flag("pushFilters") else RqttlBatchReader
        return kind(options, columns.chosen(schema, options.text("decode")))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """For `spark.readStream`."""
        from spark_connectors.stream.reader import RqttlStreamReader

        options = self._options("stream")
        return RqttlStreamReader(options, columns.chosen(schema, options.text("decode")))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `df.write`, with `.mode("append")`."""
        from spark_connectors.write.writer import RqttlBatchWriter

        return RqttlBatchWriter(schema, self._options("write"), overwrite=overwrite)

    def streamWriter(  # noqa: N802  # Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """For `df.writeStream`."""
        from spark_connectors.write.writer import RqttlStreamWriter

        return RqttlStreamWriter(schema, self._options("write"), overwrite=overwrite)

    def _options(self, use: Use) -> Options:
        said = {name: text.reveal() if isinstance(text, Secret) else text for name, text in self._said.items()}
        return Options.read(use, said)
