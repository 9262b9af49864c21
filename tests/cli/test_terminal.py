"""Commands on a terminal of 80 columns; and full or closed streams, which change no exit code."""

import shlex
import subprocess

import pytest
import redis
from click.testing import CliRunner

from rqttl import Broker
from rqttl.cli import cli
from tests.cli.processes import STYLE, Terminal, command, environment, on_terminal
from tests.cli.test_conventions import ANSWERING, REPORTS, argv, named, set_up
from tests.cli.tree import CommandPath
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Commands whose lines are never folded: bodies of messages, and a file for `apply`.
WHOLE = {("receive",), ("export",), ("metrics",)}
#: The name of a queue for which narrow tables have no room.
LONG = f"work.{'x' * 40}"


def test_tables_fit_with_any_names_of_queues(broker: Broker, redis_url: str) -> None:
    long = "a" * 128
    broker.declare_queue(long, dead_letter="b" * 128, message_ttl="60s").enqueue_many([b"x"] * 1234)
    broker.declare_queue("orders")

    for arguments in (("queue", "ls"), ("queue", "show", long)):
        printed = on_terminal(*arguments, "--url", redis_url)
        assert max(map(len, printed.split("\n"))) <= 80
        assert printed.count("a") >= 128  # folded, not cut


#: Runs commands one after the other, and prints the end of each.
ONE_BY_ONE = """
import sys
from rqttl.cli import main
for sys.argv[1:] in {}:
    try:
        main()
    except SystemExit:
        print("\\x04")
sys.exit()"""


def printed_by_each(client: redis.Redis, paths: list[CommandPath], columns: int = 80, **changed: str) -> list[str]:
    """What commands print on a terminal, each in a namespace of its own with queues and messages."""
    lines = []
    for number, path in enumerate(paths):
        broker = Broker(client, f"n{number}")
        broker.declare_queue("orders")
        broker.declare_queue(LONG, dead_letter="orders").enqueue(b"x " * 300, id="x", ttl=0, headers={"a": "b " * 100})
        broker.queue(LONG).stats()
        watch = ("--watch", "--count", "2", "--interval", "100ms", LONG) if path == ("stats",) else ()
        lines.append([*argv(path, optional=True), *watch, *["--namespace", f"n{number}"] * (path in ANSWERING)])
    with Terminal(first=ONE_BY_ONE.format(lines), columns=columns, **changed) as terminal:
        terminal.end()
    *printed, rest = terminal.raw.decode().replace("\r\n", "\n").split("\x04\n")
    assert (len(printed), all(printed), rest) == (len(paths), True, "")
    return printed


def test_without_colours_there_is_none(client: redis.Redis, redis_url: str) -> None:
    printed = printed_by_each(client, [*ANSWERING, ("completion",)], RQTTL_URL=redis_url, NO_COLOR="1")

    assert [text for text in printed if STYLE.search(text)] == []


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


def test_on_a_dumb_terminal_everything_fits(client: redis.Redis, redis_url: str) -> None:
    folded = [path for path in ANSWERING if path not in WHOLE]

    printed = printed_by_each(client, folded, 60, TERM="dumb", RQTTL_URL=redis_url)

    assert [line for text in printed for line in text.split("\n") if len(line) > 60] == []
    assert "\x1b" not in "".join(printed)


ERROR = ("send", "orders", "x", "--ttl", "soon")


@pytest.mark.parametrize("columns", [80, 50, 20])
def test_an_error_is_folded_between_words_and_no_example_in_it_is_broken(columns: int) -> None:
    line = CliRunner().invoke(cli, ERROR, prog_name="rqttl").stderr

    lines = on_terminal(*ERROR, columns=columns).splitlines()

    assert len(lines) > 1
    assert " ".join(one.strip() for one in lines) == line.rstrip("\n")
    assert any("`rqttl send --help`" in one for one in lines)
    assert [one for one in lines if len(one) > columns] == ["  `rqttl send --help`)"] * (columns == 20)


#: The variable is there or not: without it Python keeps output in a buffer, which it writes at its end.
BUFFERING = pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])


def start(line: str, *arguments: str, **changed: str) -> subprocess.Popen[str]:
    """Run a command with the redirections of a shell."""
    words = " ".join(map(shlex.quote, command(*arguments)))
    return subprocess.Popen(
        ["sh", "-c", f"exec {words} {line}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changed),
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


@pytest.mark.parametrize("path", [*ANSWERING, ("completion",)], ids=named)
def test_every_command_has_its_exit_code_where_nobody_can_read_what_it_says(
    redis_url: str, client: redis.Redis, path: CommandPath
) -> None:
    lines = ("2>/dev/full", ">/dev/full")
    processes = []
    for number, line in enumerate(lines):
        set_up(Broker(client, f"space{number}"), path)
        where = ("--url", redis_url, "--namespace", f"space{number}") if path in ANSWERING else ()
        processes.append(start(line, *argv(path, optional=True), *where))

    (code, out, _), (unread, _, _) = map(ended, processes)
    assert (code, bool(out)) == (3 if path in REPORTS else 0, True)
    assert unread == 5


@BUFFERING
@pytest.mark.parametrize("line", ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
def test_an_error_that_cannot_be_printed_has_its_exit_code(
    redis_url: str, line: str, buffering: dict[str, str]
) -> None:
    processes = {
        3: start(line, "queue", "show", "x", RQTTL_URL=redis_url, **buffering),
        2: start(line, "sned", **buffering),
        4: start(line, "queue", "ls", RQTTL_URL="redis://127.0.0.1:1", **buffering),
    }

    assert [ended(one)[0] for one in processes.values()] == list(processes)


@BUFFERING
@pytest.mark.parametrize("line", ["2>/dev/full", "2>&-"])
def test_a_note_that_cannot_be_printed_is_no_failure(
    redis_url: str, broker: Broker, line: str, buffering: dict[str, str]
) -> None:
    assert broker.queues() == []

    assert ended(start(line, "queue", "ls", RQTTL_URL=redis_url, **buffering))[0] == 0


@BUFFERING
@pytest.mark.parametrize("line, reason", [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_an_answer_that_cannot_be_written_is_an_error(
    redis_url: str, broker: Broker, line: str, reason: str, buffering: dict[str, str]
) -> None:
    set_up(broker)
    words = (("queue", "ls"), ("send", "orders", "y"), ("--help",), ("--version",))
    done = [ended(start(line, *one, RQTTL_URL=redis_url, **buffering)) for one in words]

    told = f"rqttl: the answer could not be written: {reason}; what was done before stays done\n"
    assert done == [(5, "", told)] * len(words)
    assert broker.queue("orders").stats().ready == 2, "what was done before stays done"
