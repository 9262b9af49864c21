"""Spark 4.0 and 4.1, as far as they show without a JVM: calls without a start, and reasons that must not get lost."""

import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql.types import StructType

from rqttl import Broker
from spark_connectors import source
from spark_connectors.errors import InvalidOption
from spark_connectors.source import RqttlDataSource
from tests.servers import Server
from tests.spark.following import stream_reader
from tests.spark.letters import bury

Make = Callable[..., Any]


@pytest.fixture
def make(server: Server) -> Make:
    """Makes the reader of one run of a query, as a new process has it."""
    return partial(stream_reader, server.url, queues="orders/dead")


def rows(reader: Any, start: Any, end: Any) -> int:
    return sum(batch.num_rows for task in reader.partitions(start, end) for batch in reader.read(task))


def test_batches_within_a_limit_follow_each_other_without_a_start(make: Make, broker: Broker) -> None:
    bury(broker, 25)
    reader = make(maxEntriesPerTrigger=10)

    # a new query asks for the latest offset first
    ends = [reader.latestOffset()]
    start, sizes = reader.initialOffset(), list[int]()
    for _ in range(3):
        sizes.append(rows(reader, start, ends[-1]))
        start = ends[-1]
        ends.append(reader.latestOffset())

    assert sizes == [10, 10, 5]
    assert ends[-1] == ends[-2]


@pytest.mark.parametrize("committed", [True, False])
def test_a_restarted_query_goes_on_after_the_batch_that_spark_asks_about_first(
    make: Make, broker: Broker, committed: bool
) -> None:
    bury(broker, 25)
    before = make(maxEntriesPerTrigger=10)
    end = before.latestOffset()
    start = before.initialOffset()
    reader = make(maxEntriesPerTrigger=10)

    assert reader.partitions(end, end) == []
    if not committed:
        assert rows(reader, start, end) == 10

    assert rows(reader, end, reader.latestOffset()) == 10


def test_a_limit_is_warned_about_once(make: Make, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    bury(broker, 25)

    with caplog.at_level(logging.WARNING, "spark_connectors"):
        reader = make(maxEntriesPerTrigger=10)
        reader.latestOffset()
        reader.latestOffset()
        make().latestOffset()

    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "maxEntriesPerTrigger: before Spark 4.2"
    ]


def test_an_error_of_a_stream_is_raised_where_an_old_spark_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "TELLS_START", False)
    reader: Any = RqttlDataSource({"queues": "a", "socketTimeout": "x"}).streamReader(StructType([]))

    reader.stop()
    for call in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(InvalidOption, match="socketTimeout"):
            call()


def test_a_missing_module_is_named_by_the_first_call_and_not_lost_with_the_import() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('pyarrow', 'redis', 'msgpack')))\n"
        "from spark_connectors.plugin.pyspark_rqttl import DefaultSource\n"
        "made = DefaultSource({'queues': 'a'})\n"
        "for call in (made.schema, lambda: made.reader(None), lambda: made.writer(None, False)):\n"
        "    try:\n"
        "        call()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )

    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    assert [line.split(" ")[2].strip(";") for line in told.splitlines()] == ["pyarrow", "pyarrow", "redis"]
