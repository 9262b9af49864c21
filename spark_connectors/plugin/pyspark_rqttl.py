"""The module by which Spark finds the data source: Spark imports every top-level module called `pyspark_…`.

Spark searches installed packages only. After `--py-files` and `addPyFile` a program calls
`spark_connectors.register(spark)`.
"""

from spark_connectors.source import RqttlDataSource as DefaultSource

__all__ = ["DefaultSource"]
