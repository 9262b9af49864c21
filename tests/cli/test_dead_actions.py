"""`rqttl dead purge` and `redrive`: the counted letters go, if they are still ready and have room, and no others."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from rqttl import Broker, Message, OutcomeUnknown, Queue
from rqttl.store.driver import driver_of
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.deaths import LETTERS, ids
from tests.cli.processes import Terminal
from tests.cli.test_errors import failed
from tests.contract.clocked import Clocked
from tests.lua.states import everything

NOTES = "rqttl: 1 leased and 1 delayed: not ready, left alone\nrqttl: 1 message never died: left alone{}\n"


@pytest.fixture
def busy(letters: Queue) -> Queue:
    """Of the letters, `order-1` is leased and `order-2` delayed; and there is a message that never died."""
    _, second = letters.receive_many(2)
    second.nack("5m")
    letters.enqueue(Message(b"x", id="by hand"))
    return letters


@pytest.mark.parametrize("command", ["purge", "redrive"])
def test_a_dry_run_says_what_would_go_and_changes_nothing(
    command: str, run_clocked: Run, clocked: Clocked, busy: Queue
) -> None:
    before = everything(driver_of(clocked).store.client)

    result = run_clocked("dead", command, "orders/dead", "--dry-run")

    golden.check(f"dead-{command}-dry-run.txt", result.stdout)
    golden.check(
        f"dead-{command}-dry-run.json", run_clocked("dead", command, "orders/dead", "--dry-run", "--json").stdout
    )
    assert (result.exit_code, result.stderr) == (
        0,
        NOTES.format(" (`rqttl queue purge` removes all)" if command == "purge" else ""),
    )
    assert everything(driver_of(clocked).store.client) == before


@pytest.mark.parametrize(
    "words, gone",
    [
        ((), {"order-3", "order-4", "mail-1", "mail-2", "mail-3"}),
        (("--reason", "rejected", "--reason", "expired"), {"mail-1", "mail-2", "mail-3"}),
        (("--id", "order-3", "--id", "mail-2"), {"order-3", "mail-2"}),
    ],
    ids=str,
)
def test_the_selected_letters_go_and_nothing_else(
    run_clocked: Run, busy: Queue, words: tuple[str, ...], gone: set[str]
) -> None:
    result = run_clocked("dead", "purge", "orders/dead", *words, "--yes")

    assert (result.exit_code, result.stdout) == (0, f"{len(gone)} letters of orders/dead removed\n")
    assert ids(busy) == [one for one in (*LETTERS, "by hand") if one not in gone]
    assert busy.stats().purged == len(gone)
    assert sum(busy.stats().deaths.values()) == 0


@pytest.mark.parametrize("command", ["purge", "redrive"])
def test_nobody_can_be_asked_without_a_terminal(command: str, run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", command, "orders/dead")

    assert "use --yes to go on, or --dry-run to see the changes" in failed(result, 2)
    assert ids(letters) == list(LETTERS)


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


@pytest.fixture
def dead(broker: Broker) -> Queue:
    for name, n in (("orders", 3), ("mails", 2), ("jobs", 2), ("logs", 1), ("news", 1)):
        queue = broker.declare_queue(name, dead_letter_rejected="dead")
        queue.enqueue_many([Message(b"x", id=f"{name}-{i}") for i in range(n)])
        queue.reject_many(queue.receive_many(n))
    return broker.queue("dead")


@pytest.mark.slow
def test_only_the_letters_of_the_question_go(redis_url: str, broker: Broker, dead: Queue) -> None:
    with Terminal("dead", "purge", "dead", "--reason", "rejected", RQTTL_URL=redis_url, columns=200) as terminal:
        terminal.until(
            "Remove 9 letters of dead (3 rejected in orders, 2 rejected in jobs, 2 rejected in mails, "
            "2 in 2 other groups)? [y/N]: "
        )
        orders = broker.queue("orders")
        orders.enqueue(Message(b"x", id="later"))
        orders.reject_many(orders.receive_many(1))
        held = dead.receive()
        assert held is not None
        terminal.type(b"y\r")
        assert terminal.end() == 0

    assert terminal.screen.endswith(
        "8 letters of dead removed\nrqttl: 1 letter gone or no longer ready meanwhile: left alone\n"
    )
    assert ids(dead) == [held.id, "later"]


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"n\r", b"\x04"])
def test_no_is_taken_for_no(redis_url: str, dead: Queue, answer: bytes) -> None:
    with Terminal("dead", "purge", "dead", RQTTL_URL=redis_url, columns=200) as terminal:
        terminal.until("Remove all 9 letters of dead (")
        terminal.until("[y/N]: ")
        terminal.type(answer)
        assert terminal.end() == 3

    assert terminal.screen.endswith("rqttl: nothing was done\n")
    assert dead.stats().ready == 9


@pytest.fixture
def orders(clocked: Clocked, letters: Queue) -> Queue:
    """The queue where most of them died, with room for all."""
    queue = clocked.queue("orders")
    queue.update(max_length=None)
    return queue


def test_all_ready_letters_go_to_where_they_died(
    run_clocked: Run, clocked: Clocked, letters: Queue, orders: Queue
) -> None:
    _, second = letters.receive_many(2)
    second.nack("5m")
    letters.enqueue(Message(b"x", id="by hand"))

    result = run_clocked("dead", "redrive", "orders/dead", "--yes")

    assert (result.exit_code, result.stdout) == (0, "5 letters of orders/dead put back\n")
    assert result.stderr == NOTES.format("")
    assert ids(letters) == ["order-1", "order-2", "by hand"]
    assert ids(orders) == ["order-3", "order-4"]
    assert ids(clocked.queue("mails")) == ["mail-1", "mail-2", "mail-3"]


def test_the_answer_in_json_counts_what_went(run_clocked: Run, letters: Queue, orders: Queue) -> None:
    result = run_clocked("dead", "redrive", "orders/dead", "--reason", "rejected", "-y", "--json")

    answer = json.loads(result.stdout)
    assert (answer["queue"], answer["redriven"], len(answer["groups"])) == ("orders/dead", 2, 1)
    assert ids(orders) == ["order-1", "order-2"]


def test_selected_letters_can_go_to_another_queue(
    run_clocked: Run, clocked: Clocked, letters: Queue, orders: Queue
) -> None:
    elsewhere = clocked.declare_queue("elsewhere")

    result = run_clocked(
        "dead", "redrive", "orders/dead", "--id", "order-3", "--id", "mail-2", "--to", "elsewhere", "-y"
    )

    assert (result.exit_code, result.stdout, result.stderr) == (0, "2 letters of orders/dead put back\n", "")
    assert (ids(elsewhere), ids(orders)) == (["order-3", "mail-2"], [])


def test_letters_without_room_or_queue_stay_and_have_a_note(
    run_clocked: Run, clocked: Clocked, letters: Queue, orders: Queue
) -> None:
    orders.update(max_length=1, overflow="reject-publish")
    clocked.queue("mails").delete()

    result = run_clocked("dead", "redrive", "orders/dead", "--yes")

    assert (result.exit_code, result.stdout) == (3, "1 letter of orders/dead put back\n")
    assert result.stderr == (
        "rqttl: 3 letters left alone: mails does not exist (see --to)\n"
        "rqttl: 3 letters left alone: orders has no room (--max-length)\n"
        "rqttl: not all letters could be put back [queue_full]\n"
    )
    assert ids(orders) == ["order-1"]


def test_letters_that_died_in_the_queue_itself_stay(run_clocked: Run, clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter_rejected="q")
    queue.enqueue(Message(b"x", id="x"))
    queue.reject_many(queue.receive_many(1))

    result = run_clocked("dead", "redrive", "q", "--yes")

    assert (result.exit_code, result.stdout) == (3, "0 letters of q put back\n")
    assert "1 letter left alone: q is the queue that holds them (see --to)\n" in result.stderr
    assert ids(queue) == ["x"]


@pytest.mark.parametrize("words", [["nope"], ["orders/dead", "--to", "nope"]])
def test_a_missing_queue_is_refused_before_any_letter_moves(run_clocked: Run, letters: Queue, words: list[str]) -> None:
    result = run_clocked("dead", "redrive", *words, "--yes")

    assert result.exit_code == 3
    assert result.stderr.endswith("[not_found]\n")
    assert ids(letters) == list(LETTERS)
