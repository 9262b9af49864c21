"""Writes to several servers: rows go where their column `server` says, and letters are those of one server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rqttl import Queue
from spark_connectors.errors import InvalidSchema, NoSuchQueue, Unreachable
from spark_connectors.write.plan import check_target
from spark_connectors.write.report import Report
from spark_connectors.write.writer import RqttlBatchWriter, TaskResult
from tests.spark.fleets import Fleet
from tests.spark.letters import bury
from tests.spark.reading import loader
from tests.spark.reporting import numbers, queues
from tests.spark.writing import Job, columns, counts, ids

MESSAGES = "server string, message_id string, body binary"
LETTERS = "server string, queue string, sequence string"


def counted(report: Report) -> dict[str, int]:
    return {name: count for name, count in counts(report).items() if count}


def letters_of(fleet: Fleet) -> dict[str, Queue]:
    """Bury ten letters on each server, at the same times: their sequences are the same."""
    letters = {name: bury(broker, 10) for name, broker in fleet.brokers.items()}
    eu, us = ([letter.sequence for letter in queue.peek(10)] for queue in letters.values())
    assert eu == us
    return letters


def test_rows_go_to_the_server_of_their_column_in_their_order(fleet: Fleet) -> None:
    queues = {name: broker.declare_queue("q") for name, broker in fleet.brokers.items()}
    rows = [(("eu", "us")[i % 3 > 0], f"m-{i}", b"x") for i in range(90)]

    report = Job(fleet.url, MESSAGES, {"queue": "q"}).task(rows, size=40)

    assert counted(report) == {"stored": 90}
    for name, queue in queues.items():
        assert ids(queue) == [message_id for server, message_id, _ in rows if server == name]


def test_rows_of_other_servers_are_refused_and_kept(fleet: Fleet, tmp_path: Path) -> None:
    fleet.brokers["eu"].declare_queue("q")
    fleet.brokers["us"].declare_queue("q")
    job = Job(fleet.url, MESSAGES, {"queue": "q", "rejectedPath": str(tmp_path)})

    report = job.task([("eu", "a", b"x"), ("mars", "b", b"x"), (None, "c", b"x")])

    assert counted(report) == {"stored": 1, "refused other_server": 2}
    assert list(report.servers) == ["eu", None]
    [file] = tmp_path.glob("**/*.json*")
    rejected = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rejected) == 2
    assert "column server has 'mars', and url has eu, us" in file.read_text()


@pytest.mark.parametrize("operation", ["purge", "redrive"])
def test_letters_are_moved_and_removed_on_their_own_server(fleet: Fleet, operation: str) -> None:
    letters = letters_of(fleet)
    rows = loader(fleet.url)(("server", "queue", "sequence"), queues="orders/dead").rows()
    chosen = [tuple(row.values()) for row in rows if (row["server"] == "us") == (int(row["sequence"][-1]) % 2)]

    report = Job(fleet.url, LETTERS, {"operation": operation}).task(chosen)

    assert counted(report) == {"purged" if operation == "purge" else "moved": 10}
    assert len(ids(letters["eu"])) == len(ids(letters["us"])) == 5
    assert set(ids(letters["eu"])).isdisjoint(ids(letters["us"]))


def test_a_purge_with_one_url_removes_no_letter_of_another_server(fleet: Fleet) -> None:
    letters = letters_of(fleet)
    rows = [("us", "orders/dead", letter.sequence) for letter in letters["us"].peek(10)]

    plain = Job(fleet.servers["eu"].url, LETTERS, {"operation": "purge"}).task(rows)
    named = Job(fleet.url_of("us"), LETTERS, {"operation": "purge"}).task(rows[:3])

    assert counted(plain) == {"refused other_server": 10}
    assert counted(named) == {"purged": 3}
    assert (len(ids(letters["eu"])), len(ids(letters["us"]))) == (10, 7)


def test_messages_of_all_servers_may_go_into_one(fleet: Fleet) -> None:
    queue = fleet.brokers["eu"].declare_queue("q")

    report = Job(fleet.servers["eu"].url, MESSAGES, {"queue": "q"}).task([("us", "a", b"x"), (None, "b", b"x")])

    assert counted(report) == {"stored": 2}
    assert ids(queue) == ["a", "b"]


@pytest.mark.parametrize(
    "operation, ddl",
    [
        ("enqueue", "queue string, message_id string, body binary"),
        ("purge", "queue string, sequence string"),
    ],
)
def test_several_servers_need_the_column(operation: str, ddl: str) -> None:
    with pytest.raises(InvalidSchema, match=rf"server: {operation} needs this column for a url of several servers"):
        Job("redis://a,redis://b", ddl, {"operation": operation})


def test_the_driver_checks_each_server_and_one_of_them_has_the_queue(fleet: Fleet) -> None:
    fleet.brokers["us"].declare_queue("q")
    options = Job(fleet.url, MESSAGES, {"queue": "q", "connectRetries": "0"}).options

    check_target(options, "q")
    with pytest.raises(NoSuchQueue, match="there is no queue 'r' in namespace 'rqttl'"):
        check_target(options, "r")
    fleet.servers["us"].kill()
    with pytest.raises(Unreachable, match="server 'us'"):
        check_target(options, "q")


def test_a_report_has_the_numbers_of_each_server(fleet: Fleet, tmp_path: Path) -> None:
    for name, broker in fleet.brokers.items():
        broker.declare_queue("q", max_length={"eu": 3, "us": 5}[name], overflow="reject-publish")
    fleet.brokers["us"].declare_queue("only-us")
    ddl = f"queue string, {MESSAGES}"
    job = Job(fleet.url, ddl, {"reportPath": str(tmp_path / "r"), "onRefused": "report"})
    rows = [(queue, server, f"m-{i}", b"x") for queue in ("q", "only-us") for server in ("eu", "us") for i in range(4)]
    first = job.task([*rows, ("q", "mars", "a", b"x")], size=5)
    again = job.task(rows[:2])

    writer = RqttlBatchWriter(columns(ddl), job.options, overwrite=False)
    writer.commit([TaskResult(first), TaskResult(again)])

    told = json.loads((tmp_path / "r").read_text())
    by_server = {one["server"]: (numbers(one), queues(one)) for one in told["servers"]}
    assert by_server == {
        "eu": (
            {"stored": 3, "duplicates": 2, "refused": 5},
            {"q": {"stored": 3, "duplicates": 2, "refused": 1}, "only-us": {"refused": 4}},
        ),
        "us": ({"stored": 8}, {"q": {"stored": 4}, "only-us": {"stored": 4}}),
        None: ({"refused": 1}, {"q": {"refused": 1}}),
    }
    assert list(by_server) == ["eu", "us", None]
    assert told["servers"][0]["reasons"] == [{"reason": "not_found", "rows": 4}, {"reason": "queue_full", "rows": 1}]
    assert numbers(told) == {"stored": 11, "duplicates": 2, "refused": 6}
    assert queues(told)["q"] == {"stored": 7, "duplicates": 2, "refused": 2}


def test_a_report_of_one_server_has_no_parts(fleet: Fleet) -> None:
    letters = letters_of(fleet)
    rows = [("us", "orders/dead", letter.sequence) for letter in letters["us"].peek(10)]

    report = Job(fleet.url_of("us"), LETTERS, {"operation": "purge"}).task(rows)

    assert (counted(report), report.servers) == ({"purged": 10}, {})
