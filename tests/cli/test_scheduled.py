"""`rqttl cancel` and `rqttl reschedule`, and scheduled messages in `send`, `peek`, `queue` and `stats`."""

import json
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from rqttl import Message, OutcomeUnknown, Queue
from rqttl.units import as_datetime
from tests.cli.conftest import Run, ids
from tests.contract.clocked import Clocked, at
from tests.contract.looks import bodies

AT, FAR = "2999-12-01 10:00Z", datetime.fromisoformat("2999-12-01T10:00:00+00:00")
DAY = "2999-12-01 10:00:00.000Z"
HOUR = 3_600_000


def lines(*messages: Any) -> bytes:
    return "\n".join(map(json.dumps, messages)).encode()


def due(queue: Queue) -> list[tuple[bytes, datetime | None]]:
    """The scheduled messages, and when they are due."""
    return [(message.body, message.until) for message in queue.scheduled()]


@pytest.fixture
def run(run_clocked: Run) -> Run:
    return run_clocked


@pytest.fixture
def orders(clocked: Clocked) -> Queue:
    return clocked.declare_queue("orders")


@pytest.fixture
def mixed(clocked: Clocked, orders: Queue) -> Queue:
    """A ready message; scheduled ones, of which two have the same id; one that has arrived, one that is cancelled."""
    orders.enqueue(b"early", delay="1m")
    orders.enqueue(b"never", id="never", delay="1m")
    orders.cancel("never")
    clocked.advance(60_000)
    orders.sweep()
    twice = [Message(b"later", id="twice", delay="2h", ttl="10m"), Message(b"last", id="twice", delay="3h")]
    orders.enqueue_many([b"now", twice[0], Message({"a": 1}, delay="1h"), twice[1]])
    clocked.advance(5_000)
    return orders


# Sending


@pytest.mark.spec("S-019", "S-020")
@pytest.mark.parametrize(
    "flags, end, told", [(("--delay", "1h"), at(HOUR), "2023-11-14 23:13:20.000Z"), (("--at", AT), FAR, DAY)]
)
def test_flags_schedule_each_body(run: Run, orders: Queue, flags: tuple[str, str], end: datetime, told: str) -> None:
    result = run("send", "orders", "a", "b", "--ttl", "5m", *flags)
    single = run("send", "orders", "c", "--id", "c", *flags)
    document = json.loads(run("send", "orders", "d", "--id", "d", "--json", *flags).stdout)

    assert (result.exit_code, result.stdout) == (0, f"scheduled 2 messages in orders, the first due {told}\n")
    assert single.stdout == f"scheduled 1 message in orders, due {told}\nid c\n"
    assert [document[name] for name in ("stored", "scheduled", "ids")] == [1, 1, ["d"]]
    assert datetime.fromisoformat(document["deliver_at"]) == end
    assert (due(orders), bodies(orders)) == ([(body, end) for body in (b"a", b"b", b"c", b"d")], [])
    assert orders.scheduled()[0].expires_at == end + timedelta(minutes=5)


def test_lines_for_now_and_for_later_may_be_mixed_and_a_field_goes_before_the_flag(run: Run, orders: Queue) -> None:
    later = [{"body": "delay", "delay": "1h"}, {"body": "at", "deliver_at": AT, "delay": None}]
    ms = {"body": "ms", "deliver_at": 32_500_000_000_000}
    result = run("send", "orders", "--format", "json", stdin=lines({"body": "1"}, *later, {"body": "2"}, ms))
    run("send", "orders", "--format", "json", "--delay", "2h", stdin=lines({"body": "flag"}, later[0]))

    first = "2023-11-14 23:13:20.000Z"
    assert result.stdout == f"stored 5 messages in orders, 3 of them scheduled, the first due {first}\n"
    assert bodies(orders) == [b"1", b"2"]
    soon = [(b"delay", at(HOUR)), (b"delay", at(HOUR)), (b"flag", at(2 * HOUR))]
    assert due(orders) == [*soon, (b"ms", as_datetime(32_500_000_000_000)), (b"at", FAR)]


@pytest.mark.parametrize(
    "words, sent, error",
    [
        ("send orders x --delay 5m --at 2999-12-01T10:00Z", {}, "--delay: give --delay or --at, not both"),
        ("send orders x --delay 5", {}, "invalid value for '--delay': expected a duration with a unit"),
        ("send orders x --at 10:00", {}, "invalid value for '--at': expected a time with its zone"),
        ("send orders --format json", {"delay": "5"}, "stdin:1: delay: expected a duration with a unit"),
        ("send orders --format json", {"deliver_at": "x"}, "stdin:1: deliver_at: expected "),
        ("send orders --format json", {"delay": "5m", "deliver_at": AT}, "stdin:1: delay: give delay or deliver_at"),
        ("reschedule orders a", {}, "give --delay or --at (see "),
        ("reschedule orders a --delay 1h --at 2999-12-01T10:00Z", {}, "give --delay or --at, not both (see "),
    ],
)
def test_a_due_time_that_cannot_be_is_wrong_usage(
    run: Run, orders: Queue, words: str, sent: dict[str, str], error: str
) -> None:
    result = run(*words.split(), stdin=lines({"body": "x", **sent}))

    assert result.exit_code == 2
    assert result.stderr.startswith(f"rqttl: {error}")
    assert (bodies(orders), due(orders)) == ([], [])


# Cancelling and rescheduling


@pytest.mark.spec("S-023", "S-024", "A-098")
def test_cancel_takes_ids_and_sequences_and_refuses_what_is_not_scheduled(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x", id="arrived")
    orders.enqueue_many([Message(b"x", id=id, delay="1h") for id in ("a", "a", None, "c")])
    unnamed = orders.scheduled()[2].sequence

    result = run("cancel", "orders", "a", unnamed, "a")
    missing = run("cancel", "orders", "arrived", "c", "nope")
    document = run("cancel", "orders", "nope", "--json")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "3 scheduled messages of orders cancelled\n", "")
    assert (missing.exit_code, missing.stdout) == (3, "1 scheduled message of orders cancelled\n")
    assert missing.stderr == (
        "rqttl: no such scheduled message in orders: arrived, nope "
        "(`rqttl peek orders --state scheduled` lists those that wait) [not_found]\n"
    )
    assert (document.exit_code, json.loads(document.stdout)["ids"]) == (3, {"nope": 0})
    assert (ids(orders), due(orders)) == (["arrived"], [])


def test_a_lost_reply_does_not_hide_what_was_cancelled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "cancel", Mock(side_effect=[1, OutcomeUnknown("cancel", "orders")]))

    result = run("cancel", "orders", "a", "b", "c")

    assert (result.exit_code, result.stdout) == (4, "1 scheduled message of orders cancelled\n")


def test_reschedule_changes_the_due_time_of_what_is_scheduled(run: Run, orders: Queue) -> None:
    orders.enqueue(b"x", id="a", delay="1h")

    moved = "1 scheduled message of orders rescheduled, due"
    assert run("reschedule", "orders", "a", "--at", AT).stdout == f"{moved} {DAY}\n"
    assert due(orders) == [(b"x", FAR)]
    assert run("reschedule", "orders", "a", "--delay", "90m").stdout == f"{moved} in 90m\n"
    assert due(orders) == [(b"x", at(HOUR * 3 // 2))]
    missing = run("reschedule", "orders", "b", "--delay", "1h")
    assert (missing.exit_code, missing.stdout) == (3, "0 scheduled messages of orders rescheduled\n")
    assert "no such scheduled message in orders: b (" in missing.stderr


# Looking


@pytest.mark.spec("S-025", "A-098")
@pytest.mark.parametrize(
    "words, shown",
    [
        ("peek orders --state scheduled", "scheduled, due in 1h 59m, enqueued 5.0s ago, expires in 2h 9m, 5 B\n"),
        ("peek orders", "1700000000000-100000 (1700000060000-100000): ready, enqueued 5.0s ago, 5 B"),
        ("message show orders 1700000060000-100002", "state         scheduled, due in 1h 59m"),
        ("queue show orders", "scheduled  3, the first due in 59m 55s"),
        ("queue show orders", "so far     1 cancelled, 1 activated, 2 enqueued"),
        ("queue ls", "\norders       2        0         0           3 "),
        ("stats", "\norders      2       0        0          3 "),
    ],
)
def test_scheduled_messages_are_seen_where_a_user_looks(run: Run, mixed: Queue, words: str, shown: str) -> None:
    result = run(*words.split())

    assert (result.exit_code, result.stderr) == (0, "")
    assert shown in result.stdout


# Removing


def test_removing_says_what_becomes_of_scheduled_messages(run: Run, mixed: Queue) -> None:
    told = "queue orders would be deleted (2 ready, 3 scheduled)\n"
    assert run("queue", "delete", "orders", "--dry-run").stdout == told
    purge = ("queue", "purge", "orders")
    assert run(*purge, "--yes").stdout == "queue orders: 2 ready messages removed\n"
    spared = run("queue", "delete", "orders", "--if-empty", "--yes")
    assert (spared.exit_code, "it has 3 messages," in spared.stderr) == (3, True)

    for state, noun in (("all", "messages"), ("scheduled", "scheduled messages")):
        words = (*purge, "--state", state)
        assert run(*words, "--dry-run").stdout == f"queue orders: 3 {noun} would be removed\n"
    assert run(*words, "--yes").stdout == "queue orders: 3 scheduled messages removed\n"
    assert (mixed.stats().ready, mixed.stats().scheduled) == (0, 0)
