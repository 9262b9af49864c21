"""`rqttl dead ls` and `rqttl dead show`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rqttl import Broker, Message, Queue
from rqttl.store.driver import driver_of
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.deaths import LETTERS, ids
from tests.cli.test_errors import failed
from tests.contract.clocked import Clocked
from tests.lua.states import everything


def printed(run: Run, *words: str) -> list[str]:
    """The ids that `dead show` shows."""
    return [one["id"] for one in json.loads(run("dead", "show", "orders/dead", "--json", *words).stdout)]


def test_ls_counts_letters_by_where_and_why_they_died(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "ls", "orders/dead")

    assert (result.exit_code, result.stderr) == (0, "")
    golden.check("dead-ls.txt", result.stdout)
    assert "2023-11-14 22:14:20.000Z" in run_clocked("dead", "ls", "orders/dead", "--utc").stdout
    golden.check("dead-ls.json", run_clocked("dead", "ls", "orders/dead", "--json").stdout)


def test_messages_that_never_died_and_letters_that_are_not_ready_are_noted(run_clocked: Run, letters: Queue) -> None:
    letters.enqueue_many([b"by hand", b"by hand too"])
    held = letters.receive_many(3)
    held[2].nack("5m")

    result = run_clocked("dead", "ls", "orders/dead")

    assert result.stderr == "rqttl: of these, 2 leased and 1 delayed\n"
    groups = json.loads(run_clocked("dead", "ls", "orders/dead", "--json").stdout)
    assert [(one["source"], one["reason"], one["count"], one["leased"], one["delayed"]) for one in groups] == [
        ("mails", "expired", 3, 0, 0),
        ("orders", "rejected", 2, 2, 0),
        ("orders", "delivery_limit", 1, 0, 1),
        ("orders", "maxlen", 1, 0, 0),
        (None, None, 2, 0, 0),
    ]


def test_a_queue_without_letters_is_an_empty_answer_and_a_note(run: Run, broker: Broker) -> None:
    broker.declare_queue("dead")

    result = run("dead", "ls", "dead")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "rqttl: no dead letters in dead\n")
    assert run("dead", "ls", "dead", "--json").stdout == "[]\n"
    result = run("dead", "show", "dead")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "rqttl: no dead letters in dead\n")
    assert run("dead", "show", "dead", "--json").stdout == "[]\n"
    assert run("dead", "show", "dead", "--reason", "expired").stderr == "rqttl: no such dead letters in dead\n"


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"dead_letter": "dead"}, "dead letters of orders go to dead"),
        ({"dead_letter": "dead", "dead_letter_rejected": "{queue}"}, "dead letters of orders go to dead"),
        (
            {"dead_letter": "{queue}/dead", "dead_letter_rejected": "no"},
            "dead letters of orders go to orders/dead (expired, maxlen, delivery_limit) and no (rejected)",
        ),
    ],
)
def test_a_queue_with_another_target_has_a_note(
    run: Run, broker: Broker, options: dict[str, Any], expected: str
) -> None:
    broker.declare_queue("orders", **options).enqueue(b"x")

    assert run("dead", "ls", "orders", "--json").stderr == f"rqttl: {expected}\n"
    assert run("dead", "show", "orders").stderr == f"rqttl: {expected}\nrqttl: no dead letters in orders\n"
    note = "rqttl: 1 message never died: left alone (`rqttl queue purge` removes all)\n"
    assert run("dead", "purge", "orders", "--yes").stderr == f"rqttl: {expected}\n{note}"
    assert broker.queue("orders").stats().ready == 1


def test_many_letters_are_read_in_pages(run: Run, broker: Broker) -> None:
    orders = broker.declare_queue("orders", dead_letter="dead")
    orders.enqueue_many([Message(b"x" * (i % 7), ttl=0, id=f"{i}") for i in range(5_000)])
    orders.enqueue_many([Message(b"x" * 500_000, ttl=0, id=f"large-{i}") for i in range(20)])

    (group,) = json.loads(run("dead", "ls", "dead", "--json").stdout)

    assert (group["count"], group["bytes"]) == (5_020, sum(i % 7 for i in range(5_000)) + 10_000_000)
    assert [one["id"] for one in json.loads(run("dead", "show", "dead", "--json", "--limit", "2").stdout)] == [
        "large-19",
        "large-18",
    ]


@pytest.mark.parametrize("words", [("ls",), ("show",), ("show", "order-1"), ("purge", "--dry-run")], ids=" ".join)
def test_looking_changes_nothing(run_clocked: Run, clocked: Clocked, letters: Queue, words: tuple[str, ...]) -> None:
    letters.receive_many(2)
    before = everything(driver_of(clocked).store.client)

    assert run_clocked("dead", words[0], "orders/dead", *words[1:]).exit_code == 0

    assert everything(driver_of(clocked).store.client) == before


def test_show_tells_the_history_of_each_letter_the_last_to_die_first(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "show", "orders/dead")

    assert (result.exit_code, result.stderr) == (0, "")
    golden.check("dead-show.txt", result.stdout)
    golden.check("dead-show.json", run_clocked("dead", "show", "orders/dead", "--json").stdout)


def test_a_letter_that_died_again_and_again_shows_each_death(run_clocked: Run, clocked: Clocked) -> None:
    work = clocked.declare_queue("work", dead_letter_rejected="later")
    later = clocked.declare_queue("later", message_ttl="10m", dead_letter="work")
    work.enqueue(Message(b"x", id="again"), ttl=None)
    for day in range(3):
        clocked.advance(60_000)
        (delivery,) = work.receive_many(1)
        delivery.reject(f"try {day}")
        clocked.advance(600_000 if day < 2 else 1_000)
        later.sweep()
    later.receive_many(1, lease="30s")

    golden.check("dead-show-again-utc.txt", run_clocked("dead", "show", "later", "--utc").stdout)


def test_show_is_limited_and_says_that_there_is_more(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "show", "orders/dead", "--limit", "3", "--json")

    assert [one["id"] for one in json.loads(result.stdout)] == ["order-4", "mail-3", "mail-2"]
    assert result.stderr == "rqttl: 3 of 7 letters; --limit shows more\n"


def test_without_a_limit_ten_letters_are_shown_or_all_named_ones(run: Run, broker: Broker) -> None:
    broker.declare_queue("orders", dead_letter="orders/dead").enqueue_many(
        [Message(b"x", ttl=0, id="same" if i % 2 else f"{i}") for i in range(24)]
    )

    assert len(printed(run)) == 10
    assert printed(run, "same") == ["same"] * 12
    assert printed(run, "same", "4", "--limit", "4") == ["same"] * 4


def test_a_missing_id_is_refused_after_the_other_letters(run_clocked: Run, letters: Queue) -> None:
    letters.enqueue(Message(b"x", id="by hand"))

    result = run_clocked("dead", "show", "orders/dead", "order-9", "order-2", "by hand", "--json")

    assert (result.exit_code, [one["id"] for one in json.loads(result.stdout)]) == (3, ["order-2"])
    assert result.stderr == "rqttl: no such letter in orders/dead: by hand, order-9 [not_found]\n"


FILTERS: dict[tuple[str, ...], set[str]] = {
    ("--source", "mails"): {"mail-1", "mail-2", "mail-3"},
    ("--source", "mails", "--source", "orders"): set(LETTERS),
    ("--reason", "rejected"): {"order-1", "order-2"},
    ("--reason", "delivery-limit", "--reason", "MAXLEN"): {"order-3", "order-4"},
    ("--older-than", "15m", "--newer-than", "1d"): {"order-1", "order-2"},
    ("--older-than", "10m"): {"order-1", "order-2"},
    ("--older-than", "2023-11-14 22:20Z"): {"order-1", "order-2"},
    ("--newer-than", "2023-11-14T23:30:00+01:00"): {"mail-1", "mail-2", "mail-3", "order-4"},
    ("--older-than", "1700000060000"): set(),
    ("--header", "region=eu"): {"order-1", "mail-1", "mail-2", "mail-3"},
    ("--header", "region=eu", "--header", "attempt=3"): {"order-1"},
    ("--header", "region="): set(),
    ("--header", "region=eu", "--source", "orders"): {"order-1"},
}


@pytest.mark.parametrize("words", FILTERS, ids=" ".join)
def test_filters_select_letters(run_clocked: Run, letters: Queue, words: tuple[str, ...]) -> None:
    letters.enqueue(Message(b"x", id="by hand", headers={"region": "eu"}))

    assert set(printed(run_clocked, *words)) == FILTERS[words]

    answer = json.loads(run_clocked("dead", "purge", "orders/dead", "--yes", "--json", *words).stdout)
    assert answer["purged"] == len(FILTERS[words])
    assert ids(letters) == [one for one in (*LETTERS, "by hand") if one not in FILTERS[words]]


@pytest.mark.parametrize(
    "words, expected",
    [
        (("--reason", "rejcted"), "'--reason': no such reason 'rejcted'; did you mean rejected?"),
        (
            ("--reason", "xyz"),
            "'--reason': no such reason 'xyz'; expected one of expired, maxlen, rejected, delivery_limit",
        ),
        (("--header", "region"), "'--header': expected KEY=VALUE, got 'region'"),
        (("--older-than", "soon"), "'--older-than': expected an age such as 7d, or a time with its zone"),
        (("--newer-than", "2023-11-14 22:20"), "'--newer-than': expected an age such as 7d"),
        (("--newer-than", "2023-02-30 22:20Z"), "'--newer-than': no such time: '2023-02-30 22:20Z'"),
        (("--newer-than", "1700000060"), "'--newer-than': expected milliseconds since 1970, got '1700000060', which"),
    ],
)
def test_a_wrong_filter_is_one_line(run: Run, words: tuple[str, ...], expected: str) -> None:
    for command in ("show", "purge"):
        assert expected in failed(run("dead", command, "dead", *words), 2)
