"""`operation=enqueue`: rows become messages, once; late ones are told; a task waits for room in a queue."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rqttl import Broker, Message, units
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import rules
from rqttl.types import Header
from spark_connectors.columns import schema
from spark_connectors.errors import QueueIsFull
from spark_connectors.write import task as write_task
from spark_connectors.write.sender import Backpressure
from tests.drivers import redis_of
from tests.spark.letters import bury
from tests.spark.reading import loader
from tests.spark.writing import LETTERS, MESSAGES, Job, batch, counts, ids, in_two_batches, numbered
from tests.waiting import until

Write = Callable[..., Job]


@pytest.fixture
def write(broker: Broker, redis_url: str) -> Write:
    """Makes jobs that write into the queue `q`."""
    broker.declare_queue("q")
    return lambda ddl=MESSAGES, **options: Job(redis_url, ddl, {"queue": "q", **options})


def test_rows_become_messages_in_their_order(write: Write, broker: Broker) -> None:
    report = write().task(numbered(2_345), size=1_000)

    assert counts(report) == {"stored": 2_345, "duplicates": 0}
    assert [(one.id, one.body) for one in broker.queue("q").peek(5_000)] == numbered(2_345)


@pytest.mark.parametrize(
    "roles, operation, options",
    [
        (["producer"], "enqueue", {}),
        (["producer", "consumer"], "enqueue", {"maxQueueDepth": "100"}),
        (["admin"], "redrive", {"maxQueueDepth": "100"}),
        (["admin"], "purge", {}),
    ],
)
def test_the_roles_of_the_readme_suffice(
    roles: list[str], operation: str, options: dict[str, str], broker: Broker, redis_url: str
) -> None:
    letters = [(one.queue, one.sequence, "orders") for one in bury(broker, 9).peek(9)]
    redis_of(broker).execute_command("ACL", "SETUSER", "sender", "on", ">pw", *rules(roles, Keyspace())[0])
    options |= {"username": "sender", "password": "pw", "operation": operation}
    if operation == "enqueue":
        report = Job(redis_url, MESSAGES, {"queue": "orders", **options}).task(numbered(9))
    else:
        report = Job(redis_url, LETTERS, options).task(letters)

    redis_of(broker).acl_deluser("sender")
    assert max(counts(report).values()) == 9


def test_every_column_of_a_row_is_in_the_message(write: Write, broker: Broker) -> None:
    ends = datetime(2100, 1, 2, 3, 4, 5, 678_999, tzinfo=timezone.utc)
    ddl = f"{MESSAGES}, content_type string, headers map<string,string>, ttl string, expires_at timestamp"
    write(ddl).task(
        [
            ("a", b"1", "text/plain", {"region": "eu", "Ä": "ö"}, None, ends),
            ("b", b"2", None, None, "1h", None),
            ("c", b"3", None, {}, None, None),
            ("d", b"4", "application/msgpack", {"n": None}, "7200000ms", None),
        ]
    )

    a, b, c, d = broker.queue("q").peek()
    assert (a.content_type, a.headers, a.expires_at) == (
        "text/plain",
        {"region": "eu", "Ä": "ö"},
        ends.replace(microsecond=678_000),
    )
    assert (b.content_type, b.headers) == ("application/octet-stream", {})
    assert b.expires_at is not None
    assert b.expires_at - b.enqueued_at == timedelta(hours=1)
    assert (c.headers, c.expires_at) == ({}, None)
    assert (d.content_type, d.headers) == ("application/msgpack", {"n": None})
    assert d.expires_at is not None
    assert d.expires_at - d.enqueued_at == timedelta(hours=2)


@pytest.mark.parametrize(
    "ddl, row, body, headers, lives",
    [
        ("message_id string, body string", ("a", "Grüße"), "Grüße".encode(), {}, None),
        ("message_id string, body string", ("a", ""), b"", {}, None),
        (f"{MESSAGES}, headers map<string,int>", ("a", b"\0\xff", {"n": 5, "m": 6}), b"\0\xff", {"n": 5, "m": 6}, None),
        (f"{MESSAGES}, headers map<string,binary>", ("a", b"1", {"n": b"\xff"}), b"1", {"n": b"\xff"}, None),
        (f"{MESSAGES}, ttl_ms bigint", ("a", b"1", 1_500_000), b"1", {}, timedelta(seconds=1_500)),
        (f"{MESSAGES}, ttl_ms int", ("a", b"1", 150_500), b"1", {}, timedelta(seconds=150.5)),
        (f"{MESSAGES}, ttl string", ("a", b"1", "150.5s"), b"1", {}, timedelta(seconds=150.5)),
        (
            f"{MESSAGES}, ttl interval",
            ("a", b"1", timedelta(minutes=5, microseconds=9_999)),
            b"1",
            {},
            timedelta(minutes=5, milliseconds=10),
        ),
    ],
)
def test_columns_may_have_several_types(
    ddl: str,
    row: tuple[object, ...],
    body: bytes,
    headers: dict[str, object],
    lives: timedelta | None,
    write: Write,
    broker: Broker,
) -> None:
    write(ddl).task([row])

    (message,) = broker.queue("q").peek()
    assert (message.body, message.headers) == (body, headers)
    assert (message.expires_at and message.expires_at - message.enqueued_at) == lives


@pytest.mark.parametrize("kind, half", [("string", "30m"), ("interval", timedelta(minutes=30))])
def test_rows_with_a_due_time_are_scheduled_and_those_between_them_arrive_at_once(
    kind: str, half: object, write: Write, broker: Broker
) -> None:
    due = datetime(2100, 1, 2, 3, 4, 5, 678_999, tzinfo=timezone.utc)
    rows = [
        ("a", b"1", None, None, "1h"),
        ("b", b"2", half, None, "1h"),
        ("c", b"3", None, due, None),
        ("d", b"4", None, None, None),
        ("e", b"5", None, datetime(2020, 1, 1, tzinfo=timezone.utc), None),
    ]
    job, queue = write(f"{MESSAGES}, delay {kind}, deliver_at timestamp, ttl string"), broker.queue("q")

    assert counts(job.task(rows)) == {"stored": 5, "duplicates": 0}
    assert counts(job.task(rows)) == {"stored": 0, "duplicates": 5}

    assert ids(queue) == ["a", "d", "e"]
    b, c = queue.scheduled()
    assert (b.id, b.body, c.id, c.body) == ("b", b"2", "c", b"3")
    assert c.until == due.replace(microsecond=678_000)
    assert b.until is not None
    assert b.expires_at is not None
    assert (b.until - b.enqueued_at, b.expires_at - b.until) == (timedelta(minutes=30), timedelta(hours=1))


def test_a_scheduled_row_that_becomes_too_large_while_a_task_runs_is_refused(write: Write, broker: Broker) -> None:
    ddl = f"{MESSAGES}, delay string"

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(ddl, [("a", b"long", "1h")])
        broker.queue("q").update(max_message_bytes=3)
        yield batch(ddl, [("b", b"1", "1h"), ("c", b"long", "1h"), ("d", b"2", "1h")])

    assert counts(write(ddl).run(batches())) == {"stored": 3, "duplicates": 0, "refused message_too_large": 1}
    assert [(one.id, one.body) for one in broker.queue("q").scheduled()] == [("a", b"long"), ("b", b"1"), ("d", b"2")]


def test_rows_that_were_written_before_are_not_written_again(write: Write, broker: Broker) -> None:
    job, queue = write(), broker.queue("q")
    job.task(numbered(400))
    queue.ack_many(queue.receive_many(10))

    assert counts(job.task(numbered(600))) == {"stored": 200, "duplicates": 400}
    assert counts(job.task([*numbered(2, first=600), *numbered(2, first=600)])) == {"stored": 2, "duplicates": 2}
    assert ids(queue) == [f"m-{i}" for i in range(10, 602)]


def test_a_task_that_failed_halfway_is_completed_by_the_next_attempt(write: Write, broker: Broker) -> None:
    job = write()

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(MESSAGES, numbered(700))
        raise ConnectionResetError("lost")

    with pytest.raises(ConnectionResetError):
        job.run(broken())
    assert counts(job.task(numbered(1_000), attempt="job-0-1")) == {"stored": 300, "duplicates": 700}
    assert ids(broker.queue("q")) == [f"m-{i}" for i in range(1_000)]


def test_two_attempts_of_one_partition_at_a_time_store_each_row_once(write: Write, broker: Broker) -> None:
    job, rows = write(), numbered(5_000)
    begin, reports = threading.Barrier(2), []

    def attempt(i: int) -> None:
        begin.wait(30)
        reports.append(job.task(rows, attempt=f"job-0-{i}", size=500))

    twins = [threading.Thread(target=attempt, args=(i,)) for i in range(2)]
    for twin in twins:
        twin.start()
    for twin in twins:
        twin.join(60)

    assert sum(report.counts["stored"] for report in reports) == 5_000
    assert sum(report.counts["duplicates"] for report in reports) == 5_000
    assert sorted(ids(broker.queue("q"))) == sorted(id for id, _ in rows)


def test_without_idempotency_rows_need_no_id_and_come_as_often_as_they_are_written(
    write: Write, broker: Broker
) -> None:
    for ddl, row in ((MESSAGES, ("a", b"1")), (MESSAGES, (None, b"1")), ("body binary", (b"1",))):
        job = write(ddl, idempotency="off")
        for _ in range(2):
            assert counts(job.task([row])) == {"stored": 1, "duplicates": 0}

    assert [message.body for message in broker.queue("q").peek()] == [b"1"] * 6
    assert ids(broker.queue("q"))[:2] == ["a", "a"]
    # the window of the queue acts all the same
    broker.queue("q").update(duplicate_window="1h")
    assert [write(idempotency="off").task(numbered(3)).counts["duplicates"] for _ in range(2)] == [0, 3]


def test_each_row_goes_to_the_queue_that_it_names(write: Write, broker: Broker) -> None:
    names = [f"q.{i}" for i in range(30)]
    for name in names:
        broker.declare_queue(name, max_length=1_000 if name.endswith("7") else None)
    job = Job(write().options.address.__str__(), f"queue string, {MESSAGES}", {})

    report = job.task([(names[i % 30], f"m-{i}", b"x") for i in range(3_000)])

    assert counts(report) == {"stored": 3_000, "duplicates": 0}
    for i, name in enumerate(names):
        assert ids(broker.queue(name)) == [f"m-{n}" for n in range(i, 3_000, 30)]


def test_large_bodies_go_a_few_at_a_time(write: Write, broker: Broker) -> None:
    rows = [(f"m-{i}", b"%d" % i + b"x" * 600_000) for i in range(10)]

    assert counts(write().task(rows)) == {"stored": 10, "duplicates": 0}
    assert ids(broker.queue("q")) == [f"m-{i}" for i in range(10)]


DDL = f"queue string, {MESSAGES}, headers map<string,string>, content_type string, ttl_ms bigint, expires_at timestamp"
DDL += ", delay string, deliver_at timestamp"

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"queue": None}, "no_queue"),
        ({"queue": "a b"}, "invalid_name"),
        ({"queue": "nobody"}, "not_found"),
        ({"message_id": None}, "no_message_id"),
        ({"message_id": ""}, "invalid_name"),
        ({"message_id": "x" * 256}, "invalid_name"),
        ({"message_id": "a\nb"}, "invalid_name"),
        ({"body": None}, "no_body"),
        ({"body": b"x" * 2_001}, "message_too_large"),
        ({"headers": {"": "x"}}, "invalid_input"),
        ({"headers": {"x": "y" * 70_000}}, "message_too_large"),
        ({"content_type": "a\0"}, "invalid_input"),
        ({"ttl_ms": -1}, "invalid_duration"),
        ({"ttl_ms": 10**15}, "invalid_duration"),
        ({"ttl_ms": 5, "expires_at": NOW}, "invalid_input"),
        ({"delay": "5"}, "invalid_duration"),
        ({"delay": "5s", "deliver_at": NOW}, "invalid_input"),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused_and_all_others_are_stored(
    changed: dict[str, Any], reason: str, redis_url: str, broker: Broker
) -> None:
    broker.declare_queue("q", max_message_bytes=2_000)
    nothing = dict.fromkeys(("headers", "content_type", "ttl_ms", "expires_at", "delay", "deliver_at"))
    good: dict[str, Any] = {"queue": "q", "message_id": "", "body": b"x", **nothing}
    rows = [{**good, "message_id": f"m-{i}"} for i in range(600)]
    rows[300] |= changed

    report = Job(redis_url, DDL, {}).task([tuple(row.values()) for row in rows])

    assert counts(report) == {"stored": 599, "duplicates": 0, f"refused {reason}": 1}
    assert ids(broker.queue("q")) == [f"m-{i}" for i in range(600) if i != 300]
    ((named,),) = report.named.values()
    assert named == repr(rows[300]["message_id"])[:80]
    assert 0 < len(report.refusal_summary()) < 500


MS = 1_000
LAST_US, LAST = units.MAX_INSTANT * MS, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
TEN_YEARS = units.MAX_DURATION


@pytest.mark.parametrize(
    "column, value, outcome",
    [
        *[
            (name, value, outcome)
            for name, gone in (("expires_at timestamp", "late"), ("deliver_at timestamp", "ready"))
            for value, outcome in [
                (None, "ready"),
                (-(2**63), gone),
                (-1, gone),
                (0, gone),
                (LAST_US, LAST),
                (LAST_US + MS, "10000-01-01T00:00:00.000000Z"),
                (1_700_000_000_000_000 * MS, "55840-11-08T22:13:20.000000Z"),
                (2**63 - 1, "294247-01-10T04:00:54.775807Z"),
            ]
        ],
        *[
            (name, None if value is None else length(value), outcome)
            for name, length, gone in (
                ("ttl_ms bigint", int, "late"),
                ("ttl string", lambda ms: f"{ms}ms", "late"),
                ("ttl interval", lambda ms: timedelta(milliseconds=ms), "late"),
                ("delay string", lambda ms: f"{ms}ms", "ready"),
                ("delay interval", lambda ms: timedelta(milliseconds=ms), "ready"),
            )
            for value, outcome in [
                (None, "ready"),
                (-1, "refused"),
                (0, gone),
                (TEN_YEARS, timedelta(milliseconds=TEN_YEARS)),
                (TEN_YEARS + 1, "refused"),
                (2**63 // MS - 1, "refused"),
            ]
        ],
    ],
)
def test_the_bounds_of_each_column_of_time(
    column: str, value: Any, outcome: Any, write: Write, broker: Broker, tmp_path: Path
) -> None:
    queue = broker.queue("q")
    report = write(f"{MESSAGES}, {column}", rejectedPath=str(tmp_path)).task([("a", b"1", value), ("b", b"2", None)])

    refused = [json.loads(line)["row"] for file in report.files for line in Path(file).read_text().splitlines()]
    found = [one for one in (*queue.peek(), *queue.scheduled()) if one.id == "a"]
    assert "b" in ids(queue)
    if outcome in ("late", "ready"):
        assert ([one.until or one.expires_at for one in found], refused) == ([None] * (outcome == "ready"), [])
    elif isinstance(outcome, str):
        assert (found, report.refused.total()) == ([], 1)
        assert outcome in ("refused", refused[0][column.split(maxsplit=1)[0]])
    else:
        (message,) = found
        due = message.until or message.expires_at
        assert due is not None
        assert outcome in (due, due - message.enqueued_at)


def test_columns_are_found_in_any_case(write: Write, broker: Broker) -> None:
    assert counts(write("Message_Id string, BODY binary, Ttl_ms bigint").task([("a", b"1", 5_000)]))["stored"] == 1

    (message,) = broker.queue("q").peek()
    assert message.expires_at is not None
    assert (message.id, message.body) == ("a", b"1")
    assert message.expires_at - message.enqueued_at == timedelta(seconds=5)


def test_a_copy_of_packed_headers_keeps_their_types(write: Write, broker: Broker, redis_url: str) -> None:
    headers: dict[str, Header] = {"text": "5", "int": 5, "float": 2.5, "flag": True, "none": None, "bytes": b"\xff"}
    broker.declare_queue("from").enqueue_many([Message(b"x", id="a", headers=headers), Message(b"x", id="b")])
    read = loader(redis_url)(("message_id", "body", schema.PACKED_HEADERS), queues="from")
    job = write(f"{MESSAGES}, headers binary")

    report = job.task([(row["message_id"], row["body"], row["headers"]) for row in read.rows()])

    assert [(one.id, one.headers) for one in broker.queue("q").peek()] == [("a", headers), ("b", {})]
    assert counts(report)["stored"] == 2
    damaged = [("c", b"x", b"\xc1"), ("d", b"x", b""), ("e", b"x", b"\x01"), ("f", b"x", b"\x80")]
    assert counts(job.task(damaged)) == {"stored": 1, "duplicates": 0, "refused invalid_input": 3}


def test_the_limit_of_a_queue_refuses_what_it_has_no_room_for_and_names_the_first(write: Write, broker: Broker) -> None:
    broker.queue("q").update(max_length=700, overflow="reject-publish")
    job = write()

    report = job.task(numbered(1_000))

    assert counts(report) == {"stored": 700, "duplicates": 0, "refused queue_full": 300}
    assert report.named["queue_full"] == [f"'m-{i}'" for i in range(700, 705)]
    assert report.causes["queue_full"] == "queue 'q' is full: max_length"
    assert ids(broker.queue("q")) == [f"m-{i}" for i in range(700)]
    # there is room
    broker.queue("q").update(max_length=None)
    assert counts(job.task(numbered(1_000))) == {"stored": 300, "duplicates": 700}


def test_options_that_change_while_a_task_runs_act_at_once(write: Write, broker: Broker) -> None:
    rows = in_two_batches(lambda: broker.queue("q").update(max_length=400, overflow="reject-publish"))

    assert counts(write().run(rows)) == {"stored": 400, "duplicates": 0, "refused queue_full": 200}


def test_a_queue_that_is_deleted_while_a_task_runs_refuses_the_rest(write: Write, broker: Broker) -> None:
    report = write().run(in_two_batches(broker.queue("q").delete))

    assert counts(report) == {"stored": 300, "duplicates": 0, "refused not_found": 300}
    assert not redis_of(broker).exists("rqttl:{q}:log")


def test_a_batch_without_rows_writes_nothing(write: Write, broker: Broker) -> None:
    assert counts(write().run([batch(MESSAGES, [])])) == {}
    assert write().run([]).summary() == "no rows"


def test_no_connection_stays_open(write: Write, broker: Broker) -> None:
    client = redis_of(broker)
    before = len(client.client_list())

    write().task(numbered(10))
    with pytest.raises(ZeroDivisionError):
        write().run(batch(MESSAGES, numbered(i)) for i in (1, 1 // 0))

    until(lambda: len(client.client_list()) <= before)


TIMED = "message_id string, body binary, ttl string, expires_at timestamp"

PAST, FUTURE = (datetime.now(timezone.utc) + timedelta(days=days) for days in (-1, 1))

ROWS: list[tuple[Any, ...]] = [
    ("late", b"1", None, PAST),
    ("in time", b"2", None, FUTURE),
    ("now or never", b"3", "0s", None),
    ("for ever", b"4", None, None),
    ("late too", b"5", None, PAST),
]


@pytest.mark.parametrize(
    "options, idempotency, late, left, dead",
    [
        ({}, "required", 2, ["in time", "for ever"], ["late", "now or never", "late too"]),
        ({}, "off", 2, ["in time", "for ever"], ["late", "now or never", "late too"]),
        ({"never_expire": True}, "required", 0, [row[0] for row in ROWS], []),
    ],
)
def test_rows_past_their_deadline_are_counted_and_others_are_not(
    options: dict[str, Any],
    idempotency: str,
    late: int,
    left: list[str],
    dead: list[str],
    broker: Broker,
    redis_url: str,
) -> None:
    queue, letters = broker.declare_queue("q", dead_letter="d", **options), broker.declare_queue("d")
    job = Job(redis_url, TIMED, {"queue": "q", "idempotency": idempotency})

    report = job.task(ROWS)

    assert (report.counts["stored"], report.counts["late"], report.summary()) == (5, late, "5 stored")
    assert (ids(queue), ids(letters)) == (left, dead)
    # rows that were written before are not late
    assert idempotency == "off" or counts(job.task(ROWS)) == {"stored": 0, "duplicates": 5}


@pytest.mark.parametrize("depth", [1, 7, 1_000])
def test_a_queue_is_filled_up_to_the_depth_and_no_further(depth: int, broker: Broker, redis_url: str) -> None:
    queue = broker.declare_queue("q")
    job = Job(redis_url, MESSAGES, {"queue": "q", "maxQueueDepth": str(depth), "fullTimeout": "0s"})

    with pytest.raises(QueueIsFull, match=rf"\[RQTTL_QUEUE_FULL\] maxQueueDepth: q: no room below {depth} ready"):
        job.task(numbered(2_000))

    assert depth * 7 / 8 - 1 <= len(ids(queue)) <= depth
    assert ids(queue) == [f"m-{i}" for i in range(len(ids(queue)))]


def test_a_task_waits_for_consumers_and_writes_all_in_order(broker: Broker, redis_url: str) -> None:
    queue = broker.declare_queue("q")
    job = Job(redis_url, MESSAGES, {"queue": "q", "maxQueueDepth": "50"})
    taken: list[str] = []
    depths: list[int] = []

    def consume() -> None:
        while len(taken) < 1_000:
            depths.append(queue.stats().ready)
            some = queue.receive_many(40, wait="10s")
            taken.extend(one.id for one in some)
            queue.ack_many(some)

    consumer = threading.Thread(target=consume)
    consumer.start()
    report = job.task(numbered(1_000))
    consumer.join(60)

    assert counts(report) == {"stored": 1_000, "duplicates": 0}
    assert taken == [f"m-{i}" for i in range(1_000)]
    assert max(depths) <= 50


def test_patience_ends_where_nobody_consumes(
    broker: Broker, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    broker.declare_queue("q")
    waits: list[float] = []
    times = count(0.0)
    never = partial(Backpressure, clock=lambda: next(times), sleep=waits.append)
    monkeypatch.setattr(write_task, "Backpressure", never)
    job = Job(redis_url, MESSAGES, {"queue": "q", "maxQueueDepth": "5", "fullTimeout": "10s"})

    with pytest.raises(QueueIsFull, match=r"\(fullTimeout=10s\)"):
        job.task(numbered(6))
    assert len(waits) == 10
    full = "[RQTTL_QUEUE_FULL] maxQueueDepth: q: no room below 5 ready messages"
    assert caplog.messages == [f"{full}. The task waits for it for up to 10s (fullTimeout)"]


def test_a_full_queue_does_not_hold_up_the_others(broker: Broker, redis_url: str) -> None:
    for name in ("a", "b", "c"):
        broker.declare_queue(name)
    broker.queue("a").enqueue_many([b"x"] * 100)
    job = Job(redis_url, f"queue string, {MESSAGES}", {"maxQueueDepth": "100", "fullTimeout": "0s"})

    with pytest.raises(QueueIsFull, match="maxQueueDepth: a: no room"):
        job.task([("abc"[i % 3], f"m-{i}", b"x") for i in range(300)])

    assert [len(ids(broker.queue(name))) for name in "abc"] == [100, 100, 100]


def test_letters_wait_too(broker: Broker, redis_url: str) -> None:
    letters = bury(broker, 100)
    chosen = [(one.queue, one.sequence, "orders") for one in letters.peek(100)]
    job = Job(redis_url, LETTERS, {"operation": "redrive", "maxQueueDepth": "40", "fullTimeout": "0s"})

    with pytest.raises(QueueIsFull, match="maxQueueDepth: orders: no room"):
        job.task(chosen)

    assert (len(ids(broker.queue("orders"))), len(ids(letters))) == (40, 60)
