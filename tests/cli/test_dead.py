"""`rqttl dead ls`, `show`, `purge` and `redrive`: the counted letters go, if they are still ready, and no others."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from rqttl import Broker, Message, OutcomeUnknown, Queue
from tests.cli.conftest import LETTERS, Run, check_golden, ids
from tests.cli.processes import Terminal
from tests.cli.test_errors import failed
from tests.contract.clocked import Clocked
from tests.contract.looks import one
from tests.drivers import redis_of
from tests.lua.states import everything


def printed(run: Run, *words: str) -> list[str]:
    """The ids that `dead show` shows."""
    return [one["id"] for one in json.loads(run("dead", "show", "orders/dead", "--json", *words).stdout)]


def test_ls_counts_letters_by_where_and_why_they_died(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "ls", "orders/dead")

    assert (result.exit_code, result.stderr) == (0, "")
    check_golden("dead-ls.txt", result.stdout)
    assert "2023-11-14 22:14:20.000Z" in run_clocked("dead", "ls", "orders/dead", "--utc").stdout
    check_golden("dead-ls.json", run_clocked("dead", "ls", "orders/dead", "--json").stdout)


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


@pytest.mark.parametrize("words", [("ls",), ("show",), ("show", "order-1"), ("purge", "--dry-run")], ids=" ".join)
def test_looking_changes_nothing(run_clocked: Run, clocked: Clocked, letters: Queue, words: tuple[str, ...]) -> None:
    letters.receive_many(2)
    before = everything(redis_of(clocked))

    assert run_clocked("dead", words[0], "orders/dead", *words[1:]).exit_code == 0

    assert everything(redis_of(clocked)) == before


def test_show_tells_the_history_of_each_letter_the_last_to_die_first(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "show", "orders/dead")

    assert (result.exit_code, result.stderr) == (0, "")
    check_golden("dead-show.txt", result.stdout)
    check_golden("dead-show.json", run_clocked("dead", "show", "orders/dead", "--json").stdout)


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

    check_golden("dead-show-again-utc.txt", run_clocked("dead", "show", "later", "--utc").stdout)


def test_show_is_limited_and_says_that_there_is_more(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "show", "orders/dead", "--limit", "3", "--json")

    assert [one["id"] for one in json.loads(result.stdout)] == ["order-4", "mail-3", "mail-2"]
    assert result.stderr == "rqttl: 3 of 7 dead letters; --limit shows more\n"


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
    assert result.stderr == "rqttl: no such dead letter in orders/dead: by hand, order-9 [not_found]\n"


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
    ("--error", "no such item"): {"order-1", "order-2"},
    ("--error", "no*", "--header", "region=us"): {"order-2"},
    ("--error", "no such"): set(),
    ("--error", ""): set(LETTERS) - {"order-1", "order-2"},
    ("--error", "*"): set(LETTERS),
}


@pytest.mark.parametrize("words", FILTERS, ids=" ".join)
def test_filters_select_letters(run_clocked: Run, letters: Queue, words: tuple[str, ...]) -> None:
    letters.enqueue(Message(b"x", id="by hand", headers={"region": "eu"}))

    assert set(printed(run_clocked, *words)) == FILTERS[words]

    planned = json.loads(run_clocked("dead", "purge", "orders/dead", "--dry-run", "--json", *words).stdout)
    answer = json.loads(run_clocked("dead", "purge", "orders/dead", "--yes", "--json", *words).stdout)
    assert planned["would_purge"] == answer["purged"] == len(FILTERS[words])
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
    before = everything(redis_of(clocked))

    result = run_clocked("dead", command, "orders/dead", "--dry-run")

    check_golden(f"dead-{command}-dry-run.txt", result.stdout)
    check_golden(
        f"dead-{command}-dry-run.json", run_clocked("dead", command, "orders/dead", "--dry-run", "--json").stdout
    )
    assert (result.exit_code, result.stderr) == (
        0,
        NOTES.format(" (`rqttl queue purge` removes all)" if command == "purge" else ""),
    )
    assert everything(redis_of(clocked)) == before


@pytest.mark.parametrize(
    "words, gone",
    [
        ((), {"order-3", "order-4", "mail-1", "mail-2", "mail-3"}),
        (("--reason", "rejected", "--reason", "expired"), {"mail-1", "mail-2", "mail-3"}),
        (("--id", "order-3", "--id", "mail-2"), {"order-3", "mail-2"}),
    ],
    ids=["all", "by reason", "by id"],
)
def test_the_selected_letters_go_and_nothing_else(
    run_clocked: Run, busy: Queue, words: tuple[str, ...], gone: set[str]
) -> None:
    result = run_clocked("dead", "purge", "orders/dead", *words, "--yes")

    assert (result.exit_code, result.stdout) == (0, f"{len(gone)} dead letters of orders/dead removed\n")
    assert ids(busy) == [one for one in (*LETTERS, "by hand") if one not in gone]
    assert busy.stats().purged == len(gone)
    assert sum(busy.stats().deaths.values()) == 0


def test_a_missing_id_is_refused_and_the_other_letters_go(run_clocked: Run, busy: Queue) -> None:
    result = run_clocked(
        "dead", "purge", "orders/dead", "--id", "order-3", "--id", "nope", "--id", "by hand", "--id", "order-1", "-y"
    )

    assert (result.exit_code, result.stdout) == (3, "1 dead letter of orders/dead removed\n")
    assert result.stderr == (
        "rqttl: 1 leased: not ready, left alone\nrqttl: no such dead letter in orders/dead: by hand, nope [not_found]\n"
    )
    assert ids(busy) == [one for one in (*LETTERS, "by hand") if one != "order-3"]


def test_without_a_matching_letter_nothing_is_asked(run_clocked: Run, letters: Queue) -> None:
    result = run_clocked("dead", "purge", "orders/dead", "--source", "nope")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "0 dead letters of orders/dead removed\n", "")
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

    assert (result.exit_code, result.stdout) == (130, "2,000 dead letters of dead removed\n")
    assert result.stderr == "rqttl: interrupted: 500 dead letters left\n"
    assert many.stats().ready == 500


def test_a_lost_reply_has_the_known_counts(run: Run, many: Queue, at_second_step: Arrange) -> None:
    def lose(_: Queue) -> None:
        raise OutcomeUnknown("purge", "dead")

    at_second_step(lose)

    result = run("dead", "purge", "dead", "--yes", "--json")

    assert (result.exit_code, json.loads(result.stdout)["purged"]) == (4, 1_000)
    assert result.stderr.endswith("[outcome_unknown]\n")


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
            "Remove 9 dead letters of dead (3 rejected in orders, 2 rejected in jobs, 2 rejected in mails, "
            "2 in 2 other groups)? [y/N]: "
        )
        orders = broker.queue("orders")
        orders.enqueue(Message(b"x", id="later"))
        orders.reject_many(orders.receive_many(1))
        held = one(dead)
        terminal.type(b"y\r")
        assert terminal.end() == 0

    assert terminal.screen.endswith(
        "8 dead letters of dead removed\nrqttl: 1 dead letter gone or no longer ready meanwhile: left alone\n"
    )
    assert ids(dead) == [held.id, "later"]


@pytest.fixture
def orders(clocked: Clocked, letters: Queue) -> Queue:
    """The queue where most of them died, with room for all."""
    queue = clocked.queue("orders")
    queue.update(max_length=None)
    return queue


def test_all_ready_letters_go_to_where_they_died(
    run_clocked: Run, clocked: Clocked, busy: Queue, orders: Queue
) -> None:
    result = run_clocked("dead", "redrive", "orders/dead", "--yes")

    assert (result.exit_code, result.stdout) == (0, "5 dead letters of orders/dead put back\n")
    assert result.stderr == NOTES.format("")
    assert ids(busy) == ["order-1", "order-2", "by hand"]
    assert ids(orders) == ["order-3", "order-4"]
    assert ids(clocked.queue("mails")) == ["mail-1", "mail-2", "mail-3"]


def test_selected_letters_can_go_to_another_queue(
    run_clocked: Run, clocked: Clocked, letters: Queue, orders: Queue
) -> None:
    elsewhere = clocked.declare_queue("elsewhere")

    result = run_clocked(
        "dead", "redrive", "orders/dead", "--id", "order-3", "--id", "mail-2", "--to", "elsewhere", "-y"
    )

    assert (result.exit_code, result.stdout, result.stderr) == (0, "2 dead letters of orders/dead put back\n", "")
    assert (ids(elsewhere), ids(orders)) == (["order-3", "mail-2"], [])


def test_letters_without_room_or_queue_stay_and_have_a_note(
    run_clocked: Run, clocked: Clocked, letters: Queue, orders: Queue
) -> None:
    orders.update(max_length=1, overflow="reject-publish")
    clocked.queue("mails").delete()

    result = run_clocked("dead", "redrive", "orders/dead", "--yes")

    assert (result.exit_code, result.stdout) == (3, "1 dead letter of orders/dead put back\n")
    assert result.stderr == (
        "rqttl: 3 dead letters left alone: mails does not exist (see --to)\n"
        "rqttl: 3 dead letters left alone: orders has no room (--max-length)\n"
        "rqttl: not all dead letters could be put back [queue_full]\n"
    )
    assert ids(orders) == ["order-1"]


def test_letters_that_died_in_the_queue_itself_stay(run_clocked: Run, clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter_rejected="q")
    queue.enqueue(Message(b"x", id="x"))
    queue.reject_many(queue.receive_many(1))

    result = run_clocked("dead", "redrive", "q", "--yes")

    assert (result.exit_code, result.stdout) == (3, "0 dead letters of q put back\n")
    assert "1 dead letter left alone: q is the queue that holds them (see --to)\n" in result.stderr
    assert ids(queue) == ["x"]


@pytest.mark.parametrize("words", [["nope"], ["orders/dead", "--to", "nope"]])
def test_a_missing_queue_is_refused_before_any_letter_moves(run_clocked: Run, letters: Queue, words: list[str]) -> None:
    result = run_clocked("dead", "redrive", *words, "--yes")

    assert result.exit_code == 3
    assert result.stderr.endswith("[not_found]\n")
    assert ids(letters) == list(LETTERS)
