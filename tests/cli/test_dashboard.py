"""`rqttl dashboard`: what it refuses, the file of its users, and its end."""

import re
import signal
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from rqttl.dashboard.users import read_users
from tests.cli.conftest import Run
from tests.cli.processes import Terminal, command, environment
from tests.cli.test_errors import failed

pytestmark = pytest.mark.once

PROXY = ("--proxy-user-header", "X-User", "--proxy-from", "10.0.0.0/8")


@pytest.mark.parametrize(
    "given, expected",
    [
        (("--listen", "0.0.0.0:0"), "0.0.0.0: anybody could look: give --users FILE, or --proxy-user-header with"),
        (("--listen", "queues.test:0", "--act"), "or stay on 127.0.0.1"),
        (("--host", "queues.test"), "queues.test: anybody could look"),
        (PROXY[:2], "name the proxies with --proxy-from"),
        (PROXY[2:], "give --proxy-user-header with them"),
        ((*PROXY[:3], "0.0.0.0/0"), "this is everybody"),
        ((*PROXY[:3], "10.0.0.1/8"), "invalid value for '--proxy-from': 10.0.0.1/8"),
        ((*PROXY, "--act"), "name users with --actors"),
        ((*PROXY, "--actors", "ada"), "give --act, too"),
        (("--add-user", "ada"), "name the file with --users FILE"),
        (("--users", "/dev/null"), "--add-user NAME makes one"),
        (("--listen", "9470"), "listen: expected HOST:PORT"),
        (("--base-path", "/a/../b"), "expected a path such as /queues"),
        (("--base-path", "/static"), "no folder of the dashboard itself"),
    ],
)
def test_what_would_let_in_everybody_or_nobody_is_refused(run: Run, given: tuple[str, ...], expected: str) -> None:
    assert expected in failed(run("dashboard", *given), 2)


def test_without_the_extra_it_names_the_remedy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    assert "`pip install '.[dashboard]'`" in failed(run("dashboard"), 3)


def test_users_are_added_and_changed_in_a_file_that_nobody_else_reads(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "users"
    given = "dashboard", "--users", str(path), "--add-user"

    for name, password, act in (("ada", "a", "--act"), ("bob", "b", "--hide-bodies"), ("ada", "c", "--hide-bodies")):
        assert run(*given, name, act, stdin=f"{password}\n".encode()).exit_code == 0

    rights = {name: (one.acts, one.has("b"), one.has("c")) for name, one in read_users(path.read_text()).items()}
    assert rights == {"bob": (False, True, False), "ada": (False, False, True)}
    assert (path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (0o600, [path])
    assert "a name of 1 to 64 characters" in failed(run(*given, "a:b", stdin=b"x\n"), 2)
    path.write_text("nonsense\n")
    assert "users: line 1 is no" in failed(run(*given, "eve", stdin=b"x\n"), 2)


def test_on_a_terminal_a_password_is_typed_twice_and_not_shown(tmp_path: Path) -> None:
    with Terminal("dashboard", "--users", str(tmp_path / "users"), "--add-user", "ada", "--act") as terminal:
        for prompt in ("Password of ada:", "Repeat for confirmation:"):
            terminal.until(prompt)
            terminal.type(b"hunter2\r")
        assert terminal.end() == 0

    assert "hunter2" not in terminal.screen
    assert read_users((tmp_path / "users").read_text())["ada"].has("hunter2")


@pytest.mark.slow
def test_sigterm_ends_it_cleanly(run: Run, tmp_path: Path, redis_url: str) -> None:
    users = tmp_path / "users"
    run("dashboard", "--users", str(users), "--add-user", "ada", stdin=b"a\n")
    users.chmod(0o640)
    given = ("--listen", "127.0.0.1:0", "--users", str(users), "--base-path", "/q", "--url", redis_url)
    with subprocess.Popen(command("dashboard", *given), env=environment(), stderr=subprocess.PIPE) as process:
        assert process.stderr
        assert b"others can read" in process.stderr.readline()
        place = re.search(rb"http://([0-9.:]+)/q/;", process.stderr.readline())
        assert place
        with closing(HTTPConnection(place[1].decode())) as connection:
            connection.request("GET", "/q/livez")
            answer = connection.getresponse()
            assert (answer.status, answer.read(), answer.getheader("server")) == (200, b"ok\n", None)
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == b""
    assert process.returncode == 0
