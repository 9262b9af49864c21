"""The files of `reportPath`: their places, what happens if they cannot be written, and the step that writes them."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from rqttl import Broker
from spark_connectors.errors import InvalidOption, ReportNotWritten, RowsRefused, SourceError
from spark_connectors.write import writer as writer_module
from spark_connectors.write.report_file import ReportTarget
from tests.spark.reporting import QUERY, Writers, batch_writers, end, names, stream_writers, task


@pytest.fixture
def batch(broker: Broker, redis_url: str) -> Writers:
    return batch_writers(broker, redis_url)


@pytest.fixture
def stream(broker: Broker, redis_url: str) -> Writers:
    return stream_writers(broker, redis_url)


# ------------------------------------------------------------------------------------------------ files


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


# ------------------------------------------------------------------------------------------------ errors


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


# ------------------------------------------------------------------------------------------------ the step of a commit


def test_the_step_that_ends_a_batch_of_a_stream_needs_no_redis(
    stream: Writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"url": "redis://127.0.0.1:1", "connectRetries": "0"}
    monkeypatch.setattr(writer_module, "_ends_micro_batch", lambda: True)

    end(stream(tmp_path, **gone), "abort", task(3), None)

    assert json.loads((tmp_path / f"{QUERY}-7.json").read_text())["status"] == "failed"
