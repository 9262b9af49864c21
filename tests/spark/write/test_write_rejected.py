"""Refused rows: counted, named, kept as JSON lines that Spark reads again, or the reason why a job fails."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from rqttl import Broker
from spark_connectors.errors import InvalidOption, RowsRefused
from spark_connectors.options.options import Options
from spark_connectors.write.report import Report
from spark_connectors.write.writer import RqttlBatchWriter, RqttlStreamWriter, TaskResult
from tests.spark.writing import MESSAGES, Job, batch, columns, numbered

DDL = f"{MESSAGES}, headers map<string,string>, died_at timestamp, ttl string"
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
BAD = ("x" * 300, b"\0\xff", {"a": "b", "c": None}, AT, None)


def lines(folder: Path) -> dict[str, list[Any]]:
    """Return the lines of all files in a folder, hidden ones too."""
    return {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in folder.iterdir()}


def test_refused_rows_are_kept_whole_with_the_reason(broker: Broker, redis_url: str, tmp_path: Path) -> None:
    broker.declare_queue("q")
    folder = tmp_path / "not" / "there"
    job = Job(redis_url, DDL, {"queue": "q", "rejectedPath": str(folder)})

    report = job.task([("good", b"x", None, AT, None), BAD, ("late", b"x", None, None, "soon")], attempt="job-7-1")

    assert report.files == [str(folder / "job-7-1.jsonl")]
    assert lines(folder) == {
        "job-7-1.jsonl": [
            {
                "reason": "invalid_name",
                "cause": "id: expected 1 to 255 bytes of printable text, got 300 bytes",
                "row": {
                    "message_id": "x" * 300,
                    "body": "AP8=",
                    "headers": {"a": "b", "c": None},
                    "died_at": "2026-01-02T03:04:05.000006+00:00",
                    "ttl": None,
                },
            },
            {
                "reason": "invalid_duration",
                "cause": "ttl: expected a number with a unit such as '30s', '5m' or '1500ms', got 'soon'",
                "row": {"message_id": "late", "body": "eA==", "headers": None, "died_at": None, "ttl": "soon"},
            },
        ]
    }


def test_without_refused_rows_there_is_no_file(broker: Broker, redis_url: str, tmp_path: Path) -> None:
    broker.declare_queue("q")

    report = Job(redis_url, MESSAGES, {"queue": "q", "rejectedPath": str(tmp_path)}).task(numbered(5))

    assert (report.files, lines(tmp_path)) == ([], {})


def test_an_attempt_that_fails_leaves_no_file_and_the_next_has_all(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    broker.declare_queue("q")
    job = Job(redis_url, DDL, {"queue": "q", "rejectedPath": str(tmp_path)})

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(DDL, [BAD])
        assert len(lines(tmp_path)) == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.run(broken(), attempt="job-0-0")
    assert lines(tmp_path) == {}

    job.task([BAD], attempt="job-0-1")
    assert [(name, len(rows)) for name, rows in lines(tmp_path).items()] == [("job-0-1.jsonl", 1)]


def test_a_file_in_the_place_of_the_folder_fails_before_anything_is_written(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    queue = broker.declare_queue("q")

    with pytest.raises(InvalidOption, match="rejectedPath: cannot write into"):
        Job(redis_url, MESSAGES, {"queue": "q", "rejectedPath": str(tmp_path / "file")}).task(numbered(5))
    assert queue.stats().ready == 0


# What the driver tells


def report(stored: int = 0, **refused: int) -> Report:
    made = Report()
    made.counts["stored"] += stored
    for reason, count in refused.items():
        for i in range(count):
            made.refuse(reason, f"'{reason}-{i}'", "that is why")
    return made


def test_reports_add_up_and_name_the_first_rows_only() -> None:
    total = Report.total([report(1_200, queue_full=4), report(34, queue_full=3, no_message_id=1), report()])

    assert total.summary() == "1,234 stored, 8 refused (queue_full 7, no_message_id 1)"
    assert total.refusal_summary() == (
        "queue_full 7 ('queue_full-0': that is why; also 'queue_full-1', 'queue_full-2', 'queue_full-3', "
        "'queue_full-0', …); no_message_id 1 ('no_message_id-0': that is why)"
    )


Writer = RqttlBatchWriter | RqttlStreamWriter


def writer(kind: type[Writer], url: str, broker: Broker, **options: str) -> Writer:
    broker.declare_queue("q")
    made = kind(columns(MESSAGES), Options.parse("write", {"url": url, "queue": "q", **options}), overwrite=False)
    copied: Writer = pickle.loads(pickle.dumps(made))  # noqa: S301  # as Spark does
    return copied


def end(made: Writer, how: str, *reports: Report | None) -> None:
    """Commit or abort on a copy, as Spark does."""
    messages: list[WriterCommitMessage | None] = [None if one is None else TaskResult(one) for one in reports]
    if isinstance(made, RqttlStreamWriter):
        getattr(made, how)(messages, 7)
    else:
        getattr(made, how)(messages)


@pytest.mark.parametrize("kind, which", [(RqttlBatchWriter, ""), (RqttlStreamWriter, " of batch 7")])
class TestDriver:
    def test_a_commit_logs_the_counts(
        self, kind: type[Writer], which: str, broker: Broker, redis_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "spark_connectors")

        end(writer(kind, redis_url, broker), "commit", report(3), report(4))

        assert caplog.messages == [f"enqueue{which}: 7 stored, by 2 tasks"]

    def test_a_commit_warns_of_rows_that_came_too_late(
        self, kind: type[Writer], which: str, broker: Broker, redis_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        late = report(4)
        late.counts["late"] = 2

        end(writer(kind, redis_url, broker), "commit", report(3), late, late)

        (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.getMessage().startswith(
            f"enqueue{which}: 4 of the stored rows were past their expires_at, and expired at once."
        )

    def test_refused_rows_fail_the_job_once_all_others_are_written(
        self, kind: type[Writer], which: str, broker: Broker, redis_url: str
    ) -> None:
        with pytest.raises(RowsRefused) as caught:
            end(writer(kind, redis_url, broker), "commit", report(3, no_message_id=2), report(4))

        assert str(caught.value) == (
            f"[RQTTL_ROWS_REFUSED] enqueue{which}: 2 refused rows: no_message_id 2 ('no_message_id-0': that is "
            "why; also 'no_message_id-1'). All other rows were written. rejectedPath keeps such rows"
        )

    def test_refused_rows_with_a_path_are_reported_only(
        self,
        kind: type[Writer],
        which: str,
        tmp_path: Path,
        broker: Broker,
        redis_url: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        refused = report(3, no_message_id=1)
        refused.files = ["somewhere/a.jsonl"]

        end(writer(kind, redis_url, broker, rejectedPath=str(tmp_path)), "commit", refused)

        (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.getMessage() == (
            f"enqueue{which}: 1 refused row: no_message_id 1 ('no_message_id-0': that is why); somewhere/a.jsonl"
        )

    def test_an_abort_says_what_was_written(
        self, kind: type[Writer], which: str, broker: Broker, redis_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        end(writer(kind, redis_url, broker), "abort", report(3), None, report(4))

        (told,) = caplog.messages
        assert told == (
            f"enqueue{which} failed: 2 of 3 tasks had ended, with 7 stored; the other tasks may have written rows, "
            "too. Nothing is undone: write the same rows again to add missing ones"
        )


def test_the_report_to_the_driver_holds_no_bodies(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("q")
    job = Job(redis_url, MESSAGES, {"queue": "q"})

    told = pickle.dumps(TaskResult(job.task([("x" * 300, b"secret body"), ("ok", b"secret body")])))

    assert b"secret body" not in told
    assert b"x" * 81 not in told
