"""`rqttl cancel` and `rqttl reschedule`, and scheduled messages in `send`, `peek`, `queue` and `stats`."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from rqttl import Broker, Message, OutcomeUnknown, Queue
from tests.cli.conftest import Run, check_golden, ids
from tests.cli.test_errors import failed
from tests.contract.clocked import Clocked

AT, ISO = "2999-12-01 10:00Z", "2999-12-01T10:00:00+00:00"
DAY = "2999-12-01 10:00:00.000Z"


def lines(*messages: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, messages)).encode()


@pytest.fixture
def mixed(clocked: Clocked) -> Queue:
    """A ready message; scheduled ones, of which two have the same id; one that has arrived, one that is cancelled."""
    orders = clocked.declare_queue("orders")
    orders.enqueue(b"early", delay="1m")
    orders.enqueue(b"never", id="never", delay="1m")
    orders.cancel("never")
    clocked.advance(60_000)
    orders.sweep()
    orders.enqueue_many(
        [
            b"now",
            Message(b"later", id="twice", delay="2h", ttl="10m"),
            Message({"a": 1}, delay="1h"),
            Message(b"last", id="twice", delay="3h"),
        ]
    )
    clocked.advance(5_000)
    return orders


# Sending


@pytest.mark.spec("S-019", "S-020")
@pytest.mark.parametrize("flags, end", [(("--delay", "1h"), "1h"), (("--at", AT), AT)], ids=["delay", "at"])
def test_flags_schedule_each_body(run: Run, orders: Queue, flags: tuple[str, str], end: str) -> None:
    result = run("send", "orders", "a", "b", "--ttl", "5m", *flags)

    first, second = orders.scheduled()
    assert first.until is not None
    due = DAY if end == AT else first.until.isoformat(" ", "milliseconds").replace("+00:00", "Z")
    assert (result.exit_code, result.stdout) == (0, f"scheduled 2 messages in orders, the first due {due}\n")
    assert (first.body, second.body) == (b"a", b"b")
    assert first.expires_at == first.until + timedelta(minutes=5)
    assert orders.peek() == []
    if end != AT:
        assert first.until - first.enqueued_at == timedelta(hours=1)


def test_the_answer_has_the_due_time_and_the_id_of_a_single_message(run: Run, orders: Queue) -> None:
    text = run("send", "orders", "a", "--at", AT)
    (message,) = orders.scheduled()
    document = json.loads(run("send", "orders", "b", "--at", AT, "--id", "b", "--json").stdout)

    assert text.stdout == f"scheduled 1 message in orders, due {DAY}\nid {message.id}\n"
    assert (document["stored"], document["scheduled"], document["deliver_at"]) == (1, 1, ISO)
    assert document["ids"] == ["b"]
    document = json.loads(run("send", "orders", "c", "--json").stdout)
    assert (document["scheduled"], document["deliver_at"]) == (0, None)


def test_a_field_of_a_line_goes_before_the_flag(run: Run, orders: Queue) -> None:
    sent = lines(
        {"body": "flag"},
        {"body": "delay", "delay": "1h"},
        {"body": "at", "deliver_at": AT, "delay": None},
        {"body": "ms", "deliver_at": 32_500_000_000_000},
    )

    run("send", "orders", "--format", "json", "--delay", "2h", stdin=sent)

    first, second, third, fourth = orders.scheduled()
    assert [one.body for one in (first, second, third, fourth)] == [b"delay", b"flag", b"ms", b"at"]
    assert [one.until and one.until - one.enqueued_at for one in (first, second)] == [
        timedelta(hours=1),
        timedelta(hours=2),
    ]
    assert (third.until, fourth.until) == (
        datetime.fromisoformat("2999-11-19T09:46:40+00:00"),
        datetime.fromisoformat(ISO),
    )


def test_lines_for_now_and_for_later_may_be_mixed(run: Run, orders: Queue) -> None:
    later = {"body": "later", "deliver_at": AT}
    result = run("send", "orders", "--format", "json", stdin=lines({"body": "1"}, later, later, {"body": "2"}))

    assert result.stdout == f"stored 4 messages in orders, 2 of them scheduled, the first due {DAY}\n"
    assert [one.body for one in orders.peek()] == [b"1", b"2"]
    assert [one.body for one in orders.scheduled()] == [b"later"] * 2


def test_counts_stay_exact_if_a_call_of_a_mixed_batch_fails(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many = Queue.enqueue_many

    def losing(queue: Queue, messages: Any) -> Any:
        if any(message.delay for message in messages):
            raise OutcomeUnknown("schedule", queue.name)
        return enqueue_many(queue, messages)

    monkeypatch.setattr(Queue, "enqueue_many", losing)
    sent = lines({"body": "1"}, {"body": "2"}, {"body": "3", "delay": "1h"}, {"body": "4"})
    result = run("send", "orders", "--format", "json", stdin=sent)

    assert (result.exit_code, result.stdout) == (4, "stored 2 messages in orders; not known: 1 message\n")
    assert len(orders.peek()) == 2


@pytest.mark.parametrize(
    "arguments, sent, error",
    [
        (("x", "--delay", "5m", "--at", AT), None, "--delay: give --delay or --at, not both"),
        (("x", "--delay", "5"), None, "invalid value for '--delay': expected a duration with a unit"),
        (("x", "--at", "10:00"), None, "invalid value for '--at': expected a time with its zone"),
        (("--format", "json"), {"delay": "5"}, "stdin:1: delay: expected a duration with a unit"),
        (("--format", "json"), {"deliver_at": "x"}, "stdin:1: deliver_at: expected "),
        (("--format", "json"), {"delay": "5m", "deliver_at": AT}, "stdin:1: delay: give delay or deliver_at, not both"),
    ],
)
def test_a_due_time_that_cannot_be_is_wrong_usage(
    run: Run, orders: Queue, arguments: tuple[str, ...], sent: dict[str, str] | None, error: str
) -> None:
    result = run("send", "orders", *arguments, stdin=lines({"body": "x", **sent}) if sent else b"")

    assert result.exit_code == 2
    assert result.stderr.startswith(f"rqttl: {error}")
    assert (orders.peek(), orders.scheduled()) == ([], [])


# Cancelling and rescheduling


@pytest.mark.spec("S-023", "S-024", "A-098")
def test_cancel_takes_ids_and_sequences(run: Run, orders: Queue) -> None:
    orders.enqueue_many([Message(b"x", id=id, delay="1h") for id in ("a", "a", "b", None, "c")])
    unnamed = orders.scheduled()[3].sequence

    result = run("cancel", "orders", "a", unnamed, "a", "b")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "4 scheduled messages of orders cancelled\n", "")
    assert [one.id for one in orders.scheduled()] == ["c"]


@pytest.mark.spec("S-023")
def test_cancel_of_what_is_not_scheduled_is_refused_and_the_others_go(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x", id="arrived")
    orders.enqueue(b"x", id="a", delay="1h")

    result = run("cancel", "orders", "arrived", "a", "nope")
    document = run("cancel", "orders", "nope", "--json")

    assert (result.exit_code, result.stdout) == (3, "1 scheduled message of orders cancelled\n")
    assert result.stderr == (
        "rqttl: no such scheduled message in orders: arrived, nope "
        "(`rqttl peek orders --state scheduled` lists those that wait) [not_found]\n"
    )
    assert document.exit_code == 3
    assert json.loads(document.stdout) == {"queue": "orders", "cancelled": 0, "ids": {"nope": 0}}
    assert ids(orders) == ["arrived"]


def test_a_lost_reply_does_not_hide_what_was_cancelled(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.enqueue(b"x", id="a", delay="1h")
    cancel = Queue.cancel

    def losing(queue: Queue, id: str) -> int:
        if id == "b":
            raise OutcomeUnknown("cancel", queue.name)
        return cancel(queue, id)

    monkeypatch.setattr(Queue, "cancel", losing)
    result = run("cancel", "orders", "a", "b", "c")

    assert (result.exit_code, result.stdout) == (4, "1 scheduled message of orders cancelled\n")


@pytest.mark.parametrize("flags, due", [(("--delay", "90m"), "in 90m"), (("--at", AT), DAY)], ids=["delay", "at"])
def test_reschedule_changes_the_due_time(run: Run, orders: Queue, flags: tuple[str, str], due: str) -> None:
    orders.enqueue(b"x", id="a", delay="1h", ttl="1m")

    result = run("reschedule", "orders", "a", *flags)

    assert (result.exit_code, result.stdout) == (0, f"1 scheduled message of orders rescheduled, due {due}\n")
    (message,) = orders.scheduled()
    assert message.until is not None
    assert message.expires_at == message.until + timedelta(minutes=1)
    moved = message.until - message.enqueued_at
    assert moved > timedelta(days=9999) if due == DAY else timedelta(minutes=90) <= moved < timedelta(hours=3)


def test_reschedule_of_what_is_not_scheduled_is_refused(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x", id="a")

    result = run("reschedule", "orders", "a", "--delay", "1h")

    assert (result.exit_code, result.stdout) == (3, "0 scheduled messages of orders rescheduled\n")
    assert "no such scheduled message in orders: a (" in result.stderr


@pytest.mark.parametrize(
    "flags, error", [((), "give --delay or --at"), (("--delay", "1h", "--at", AT), "give --delay or --at, not both")]
)
def test_reschedule_needs_one_time(run: Run, flags: tuple[str, ...], error: str) -> None:
    line = failed(run("reschedule", "orders", "a", *flags), 2)

    assert line.startswith(f"{error} (see ")


# Looking


@pytest.mark.spec("S-025", "A-098")
@pytest.mark.parametrize(
    "words",
    [
        ("peek", "orders", "--state", "scheduled"),
        ("peek", "orders", "--state", "scheduled", "--utc", "--limit", "2"),
        ("peek", "orders", "--state", "ready"),
        ("message", "show", "orders", "1700000060000-100002"),
        ("queue", "ls"),
        ("queue", "show", "orders"),
        ("stats",),
        ("stats", "--json"),
    ],
    ids=" ".join,
)
def test_scheduled_messages_are_seen_where_a_user_looks(run_clocked: Run, mixed: Queue, words: tuple[str, ...]) -> None:
    result = run_clocked(*words)

    assert result.exit_code == 0
    check_golden(f"scheduled-{'-'.join(words).replace('--', '')}.txt", result.stdout + result.stderr)


def test_a_queue_with_scheduled_messages_alone_is_not_called_empty(run: Run, orders: Queue) -> None:
    orders.enqueue_many([Message(b"x", delay="1h")] * 2)

    assert run("peek", "orders").stderr == "rqttl: orders has only 2 scheduled messages: --state scheduled lists them\n"
    assert run("peek", "orders", "--state", "leased").stderr == "rqttl: no leased messages in orders\n"
    last = orders.scheduled()[1].sequence
    result = run("peek", "orders", "--state", "scheduled", "--after", last)
    assert (result.exit_code, result.stderr) == (0, "rqttl: no more scheduled messages in orders\n")


def test_pages_of_scheduled_messages_follow_each_other(run: Run, orders: Queue) -> None:
    orders.enqueue_many([Message(b"%d" % i, delay=f"{i}h") for i in (3, 1, 2)])

    first = run("peek", "orders", "--state", "scheduled", "--limit", "2", "--json")
    page = json.loads(first.stdout)
    rest = run("peek", "orders", "--state", "scheduled", "--after", page[-1]["sequence"], "--json")

    assert first.stderr == f"rqttl: there are more: --after {page[-1]['sequence']}\n"
    assert [one["body"] for one in page + json.loads(rest.stdout)] == ["1", "2", "3"]


# Removing


@pytest.mark.parametrize("state, removed, left", [("ready", 2, (0, 3)), ("scheduled", 3, (2, 0)), ("all", 5, (0, 0))])
def test_purge_removes_the_messages_of_the_state(
    run_clocked: Run, mixed: Queue, state: str, removed: int, left: tuple[int, int]
) -> None:
    noun = "messages" if state == "all" else f"{state} messages"
    words = ["queue", "purge", "orders", "--state", state]

    assert run_clocked(*words, "--dry-run").stdout == f"queue orders: {removed} {noun} would be removed\n"
    assert run_clocked(*words, "--yes").stdout == f"queue orders: {removed} {noun} removed\n"
    stats = mixed.stats()
    assert (stats.ready, stats.scheduled) == left


def test_purge_removes_ready_messages_unless_told_otherwise(run: Run, broker: Broker, orders: Queue) -> None:
    orders.enqueue(b"x", delay="1h")

    assert run("queue", "purge", "orders", "--yes").stdout == "queue orders: 0 ready messages removed\n"
    assert broker.stats(["orders"])["orders"].scheduled == 1


def test_delete_counts_scheduled_messages_and_spares_a_queue_that_has_some(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x", delay="1h")

    told = run("queue", "delete", "orders", "--dry-run").stdout
    spared = run("queue", "delete", "orders", "--if-empty", "--yes")

    assert told == "queue orders would be deleted (1 scheduled)\n"
    assert (spared.exit_code, "it has 1 message," in spared.stderr) == (3, True)
