"""The reports of `reportPath`: their content, and the ends of writes that leave them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rqttl import Broker
from spark_connectors.errors import RowsRefused
from spark_connectors.write import report as report_module
from spark_connectors.write import writer as writer_module
from spark_connectors.write.report import Report
from spark_connectors.write.writer import RqttlBatchWriter
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reporting import NUMBERS, Writers, batch_writers, end, names, numbers, queues, task
from tests.spark.writing import LETTERS, MESSAGES, Job, columns, counts


@pytest.fixture
def batch(broker: Broker, redis_url: str) -> Writers:
    return batch_writers(broker, redis_url)


# ------------------------------------------------------------------------------------------------ content


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


# ------------------------------------------------------------------------------------------------ the end of a write


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
