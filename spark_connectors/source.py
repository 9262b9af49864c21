"""The data source `rqttl`, as Spark knows it. This module only reads options; readers and writers do the work.

Each method imports what it needs itself: Spark starts a process for each step, and waits for all its imports. Besides,
an import that fails here, for example of pyarrow, would only say that there is no such format.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_connectors.options.secret import Secret
from spark_connectors.versions import TELLS_START, DataSourceStreamArrowWriter, FailedStreamReader

if TYPE_CHECKING:
    from spark_connectors.options.options import Options, Use

#: Options that may hold a secret.
_SECRETS = frozenset({"url", "password"})
_EXPOSED = (
    "password: the password is an option, or a part of url. It travels with every task, and over Spark Connect, Spark "
    "writes it in plain text into the event log. passwordFile and passwordEnv avoid both"
)


class RqttlDataSource(DataSource):
    """`format("rqttl")`: reads messages of queues, above all dead letters, as rows; writes rows as messages."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark pickles this object, and shows it in error messages
        self._raw_options: dict[str, str | Secret] = {
            name: Secret(text) if name.lower() in _SECRETS else text for name, text in options.items()
        }

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "rqttl"

    def schema(self) -> StructType:
        """The default columns. Spark asks for them only if the user has not given a schema.

        Spark asks before it has decided between a batch and a stream, so the options may be of both.
        """
        from spark_connectors.columns.schema import default_columns, spark_schema
        from spark_connectors.options.options import Options

        options = Options.parse_read(self._texts())
        deaths = options.flag("includeDeaths")
        return spark_schema(default_columns(options.text("decode"), include_deaths=deaths))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of `spark.read`."""
        from spark_connectors.columns.schema import requested_columns
        from spark_connectors.read.batch import RqttlBatchReader

        options = self._options("batch")
        return RqttlBatchReader(options, requested_columns(schema, options.text("decode")))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Make the reader of `spark.readStream`."""
        try:
            return self._stream_reader(schema)
        except Exception as error:
            if TELLS_START:
                raise
            return FailedStreamReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_connectors.columns.schema import requested_columns
        from spark_connectors.stream.reader import RqttlStreamReader

        options = self._options("stream")
        return RqttlStreamReader(options, requested_columns(schema, options.text("decode")))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Make the writer of `df.write`, which needs `.mode("append")`."""
        from spark_connectors.write.writer import RqttlBatchWriter

        return RqttlBatchWriter(schema, self._options("write"), overwrite=overwrite)

    def streamWriter(  # noqa: N802  # Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Make the writer of `df.writeStream`."""
        from spark_connectors.write.writer import RqttlStreamWriter

        return RqttlStreamWriter(schema, self._options("write"), overwrite=overwrite)

    def _options(self, use: Use) -> Options:
        from spark_connectors.logs import log_text
        from spark_connectors.options.options import Options

        options = Options.parse(use, self._texts())
        if options.shows_password:
            log_text(logging.WARNING, _EXPOSED)
        return options

    def _texts(self) -> Mapping[str, str]:
        return {name: text.reveal() if isinstance(text, Secret) else text for name, text in self._raw_options.items()}
