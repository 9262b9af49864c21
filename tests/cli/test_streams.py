"""Full or closed streams do not change the exit code of a command."""

from __future__ import annotations

import shlex
import subprocess

import pytest
import redis

from rqttl import Broker, Queue
from rqttl.reaper.report import Totals
from rqttl.reaper.roster import RosterBeat, reaper_details
from rqttl.store.driver import driver_of
from tests.cli.processes import command, environment
from tests.cli.test_conventions import ANSWERING, REPORTS, argv, named
from tests.cli.tree import Path
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: The variable is there or not: without it Python keeps output in a buffer, which it writes at its end.
BUFFERING = pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])


def set_up(broker: Broker) -> Queue:
    """The queue `orders` with a dead letter `x`, policies of that name, and the entry of a reaper."""
    RosterBeat(driver_of(broker), "reaper", lambda: reaper_details(Totals())).take_turn()
    broker.set_policy("orders", "other", {"lease": "1m"})
    broker.set_operator_policy("orders", "other", {"lease": "1m"})
    broker.declare_queue("work", dead_letter="orders").enqueue(b"x", id="x", ttl=0)
    return broker.declare_queue("orders")


@pytest.fixture
def orders(broker: Broker) -> Queue:
    return set_up(broker)


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
    redis_url: str, client: redis.Redis, path: Path
) -> None:
    lines = ("2>/dev/full", ">/dev/full")
    processes = []
    for number, line in enumerate(lines):
        set_up(Broker(client, f"space{number}"))
        where = ("--url", redis_url, "--namespace", f"space{number}") if path in ANSWERING else ()
        processes.append(start(line, *argv(path, optional=True), *where))

    (code, out, _), (unread, _, _) = map(ended, processes)
    assert (code, bool(out)) == (3 if path in REPORTS else 0, True)
    assert unread == 3


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
    redis_url: str, orders: Queue, line: str, reason: str, buffering: dict[str, str]
) -> None:
    words = (("queue", "ls"), ("send", "orders", "y"), ("--help",), ("--version",))
    done = [ended(start(line, *one, RQTTL_URL=redis_url, **buffering)) for one in words]

    assert done == [(3, "", f"rqttl: cannot go on: {reason}\n")] * len(words)
    assert orders.stats().ready == 2, "what was done before stays done"


@BUFFERING
@pytest.mark.parametrize("line", [">/dev/full", ">&-"])
def test_receive_keeps_a_message_that_it_cannot_print(
    redis_url: str, orders: Queue, line: str, buffering: dict[str, str]
) -> None:
    assert ended(start(line, "receive", "orders", RQTTL_URL=redis_url, **buffering))[0] == 3

    delivery = orders.receive()
    assert delivery is not None
    assert delivery.body == b"x"


@BUFFERING
def test_a_reader_that_has_seen_enough_is_no_failure(redis_url: str, orders: Queue, buffering: dict[str, str]) -> None:
    process = start("", "peek", "orders", "--json", RQTTL_URL=redis_url, **buffering)
    assert process.stdout is not None
    process.stdout.close()

    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
