"""Appends the dead letters that came since its last run to a Parquet table: run it each minute, or each night.

The checkpoint holds how far it came. The next run makes up for an interrupted one, and each dead letter is in the table
once. Nothing is taken out of Redis, so a user who may only read is enough.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

import spark_connectors


def main() -> None:
    """Run once, to the end of what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="folder or URL of the Parquet table")
    parser.add_argument("--checkpoint", required=True, help="folder or URL for the state of this job, and of no other")
    parser.add_argument("--url", required=True, help="of Redis, without a password")
    parser.add_argument("--username", help="the user of Redis")
    parser.add_argument("--password-file", help="file with the password, on the driver and on every executor")
    parser.add_argument("--pattern", default="#/dead", help="the queues, also those to come (default: %(default)s)")
    asked = parser.parse_args()

    options = {"url": asked.url, "queuePattern": asked.pattern, "maxEntriesPerTrigger": "1000000"}
    options |= {"username": asked.username} if asked.username else {}
    options |= {"passwordFile": asked.password_file} if asked.password_file else {}

    spark = SparkSession.builder.appName("rqttl archive").getOrCreate()
    spark_connectors.register(spark)  # for --py-files; where the package is installed, Spark has found it
    letters = spark.readStream.format("rqttl").options(**options).load()
    appending = letters.writeStream.format("parquet").option("checkpointLocation", asked.checkpoint)
    query = appending.trigger(availableNow=True).start(asked.table)
    query.awaitTermination()
    print(sum(batch["numInputRows"] for batch in query.recentProgress), "letters appended to", asked.table)


if __name__ == "__main__":
    main()
