"""Commands on a terminal of 80 columns."""

from __future__ import annotations

import subprocess

import pytest
from click.testing import CliRunner

from rqttl import Broker
from rqttl.cli import cli
from tests.cli.conftest import Run
from tests.cli.processes import STYLE, Terminal, command, environment, on_terminal
from tests.cli.test_conventions import ANSWERING, argv
from tests.cli.test_text import HOSTILE
from tests.cli.tree import Path

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Commands whose lines are never folded: bodies of messages, and a file for `apply`.
WHOLE = {("receive",), ("export",), ("metrics",)}


def test_hostile_bodies_are_escaped_and_cut(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders").enqueue_many([*HOSTILE, {"\x1b[31m": "\u202e", "b": b"\xff"}])

    printed = on_terminal("receive", "orders", "--max", "0", "--url", redis_url)

    lines = printed.removesuffix("\n").split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert len(lines) == len(HOSTILE) + 1
    assert max(map(len, lines)) < 2_100
    assert lines[5] == "[/x] [bold]not[/bold] :smile:"
    assert lines[9].endswith("x… (1,000,000 bytes)")
    assert lines[10] == r'{"\u001b[31m": "\u202e", "b": "\\xff"}'


def test_tables_fit_with_any_names_of_queues(broker: Broker, redis_url: str) -> None:
    long = "a" * 128
    broker.declare_queue(long, dead_letter="b" * 128, message_ttl="60s").enqueue_many([b"x"] * 1234)
    broker.declare_queue("orders")

    for arguments in (("queue", "ls"), ("queue", "show", long)):
        printed = on_terminal(*arguments, "--url", redis_url)
        assert max(map(len, printed.split("\n"))) <= 80
        assert printed.count("a") >= 128  # folded, not cut


def test_output_into_a_pipe_is_neither_folded_nor_styled(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("a" * 128)
    result = CliRunner().invoke(cli, ["--url", redis_url, "queue", "ls"])

    assert "a" * 128 in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("path", [*ANSWERING, ("completion",)], ids=" ".join)
def test_without_colours_there_is_none(broker: Broker, redis_url: str, path: Path) -> None:
    queue = broker.declare_queue("orders", dead_letter="dead")
    queue.enqueue(b"x", id="x")

    with Terminal(*argv(path, optional=True), RQTTL_URL=redis_url, NO_COLOR="1") as terminal:
        terminal.end()

    assert terminal.raw
    assert STYLE.search(terminal.raw.decode()) is None


def test_with_colours_heads_are_bold(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    with Terminal("queue", "ls", RQTTL_URL=redis_url) as terminal:
        terminal.end()

    assert b"\x1b[1mqueue" in terminal.raw


def test_characters_that_the_encoding_lacks_are_escaped(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders").enqueue("grün 漢".encode())
    latin = environment(RQTTL_URL=redis_url, PYTHONIOENCODING="latin-1")

    done = [
        subprocess.run(command(*words), env=latin, capture_output=True, check=True)
        for words in (("peek", "orders"), ("queue", "ls"))
    ]

    assert b"  gr\xfcn \\u6f22\n" in done[0].stdout
    assert b"\n------" in done[1].stdout
    assert [one.stderr for one in done] == [b"", b""]


def test_facts_are_folded_below_each_other(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("o" * 100, dead_letter="d" * 100)

    lines = on_terminal("queue", "show", "o" * 100, "--url", redis_url).split("\n")

    assert lines[:2] == ["queue      " + "o" * 69, " " * 11 + "o" * 31]
    assert max(map(len, lines)) <= 80


def test_help_fits_a_terminal() -> None:
    assert max(map(len, on_terminal("queue", "declare", "--help").split("\n"))) <= 80


@pytest.mark.parametrize("arguments", ["queue ls", "queue show orders", "doctor", "stats"])
def test_a_terminal_that_can_do_no_colours_gets_no_escapes(redis_url: str, broker: Broker, arguments: str) -> None:
    broker.declare_queue("orders")

    with Terminal("--url", redis_url, *arguments.split(), columns=80, TERM="dumb") as terminal:
        terminal.end()

    assert (b"orders" in terminal.raw) == (arguments != "doctor")
    assert b"\x1b" not in terminal.raw


@pytest.mark.parametrize("path", [path for path in ANSWERING if path not in WHOLE], ids=" ".join)
@pytest.mark.parametrize("columns", [80, 60])
def test_on_a_dumb_terminal_everything_fits(broker: Broker, redis_url: str, path: Path, columns: int) -> None:
    broker.declare_queue("orders")
    name = f"work.{'x' * 40}"
    broker.declare_queue(name, dead_letter="orders").enqueue(b"x " * 300, id="x", ttl=0, headers={"a": "b " * 100})
    broker.queue(name).stats()
    watch = ("--watch", "--count", "2", "--interval", "100ms", name) if path == ("stats",) else ()

    printed = on_terminal(*argv(path, optional=True), *watch, columns=columns, TERM="dumb", RQTTL_URL=redis_url)

    assert [line for line in printed.split("\n") if len(line) > columns] == []


def test_without_a_terminal_a_watch_is_not_cut(run: Run, broker: Broker) -> None:
    broker.declare_queue("x" * 100)

    assert "x" * 100 in run("stats", "--watch", "--count", "1").stdout


ERROR = ("send", "orders", "x", "--ttl", "soon")


@pytest.mark.parametrize("columns", [80, 50, 20])
def test_an_error_is_folded_between_words_and_no_example_in_it_is_broken(columns: int) -> None:
    line = CliRunner().invoke(cli, ERROR, prog_name="rqttl").stderr

    lines = on_terminal(*ERROR, columns=columns).splitlines()

    assert len(lines) > 1
    assert " ".join(one.strip() for one in lines) == line.rstrip("\n")
    assert any("`rqttl send --help`" in one for one in lines)
    assert [one for one in lines if len(one) > columns] == ["  `rqttl send --help`)"] * (columns == 20)


def test_a_note_is_folded_as_an_error_is(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    with Terminal("queue", "ls", "nothing.*", columns=30, RQTTL_URL=redis_url) as terminal:
        terminal.end()

    assert terminal.screen == "rqttl: no queue matches\n  nothing.*\n"


def test_the_width_that_the_user_says_counts(redis_url: str) -> None:
    assert max(map(len, on_terminal(*ERROR, columns=80, COLUMNS="40", RQTTL_URL=redis_url).splitlines())) <= 40
