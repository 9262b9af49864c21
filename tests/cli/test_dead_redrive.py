"""`rqttl dead redrive`: the counted letters go back, if they are still ready and have room, and no others."""

from __future__ import annotations

import json

import pytest

from rqttl import Message, Queue
from rqttl.store.driver import driver_of
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.deaths import LETTERS, ids, letters
from tests.contract.clocked import Clocked
from tests.lua.states import everything

__all__ = ["letters"]


@pytest.fixture
def orders(clocked: Clocked, letters: Queue) -> Queue:
    """The queue where most of them died, with room for all."""
    queue = clocked.queue("orders")
    queue.update(max_length=None)
    return queue


def test_a_dry_run_says_what_would_go_and_changes_nothing(run_clocked: Run, clocked: Clocked, orders: Queue) -> None:
    before = everything(driver_of(clocked).store.client)

    result = run_clocked("dead", "redrive", "orders/dead", "--dry-run")

    golden.check("dead-redrive-dry-run.txt", result.stdout)
    golden.check(
        "dead-redrive-dry-run.json", run_clocked("dead", "redrive", "orders/dead", "--dry-run", "--json").stdout
    )
    assert result.exit_code == 0
    assert everything(driver_of(clocked).store.client) == before


def test_all_ready_letters_go_to_where_they_died(
    run_clocked: Run, clocked: Clocked, letters: Queue, orders: Queue
) -> None:
    _, second = letters.receive_many(2)
    second.nack("5m")
    letters.enqueue(Message(b"x", id="by hand"))

    result = run_clocked("dead", "redrive", "orders/dead", "--yes")

    assert (result.exit_code, result.stdout) == (0, "5 letters of orders/dead put back\n")
    assert result.stderr == (
        "rqttl: 1 leased and 1 delayed: not ready, left alone\nrqttl: 1 message never died: left alone\n"
    )
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


def test_without_a_terminal_all_letters_stay(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "redrive", "orders/dead")

    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert ids(letters) == list(LETTERS)


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


def test_a_missing_id_is_refused_and_the_other_letters_go(run_clocked: Run, letters: Queue, orders: Queue) -> None:
    result = run_clocked("dead", "redrive", "orders/dead", "--id", "order-1", "--id", "nope", "-y")

    assert (result.exit_code, result.stdout) == (3, "1 letter of orders/dead put back\n")
    assert result.stderr == "rqttl: no such letter in orders/dead: nope [not_found]\n"
    assert ids(orders) == ["order-1"]
