"""Scheduled messages: they arrive when they are due, by the options of that time, unless they are cancelled first."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import InvalidInput, Message, Queue, QueueFull, QueueInUse, QueueNotFound, Receipt, RqttlError
from rqttl.flows.steps import Step
from rqttl.protocol.commands import Command
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.contract.clocked import START, Clocked, at, ms
from tests.contract.looks import bodies, dead, dropped, one, ready, take, taken
from tests.lua.states import everything

MINUTE, HOUR = 60_000, 3_600_000


def waiting(queue: Queue) -> list[bytes]:
    """The bodies of scheduled messages, the next one first."""
    return [message.body for message in queue.scheduled(10_000)]


# Arriving


@pytest.mark.spec("S-020", "S-022", "A-096", "C-36")
@pytest.mark.parametrize("when", [{"delay": "5m"}, {"deliver_at": at(5 * MINUTE)}], ids=str)
def test_a_scheduled_message_is_in_no_consumers_way_until_it_is_due(clocked: Clocked, when: dict[str, Any]) -> None:
    queue = clocked.declare_queue("q")

    receipt = queue.enqueue({"n": 1}, id="me", headers={"kind": "late"}, **when)
    queue.enqueue(b"now")

    assert receipt == Receipt("me", deliver_at=at(5 * MINUTE))
    clocked.advance(5 * MINUTE - 1)
    assert (bodies(queue), taken(queue)) == ([b"now"], [b"now"])
    clocked.advance(1)
    delivery = one(queue)
    assert (delivery.id, delivery.decode(), delivery.headers) == ("me", {"n": 1}, {"kind": "late"})
    assert (delivery.enqueued_at, delivery.delivery_count, delivery.expires_at) == (at(5 * MINUTE), 1, None)


@pytest.mark.spec("A-097")
def test_messages_arrive_in_the_order_of_due_times_and_of_sending_behind_those_that_are_there(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    delays = [30, 10, 20, 10, 30, 10]

    queue.enqueue_many([Message(b"%d" % i, delay=ms(delay)) for i, delay in enumerate(delays)])
    queue.enqueue(b"6", deliver_at=at(10))
    queue.enqueue(b"there")
    assert waiting(queue) == [b"1", b"3", b"5", b"6", b"2", b"0", b"4"]
    clocked.advance(30)
    queue.sweep()

    assert taken(queue) == [b"there", b"1", b"3", b"5", b"6", b"2", b"0", b"4"]


@pytest.mark.spec("S-020")
def test_plain_and_scheduled_messages_of_one_call_keep_their_order_and_their_receipts(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=2, overflow="reject-publish")
    later = Message(b"2", id="two", delay="1s")

    told = queue.enqueue_many([b"1", later, later, Message(b"3", delay="1s"), b"4", Message(b"5", ttl="1m"), b"6"])

    assert [type(one) for one in told] == [*[Receipt] * 5, QueueFull, QueueFull]
    assert [one.deliver_at for one in told if isinstance(one, Receipt)] == [None, at(1_000), at(1_000), at(1_000), None]
    assert [one.id for one in told[1:3] if isinstance(one, Receipt)] == ["two", "two"]
    assert (taken(queue), waiting(queue)) == ([b"1", b"4"], [b"2", b"2", b"3"])
    assert queue.enqueue_many([]) == []


#: Arguments that are refused, and the one that the error names.
DELAYS: list[Any] = [1, 1.5, True, b"1s", "", "1", "-1s", "1 s 2", "1x", "inf", "11y", "4000d", ms(-1), [], at(1)]
INSTANTS: list[Any] = [True, b"x", "", "now", "2026-11-22", "2026-11-22 10:00", "2026-11-22 25:00Z", -1, 0, ms(1), []]
INSTANTS += [1_700_000_000, START + 0.5, 253_402_300_800_000, at(1).replace(tzinfo=None)]
REFUSED: list[tuple[dict[str, Any], str]] = [
    *[({"delay": delay}, "delay") for delay in DELAYS],
    *[({"deliver_at": instant}, "deliver_at") for instant in INSTANTS],
    *[({"delay": delay, "deliver_at": at(1)}, "delay") for delay in ("1s", 0, "x")],
]


@pytest.mark.parametrize("given, name", REFUSED, ids=str)
def test_a_due_time_that_is_none_is_refused_by_name_and_changes_nothing(
    clocked: Clocked, client: redis.Redis, given: dict[str, Any], name: str
) -> None:
    queue = clocked.declare_queue("q", duplicate_window="1h")
    queue.enqueue(b"there", id="there", delay="1h")
    before = everything(client)
    calls: list[Callable[[], object]] = [
        lambda: queue.enqueue(b"x", **given),
        lambda: queue.enqueue(Message(b"x", **given)),
        lambda: queue.enqueue_many([b"1", Message(b"2", id="new", delay="1s"), Message(b"x", **given), b"3"]),
        lambda: queue.reschedule("there", **given),
    ]

    for call in calls:
        with pytest.raises(InvalidInput, match=rf"^{name}: "):
            call()
    assert everything(client) == before


@pytest.mark.parametrize(
    "given", [{"id": "x" * 256}, {"id": 1}, {"id": "\ud800"}, {"ttl": "1x"}, {"headers": 1}], ids=str
)
def test_a_call_with_one_message_that_is_refused_stores_nothing(
    clocked: Clocked, client: redis.Redis, given: dict[str, Any]
) -> None:
    queue = clocked.declare_queue("q", max_message_bytes=10)
    before = everything(client)

    for wrong in (Message(b"x", delay="1s", **given), Message(b"x" * 11, delay="1s")):
        with pytest.raises(RqttlError):
            queue.enqueue_many([b"1", Message(b"2", delay="1s"), wrong])
    assert everything(client) == before


@pytest.mark.parametrize(
    "call, name",
    [
        *[(lambda queue, id=id: queue.cancel(id), "id") for id in ("", "x" * 256, None, 1, b"x", "\ud800")],
        *[(lambda queue, id=id: queue.reschedule(id, delay="1s"), "id") for id in ("", "x" * 256, None, 1, b"x")],
        (lambda queue: queue.reschedule("there"), "delay"),
        *[(lambda queue, state=state: queue.peek(state=state), "state") for state in ("", "all", "Ready", 1, b"ready")],
        *[(lambda queue, state=state: queue.purge(state), "state") for state in ("", "leased", "delayed", None, 1)],
        *[(lambda queue, limit=limit: queue.scheduled(limit), "limit") for limit in (0, -1, "1", None, True)],
        *[(lambda queue, after=after: queue.scheduled(1, after), "after") for after in ("", "there", "0-0", 1)],
    ],
)
def test_a_wrong_argument_is_refused_by_name_and_changes_nothing(
    clocked: Clocked, client: redis.Redis, call: Callable[[Any], object], name: str
) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"there", id="there", delay="1h")
    before = everything(client)

    with pytest.raises(InvalidInput, match=rf"^{name}: "):
        call(queue)
    assert everything(client) == before


@pytest.mark.spec("S-021", "S-024")
def test_the_id_stays_and_the_sequence_is_a_new_one(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    given = queue.enqueue(b"1", id="mine", delay="1s").id
    made = queue.enqueue(b"2", delay="1s").id
    first = [(message.id, message.sequence) for message in queue.scheduled()]
    assert ([id for id, _ in first], first[1]) == ([given, made], (made, made))

    clocked.advance(1_000)
    queue.sweep()

    arrived = queue.peek()
    assert [message.id for message in arrived] == ["mine", made] == [delivery.id for delivery in take(queue)]
    assert min(message.sequence for message in arrived) > max(sequence for _, sequence in first)


@pytest.mark.spec("S-020")
@pytest.mark.parametrize("when", [{"delay": 0}, {"deliver_at": at(0)}, {"deliver_at": at(-HOUR)}], ids=str)
def test_what_is_due_already_arrives_in_the_same_call(clocked: Clocked, when: dict[str, Any]) -> None:
    queue = clocked.declare_queue("q", message_ttl="2h")

    queue.enqueue(b"x", **when)

    assert (waiting(queue), ready(queue), queue.stats(sweep=False).activated) == ([], [b"x"], 1)


@pytest.mark.parametrize("when", [at(5), START + 5, "2023-11-14T22:13:20.005Z", "2023-11-14 23:13:20.005+01:00"])
def test_an_instant_is_read_in_all_its_forms(clocked: Clocked, when: Any) -> None:
    assert clocked.declare_queue("q").enqueue(b"x", deliver_at=when).deliver_at == at(5)


def test_the_latest_instants_are_kept_exactly(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="1m")
    clocked.declare_queue("plain")
    late = "9999-12-31T23:00:00Z"

    assert queue.enqueue(b"x", deliver_at=late).expires_at == queue.scheduled()[0].expires_at
    assert queue.scheduled()[0].until == clocked.queue("plain").enqueue(b"x", deliver_at=late).deliver_at
    expires_at = queue.scheduled()[0].expires_at
    assert expires_at is not None
    assert (expires_at.year, expires_at.hour, expires_at.minute) == (9999, 23, 1)


def test_a_batch_of_any_size_arrives_in_order_by_steps(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    small = [Message(b"%04d" % i, delay="1s") for i in range(600)]
    large = [Message(b"%d" % i * 900_000, delay="1s") for i in range(1, 8)]
    assert len(queue.enqueue_many([*small, *large])) == 607

    clocked.advance(1_000)
    steps = queue.sweep()

    assert [step.activated for step in steps[:2]] == [250, 250]
    assert max(step.activated for step in steps) == 250
    assert sum(step.activated for step in steps) == 607
    assert len(steps) > 3, "one step read more than 4 MB"
    assert ready(queue) == [message.body for message in (*small, *large)]


# Deadlines


@pytest.mark.spec("S-019", "A-099", "C-25")
def test_a_ttl_counts_from_the_due_time_and_an_instant_does_not(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    receipt = queue.enqueue(b"relative", delay="5m", ttl="10m")
    queue.enqueue(b"absolute", delay="5m", expires_at=at(10 * MINUTE))

    assert receipt.expires_at == queue.scheduled()[0].expires_at == at(15 * MINUTE)
    clocked.advance(5 * MINUTE)
    queue.sweep()
    assert [message.expires_at for message in queue.peek()] == [at(15 * MINUTE), at(10 * MINUTE)]
    clocked.advance(10 * MINUTE - 1)
    assert ready(queue) == [b"relative"]
    clocked.advance(1)
    queue.sweep()
    assert bodies(clocked.queue("d")) == [b"absolute", b"relative"]


@pytest.mark.spec("A-068")
def test_a_message_whose_instant_comes_before_its_due_time_dies_then(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    receipt = queue.enqueue(b"x", id="me", delay="5m", expires_at=at(MINUTE))
    assert (receipt.expires_at, queue.scheduled()[0].expires_at, queue.stats().scheduled) == (at(MINUTE), at(MINUTE), 1)
    clocked.advance(5 * MINUTE)

    assert queue.receive() is None
    letter = one(clocked.queue("d"))
    assert (letter.id, letter.deaths[0].reason, letter.deaths[0].delivery_count) == ("me", "expired", 0)


@pytest.mark.spec("S-019")
@pytest.mark.parametrize("late, lives", [(10 * MINUTE - 1, True), (10 * MINUTE, False), (HOUR, False)])
@pytest.mark.parametrize("options, ttl", [({}, "10m"), ({"message_ttl": "10m"}, None), ({"max_ttl": "10m"}, "1h")])
def test_who_arrives_late_lives_no_longer_for_it(
    clocked: Clocked, options: dict[str, Any], ttl: str | None, late: int, lives: bool
) -> None:
    queue = clocked.declare_queue("q", **options)
    receipt = queue.enqueue(b"x", delay="5m", ttl=ttl)
    assert receipt.expires_at == at(15 * MINUTE)

    clocked.advance(5 * MINUTE + late)
    queue.sweep()

    assert [message.expires_at for message in queue.peek()] == [at(15 * MINUTE)] * lives
    assert (taken(queue), dead(queue)) == (([b"x"], {}) if lives else ([], {"expired": 1}))
    stats = queue.stats()
    assert (stats.enqueued, stats.activated, stats.scheduled) == (1, 1, 0)


@pytest.mark.spec("S-019")
def test_the_options_of_the_due_time_act(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_ttl="1h", dead_letter="d")
    receipts = queue.enqueue_many([Message(b"%d" % i, delay="5m", ttl="1h") for i in range(4)])
    assert isinstance(receipts[0], Receipt)
    assert receipts[0].expires_at == at(65 * MINUTE)

    clocked.set_policy("short", "q", {"max_ttl": "1m"})
    queue.update(max_length=3)
    assert queue.scheduled()[0].expires_at == at(6 * MINUTE)
    clocked.advance(5 * MINUTE)
    queue.sweep()

    assert [(message.body, message.expires_at) for message in queue.peek()] == [
        (b"%d" % i, at(6 * MINUTE)) for i in (1, 2, 3)
    ]
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

    clocked.advance(1_000)
    queue.sweep()
    assert (bodies(queue), waiting(queue), dead(queue), clocked.queues()) == ([], [], {}, ["q"])
    stats = queue.stats()
    assert (stats.cancelled, stats.activated, stats.enqueued, stats.purged, stats.next_scheduled) == (3, 0, 0, 0, None)


@pytest.mark.spec("S-023")
@pytest.mark.parametrize("first", ["cancel", "sweep"])
def test_at_the_due_instant_either_the_cancel_or_the_arrival_wins(clocked: Clocked, first: str) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", id="me", delay="1s")
    clocked.advance(1_000)

    if first == "sweep":
        queue.sweep()
    cancelled, moved = queue.cancel("me"), queue.reschedule("me", delay="1s")

    assert (cancelled, moved, taken(queue)) == ((0, 0, [b"x"]) if first == "sweep" else (1, 0, []))


@pytest.mark.spec("S-026")
@pytest.mark.parametrize("by", ["id", "sequence"])
@pytest.mark.parametrize("when, due", [({"delay": "1h"}, HOUR + 1_000), ({"deliver_at": at(2_000)}, 2_000)], ids=str)
def test_a_rescheduled_message_has_another_due_time_and_nothing_else(
    clocked: Clocked, by: str, when: dict[str, Any], due: int
) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", id="me", ttl="5m", delay="1m", headers={"n": 1})
    queue.enqueue(b"other", delay="1h")
    before = queue.scheduled()[0]
    clocked.advance(1_000)

    assert queue.reschedule("me" if by == "id" else before.sequence, **when) == 1
    assert queue.reschedule("unknown", **when) == 0

    (after,) = [message for message in queue.scheduled() if message.id == "me"]
    assert (after.until, after.expires_at) == (at(due), at(due + 5 * MINUTE))
    assert (after.sequence, after.headers, after.enqueued_at) == (before.sequence, before.headers, before.enqueued_at)
    clocked.go_to(due - 1)
    assert b"x" not in bodies(queue)
    clocked.go_to(due)
    assert b"x" in taken(queue)


@pytest.mark.parametrize("when", [{"delay": 0}, {"deliver_at": at(-HOUR)}], ids=str)
def test_what_is_rescheduled_to_the_past_arrives_in_the_same_call(clocked: Clocked, when: dict[str, Any]) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", id="me", delay="1h")

    assert queue.reschedule("me", **when) == 1

    assert (ready(queue), waiting(queue)) == ([b"x"], [])


@pytest.mark.spec("S-024", "S-027")
def test_all_messages_with_an_id_are_cancelled_and_rescheduled_together(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"%d" % i, id="same", delay=ms(i + 1)) for i in range(4)])
    queue.enqueue(b"other", id="sam", delay="1m")

    clocked.advance(1)
    queue.sweep()
    assert queue.cancel(queue.scheduled()[0].sequence) == 1
    assert queue.reschedule("same", delay="1s") == 2
    assert waiting(queue) == [b"2", b"3", b"other"]
    assert (queue.cancel("same"), queue.cancel("same")) == (2, 0)

    assert (waiting(queue), ready(queue)) == ([b"other"], [b"0"])


def test_very_many_messages_may_have_one_id(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"%d" % i, id="same", delay=ms(3_000 - i)) for i in range(3_000)])

    clocked.advance(300)
    queue.sweep()

    assert (queue.stats().ready, queue.reschedule("same", delay="1s")) == (300, 2_700)
    assert (queue.cancel("same"), queue.cancel("same"), queue.stats().scheduled) == (2_700, 0, 0)


# Duplicates


@pytest.mark.spec("S-027")
def test_the_window_of_a_queue_begins_with_the_schedule_and_a_cancelled_id_is_free(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", duplicate_window="10m")
    assert not queue.enqueue(b"1", id="me", delay="5m").duplicate

    assert queue.enqueue(b"2", id="me", delay="1m").duplicate
    assert queue.enqueue(b"3", id="me").duplicate
    assert waiting(queue) == [b"1"]
    clocked.advance(5 * MINUTE)
    assert taken(queue) == [b"1"]
    assert queue.enqueue(b"4", id="me", delay="1m").duplicate
    clocked.advance(5 * MINUTE)
    assert not queue.enqueue(b"5", id="me", delay="1m").duplicate

    assert queue.cancel("me") == 1
    assert not queue.enqueue(b"6", id="me", delay="1m").duplicate
    assert waiting(queue) == [b"6"]


@pytest.mark.spec("S-027")
def test_the_window_of_a_call_keeps_the_id_of_a_cancelled_message(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    batch = [Message(b"1", id="me", delay="5m"), Message(b"2", id="me"), b"3"]

    told = queue.enqueue_many(batch, duplicate_window="10m")
    assert [isinstance(one, Receipt) and one.duplicate for one in told] == [False, True, False]
    assert queue.cancel("me") == 1

    (again,) = queue.enqueue_many(batch[:1], duplicate_window="10m")
    assert again == Receipt("me", duplicate=True)
    assert (waiting(queue), ready(queue)) == ([], [b"3"])


# Limits


@pytest.mark.spec("LEN-29")
def test_scheduled_messages_take_no_room_and_the_oldest_makes_room_when_they_arrive(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=2, dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, delay="1s") for i in range(3)])
    queue.enqueue_many([b"a", b"b"])
    assert (ready(queue), dead(queue)) == ([b"a", b"b"], {})

    clocked.advance(1_000)
    queue.sweep()

    assert (ready(queue), bodies(clocked.queue("d"))) == ([b"1", b"2"], [b"a", b"b", b"0"])


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_holds_arrivals_back_and_none_overtakes(clocked: Clocked, overflow: Any) -> None:
    queue = clocked.declare_queue("q", max_length_bytes=4, overflow=overflow)
    queue.enqueue_many([Message(body, delay=ms(i + 1)) for i, body in enumerate([b"1", b"too long", b"2", b"3"])])
    queue.enqueue(b"xxx")

    clocked.advance(4)
    queue.sweep()
    assert (ready(queue), waiting(queue)) == ([b"xxx", b"1"], [b"too long", b"2", b"3"])
    queue.update(max_length_bytes=8)
    assert taken(queue) == [b"xxx", b"1"]
    clocked.advance(1_000)
    assert taken(queue) == [b"too long"]
    assert (waiting(queue), queue.stats().refused, dead(queue)) == ([b"2", b"3"], 0, {})
    clocked.advance(1_000)
    assert taken(queue) == [b"2", b"3"]


def test_held_messages_are_no_work_that_keeps_a_sweep_busy(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=0, overflow="reject-publish")
    queue.enqueue(b"x", delay="1s")
    clocked.advance(1_000)

    assert len(queue.sweep()) == 1
    assert (queue.sweep()[-1].due, queue.stats().overdue, queue.receive()) == (clocked.now + 1_000, ms(0), None)


def test_with_dead_letters_of_refused_messages_an_arrival_without_room_dies(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=2, overflow="reject-publish-dlx", dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, delay="1s", id=f"{i}") for i in range(3)])
    queue.enqueue(b"there")

    clocked.advance(1_000)
    queue.sweep()

    assert (ready(queue), waiting(queue), dead(queue)) == ([b"there", b"0"], [], {"maxlen": 2})
    assert [(letter.id, letter.deaths[0].reason) for letter in take(clocked.queue("d"))] == [
        ("1", "maxlen"),
        ("2", "maxlen"),
    ]


# Waiting consumers


@pytest.mark.spec("S-022")
def test_a_consumer_that_waits_wakes_at_the_due_time_without_a_reaper(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", delay="5m")

    assert queue.receive(wait=ms(5 * MINUTE - 1)) is None
    assert one(queue, wait="10m").body == b"x"
    assert clocked.now == START + 5 * MINUTE


@pytest.mark.parametrize("how", ["enqueue", "reschedule"])
def test_a_consumer_learns_of_an_earlier_due_time_while_it_waits(clocked: Clocked, how: str) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"late", id="late", delay="1h")
    actions: list[Callable[[], object]] = [
        lambda: queue.reschedule("late", delay="1m") if how == "reschedule" else queue.enqueue(b"early", delay="1m")
    ]
    clocked.while_waiting(lambda: actions and actions.pop()())

    assert one(queue, wait="2h").body == (b"late" if how == "reschedule" else b"early")
    assert clocked.now == START + MINUTE


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


def test_a_reaper_lets_messages_arrive(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"%d" % i, delay="1s") for i in range(300)])
    clocked.advance(1_000)

    reaper = Reaper(clocked)
    reaper.run_once()
    reaper.run_once()  # one step of a sweep lets 250 arrive

    stats = queue.stats(sweep=False)
    assert (stats.ready, stats.scheduled, stats.activated, stats.next_scheduled) == (300, 0, 300, None)
    assert not client.exists("rqttl:{q}:scheduled", "rqttl:{q}:upcoming", "rqttl:{q}:scheduled_ids")


# Looking, purging, deleting


@pytest.mark.spec("S-025", "A-096", "A-098")
@pytest.mark.parametrize("sweep", [True, False])
def test_statistics_count_scheduled_messages_apart(clocked: Clocked, sweep: bool) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"123", delay=ms(i)) for i in (30, 20, 40)])
    queue.enqueue(b"ready")
    clocked.advance(10)

    stats = queue.stats(sweep=sweep)

    assert (stats.scheduled, stats.next_scheduled, stats.ready, stats.ready_bytes) == (3, at(20), 1, 5)
    assert (stats.enqueued, stats.activated, stats.cancelled, stats.overdue) == (1, 0, 0, ms(0))
    assert stats.oldest_ready_age == ms(10)
    clocked.advance(20)
    assert (queue.stats(sweep=False).scheduled, queue.stats(sweep=False).overdue) == (3, ms(10))
    stats = queue.stats()
    assert (stats.scheduled, stats.ready, stats.enqueued, stats.activated) == (1, 3, 3, 2)
    assert stats.overdue in (ms(10), ms(0))


@pytest.mark.spec("S-025", "A-098", "C-36")
def test_scheduled_messages_are_shown_page_by_page_the_next_one_first(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([Message(b"%03d" % i, id=f"{i % 7}", delay=ms(1_000 - i)) for i in range(120)])
    queue.enqueue(b"ready")

    shown = queue.peek(500, state="scheduled")

    assert [message.body for message in shown] == [b"%03d" % i for i in range(119, -1, -1)]
    assert {(message.state, message.enqueued_at, message.delivery_count) for message in shown} == {
        ("scheduled", at(0), 0)
    }
    assert [(shown[0].until, shown[0].id), bodies(queue)] == [(at(881), "0"), [b"ready"]]
    after = None
    for start, end in ((0, 50), (50, 100), (100, 120), (120, 120)):
        page = queue.scheduled(50, after)
        assert page == shown[start:end]
        after = shown[end - 1].sequence
    with pytest.raises(InvalidInput, match=r"^after: "):
        queue.scheduled(1, queue.peek()[0].sequence)


def test_peek_shows_one_state(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"leased", b"delayed", b"ready", Message(b"scheduled", delay="1h")])
    held = queue.receive_many(2)
    held[1].nack("1h")

    assert [queue.peek(state=state)[0].body for state in ("ready", "leased", "delayed", "scheduled")] == [
        *(b"ready", b"leased", b"delayed", b"scheduled")
    ]
    assert [len(queue.peek(state=state)) for state in ("ready", "leased", "delayed", "scheduled")] == [1] * 4
    assert bodies(queue) == [b"leased", b"delayed", b"ready"]


@pytest.mark.spec("A-098")
@pytest.mark.parametrize("state, purged", [(None, 2), ("ready", 2), ("scheduled", 300), ("all", 302)])
def test_a_purge_takes_the_state_that_it_is_given(clocked: Clocked, state: Any, purged: int) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, id=f"{i}", delay="1h") for i in range(300)])
    queue.enqueue_many([b"a", b"b", b"c"])
    one(queue)

    assert (queue.purge() if state is None else queue.purge(state)) == purged

    stats = queue.stats()
    assert (stats.ready, stats.leased) == (0 if state != "scheduled" else 2, 1)
    assert (stats.scheduled, stats.cancelled) == ((0, 300) if purged >= 300 else (300, 0))
    assert (stats.purged, dead(queue)) == (2 if state != "scheduled" else 0, {})


def test_a_delete_takes_scheduled_messages_along(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x", id="me", delay="1s")
    with pytest.raises(QueueInUse):
        queue.delete(if_empty=True)

    queue.delete()

    assert client.keys("*{q}*") == [b"rqttl:{q}:tombstone"]
    clocked.declare_queue("q")
    clocked.advance(1_000)
    assert (queue.receive(), queue.stats().activated) == (None, 0)
    clocked.queue("q").delete()
    for call in (lambda: queue.cancel("me"), lambda: queue.reschedule("me", delay="1s"), queue.scheduled):
        with pytest.raises(QueueNotFound):
            call()
    with pytest.raises(QueueNotFound):
        queue.enqueue(b"x", delay="1s")


# Lifetimes, dead-letter queues


@pytest.mark.spec("S-073")
@pytest.mark.parametrize("how", ["enqueue", "reschedule", "cancel"])
def test_an_idle_queue_lives_on_until_its_last_due_time(clocked: Clocked, how: str) -> None:
    queue = clocked.declare_queue("q", auto_delete_on_idle="10m")
    queue.enqueue(b"x", id="me", delay="1m" if how == "reschedule" else "2h")
    if how == "reschedule":
        queue.reschedule("me", delay="2h")
    elif how == "cancel":
        queue.cancel("me")

    clocked.advance(2 * HOUR + 10 * MINUTE - 1)
    assert clocked.queues() == ["q"]
    clocked.advance(1)
    assert clocked.queues() == []


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter", "keep"])
def test_at_the_end_of_an_unused_queue_its_option_decides_about_scheduled_messages(
    clocked: Clocked, on_expire: Any
) -> None:
    queue = clocked.declare_queue("q", expires="10m", on_expire=on_expire, dead_letter="d")
    clocked.declare_queue("d")
    queue.enqueue_many([Message(b"%d" % i, id=f"{i}", delay="15m", ttl="1h") for i in range(300)])
    queue.enqueue(b"ready")

    clocked.advance(10 * MINUTE)
    steps = queue.sweep()

    if on_expire == "keep":
        clocked.advance(5 * MINUTE)
        assert (len(queue.sweep()), queue.stats().ready) == (2, 301)
        return
    assert clocked.queues() == ["d"]
    letters = clocked.queue("d").peek(1_000)
    assert steps[-1].retired == (301 if on_expire == "drop" else 0)
    assert [letter.body for letter in letters] == (
        [] if on_expire == "drop" else [b"ready", *[b"%d" % i for i in range(300)]]
    )
    assert {(letter.deaths[0].reason, letter.deaths[0].queue) for letter in letters} <= {("expired", "q")}


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


def test_without_a_target_what_dies_at_its_due_time_is_counted_as_dropped(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x", delay="1m", ttl=0)

    clocked.advance(MINUTE)
    queue.sweep()

    assert (dead(queue), dropped(queue)) == ({"expired": 1}, {"expired": 1})


def test_a_schedule_is_one_script(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    driver = driver_of(queue)
    step, names = driver.step, []

    def note(one: Step) -> object:
        names.append(one.script.name if isinstance(one, Command) else type(one).__name__)
        return step(one)

    queue.enqueue(b"x", delay="1s")
    driver.step = note  # type: ignore[method-assign, assignment]
    queue.enqueue(b"y", id="y", delay="1s")
    queue.reschedule("y", delay="2s")
    queue.cancel("y")

    assert [name for name in names if name != "GetConfig"] == ["schedule", "reschedule", "cancel"]
