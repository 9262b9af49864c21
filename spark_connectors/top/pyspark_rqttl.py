"""What Spark's look-up of data sources finds: it imports every top-level module called `pyspark_…`.

This only helps where the package is installed. With `--py-files` and `addPyFile` Spark does not look; there
`spark_connectors.register(spark)` makes the format known.
"""

from spark_connectors.source import RqttlDataSource as DefaultSource

__all__ = ["DefaultSource"]
