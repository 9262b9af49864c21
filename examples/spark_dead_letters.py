"""How many letters died of what: `python examples/spark_dead_letters.py redis://… orders/dead`."""

import sys

from pyspark.sql import SparkSession

import spark_connectors


def main(url: str, queue: str) -> None:
    """Print the dead letters of a queue by reason."""
    spark = SparkSession.builder.master("local[2]").appName("dead letters").getOrCreate()
    spark_connectors.register(spark)  # where rqttl is installed, Spark finds it by itself
    letters = spark.read.format("rqttl").option("url", url).load(queue)
    for row in letters.groupBy("reason").count().orderBy("reason").collect():
        print(f"{row['reason']}: {row['count']}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
