"""`rqttl doctor`: its output for people and programs."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from rqttl import Broker
from rqttl.cli import cli
from rqttl.doctor import rights
from rqttl.doctor.findings import Finding
from rqttl.flows.steps import Flow, Now
from tests.cli.conftest import Run, check_golden
from tests.cli.processes import on_terminal
from tests.contract.clocked import Clocked
from tests.servers import Server


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that are the same on every server."""

    def no_clock(**_: object) -> Flow[list[Finding]]:
        yield Now()
        return []

    monkeypatch.setattr("rqttl.doctor.SERVER", ())
    monkeypatch.setattr("rqttl.doctor.server.clock", no_clock)


def damage(broker: Broker, client: redis.Redis) -> None:
    """Faults of several kinds, and a queue without one."""
    broker.declare_queue("orders").enqueue(b"x")
    broker.declare_queue("sound").enqueue_many([b"x"] * 1234)
    client.srem("rqttl:queues{rqttl}", "orders")
    client.sadd("rqttl:queues{rqttl}", "ghost")
    client.xadd("rqttl:{torn}:log", {"": "x"})
    client.set("rqttl:{wrong}:meta", "x")


@pytest.fixture
def damaged(clocked: Clocked, client: redis.Redis) -> None:
    damage(clocked, client)


def steady(printed: str) -> str:
    """The number of scripts differs between releases."""
    return re.sub(r"\d+ scripts", "N scripts", printed)


@pytest.mark.usefixtures("fit", "damaged")
@pytest.mark.parametrize("name, flags", [("doctor.txt", ()), ("doctor.json", ("--json",))])
def test_a_finding_has_its_advice_for_people_and_programs(run_clocked: Run, name: str, flags: tuple[str, ...]) -> None:
    result = run_clocked("doctor", *flags)

    check_golden(name, steady(result.stdout))
    assert (result.exit_code, result.stderr) == (3, "")


def test_a_sound_server_is_left_with_0(start_server: Callable[..., Server]) -> None:
    server = start_server(appendonly="yes", maxmemory="1gb")

    result = CliRunner().invoke(cli, ["--url", server.url, "doctor"])

    assert result.exit_code == 0
    assert (result.stdout.splitlines()[-1]).startswith("0 problems, ")


def test_no_password_is_ever_printed(run: Run, url_of_user: Callable[..., str]) -> None:
    url = url_of_user("~*", "+@all", "-config", "-evalsha")

    printed = [run("--url", url, "doctor", *more) for more in ((), ("--json",))]

    assert [one.exit_code for one in printed] == [3, 3]
    assert "S3CR3T" not in "".join(one.output for one in printed)
    assert "guest may not" in printed[0].output


def test_findings_are_printed_before_the_one_line_of_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Iterator[Any]:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(rights, "scripts", broken)

    result = run("doctor")

    assert (result.exit_code, result.stderr.count("\n")) == (4, 1)
    assert result.stdout.startswith(("ok ", "warning "))


# On a terminal


@pytest.mark.slow
def test_on_a_terminal_it_fits(server: Server, client: redis.Redis, broker: Broker) -> None:
    damage(broker, client)

    screen = on_terminal("doctor", RQTTL_URL=server.url)

    assert [line for line in screen.splitlines() if len(line) > 80] == []
    assert "\x1b" not in screen


def test_queues_can_be_named_by_a_pattern(run: Run, broker: Broker) -> None:
    for name in ("orders.eu", "orders.us", "mail"):
        broker.declare_queue(name)

    findings = json.loads(run("doctor", "orders.*", "--json").stdout)["findings"]
    nothing = run("doctor", "x*", "--json")

    assert [one["result"] for one in findings if one["check"] == "queues"] == [
        "2 sound queues, 0 messages, 0 ready (0 B)"
    ]
    assert (nothing.exit_code, nothing.stderr) == (0, "rqttl: no queue matches x*\n")
    assert json.loads(nothing.stdout)["findings"] == []
