"""The reports of `reportPath`: their content, their files, and the ends of writes that leave them."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rqttl import Broker
from spark_connectors.errors import InvalidOption, ReportNotWritten, RowsRefused, SourceError
from spark_connectors.write import report as report_module
from spark_connectors.write import writer as writer_module
from spark_connectors.write.report import Report
from spark_connectors.write.report_file import ReportTarget
from spark_connectors.write.writer import RqttlBatchWriter
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reporting import (
    NUMBERS,
    QUERY,
    Writers,
    batch_writers,
    end,
    names,
    numbers,
    queues,
    stream_writers,
    task,
)
from tests.spark.writing import LETTERS, MESSAGES, Job, columns, counts


@pytest.fixture
def batch(broker: Broker, redis_url: str) -> Writers:
    return batch_writers(broker, redis_url)


def test_a_batch_leaves_a_report_of_all_its_rows(batch: Writers, tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "report.json"

    end(batch(path, rejectedPath="kept"), "commit", task(3, refused=2), task(4, queue="other"))

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
            {
                "reason": "queue_full",
                "rows": 2,
                "cause": "queue 'q' is full: max_length",
                "first": ["'m-0'", "'m-1'"],
            }
        ],
        "queues": [
            {"queue": "other", **zeros, "stored": 4},
            {"queue": "q", **zeros, "stored": 3, "refused": 2},
        ],
        "rejected_files": [],
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
    assert queues(told) == {
        "nobody": {"unavailable": 1},
        "orders/dead": {outcome: 3, "unavailable": 2, "refused": 1},
    }
    assert counts(report) == {outcome: 3, "unavailable": 3, "refused invalid_sequence": 1}


def test_queues_beyond_a_number_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "MAX_QUEUES", 3)
    reports = [task(i + 1, queue=f"q{i}") for i in range(5)]

    total = Report.total([*reports, reports[4], reports[0]])

    told = {queue: of["stored"] for queue, of in total.queues.items()}
    assert told == {"q0": 2, "q1": 2, "q2": 3, None: 14}
    assert total.counts["stored"] == 21


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


def test_refused_rows_that_fail_the_job_are_in_the_report_also_after_the_abort_that_follows(
    batch: Writers, tmp_path: Path
) -> None:
    path = tmp_path / "r"
    made = batch(path)
    with pytest.raises(RowsRefused) as caught:
        end(made, "commit", task(3, refused=2))
    first = json.loads(path.read_text())

    end(made, "abort", task(3, refused=2))

    assert (first["status"], first["error"]) == ("refused", str(caught.value))
    again = json.loads(path.read_text())
    assert {**again, "ended_at": first["ended_at"]} == first


def test_an_abort_leaves_a_report_of_a_failure(batch: Writers, tmp_path: Path) -> None:
    path = tmp_path / "r"

    end(batch(path), "abort", task(3, refused=1), None, task(4), None)

    told = json.loads(path.read_text())
    assert (told["status"], told["tasks"], told["tasks_ended"]) == ("failed", 4, 2)
    assert told["error"] == "2 of 4 tasks failed or were stopped; the other tasks may have written rows, too"
    assert numbers(told) == {"stored": 7, "refused": 1}


def test_an_abort_after_a_commit_that_failed_says_so(batch: Writers, tmp_path: Path) -> None:
    end(batch(tmp_path / "r"), "abort", task(3))

    told = json.loads((tmp_path / "r").read_text())
    assert (told["status"], told["error"]) == ("failed", "all tasks ended, but the commit failed")


def test_rows_that_are_kept_elsewhere_leave_their_file_in_the_report(batch: Writers, tmp_path: Path) -> None:
    refused = task(3, refused=1)
    refused.files = ["kept/a.jsonl"]

    end(batch(tmp_path / "r", rejectedPath="kept"), "commit", refused)

    told = json.loads((tmp_path / "r").read_text())
    assert (told["status"], told["error"], told["rejected_files"]) == ("succeeded", None, ["kept/a.jsonl"])


@pytest.mark.parametrize("stored, warned", [(0, True), (1, False)])
def test_a_write_whose_rows_are_all_duplicates_says_so_as_a_warning(
    stored: int, warned: bool, batch: Writers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = Report()
    report.count("q", "duplicates", 7)
    report.count("q", "stored", stored)

    with caplog.at_level(logging.WARNING, "spark_connectors"):
        end(batch(tmp_path / "r"), "commit", report)

    assert [record.getMessage() for record in caplog.records if "nothing was stored" in record.getMessage()] == (
        [record.getMessage() for record in caplog.records] if warned else []
    )
    assert bool(caplog.records) == warned


@pytest.fixture
def stream(broker: Broker, redis_url: str) -> Writers:
    return stream_writers(broker, redis_url)


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


def test_a_batch_without_an_ended_task_has_no_name_of_its_query(stream: Writers, tmp_path: Path) -> None:
    end(stream(tmp_path), "abort", None, None)

    assert names(tmp_path) == ["unknown-7.json"]
    told = json.loads((tmp_path / "unknown-7.json").read_text())
    assert (told["query_id"], told["tasks_ended"]) == (None, 0)


def test_a_new_write_removes_the_report_of_the_last_one_before_its_first_row(batch: Writers, tmp_path: Path) -> None:
    path = tmp_path / "r"
    end(batch(path), "commit", task(3))

    made = batch(path)

    assert names(tmp_path) == []
    end(made, "commit", task(4))
    assert json.loads(path.read_text())["stored"] == 4


@pytest.mark.parametrize("options", [{"queue": "nobody"}, {"operation": "redrive"}, {"url": "redis://localhost:1"}])
def test_a_write_that_is_refused_at_its_start_leaves_no_report_of_the_last_one(
    options: dict[str, str], batch: Writers, tmp_path: Path
) -> None:
    path = tmp_path / "r"
    end(batch(path), "commit", task(3))

    with pytest.raises(SourceError):
        batch(path, connectRetries="0", **options)

    assert names(tmp_path) == []


def test_a_link_stays_a_link(batch: Writers, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "real")

    end(batch(tmp_path / "link"), "commit", task(3))

    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text())["stored"] == 3


def test_a_wrong_path_is_told_before_anything_is_stored(batch: Writers, stream: Writers, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()

    for make, path, rule in (
        (batch, tmp_path / "folder", "expected the path of a file on the driver for a batch write"),
        (batch, Path("/dev/null"), "expected the path of a file on the driver for a batch write"),
        (stream, tmp_path / "file", "expected a folder on the driver for a stream"),
        (batch, tmp_path / "file" / "r", r"cannot write '.*file/r' on the driver \((File exists|Not a directory)\)"),
        (stream, tmp_path / "file" / "r", r"cannot write '.*file/r' on the driver \(Not a directory\)"),
        (batch, tmp_path / ("x" * 250), r"cannot write '.*xx' on the driver \(File name too long\)"),
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


def test_two_writers_of_one_report_do_not_share_a_draft(tmp_path: Path) -> None:
    target = ReportTarget(tmp_path / "r", of_stream=False)
    (tmp_path / ".r.draft").write_text("of another")

    target.prepare()
    target.write({"query_id": None, "batch_id": None, "who": 1})

    assert names(tmp_path) == [".r.draft", "r"]


def test_the_step_that_ends_a_batch_of_a_stream_needs_no_redis(
    stream: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"url": "redis://127.0.0.1:1", "connectRetries": "0"}
    monkeypatch.setattr(writer_module, "_ends_micro_batch", lambda: True)

    end(stream(tmp_path, **gone), "abort", task(3), None)

    assert json.loads((tmp_path / f"{QUERY}-7.json").read_text())["status"] == "failed"
