"""Commands that run on, or that start something: reaper, server, demo; and the embedded server as the default."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

import rqttl
from rqttl import Broker
from rqttl.cli import cli
from tests.cli.conftest import Run
from tests.cli.processes import command, environment
from tests.cli.test_errors import failed
from tests.process.embedded_users import choose_binary, data_folder
from tests.process.reapers import enqueue_dead
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once

OTHER = "rqttl: $RQTTL_URL names another Redis: commands will use that one, unless --url says otherwise\n"


def test_once_does_what_is_due_and_says_what_it_did(run: Run, broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders", dead_letter="dead")
    enqueue_dead(broker, "orders", 3)

    result = run("reaper", "--once")

    assert (result.exit_code, result.stdout) == (0, "expired 3\n")
    assert "INFO queue orders: expired 3, lag " in result.stderr
    assert client.xlen("rqttl:{dead}:log") == 3
    assert run("reaper", "--once").stdout == "nothing was due\n"


def test_once_can_answer_in_json_with_a_json_log(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders")
    enqueue_dead(broker, "orders", 3)

    result = run("reaper", "--once", "--json", "--log-format", "json")

    answer, (line,) = json.loads(result.stdout), [json.loads(line) for line in result.stderr.splitlines()]
    assert (answer["expired"], answer["failed"]) == (3, 0)
    assert (line["event"], line["level"], line["queue"], line["expired"]) == ("swept", "info", "orders", 3)


@pytest.mark.parametrize(
    "arguments, level, message",
    [
        (("reaper", "--log-format", "json", "--scan-period", "-1"), "info", "the reaper is disabled: "),
        (("reaper", "--log-format=json", "--scan-period", "x"), "error", "invalid value for '--scan-period': "),
        (("reaper", "--log-format", "json", "--url", "ftp://:secret@h"), "error", "url: "),
        (("worker", "--call", "a:b", "--log-format", "json"), "error", "usage: "),
        (("worker", "none", "--exec", "cat", "--log-format", "json"), "error", "queue 'none' does not exist"),
    ],
)
def test_each_line_beside_a_json_log_is_json(run: Run, arguments: Sequence[str], level: str, message: str) -> None:
    (line,) = map(json.loads, run(*arguments).stderr.splitlines())

    assert (line["level"], line["event"], line["message"].startswith(message)) == (level, "log", True)


def test_json_without_once_is_refused(run: Run) -> None:
    assert failed(run("reaper", "--json"), 2).startswith("--json: it prints the counts of --once")


def test_once_fails_when_a_queue_could_not_be_swept(run: Run, client: redis.Redis) -> None:
    client.sadd("rqttl:queues{rqttl}", "bad")
    client.set("rqttl:{bad}:meta", "not a hash")

    result = run("reaper", "--once")

    assert (result.exit_code, result.stdout) == (3, "nothing was due\n")
    *logs, line = result.stderr.splitlines()
    [log] = [one for one in logs if " ERROR " in one]
    assert "queue bad: could not be swept: " in log
    assert "the key rqttl:{bad}:meta has another type" in log
    assert line == "rqttl: 1 queue could not be swept; the log above says why"


@pytest.mark.parametrize("flags", [("--scan-period", "-1"), ("--scan-period=-1", "--once")])
def test_a_scan_period_of_minus_one_means_no_reaper(run: Run, broker: Broker, client: redis.Redis, flags: Any) -> None:
    broker.declare_queue("orders")
    enqueue_dead(broker, "orders", 3)

    result = run("reaper", *flags)

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "rqttl: the reaper is disabled: --scan-period is -1\n"
    assert client.xlen("rqttl:{orders}:log") == 3


def test_demo_runs_the_demo_and_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[object, ...]] = []

    def play(limit: int, url: str | None, **others: object) -> int:
        called.append((limit, url, *others.values()))
        return 0 if limit > 10 else 1

    monkeypatch.setattr("rqttl.demo.run", play)

    results = [
        CliRunner().invoke(cli, arguments)
        for arguments in (
            ["demo"],
            ["--url", "redis://a", "demo", "--json"],
            ["demo", "--limit", "7", "--url", "redis://b", "--no-spark", "--picture", "chart.png"],
        )
    ]

    assert called == [
        (50_000, "embedded://", False, True, None),
        (50_000, "redis://a", True, True, None),
        (7, "redis://b", False, False, "chart.png"),
    ]
    assert [result.exit_code for result in results] == [0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("as_json, as_url", [(False, False), (True, True)])
def test_server_prints_the_url_of_a_redis_that_runs_until_it_ends(tmp_path: Path, as_json: bool, as_url: bool) -> None:
    where = ("--url", f"embedded://{tmp_path}/data") if as_url else ("--folder", str(tmp_path / "data"))
    words = command("server", *where, *["--json"] * as_json)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = json.loads(line)["url"] if as_json else line.strip()
        with rqttl.connect(url) as broker:
            broker.declare_queue("orders").enqueue(b"x")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0

    assert (tmp_path / "data" / "server.log").exists()
    with pytest.raises(redis.ConnectionError), redis.Redis.from_url(url) as client:
        client.ping()


@pytest.mark.parametrize(
    "url, given, folder, note",
    [
        ("embedded:///data", (), "/data", ""),
        ("embedded://", (), None, ""),
        ("embedded:///my%20data", (), "/my data", ""),
        ("embedded:///data", ("--folder", "here"), "here", ""),
        ("", (), None, ""),
        ("redis://host", (), None, OTHER),
    ],
)
def test_server_runs_what_commands_would_use(
    url: str, given: tuple[str, ...], folder: str | None, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []

    def serve(home: str | None, **_: object) -> int:
        served.append(home)
        return 0

    monkeypatch.setattr("rqttl.embedded.server.serve", serve)

    result = CliRunner(env={"RQTTL_URL": url}).invoke(cli, ["server", *given])

    assert (served, result.exit_code, result.stdout, result.stderr) == ([folder], 0, "", note)


@pytest.mark.parametrize("words", [("--url", "redis://host", "server"), ("server", "--url", "redis://host")])
def test_server_runs_no_other_redis(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--url: this runs the embedded Redis; expected embedded:///folder" in result.stderr
    assert CliRunner().invoke(cli, ["server", "--folder", "a", "--url", "embedded:///b"]).exit_code == 2


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


USING = "rqttl: using the embedded server in {}: no --url is given, and $RQTTL_URL is not set\n"


@pytest.mark.slow
def test_without_a_url_commands_share_an_embedded_server_that_keeps_its_data(tmp_path: Path) -> None:
    def expected(*arguments: str, **variables: str) -> tuple[str, str]:
        where = environment(RQTTL_HOME=str(tmp_path / "home"), **variables)
        printed = subprocess.run(command(*arguments), env=where, capture_output=True, text=True, check=True)
        return printed.stdout, printed.stderr

    using = USING.format(tmp_path / "home")
    assert expected("queue", "declare", "orders") == ("queue orders created\n", using)
    assert expected("send", "orders", "a", "b") == ("stored 2 messages in orders\n", using)
    assert expected("receive", "orders", "--max", "0") == ("a\nb\n", using)
    assert expected("--url", "embedded://", "queue", "ls", "--json") == expected(
        "queue", "ls", "--json", RQTTL_URL="embedded://"
    ), "a server that is named needs no note"
    assert expected("--url", "embedded://", "queue", "ls")[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("series", ["valkey", "6.2"])
def test_a_fresh_embedded_server_has_no_problem_and_no_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, series: str
) -> None:
    choose_binary(monkeypatch, series)

    result = CliRunner(env={"RQTTL_URL": f"embedded://{folder}"}).invoke(cli, ["doctor"])

    assert (result.exit_code, result.stderr) == (0, "")
    assert {line.split()[0] for line in result.stdout.splitlines()[:-1]} == {"ok"}
    assert result.stdout.splitlines()[-1].startswith("0 problems, 0 warnings, ")


def test_a_folder_with_foreign_files_counts_as_no_redis(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("mine")

    for words in (["--url", f"embedded://{tmp_path}", "queue", "ls"], ["server", "--folder", str(tmp_path)]):
        result = CliRunner().invoke(cli, words)
        assert (result.exit_code, result.stdout) == (4, "")
        assert "holds the foreign file 'version'" in result.stderr

    assert [entry.name for entry in tmp_path.iterdir()] == ["version"]
