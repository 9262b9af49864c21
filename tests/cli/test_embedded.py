"""Commands on the embedded server: its choice, the note about it, and the folders that are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rqttl.cli import cli
from tests.cli.processes import command, environment
from tests.process.embedded_users import choose_binary, data_folder
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


USING = "rqttl: using the embedded server in {}: no --url is given, and $RQTTL_URL is not set\n"


@pytest.mark.slow
def test_without_a_url_commands_share_an_embedded_server_that_keeps_its_data(tmp_path: Path) -> None:
    def expected(*arguments: str) -> tuple[str, str]:
        printed = subprocess.run(
            command(*arguments),
            env=environment(RQTTL_HOME=str(tmp_path / "home")),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return printed.stdout, printed.stderr

    using = USING.format(tmp_path / "home")
    assert expected("queue", "declare", "orders") == ("queue orders created\n", using)
    assert expected("send", "orders", "a", "b") == ("stored 2 messages in orders\n", using)
    assert expected("receive", "orders", "--max", "0") == ("a\nb\n", using)


@pytest.fixture
def embedded_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who has named no server."""
    home = folder.parent
    for name in ("RQTTL_URL", "RQTTL_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_without_a_named_server_each_command_notes_once_which_one_it_uses(
    embedded_home: Path, flags: tuple[str, ...]
) -> None:
    using = USING.format("~/.local/share/rqttl")
    unnamed = CliRunner().invoke(cli, ["queue", "ls", *flags])
    named = [
        CliRunner(env=env).invoke(cli, [*words, "queue", "ls", *flags])
        for env, words in (({"RQTTL_URL": "embedded://"}, []), ({}, ["--url", "embedded://"]))
    ]

    assert (unnamed.exit_code, unnamed.stderr.count("using the embedded server")) == (0, 1)
    assert unnamed.stderr.startswith(using)
    assert [one.stderr for one in named] == [unnamed.stderr.removeprefix(using)] * 2
    assert [one.stdout for one in named] == [unnamed.stdout] * 2
    assert (embedded_home / ".local/share/rqttl").is_dir()


def test_the_demo_tells_which_server_it_uses(embedded_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqttl.demo.run", lambda *_, **__: 0)

    assert CliRunner().invoke(cli, ["demo"]).stderr == USING.format("~/.local/share/rqttl")
    assert CliRunner().invoke(cli, ["demo", "--url", "embedded://"]).stderr == ""
    assert list(embedded_home.iterdir()) == []


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


@pytest.mark.parametrize("words", [("queue", "ls"), ("server",)])
@pytest.mark.parametrize("url", ["embedded://here", "embedded:///data?x=1", "embedded://me:hunter2@host/data"])
def test_an_embedded_url_of_another_form_is_wrong_usage(words: tuple[str, ...], url: str) -> None:
    result = CliRunner().invoke(cli, ["--url", url, *words])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("rqttl: url: expected embedded:///absolute/path, ")
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.stderr


def test_a_folder_with_foreign_files_counts_as_no_redis(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("mine")

    for words in (["--url", f"embedded://{tmp_path}", "queue", "ls"], ["server", "--folder", str(tmp_path)]):
        result = CliRunner().invoke(cli, words)
        assert (result.exit_code, result.stdout) == (4, "")
        assert "holds the foreign file 'version'" in result.stderr

    assert [entry.name for entry in tmp_path.iterdir()] == ["version"]
