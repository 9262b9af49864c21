"""Filters that Spark pushes down narrow the read range, and keep every matching row."""

from __future__ import annotations

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from rqttl.units import as_datetime
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reading import Job, filtered, hourly, numbers


def narrowed(server: Server, *filters: Filter) -> Job:
    return filtered(server.url, ("message_id", "queue"), *filters, queuePattern="#/dead")


def test_filters_on_queue_and_time_narrow_what_is_read(server: Server, clocked: Clocked) -> None:
    hours = hourly(clocked)
    bury(clocked, 2, source="stocks", into="stocks/dead", first=100)
    at = as_datetime(hours[4][1])
    died, orders = ("died_at",), EqualTo(("queue",), "orders/dead")

    assert narrowed(server, orders).ids() == numbers(10)
    assert narrowed(server, In(("queue",), ("stocks/dead", "none"))).ids() == ["m-100", "m-101"]
    assert narrowed(server, orders, In(("queue",), ("stocks/dead",))).rows() == []
    assert narrowed(server, orders, GreaterThan(died, at)).ids() in (numbers(6, 4), numbers(5, 5))
    assert narrowed(server, orders, GreaterThanOrEqual(died, at)).ids() == numbers(6, 4)
    assert narrowed(server, orders, LessThan(died, at)).ids() in (numbers(4), numbers(5))
    assert narrowed(server, orders, LessThanOrEqual(died, at)).ids() == numbers(5)
    assert narrowed(server, orders, EqualTo(died, at)).ids() == ["m-4"]
    assert narrowed(server, GreaterThan(died, at), LessThan(died, as_datetime(hours[6][1]))).ids() != []


def test_other_filters_narrow_nothing(server: Server, clocked: Clocked) -> None:
    at = as_datetime(hourly(clocked)[4][1])
    others = (
        IsNotNull(("died_at",)),
        Not(EqualTo(("queue",), "orders/dead")),
        EqualTo(("message_id",), "m-1"),
        Not(LessThan(("died_at",), at)),
        EqualTo(("died_at",), None),
    )

    assert narrowed(server, *others).ids() == numbers(10)
