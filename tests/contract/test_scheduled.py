"""Scheduled messages: they arrive when they are due, by the options of that time, unless they are cancelled first."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from rqttl import CommandEvent, InvalidInput, Message, Queue, QueueFull, Receipt
from tests.contract.clocked import START, Clocked, at, ms
from tests.contract.looks import bodies, dead, dropped, one, ready, take, taken
from tests.lua.states import everything

MINUTE, HOUR = 60_000, 3_600_000


def waiting(queue: Queue) -> list[bytes]:
    """The bodies of scheduled messages, the next one first."""
    return [message.body for message in queue.scheduled(10_000)]


def later(clocked: Clocked, ms: int) -> None:
    """The time goes on, and the queue is swept."""
    clocked.advance(ms)
    clocked.queue("q").sweep()


def numbered(count: int, **words: Any) -> list[Message]:
    """Messages with their numbers as bodies."""
    return [Message(b"%d" % i, **words) for i in range(count)]


# Arriving


IN_FIVE_MINUTES = [at(300_000), START + 300_000, "2023-11-14T22:18:20.000Z", "2023-11-14 23:18:20+01:00"]


@pytest.mark.spec("S-020", "S-022", "A-096", "C-36")
@pytest.mark.parametrize("when", [{"delay": "5m"}, *[{"deliver_at": form} for form in IN_FIVE_MINUTES]], ids=str)
def test_a_scheduled_message_is_in_no_consumers_way_until_it_is_due(
    clocked: Clocked, queue: Queue, when: dict[str, Any]
) -> None:
    receipt = queue.enqueue({"n": 1}, id="me", headers={"kind": "late"}, **when)
    queue.enqueue(b"now")

    assert receipt == Receipt("me", deliver_at=at(5 * MINUTE))
    clocked.advance(5 * MINUTE - 1)
    assert (bodies(queue), taken(queue)) == ([b"now"], [b"now"])
    clocked.advance(1)
    delivery = one(queue)
    assert (delivery.id, delivery.decode(), delivery.headers) == ("me", {"n": 1}, {"kind": "late"})
    assert (delivery.enqueued_at, delivery.delivery_count, delivery.expires_at) == (at(5 * MINUTE), 1, None)


@pytest.mark.spec("A-097", "S-021")
def test_messages_arrive_in_the_order_of_due_times_and_of_sending_behind_those_that_are_there(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")

    queue.enqueue_many([Message(b"%d" % i, delay=ms(delay)) for i, delay in enumerate([30, 10, 20, 10, 30, 10])])
    queue.enqueue(b"6", deliver_at=at(10), id="mine")
    before = queue.scheduled()
    queue.enqueue(b"there")
    assert [message.body for message in before] == [b"1", b"3", b"5", b"6", b"2", b"0", b"4"]
    later(clocked, 30)

    _, *arrived = queue.peek()
    assert [message.id for message in arrived] == [message.id for message in before]
    assert [message.id for message in before if message.id != message.sequence] == ["mine"]
    assert min(message.sequence for message in arrived) > max(message.sequence for message in before)
    assert taken(queue) == [b"there", b"1", b"3", b"5", b"6", b"2", b"0", b"4"]


@pytest.mark.spec("S-020")
def test_plain_and_scheduled_messages_of_one_call_keep_their_order_and_their_receipts(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=2, overflow="reject-publish")
    twice = Message(b"2", id="two", delay="1s")

    told = queue.enqueue_many([b"1", twice, twice, Message(b"3", delay="1s"), b"4", Message(b"5", ttl="1m"), b"6"])

    assert [type(one) for one in told] == [*[Receipt] * 5, QueueFull, QueueFull]
    assert [one.deliver_at for one in told if isinstance(one, Receipt)] == [None, at(1_000), at(1_000), at(1_000), None]
    assert told[1] == told[2] == Receipt("two", deliver_at=at(1_000))
    assert (taken(queue), waiting(queue)) == ([b"1", b"4"], [b"2", b"2", b"3"])


@pytest.mark.spec("S-020")
@pytest.mark.parametrize("how", ["enqueue", "reschedule"])
@pytest.mark.parametrize("when", [{"delay": 0}, {"deliver_at": at(0)}, {"deliver_at": at(-HOUR)}], ids=str)
def test_what_is_due_already_arrives_in_the_same_call(clocked: Clocked, when: dict[str, Any], how: str) -> None:
    queue = clocked.declare_queue("q", message_ttl="2h")

    queue.enqueue(b"x", id="me", **when if how == "enqueue" else {"delay": "1h"})
    assert how == "enqueue" or queue.reschedule("me", **when) == 1

    assert (waiting(queue), ready(queue), queue.stats(sweep=False).activated) == ([], [b"x"], 1)


def test_the_latest_instants_are_kept_exactly(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="30s")
    due = datetime(9999, 12, 31, 23, 59, tzinfo=timezone.utc)

    receipt = queue.enqueue(b"x", deliver_at="9999-12-31T23:59:00Z")

    (message,) = queue.scheduled()
    assert receipt.deliver_at == message.until == due
    assert receipt.expires_at == message.expires_at == due + timedelta(seconds=30)


def test_a_batch_of_any_size_arrives_in_order_by_steps_and_leaves_nothing(
    clocked: Clocked, queue: Queue, client: redis.Redis
) -> None:
    batch = [*numbered(600, delay="1s"), *[Message(b"%d" % i * 900_000, delay="1s") for i in range(1, 8)]]
    assert len(queue.enqueue_many(batch)) == 607

    clocked.advance(1_000)
    steps = [step.activated for step in queue.sweep()]

    assert (steps[:2], max(steps), sum(steps)) == ([250, 250], 250, 607)
    assert len(steps) > 3, "one step read more than 4 MB"
    assert ready(queue) == [message.body for message in batch]
    assert not client.exists("rqttl:{q}:scheduled", "rqttl:{q}:upcoming", "rqttl:{q}:scheduled_ids")


def batch(**given: Any) -> Callable[[Queue], object]:
    """Send a message like this behind others, which are good."""
    messages = [b"1", Message(b"2", id="new", delay="1s"), Message(**{"body": b"x", **given})]
    return lambda queue: queue.enqueue_many(messages)


DELAYS: list[Any] = [1, 1.5, True, b"1s", "", "1", "-1s", "1 s 2", "1x", "inf", "4000d", ms(-1), [], at(1)]
INSTANTS: list[Any] = [True, b"x", "", "now", "2026-11-22", "2026-11-22 10:00", "2026-11-22 25:00Z", -1, 0, ms(1), []]
INSTANTS += [1_700_000_000, START + 0.5, 253_402_300_800_000, at(1).replace(tzinfo=None)]
IDS: list[Any] = ["", "x" * 256, None, b"x", "\ud800"]
WRONG = {"id": "x" * 256, "ttl": "1x", "headers": 1, "body": b"x" * 11}
REFUSED: list[tuple[str, Callable[[Queue], object]]] = [
    *[("delay", batch(delay=delay)) for delay in DELAYS],
    *[("deliver_at", batch(deliver_at=instant)) for instant in INSTANTS],
    *[("delay", batch(delay=delay, deliver_at=at(1))) for delay in ("1s", 0, "x")],
    *[(name, batch(delay="1s", **{name: wrong})) for name, wrong in WRONG.items()],
    *[("id", lambda queue, id=id: queue.cancel(id)) for id in IDS],
    *[("id", lambda queue, id=id: queue.reschedule(id, delay="1s")) for id in IDS],
    *[("delay", lambda queue, delay=delay: queue.reschedule("there", delay=delay)) for delay in (None, 1, "1x")],
    ("deliver_at", lambda queue: queue.reschedule("there", deliver_at="now")),
    *[("state", lambda queue, state=state: queue.peek(state=state)) for state in ("", "all", "Ready", b"ready")],
    *[("state", lambda queue, state=state: queue.purge(state)) for state in ("", "leased", "delayed", None)],
    *[("limit", lambda queue, limit=limit: queue.scheduled(limit)) for limit in (0, -1, "1", None, True)],
    *[("after", lambda queue, after=after: queue.scheduled(1, after)) for after in ("", "there", "0-0", 1)],
]


@pytest.mark.parametrize("name, call", REFUSED)
def test_a_wrong_argument_is_refused_by_name_and_changes_nothing(
    clocked: Clocked, client: redis.Redis, name: str, call: Callable[[Queue], object]
) -> None:
    queue = clocked.declare_queue("q", duplicate_window="1h", max_message_bytes=10)
    queue.enqueue(b"there", id="there", delay="1h")
    before = everything(client)

    with pytest.raises(InvalidInput, match=rf"^{name}: "):
        call(queue)
    assert everything(client) == before


# Deadlines


@pytest.mark.spec("S-019", "A-068", "A-099", "C-25")
def test_a_ttl_counts_from_the_due_time_and_an_instant_does_not(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    ends = {b"relative": at(15 * MINUTE), b"absolute": at(10 * MINUTE), b"before": at(MINUTE)}

    told = [queue.enqueue(b"relative", delay="5m", ttl="10m")]
    told += [queue.enqueue(body, delay="5m", expires_at=ends[body]) for body in (b"absolute", b"before")]

    assert [receipt.expires_at for receipt in told] == list(ends.values())
    assert {message.body: message.expires_at for message in queue.scheduled()} == ends
    later(clocked, 5 * MINUTE)
    assert [message.expires_at for message in queue.peek()] == [at(15 * MINUTE), at(10 * MINUTE)]
    clocked.advance(10 * MINUTE - 1)
    assert ready(queue) == [b"relative"]
    later(clocked, 1)
    letters = take(clocked.queue("d"))
    assert [letter.body for letter in letters] == [b"before", b"absolute", b"relative"]
    assert {(letter.deaths[0].reason, letter.deaths[0].delivery_count) for letter in letters} == {("expired", 0)}


@pytest.mark.spec("S-019")
@pytest.mark.parametrize("late, lives", [(10 * MINUTE - 1, True), (10 * MINUTE, False), (HOUR, False)])
@pytest.mark.parametrize("options, ttl", [({}, "10m"), ({"message_ttl": "10m"}, None), ({"max_ttl": "10m"}, "1h")])
def test_who_arrives_late_lives_no_longer_for_it(
    clocked: Clocked, options: dict[str, Any], ttl: str | None, late: int, lives: bool
) -> None:
    queue = clocked.declare_queue("q", **options)
    assert queue.enqueue(b"x", delay="5m", ttl=ttl).expires_at == at(15 * MINUTE)

    later(clocked, 5 * MINUTE + late)

    assert [message.expires_at for message in queue.peek()] == [at(15 * MINUTE)] * lives
    died = {} if lives else {"expired": 1}
    assert (taken(queue), dead(queue), dropped(queue)) == ([b"x"] * lives, died, died)
    assert (queue.stats().enqueued, queue.stats().activated, queue.stats().scheduled) == (1, 1, 0)


@pytest.mark.spec("S-019")
def test_the_options_of_the_due_time_act(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_ttl="1h", dead_letter="d")
    assert queue.enqueue(b"0", delay="5m", ttl="1h").expires_at == at(65 * MINUTE)
    queue.enqueue_many(numbered(4, delay="5m", ttl="1h")[1:])

    clocked.set_policy("short", "q", {"max_ttl": "1m"})
    queue.update(max_length=3)
    assert queue.scheduled()[0].expires_at == at(6 * MINUTE)
    later(clocked, 5 * MINUTE)

    arrived = [(message.body, message.expires_at) for message in queue.peek()]
    assert arrived == [(body, at(6 * MINUTE)) for body in (b"1", b"2", b"3")]
    assert dead(queue) == {"maxlen": 1}


# Cancelling and rescheduling


@pytest.mark.spec("S-023", "S-024", "A-098", "C-36")
def test_a_cancelled_message_never_arrives(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    made = queue.enqueue(b"1", delay="1s").id
    queue.enqueue(b"2", delay="1s", id="two")
    queue.enqueue(b"3", delay="1s", id="three")
    place = queue.scheduled()[2].sequence

    assert [queue.cancel(id) for id in (made, "two", place, "two", made, "unknown")] == [1, 1, 1, 0, 0, 0]

    later(clocked, 1_000)
    assert (bodies(queue), waiting(queue), dead(queue), clocked.queues()) == ([], [], {}, ["q"])
    stats = queue.stats()
    assert (stats.cancelled, stats.activated, stats.enqueued, stats.purged, stats.next_scheduled) == (3, 0, 0, 0, None)


@pytest.mark.spec("S-023")
@pytest.mark.parametrize("arrives, left", [(True, [b"x"]), (False, [])])
def test_at_the_due_instant_one_wins(clocked: Clocked, queue: Queue, arrives: bool, left: list[bytes]) -> None:
    queue.enqueue(b"x", id="me", delay="1s")
    clocked.advance(1_000)

    if arrives:
        queue.sweep()
    assert (queue.cancel("me"), queue.reschedule("me", delay="1s"), taken(queue)) == (not arrives, 0, left)


@pytest.mark.spec("S-026")
@pytest.mark.parametrize("by", ["id", "sequence"])
@pytest.mark.parametrize("when, due", [({"delay": "1h"}, HOUR + 1_000), ({"deliver_at": at(2_000)}, 2_000)], ids=str)
def test_a_rescheduled_message_has_another_due_time_and_nothing_else(
    clocked: Clocked, queue: Queue, by: str, when: dict[str, Any], due: int
) -> None:
    queue.enqueue(b"x", id="me", ttl="5m", delay="1m", headers={"n": 1})
    (before,) = queue.scheduled()
    clocked.advance(1_000)

    assert queue.reschedule("me" if by == "id" else before.sequence, **when) == 1
    assert queue.reschedule("unknown", **when) == 0

    assert queue.scheduled() == [replace(before, until=at(due), expires_at=at(due + 5 * MINUTE))]
    clocked.go_to(due - 1)
    assert taken(queue) == []
    clocked.go_to(due)
    assert taken(queue) == [b"x"]


@pytest.mark.spec("S-024", "S-027")
def test_all_messages_with_an_id_are_cancelled_and_rescheduled_together(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([Message(b"%d" % i, id="same", delay=ms(3_000 - i)) for i in range(3_000)])
    queue.enqueue(b"other", id="sam", delay="1m")

    later(clocked, 300)
    assert queue.cancel(queue.scheduled()[0].sequence) == 1
    assert queue.reschedule("same", delay="1s") == 2_699
    assert waiting(queue) == [*[b"%d" % i for i in range(2_699)], b"other"]
    assert (queue.cancel("same"), queue.cancel("same")) == (2_699, 0)

    assert (waiting(queue), queue.stats().ready) == ([b"other"], 300)


@pytest.mark.spec("S-027")
def test_the_window_of_a_queue_begins_with_the_schedule_and_a_cancelled_id_is_free(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", duplicate_window="10m")

    def is_duplicate(body: bytes, **when: Any) -> bool:
        return queue.enqueue(body, id="me", **when).duplicate

    assert [is_duplicate(b"1", delay="5m"), is_duplicate(b"2", delay="1m"), is_duplicate(b"3")] == [False, True, True]
    assert waiting(queue) == [b"1"]
    clocked.advance(5 * MINUTE)
    assert (taken(queue), is_duplicate(b"4", delay="1m")) == ([b"1"], True)
    clocked.advance(5 * MINUTE)
    assert not is_duplicate(b"5", delay="1m")

    assert (queue.cancel("me"), is_duplicate(b"6", delay="1m")) == (1, False)
    assert waiting(queue) == [b"6"]


@pytest.mark.spec("S-027")
def test_the_window_of_a_call_keeps_the_id_of_a_cancelled_message(clocked: Clocked, queue: Queue) -> None:
    batch = [Message(b"1", id="me", delay="5m"), Message(b"2", id="me"), b"3"]

    told = queue.enqueue_many(batch, duplicate_window="10m")
    assert [isinstance(one, Receipt) and one.duplicate for one in told] == [False, True, False]
    assert queue.cancel("me") == 1

    assert queue.enqueue_many(batch[:1], duplicate_window="10m") == [Receipt("me", duplicate=True)]
    assert (waiting(queue), ready(queue)) == ([], [b"3"])


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_holds_arrivals_back_and_none_overtakes(clocked: Clocked, overflow: Any) -> None:
    queue = clocked.declare_queue("q", max_length_bytes=4, overflow=overflow)
    queue.enqueue_many([Message(body, delay=ms(i + 1)) for i, body in enumerate([b"1", b"too long", b"2", b"3"])])
    queue.enqueue(b"xxx")

    clocked.advance(4)
    assert len(queue.sweep()) == 1  # what is held back keeps no sweep busy
    assert (queue.sweep()[-1].due, queue.stats().overdue) == (clocked.now + 1_000, ms(0))
    assert (ready(queue), waiting(queue)) == ([b"xxx", b"1"], [b"too long", b"2", b"3"])
    queue.update(max_length_bytes=8)
    assert taken(queue) == [b"xxx", b"1"]
    clocked.advance(1_000)
    assert taken(queue) == [b"too long"]
    assert (waiting(queue), queue.stats().refused, dead(queue)) == ([b"2", b"3"], 0, {})
    clocked.advance(1_000)
    assert taken(queue) == [b"2", b"3"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_what_expires_behind_a_message_that_is_held_back_dies_and_the_others_keep_their_order(
    clocked: Clocked, overflow: Any
) -> None:
    queue = clocked.declare_queue("q", max_length=1, overflow=overflow, dead_letter_expired="d")
    ends: list[tuple[bytes, dict[str, Any]]] = [
        (b"1", {}),
        (b"2", {"ttl": "1s"}),
        (b"3", {"ttl": 0}),
        (b"4", {"expires_at": at(1_500)}),
        (b"5", {"ttl": "5s"}),
    ]
    queue.enqueue_many([Message(body, delay=ms(i), **end) for i, (body, end) in enumerate(ends, 1)])
    queue.enqueue(b"x")

    later(clocked, 5)
    assert (waiting(queue), dead(queue)) == ([b"1", b"2", b"3", b"4", b"5"], {})
    later(clocked, 1_000)
    assert (waiting(queue), dead(queue)) == ([b"1", b"3", b"4", b"5"], {"expired": 1})
    later(clocked, 1_000)
    assert (waiting(queue), bodies(clocked.queue("d"))) == ([b"1", b"3", b"5"], [b"2", b"4"])
    assert (ready(queue), queue.stats().scheduled, queue.stats().enqueued) == ([b"x"], 3, 3)
    queue.update(max_length=5)
    later(clocked, 1_000)
    assert (taken(queue), waiting(queue), bodies(clocked.queue("d"))) == ([b"x", b"1", b"5"], [], [b"2", b"4", b"3"])


@pytest.mark.parametrize("back", [HOUR, 365 * 24 * HOUR])
@pytest.mark.parametrize("call", [Queue.sweep, Queue.stats])
def test_arrivals_that_were_held_back_go_on_after_a_step_back_of_the_clock(
    clocked: Clocked, back: int, call: Callable[[Queue], object]
) -> None:
    queue = clocked.declare_queue("q", max_length=1, overflow="reject-publish")
    queue.enqueue_many([b"full", Message(b"held", delay="1s")])
    clocked.advance(back + 2_000)
    queue.sweep()
    assert taken(queue) == [b"full"]

    clocked.advance(-back)
    queue.update(max_length=2)
    call(queue)

    assert (waiting(queue), taken(queue)) == ([], [b"held"])


@pytest.mark.spec("S-022")
@pytest.mark.parametrize(
    "meanwhile, due",
    [
        (lambda queue: None, HOUR),
        (lambda queue: queue.enqueue(b"x", delay="1m"), MINUTE),
        (lambda queue: queue.reschedule("me", delay="1m"), MINUTE),
    ],
)
def test_a_consumer_that_waits_wakes_at_the_next_due_time_without_a_reaper(
    clocked: Clocked, queue: Queue, meanwhile: Callable[[Queue], object], due: int
) -> None:
    queue.enqueue(b"x", id="me", delay="1h")
    once = [meanwhile]
    clocked.while_waiting(lambda: once and once.pop()(queue))

    assert one(queue, wait="2h").body == b"x"
    assert clocked.now == START + due


@pytest.mark.parametrize("late", [0, 500])
@pytest.mark.parametrize("waits", [True, False])
def test_a_ttl_of_zero_is_for_a_consumer_that_waits_when_the_message_arrives(
    clocked: Clocked, waits: bool, late: int
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x", delay="1m", ttl=0)
    arrive = [lambda: clocked.go_to(MINUTE + late), queue.sweep] if late else []
    clocked.while_waiting(lambda: [arrive.pop(0)() for _ in range(len(arrive))])

    if waits:
        assert one(queue, wait="2m").body == b"x"
        assert (clocked.now, dead(queue)) == (START + MINUTE + late, {})
    else:
        clocked.go_to(MINUTE + late)
        assert queue.receive() is None
        assert dead(queue) == {"expired": 1}


# Looking, and the end of a queue


@pytest.mark.spec("S-025", "A-096", "A-098")
def test_statistics_count_scheduled_messages_apart(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([Message(b"123", delay=ms(i)) for i in (30, 20, 40)])
    queue.enqueue(b"ready")
    clocked.advance(10)

    for stats in (queue.stats(), queue.stats(sweep=False)):
        assert (stats.scheduled, stats.next_scheduled, stats.ready, stats.ready_bytes) == (3, at(20), 1, 5)
        assert (stats.enqueued, stats.activated, stats.cancelled, stats.overdue) == (1, 0, 0, ms(0))
        assert stats.oldest_ready_age == ms(10)
    clocked.advance(20)
    assert (queue.stats(sweep=False).scheduled, queue.stats(sweep=False).overdue) == (3, ms(10))
    stats = queue.stats()
    assert (stats.scheduled, stats.ready, stats.enqueued, stats.activated) == (1, 3, 3, 2)


@pytest.mark.spec("S-025", "A-098", "C-36")
def test_scheduled_messages_are_shown_page_by_page_the_next_one_first(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([Message(b"%03d" % i, id=f"{i % 7}", delay=ms(1_000 - i)) for i in range(120)])

    shown = queue.peek(500, state="scheduled")

    assert [message.body for message in shown] == [b"%03d" % i for i in range(119, -1, -1)]
    (seen,) = {(message.state, message.enqueued_at, message.delivery_count) for message in shown}
    assert (seen, shown[0].until, shown[0].id) == (("scheduled", at(0), 0), at(881), "0")
    after = None
    for start, end in ((0, 50), (50, 100), (100, 120), (120, 120)):
        assert queue.scheduled(50, after) == shown[start:end]
        after = shown[end - 1].sequence
    queue.enqueue(b"ready")
    with pytest.raises(InvalidInput, match=r"^after: "):
        queue.scheduled(1, queue.peek()[0].sequence)


def test_peek_shows_one_state(queue: Queue) -> None:
    queue.enqueue_many([b"leased", b"delayed", b"ready", Message(b"scheduled", delay="1h")])
    queue.receive_many(2)[1].nack("1h")

    for state in ("ready", "leased", "delayed", "scheduled"):
        assert [message.body for message in queue.peek(state=state)] == [state.encode()]
    assert bodies(queue) == [b"leased", b"delayed", b"ready"]


@pytest.mark.spec("A-098")
def test_a_purge_takes_the_state_that_it_is_given(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([*numbered(300, delay="1h"), b"leased", b"a", b"b"])
    one(queue)

    assert (queue.purge(), queue.stats().scheduled) == (2, 300)
    queue.enqueue(b"c")
    assert (queue.purge("ready"), queue.stats().scheduled) == (1, 300)
    queue.enqueue(b"d")
    assert (queue.purge("scheduled"), ready(queue)) == (300, [b"d"])
    queue.enqueue(b"later", delay="1h")
    assert queue.purge("all") == 2

    stats = queue.stats()
    assert (stats.ready, stats.leased, stats.scheduled) == (0, 1, 0)
    assert (stats.purged, stats.cancelled, dead(queue)) == (4, 301, {})


LARGE = 1_500_000


@pytest.mark.parametrize(
    "call, count, size, told, calls",
    [
        (lambda queue: queue.cancel("me"), 600, 1, "cancel", 3),
        (lambda queue: queue.reschedule("me", delay="2h"), 600, 1, "reschedule", 3),
        (lambda queue: queue.purge("scheduled"), 600, 1, "intervene", 3),
        (lambda queue: queue.delete_message("me"), 600, 1, "intervene", 3),
        (lambda queue: queue.cancel("me"), 5, LARGE, "cancel", 2),
        (lambda queue: queue.purge("scheduled"), 5, LARGE, "intervene", 2),
        (lambda queue: len(queue.scheduled()), 5, LARGE, "ZMSCORE", 2),
        (lambda queue: len(queue.message("me").body) // LARGE, 5, LARGE, "HSTRLEN", 1),
    ],
)
def test_no_call_takes_more_than_250_scheduled_messages_or_4_mb(
    clocked: Clocked, queue: Queue, call: Callable[[Queue], int], count: int, size: int, told: str, calls: int
) -> None:
    queue.enqueue_many([Message(b"x" * size, id="me", delay="1h")] * count)
    names: list[str] = []
    clocked.events.subscribe(lambda event: names.append(event.name), CommandEvent)

    assert call(queue) == (1 if told == "HSTRLEN" else count)
    assert names.count(told) == calls


def test_a_delete_takes_scheduled_messages_along(clocked: Clocked, queue: Queue, client: redis.Redis) -> None:
    queue.enqueue(b"x", id="me", delay="1s")

    queue.delete()

    assert client.keys("*{q}*") == [b"rqttl:{q}:tombstone"]
    queue = clocked.declare_queue("q")
    clocked.advance(1_000)
    assert (queue.receive(), queue.stats().activated) == (None, 0)


#: How a message that is due in two hours comes to wait in an idle queue: in `q`, or from or in `q/late`.
IDLE: dict[str, Callable[[Clocked, Queue], object]] = {
    "enqueue": lambda _, queue: queue.enqueue(b"x", delay="2h"),
    "reschedule": lambda _, queue: queue.enqueue(b"x", id="x", delay="1m") and queue.reschedule("x", delay="2h"),
    "cancel": lambda _, queue: queue.enqueue(b"x", id="x", delay="2h") and queue.cancel("x"),
    "move": lambda clocked, queue: clocked.queue("q/late").move("me", queue.name),
    "receive": lambda _, queue: queue.enqueue(b"x", delay="2h") and queue.receive(),
    "update": lambda _, queue: queue.enqueue(b"x", delay="2h") and queue.update(max_length=5),
    "policy": lambda clocked, _: clocked.set_policy("idle", "q/late", {"auto_delete_on_idle": "10m"}),
}


@pytest.mark.spec("S-073")
@pytest.mark.parametrize("how", IDLE)
def test_an_idle_queue_lives_on_until_its_last_due_time(clocked: Clocked, how: str) -> None:
    queue = clocked.declare_queue("q", auto_delete_on_idle="10m")
    late = clocked.declare_queue("q/late")
    late.enqueue(b"x", id="me", delay="2h")
    IDLE[how](clocked, queue)
    idle = late if how == "policy" else queue
    waits = len(idle.scheduled())

    clocked.advance(2 * HOUR - 1)
    assert len(idle.scheduled()) == waits
    clocked.advance(10 * MINUTE)
    assert idle.name in clocked.queues()
    clocked.advance(1)
    assert idle.name not in clocked.queues()


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter", "keep"])
def test_at_the_end_of_an_unused_queue_its_option_decides_about_scheduled_messages(
    clocked: Clocked, on_expire: Any
) -> None:
    queue = clocked.declare_queue("q", expires="10m", on_expire=on_expire, dead_letter="d")
    letters = clocked.declare_queue("d")
    queue.enqueue_many([*numbered(300, delay="15m", ttl="1h"), b"ready"])

    clocked.advance(10 * MINUTE)
    steps = queue.sweep()

    if on_expire == "keep":
        clocked.advance(5 * MINUTE)
        assert (len(queue.sweep()), queue.stats().ready) == (2, 301)
        return
    assert (clocked.queues(), steps[-1].retired) == (["d"], 301 if on_expire == "drop" else 0)
    assert bodies(letters) == ([] if on_expire == "drop" else [b"ready", *[b"%d" % i for i in range(300)]])
    assert {(letter.deaths[0].reason, letter.deaths[0].queue) for letter in letters.peek(1_000)} <= {("expired", "q")}


def test_a_redrive_does_not_see_what_has_not_arrived(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    letters = clocked.declare_queue("d")
    queue.enqueue(b"dead")
    one(queue).reject()
    letters.enqueue(b"later", delay="1m")

    assert letters.redrive() == 1
    assert (bodies(letters), waiting(letters), ready(queue)) == ([], [b"later"], [b"dead"])
    clocked.advance(MINUTE)
    assert taken(letters) == [b"later"]
