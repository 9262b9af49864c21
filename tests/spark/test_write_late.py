"""Times in rows: a past deadline is stored and counted as expired, a time without a unit is refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from rqttl import Broker
from tests.spark.letters import bury
from tests.spark.reading import loader
from tests.spark.writing import Job, counts, ids

TIMED = "message_id string, body binary, ttl string, expires_at timestamp"
PAST, FUTURE = (datetime.now(timezone.utc) + timedelta(days=days) for days in (-1, 1))
ROWS: list[tuple[Any, ...]] = [
    ("late", b"1", None, PAST),
    ("in time", b"2", None, FUTURE),
    ("now or never", b"3", "0s", None),
    ("for ever", b"4", None, None),
    ("late too", b"5", None, PAST),
]


@pytest.mark.parametrize("idempotency", ["required", "off"])
def test_rows_past_their_deadline_are_counted_and_others_are_not(
    broker: Broker, redis_url: str, idempotency: str
) -> None:
    queue = broker.declare_queue("q", dead_letter="d")

    report = Job(redis_url, TIMED, {"queue": "q", "idempotency": idempotency}).task(ROWS)

    assert counts(report) == {"stored": 5, "duplicates": 0, "late": 2}
    assert report.summary() == "5 stored"
    assert ids(queue) == ["in time", "for ever"]
    assert ids(broker.queue("d")) == ["late", "now or never", "late too"]


def test_a_row_whose_ttl_has_no_unit_is_refused_with_what_it_may_mean(broker: Broker, redis_url: str) -> None:
    queue = broker.declare_queue("q")
    rows = [("a", b"x", "60", None), ("b", b"x", "0", None), ("c", b"x", "60s", None)]

    report = Job(redis_url, TIMED, {"queue": "q"}).task(rows)

    assert counts(report) == {"stored": 2, "duplicates": 0, "refused invalid_duration": 1}
    assert "ttl: expected a duration with a unit, got '60': write '60s' or '60ms'" in report.refusal_summary()
    assert ids(queue) == ["c"]


def test_no_row_is_late_if_messages_never_expire(broker: Broker, redis_url: str) -> None:
    queue = broker.declare_queue("q", never_expire=True)

    report = Job(redis_url, TIMED, {"queue": "q"}).task(ROWS)

    assert report.counts["late"] == 0
    assert len(ids(queue)) == 5


def test_refused_rows_and_rows_that_were_written_before_are_not_late(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("q", max_length=2, overflow="reject-publish")
    job = Job(redis_url, TIMED, {"queue": "q"})
    rows = [("a", b"1", None, FUTURE), ("b", b"2", None, FUTURE), ("c", b"3", None, FUTURE), ("d", b"4", None, PAST)]

    assert counts(job.task(rows)) == {"stored": 3, "duplicates": 0, "late": 1, "refused queue_full": 1}
    assert counts(job.task(rows)) == {"stored": 0, "duplicates": 3, "refused queue_full": 1}


def test_rows_of_expired_letters_live_if_they_come_without_the_deadline_that_they_missed(
    broker: Broker, redis_url: str
) -> None:
    bury(broker, 3, reason="expired")
    rows = loader(redis_url)(("message_id", "body", "expires_at"), queues="orders/dead").rows()
    target = broker.declare_queue("again")

    late = Job(redis_url, "message_id string, body binary, expires_at timestamp", {"queue": "again"})
    report = late.task([(f"late {row['message_id']}", row["body"], row["expires_at"]) for row in rows])
    assert (report.counts["late"], ids(target)) == (3, [])

    report = Job(redis_url, "message_id string, body binary", {"queue": "again"}).task(
        [(r["message_id"], r["body"]) for r in rows]
    )
    assert (report.counts["late"], ids(target)) == (0, ["m-0", "m-1", "m-2"])
