"""`rqttl dead purge`: the counted letters go, if they are still ready, and no others."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from rqttl import Broker, Message, OutcomeUnknown, Queue
from rqttl.store.driver import driver_of
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.deaths import LETTERS, ids, letters
from tests.cli.processes import command, environment
from tests.contract.clocked import Clocked
from tests.lua.states import everything
from tests.waiting import PATIENCE

__all__ = ["letters"]

STAYS = "rqttl: 1 leased and 1 delayed: not ready, left alone\n"


@pytest.fixture
def busy(letters: Queue) -> Queue:
    """Of the letters, `order-1` is leased and `order-2` delayed; and there is a message that never died."""
    _, second = letters.receive_many(2)
    second.nack("5m")
    letters.enqueue(Message(b"x", id="by hand"))
    return letters


def test_a_dry_run_says_what_would_go_and_changes_nothing(run_clocked: Run, clocked: Clocked, busy: Queue) -> None:
    before = everything(driver_of(clocked).store.client)

    result = run_clocked("dead", "purge", "orders/dead", "--dry-run")

    golden.check("dead-purge-dry-run.txt", result.stdout)
    golden.check("dead-purge-dry-run-notes.txt", result.stderr)
    golden.check("dead-purge-dry-run.json", run_clocked("dead", "purge", "orders/dead", "--dry-run", "--json").stdout)
    assert result.exit_code == 0
    assert everything(driver_of(clocked).store.client) == before


def test_all_ready_letters_go_and_nothing_else(run_clocked: Run, clocked: Clocked, busy: Queue) -> None:
    result = run_clocked("dead", "purge", "orders/dead", "--yes", "--json")

    golden.check("dead-purge.json", result.stdout)
    assert ids(busy) == ["order-1", "order-2", "by hand"]
    assert busy.stats().purged == 5
    assert sum(busy.stats().deaths.values()) == 0


def test_the_answer_is_how_many_went(run_clocked: Run, busy: Queue) -> None:
    result = run_clocked("dead", "purge", "orders/dead", "--reason", "rejected", "--reason", "expired", "--yes")

    assert (result.exit_code, result.stdout) == (0, "3 letters of orders/dead removed\n")
    assert result.stderr == STAYS
    assert ids(busy) == ["order-1", "order-2", "order-3", "order-4", "by hand"]


def test_letters_are_selected_by_id(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "purge", "orders/dead", "--id", "order-3", "--id", "mail-2", "--yes")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "2 letters of orders/dead removed\n", "")
    assert ids(letters) == [one for one in LETTERS if one not in ("order-3", "mail-2")]


def test_a_missing_id_is_refused_and_the_other_letters_go(run_clocked: Run, busy: Queue) -> None:
    result = run_clocked(
        "dead", "purge", "orders/dead", "--id", "order-3", "--id", "nope", "--id", "by hand", "--id", "order-1", "-y"
    )

    assert (result.exit_code, result.stdout) == (3, "1 letter of orders/dead removed\n")
    assert result.stderr == (
        "rqttl: 1 leased: not ready, left alone\nrqttl: no such letter in orders/dead: by hand, nope [not_found]\n"
    )
    assert ids(busy) == [one for one in (*LETTERS, "by hand") if one != "order-3"]


def test_without_a_matching_letter_nothing_is_asked(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "purge", "orders/dead", "--source", "nope")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "0 letters of orders/dead removed\n", "")
    assert ids(letters) == list(LETTERS)


def test_nobody_can_be_asked_without_a_terminal(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "purge", "orders/dead")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "use --yes to go on, or --dry-run to see the changes" in result.stderr
    assert ids(letters) == list(LETTERS)


def test_letters_that_came_back_go_too(run_clocked: Run, letters: Queue) -> None:
    letters.nack_many(letters.receive_many(4))

    assert run_clocked("dead", "purge", "orders/dead", "--yes").stdout == "7 letters of orders/dead removed\n"
    assert ids(letters) == []


def test_many_letters_go_in_steps(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", dead_letter="dead").enqueue_many(
        [Message(b"x", ttl=0, id=f"{i}", headers={"odd": bool(i % 2)}) for i in range(5_000)]
    )

    assert run("dead", "purge", "dead", "--header", "odd=true", "--yes").stdout == "2,500 letters of dead removed\n"
    assert {int(message.id) % 2 for message in broker.queue("dead").peek(5_000)} == {0}


# Cut short


@pytest.fixture
def many(broker: Broker) -> Queue:
    """A queue with 2,500 letters."""
    broker.declare_queue("orders", dead_letter="dead").enqueue_many([Message(b"x", ttl=0)] * 2_500)
    return broker.queue("dead")


@pytest.fixture
def at_second_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Queue], None]], None]:
    """Lets something happen before the second step of a purge."""

    def arrange(happens: Callable[[Queue], None]) -> None:
        purge, steps = Queue.purge_many, []

        def purged(queue: Queue, sequences: list[str], *, unread: bool) -> int:
            steps.append(1)
            if len(steps) == 2:
                happens(queue)
            return purge(queue, sequences, unread=unread)

        monkeypatch.setattr(Queue, "purge_many", purged)

    return arrange


Arrange = Callable[[Callable[[Queue], None]], None]


def test_ctrl_c_leaves_an_exact_count(run: Run, many: Queue, at_second_step: Arrange) -> None:
    at_second_step(lambda _: signal.raise_signal(signal.SIGINT))

    result = run("dead", "purge", "dead", "--yes")

    assert (result.exit_code, result.stdout) == (130, "2,000 letters of dead removed\n")
    assert result.stderr == "rqttl: interrupted: 500 letters left\n"
    assert many.stats().ready == 500


def test_a_lost_reply_has_the_known_counts(run: Run, many: Queue, at_second_step: Arrange) -> None:
    def lose(_: Queue) -> None:
        raise OutcomeUnknown("purge", "dead")

    at_second_step(lose)

    result = run("dead", "purge", "dead", "--yes", "--json")

    assert (result.exit_code, json.loads(result.stdout)["purged"]) == (4, 1_000)
    assert result.stderr.endswith("[outcome_unknown]\n")


def test_a_letter_that_is_no_longer_ready_stays_and_has_a_note(run: Run, many: Queue, at_second_step: Arrange) -> None:
    at_second_step(lambda queue: queue.ack_many(queue.receive_many(7)))

    result = run("dead", "purge", "dead", "--yes")

    assert (result.exit_code, result.stdout) == (0, "2,493 letters of dead removed\n")
    assert result.stderr == "rqttl: 7 letters gone or no longer ready meanwhile: left alone\n"


# Asking


class Terminal:
    """A command on a terminal, with its input and its output."""

    def __init__(self, *arguments: str, url: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(*arguments, "--url", url), stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
        )
        os.close(theirs)
        self.screen = ""

    def wait_for(self, text: str) -> None:
        while text not in self.screen:
            assert self._read(), f"ended without {text!r}: {self.screen}"

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        assert select.select([self._ours], [], [], PATIENCE)[0], f"silent after {self.screen!r}"
        piece = b""
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
            piece = os.read(self._ours, 65536)
        self.screen += piece.decode().replace("\r\n", "\n")
        return bool(piece)


@pytest.fixture
def ask(redis_url: str) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        started.append(Terminal("dead", "purge", "dead", *arguments, url=redis_url))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def dead(broker: Broker) -> Queue:
    for name, n in (("orders", 3), ("mails", 2), ("jobs", 2), ("logs", 1), ("news", 1)):
        queue = broker.declare_queue(name, dead_letter_rejected="dead")
        queue.enqueue_many([Message(b"x", id=f"{name}-{i}") for i in range(n)])
        queue.reject_many(queue.receive_many(n))
    return broker.queue("dead")


@pytest.mark.slow
def test_only_the_letters_of_the_question_go(ask: Callable[..., Terminal], broker: Broker, dead: Queue) -> None:
    terminal = ask("--reason", "rejected")
    terminal.wait_for("[y/N]: ")
    assert terminal.screen == (
        "Remove 9 letters of dead (3 rejected in orders, 2 rejected in jobs, 2 rejected in mails, "
        "2 in 2 other groups)? [y/N]: "
    )
    orders = broker.queue("orders")
    orders.enqueue(Message(b"x", id="later"))
    orders.reject_many(orders.receive_many(1))
    held = dead.receive()
    assert held is not None
    terminal.type("y\n")

    assert terminal.end() == 0
    assert terminal.screen.endswith(
        "8 letters of dead removed\nrqttl: 1 letter gone or no longer ready meanwhile: left alone\n"
    )
    assert ids(dead) == [held.id, "later"]


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"])
def test_no_is_taken_for_no(ask: Callable[..., Terminal], dead: Queue, answer: str) -> None:
    terminal = ask()
    terminal.wait_for("Remove all 9 letters of dead (")
    terminal.wait_for("[y/N]: ")
    terminal.type(answer)

    assert terminal.end() == 3
    assert terminal.screen.endswith("rqttl: nothing was done\n")
    assert dead.stats().ready == 9
