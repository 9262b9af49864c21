"""Two versions on one Redis: the wheel of this commit, and that of the version before."""

import itertools
import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

import rqttl
from tests.release import side
from tests.release.environments import WORK, installed, kept, run, wheel
from tests.repository import ROOT
from tests.waiting import until

SIDES = ("before", "now")
pytestmark = pytest.mark.slow


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, Path]:
    """The folder of programs of each version."""
    wheels = {"before": wheel(WORK / "wheel-before"), "now": wheel(ROOT / "dist")}
    return {name: installed(tmp_path / name, one) for name, one in wheels.items()}


Login = Callable[[str], str]


@pytest.fixture
def url_of(programs: dict[str, Path], client: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Login]:
    """The URL for a role. Each has a user with the rights that this version says, and both versions log in as it."""
    roles = ("producer", "consumer", "reaper", "reader", "viewer", "admin")
    for role in roles:
        rules = run(programs["now"] / "rqttl", "acl", "generate", "--role", role, cwd=tmp_path)
        client.execute_command(*rules.replace(">password", ">secret").split())
    yield lambda role: redis_url.replace("://", f"://{role}:secret@", 1)
    client.execute_command("ACL", "DELUSER", *roles)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(url_of: Login, tmp_path: Path) -> Iterator[Start]:  # ends before the users do
    """Start a program of a version in a role. In the end each has ended by itself or by SIGTERM, without an error."""
    with ExitStack() as stack:
        started: dict[Path, subprocess.Popen[str]] = {}

        def start(name: str, role: str, *words: object) -> "subprocess.Popen[str]":
            told = {"SIDE": name, "ROLE": role, "NOTES": f"{tmp_path}/notes", "MENDED": f"{tmp_path}/mended"}
            environment = {**kept(), **told, "PYTHONPATH": str(Path(side.__file__).parent), "PYTHONWARNINGS": "error"}
            log = tmp_path / f"{name}-{role}.log"
            errors = stack.enter_context(log.open("w"))
            line = [str(word) for word in words]
            started[log] = stack.enter_context(
                subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=errors, text=True)
            )
            return started[log]

        yield start
        for process in started.values():
            process.send_signal(signal.SIGTERM)
        assert [process.wait() for process in started.values()] == [0] * len(started)
        lines = [line for log in started for line in log.read_text().splitlines()]
        # A consumer may not let scheduled messages arrive.
        assert [line for line in lines if not re.search(" INFO |rejected: not mended|a reaper will", line)] == []


def test_ten_thousand_messages_pass_between_two_versions_in_each_role(
    programs: dict[str, Path], start: Start, url_of: Login, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    script = side.__file__
    declare = ["queue", "declare", "--url", url_of("producer")]
    for name in SIDES:  # the later one finds what the earlier one declared, and agrees
        rqttl_of = programs[name] / "rqttl"
        run(rqttl_of, *declare, "orders", "--lease", "5m", "--dead-letter", "{queue}/dead", cwd=tmp_path)
        run(rqttl_of, *declare, "mayflies", "--dead-letter", "{queue}/dead", cwd=tmp_path)

    for name in SIDES:
        python, command = programs[name] / "python", programs[name] / "rqttl"
        start(name, "reaper", command, "reaper", "--url", url_of("reaper"))
        start(name, "consumer", python, script, "consume", url_of("consumer"))
        start(name, "asyncio", python, script, "serve", url_of("consumer"))
        call = ("--call", "side:handle", "--processes", 1, "--threads", 4)
        start(name, "worker", command, "worker", "orders", *call, "--url", url_of("consumer"))
    rejected = 2 * side.SHARE // 100
    with rqttl.connect(url_of("admin")) as broker:
        until(lambda: [one.role for one in broker.workers()] == ["reaper", "reaper", "worker", "worker"])
        until(lambda: len(list(tmp_path.glob("notes-*"))) == 4)
        producers = [
            start(name, "producer", programs[name] / "python", script, "produce", url_of("producer")) for name in SIDES
        ]
        assert [process.wait() for process in producers] == [0, 0]
        until(lambda: broker.queue("orders/dead").stats().ready == rejected)
        until(lambda: broker.queue("mayflies/dead").stats().ready == 2 * side.MAYFLIES)

    for name in SIDES:
        show = ("dead", "show", "orders/dead", "--limit", 2 * rejected, "--json", "--url", url_of("viewer"))
        assert len(json.loads(run(programs[name] / "rqttl", *show, cwd=tmp_path))) == rejected

    (tmp_path / "mended").touch()
    for name, other in zip(SIDES, reversed(SIDES), strict=True):
        redrive = ("dead", "redrive", "orders/dead", "--header", f"from={other}", "--yes", "--json")
        told = json.loads(run(programs[name] / "rqttl", *redrive, "--url", url_of("admin"), cwd=tmp_path))
        assert rejected // 2 in told.values()
    wanted = {(name, str(n)) for name in SIDES for n in range(side.SHARE)}
    until(lambda: notes.read_text().count("\n") >= len(wanted))

    lines = [line.split() for line in notes.read_text().splitlines()]
    assert Counter((sender, n) for sender, n, _, _ in lines) == dict.fromkeys(wanted, 1)
    crossed = {(sender, receiver, role) for sender, _, receiver, role in lines}
    assert crossed == set(itertools.product(SIDES, SIDES, ("asyncio", "consumer", "worker")))
    with rqttl.connect(url_of("admin")) as broker:
        until(lambda: broker.queue("orders").stats().leased == 0)  # the last acks
    for name in SIDES:
        told = json.loads(run(programs[name] / "rqttl", "stats", "--json", "--url", url_of("reader"), cwd=tmp_path))
        totals = {key: told["totals"][key] for key in ("ready", "acked", "redriven", "activated")}
        assert totals == {"ready": 2 * side.MAYFLIES, "acked": len(wanted), "redriven": rejected, "activated": rejected}
        deaths = {reason: number for reason, number in told["totals"]["deaths"].items() if number}
        assert deaths == {"expired": 2 * side.MAYFLIES, "rejected": rejected}
