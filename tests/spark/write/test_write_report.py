"""What a write tells: its log, refused rows as JSON lines that Spark reads again, and the reports of `reportPath`."""

import json
import logging
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from rqttl import Broker
from spark_connectors.errors import InvalidOption, ReportNotWritten, RowsRefused, SourceError
from spark_connectors.options.options import Options
from spark_connectors.write import report as report_module
from spark_connectors.write import writer as writer_module
from spark_connectors.write.report import Report
from spark_connectors.write.writer import RqttlBatchWriter, RqttlStreamWriter, TaskResult
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.writing import LETTERS, MESSAGES, Job, columns, counts, numbered
from tests.spark.writing import batch as rows_as_a_batch

QUERY = "6cb3e6c2-2b1f-4d0e-8f0b-0f6d7c1f2a11"
NUMBERS = ("stored", "duplicates", "moved", "purged", "unavailable", "late", "refused")

Writer = RqttlBatchWriter | RqttlStreamWriter
Writers = Callable[..., Writer]


def writers(kind: type[Writer], broker: Broker, url: str) -> Writers:
    broker.declare_queue("q")

    def make(path: Path | str, **options: str) -> Writer:
        texts = {"url": url, "queue": "q", "reportPath": str(path), **options}
        made = kind(columns(MESSAGES), Options.parse("write", texts), overwrite=False)
        copied: Writer = pickle.loads(pickle.dumps(made))  # noqa: S301  # as Spark does
        return copied

    return make


@pytest.fixture
def batch(broker: Broker, redis_url: str) -> Writers:
    """Makes the writer of a batch into the queue `q`."""
    return writers(RqttlBatchWriter, broker, redis_url)


@pytest.fixture
def stream(broker: Broker, redis_url: str) -> Writers:
    """Makes the writer of a stream into the queue `q`."""
    return writers(RqttlStreamWriter, broker, redis_url)


def end(made: Writer, how: str, *reports: Report | None, batch: int = 7) -> None:
    messages: list[WriterCommitMessage | None] = [
        None if one is None else TaskResult(one, QUERY if isinstance(made, RqttlStreamWriter) else None)
        for one in reports
    ]
    getattr(made, how)(messages, *([batch] if isinstance(made, RqttlStreamWriter) else []))


def task(stored: int = 0, refused: int = 0, queue: str = "q") -> Report:
    made = Report()
    made.count(queue, "stored", stored)
    for i in range(refused):
        made.refuse("queue_full", f"'m-{i}'", "queue 'q' is full: max_length", queue)
    return made


def numbers(of: dict[str, Any]) -> dict[str, int]:
    """The numbers that are not 0."""
    return {name: of[name] for name in NUMBERS if of[name]}


def queues(of: dict[str, Any]) -> dict[str | None, dict[str, int]]:
    return {one["queue"]: numbers(one) for one in of["queues"]}


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_batch_leaves_a_report_of_all_its_rows(batch: Writers, tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "report.json"

    refused = task(3, refused=2)
    refused.files = ["kept/a.jsonl"]
    end(batch(path, rejectedPath="kept"), "commit", refused, task(4, queue="other"))

    told = json.loads(path.read_text())
    assert told.pop("ended_at").endswith("+00:00")
    zeros = dict.fromkeys(NUMBERS, 0)
    assert told == {
        "version": 1,
        "status": "succeeded",
        "error": None,
        "operation": "enqueue",
        "query_id": None,
        "batch_id": None,
        "tasks": 2,
        "tasks_ended": 2,
        **zeros,
        "stored": 7,
        "refused": 2,
        "reasons": [
            {"reason": "queue_full", "rows": 2, "cause": "queue 'q' is full: max_length", "first": ["'m-0'", "'m-1'"]}
        ],
        "queues": [{"queue": "other", **zeros, "stored": 4}, {"queue": "q", **zeros, "stored": 3, "refused": 2}],
        "rejected_files": ["kept/a.jsonl"],
    }
    assert names(path.parent) == ["report.json"]


def test_tasks_count_their_rows_by_queue_and_reason(
    batch: Writers, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    broker.declare_queue("full", max_length=2, overflow="reject-publish")
    broker.declare_queue("old").enqueue(b"x", id="a")
    job = Job(redis_url, f"queue string, {MESSAGES}", {})
    rows: list[tuple[str | None, str | None, bytes]] = [
        (queue, name, b"x") for queue in ("full", "old") for name in "abc"
    ]
    rows += [("no", "a", b"x"), ("no\nname", "a", b"x"), (None, "a", b"x"), ("old", None, b"x")]
    job.task([("old", "a", b"x")])

    end(batch(tmp_path / "r", rejectedPath="kept"), "commit", job.task(rows, size=4), job.task([("old", "d", b"x")]))

    told = json.loads((tmp_path / "r").read_text())
    assert queues(told) == {
        "full": {"stored": 2, "refused": 1},
        "no": {"refused": 1},
        "old": {"stored": 3, "duplicates": 1, "refused": 1},
        None: {"refused": 2},
    }
    assert numbers(told) == {"stored": 5, "duplicates": 1, "refused": 5}
    reasons = {one["reason"]: one["rows"] for one in told["reasons"]}
    assert reasons == {"queue_full": 1, "not_found": 1, "invalid_name": 1, "no_queue": 1, "no_message_id": 1}


@pytest.mark.parametrize("operation, outcome", [("redrive", "moved"), ("purge", "purged")])
def test_letters_count_for_the_queue_that_held_them(
    operation: str, outcome: str, batch: Writers, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    letters = bury(broker, 5)
    rows = [("orders/dead", one.sequence, "orders") for one in letters.peek(10)]
    job = Job(redis_url, LETTERS, {"operation": operation})
    job.task(rows[:2])

    report = job.task([*rows, ("nobody", rows[0][1], "orders"), ("orders/dead", "no sequence", "orders")])
    end(batch(tmp_path / "r", rejectedPath="kept"), "commit", report)

    told = json.loads((tmp_path / "r").read_text())
    assert queues(told) == {"nobody": {"unavailable": 1}, "orders/dead": {outcome: 3, "unavailable": 2, "refused": 1}}
    assert counts(report) == {outcome: 3, "unavailable": 3, "refused invalid_sequence": 1}


def test_no_report_holds_a_secret_or_a_body(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server, path = start_server(), tmp_path / "r"
    texts = {"url": server.url, "queue": "q", "password": "canary7Qz4", "reportPath": str(path)}
    with server.client() as client:
        Broker(client).declare_queue("q", max_length=0, overflow="reject-publish")
        client.config_set("requirepass", "canary7Qz4")
        job = Job(server.url, f"{MESSAGES}, headers map<string,string>", texts)
        made = RqttlBatchWriter(columns(MESSAGES), job.options, overwrite=False)

        report = job.task([("x" * 300, b"canary body", {"a": "canary header"}), ("ok", b"canary", {"b": "canary"})])
        with pytest.raises(RowsRefused):
            end(made, "commit", report)

    assert json.loads(path.read_text())["refused"] == 2
    assert "canary" not in path.read_text()
    assert "x" * 81 not in path.read_text()


def test_the_documentation_has_each_field(batch: Writers, tmp_path: Path) -> None:
    end(batch(tmp_path / "r"), "commit", task(3))
    text = (Path(writer_module.__file__).parent / "README.md").read_text(encoding="utf-8")
    [table] = re.findall(r"<!-- report -->\n(.*?)<!-- /report -->", text, re.DOTALL)

    first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]

    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == set(
        json.loads((tmp_path / "r").read_text())
    )


@pytest.mark.parametrize(
    "ended, error",
    [
        (2, "2 of 4 tasks failed or were stopped; the other tasks may have written rows, too"),
        (4, "all tasks ended, but the commit failed"),
        (0, "4 of 4 tasks failed or were stopped; the other tasks may have written rows, too"),
    ],
)
def test_an_abort_leaves_a_report_of_a_failure(ended: int, error: str, stream: Writers, tmp_path: Path) -> None:
    end(stream(tmp_path), "abort", *[task(3)] * ended, *[None] * (4 - ended))

    [path] = tmp_path.iterdir()
    told = json.loads(path.read_text())
    # only a task that ended knows the query
    assert path.name == f"{QUERY if ended else 'unknown'}-7.json"
    assert (told["status"], told["tasks"], told["tasks_ended"], told["error"]) == ("failed", 4, ended, error)
    assert numbers(told) == ({"stored": 3 * ended} if ended else {})


def test_refused_rows_fail_the_job_once_all_others_are_written_and_the_abort_that_follows_changes_no_report(
    batch: Writers, tmp_path: Path
) -> None:
    path = tmp_path / "r"
    made = batch(path)
    with pytest.raises(RowsRefused) as caught:
        end(made, "commit", task(3, refused=2), task(4))
    first = json.loads(path.read_text())

    end(made, "abort", task(3, refused=2), task(4))

    assert str(caught.value) == (
        "[RQTTL_ROWS_REFUSED] enqueue: 2 refused rows: queue_full 2 ('m-0': queue 'q' is full: max_length; also "
        "'m-1'). All other rows were written. rejectedPath keeps such rows"
    )
    assert (first["status"], first["error"]) == ("refused", str(caught.value))
    assert {**json.loads(path.read_text()), "ended_at": first["ended_at"]} == first


def test_a_stream_leaves_a_file_for_each_batch_and_a_replay_replaces_it(stream: Writers, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    made = stream(folder)

    end(made, "abort", task(1), None, batch=7)
    end(made, "commit", task(5), batch=8)
    failed = json.loads((folder / f"{QUERY}-7.json").read_text())
    end(made, "commit", task(2), batch=7)

    assert names(folder) == [f"{QUERY}-7.json", f"{QUERY}-8.json"]
    told = [json.loads((folder / f"{QUERY}-{number}.json").read_text()) for number in (7, 8)]
    assert [(one["query_id"], one["batch_id"], one["stored"]) for one in told] == [(QUERY, 7, 2), (QUERY, 8, 5)]
    assert (failed["status"], told[0]["status"]) == ("failed", "succeeded")


@pytest.mark.parametrize("options", [{}, {"queue": "nobody"}, {"operation": "redrive"}, {"url": "redis://localhost:1"}])
def test_a_new_write_removes_the_report_of_the_last_one_also_if_it_is_refused_at_its_start(
    options: dict[str, str], batch: Writers, tmp_path: Path
) -> None:
    end(batch(tmp_path / "r"), "commit", task(3))

    with pytest.raises(SourceError) if options else nullcontext():
        batch(tmp_path / "r", connectRetries="0", **options)

    assert names(tmp_path) == []


def test_a_wrong_path_is_told_before_anything_is_stored(batch: Writers, stream: Writers, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()

    for make, path, rule in (
        (batch, tmp_path / "folder", "expected the path of a file on the driver for a batch write"),
        (batch, Path("/dev/null"), "expected the path of a file on the driver for a batch write"),
        (stream, tmp_path / "file", "expected a folder on the driver for a stream"),
        (batch, tmp_path / "file" / "r", r"cannot write '.*file/r' on the driver \((File exists|Not a directory)\)"),
        (stream, tmp_path / ("x" * 300), r"cannot write '.*xx' on the driver \(File name too long\)"),
        (batch, "s3://bucket/r", "expected a path in the file system of the driver, not a URL"),
    ):
        with pytest.raises(InvalidOption, match=rf"^\[RQTTL_INVALID_OPTION\] reportPath: {rule}"):
            make(path)
    assert (tmp_path / "file").read_text() == "mine"
    assert names(tmp_path) == ["file", "folder"]


def test_a_report_that_cannot_be_written_at_the_end_fails_the_job_and_leaves_no_draft(
    batch: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = batch(tmp_path / "r")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    told = r"\[RQTTL_REPORT\] reportPath: cannot write '.*/r' on the driver \(No space left on device\)"

    with pytest.raises(ReportNotWritten, match=told):
        end(made, "commit", task(3))
    with pytest.raises(RowsRefused):
        end(made, "commit", task(3, refused=1))
    caplog.set_level(logging.WARNING, "spark_connectors")
    end(made, "abort", task(3), None)

    assert "cannot write" in caplog.messages[-1]
    assert names(tmp_path) == []


def test_the_step_that_ends_a_batch_of_a_stream_needs_no_redis(
    stream: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"url": "redis://127.0.0.1:1", "connectRetries": "0"}
    monkeypatch.setattr(writer_module, "_ends_micro_batch", lambda: True)

    end(stream(tmp_path, **gone), "abort", task(3), None)

    assert json.loads((tmp_path / f"{QUERY}-7.json").read_text())["status"] == "failed"


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

    report = job.task([("good", b"x", None, AT, None), BAD, ("late", b"x", None, None, "60")], attempt="job-7-1")

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
                "cause": "ttl: expected a duration with a unit, got '60': write '60s' or '60ms'",
                "row": {"message_id": "late", "body": "eA==", "headers": None, "died_at": None, "ttl": "60"},
            },
        ]
    }


def test_an_attempt_that_fails_leaves_no_file_and_the_next_has_all(
    broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    broker.declare_queue("q")
    job = Job(redis_url, DDL, {"queue": "q", "rejectedPath": str(tmp_path)})

    def broken() -> Iterator[pa.RecordBatch]:
        yield rows_as_a_batch(DDL, [BAD])
        assert len(lines(tmp_path)) == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.run(broken(), attempt="job-0-0")
    assert lines(tmp_path) == {}

    assert job.task([("good", b"x", None, AT, None)], attempt="job-0-2").files == []
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


def test_reports_add_up_and_name_the_first_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "MAX_QUEUES", 3)
    reports = [task(i, queue=f"q{i}") for i in (1, 2, 3, 4, 5, 1)]

    total = Report.total([*reports, task(1_200, refused=4, queue="q1"), task(34, refused=3, queue="q2"), Report()])

    assert total.summary() == "1,250 stored, 7 refused (queue_full 7)"
    assert total.refusal_summary() == (
        "queue_full 7 ('m-0': queue 'q' is full: max_length; also 'm-1', 'm-2', 'm-3', 'm-0', …)"
    )
    # queues beyond a number are counted together
    assert {queue: of["stored"] for queue, of in total.queues.items()} == {"q1": 1_202, "q2": 36, "q3": 3, None: 9}


def counted(stored: int, **more: int) -> Report:
    made = task(stored)
    for name, count in more.items():
        made.count("q", name, count)
    return made


@pytest.mark.parametrize(
    "how, reports, options, told",
    [
        ("commit", [task(3), task(4)], {}, "{}: 7 stored, by 2 tasks"),
        (
            "commit",
            [counted(4, late=2)],
            {},
            "{}: 2 of the stored rows were past their expires_at, and expired at once.",
        ),
        ("commit", [counted(0, duplicates=7)], {}, "{}: nothing was stored"),
        ("commit", [counted(1, duplicates=7)], {}, "{}: 1 stored, 7 duplicates, by 1 task"),
        (
            "commit",
            [task(3, refused=1)],
            {"rejectedPath": "kept"},
            "{}: 1 refused row: queue_full 1 ('m-0': queue 'q' is full: max_length); kept/a.jsonl",
        ),
        (
            "abort",
            [task(3), None, task(4)],
            {},
            "{} failed: 2 of 3 tasks had ended, with 7 stored; the other tasks may have written rows, too.",
        ),
    ],
)
@pytest.mark.parametrize("kind, which", [("batch", "enqueue"), ("stream", "enqueue of batch 7")])
def test_the_end_of_a_write_is_in_the_log(
    kind: str,
    which: str,
    how: str,
    reports: list[Report | None],
    options: dict[str, str],
    told: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "spark_connectors")
    made: Writer = request.getfixturevalue(kind)(tmp_path / "r", **options)
    for report in reports:
        if report is not None and report.refused:
            report.files = ["kept/a.jsonl"]

    end(made, how, *reports)

    assert any(message.startswith(told.format(which)) for message in caplog.messages), caplog.messages
