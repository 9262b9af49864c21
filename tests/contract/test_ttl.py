"""The TTL of a message: how its deadline is decided, and that a message whose time is over is gone from anywhere."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from rqttl import CommandEvent, Message, Queue, Receipt
from tests.contract.clocked import START, Clocked, at, ms
from tests.contract.looks import bodies, dead, one, ready, take, taken

HOUR = 3_600_000
#: Options in ms, and for what a message says the deadline that it gets: in ms from now, `None` is never.
RULES: list[tuple[dict[str, Any], dict[int | None, int | None]]] = [
    ({}, {None: None, -5_000: -5_000, 50: 50}),
    ({"never_expire": True}, dict.fromkeys([None, -5_000, 50])),
    ({"never_expire": True, "default_ttl": 10}, {None: None, 50: None}),
    ({"never_expire": True, "min_ttl": 10}, {None: None, 5: None}),
    ({"never_expire": True, "max_ttl": 10}, {None: None, 50: None}),
    ({"default_ttl": 0}, {None: 0}),
    ({"default_ttl": 500}, {None: 500}),
    ({"default_ttl": 500, "min_ttl": 700}, {None: 500}),
    ({"default_ttl": 500, "max_ttl": 100}, {None: 500}),
    ({"default_ttl": 300, "min_ttl": 100, "max_ttl": 1_000}, {-5_000: -5_000, 50: 50, 5_000: 5_000}),
    (
        {"min_ttl": 100, "max_ttl": 900},
        {None: 900, -5_000: 100, 0: 100, 99: 100, 100: 100, 500: 500, 900: 900, 901: 900},
    ),
    ({"min_ttl": 100}, {None: 100, -5_000: 100, 99: 100, HOUR: HOUR}),
    ({"max_ttl": 900}, {None: 900, -5_000: -5_000, 0: 0, 900: 900, HOUR: 900}),
    ({"max_ttl": 0}, {None: 0, 50: 0}),
    ({"min_ttl": 0}, {None: 0}),
    ({"message_ttl": 1_000}, {None: 1_000, 999: 999, 1_000: 1_000, 1_001: 1_000}),
    ({"message_ttl": 1_000, "never_expire": True}, {50: 1_000}),
    ({"message_ttl": 1_000, "default_ttl": 300}, {None: 300}),
    ({"message_ttl": 1_000, "default_ttl": 3_000}, {None: 1_000}),
    ({"message_ttl": 1_000, "min_ttl": 3_000}, {50: 1_000}),
    ({"message_ttl": 1_000, "min_ttl": 100}, {50: 100}),
    ({"message_ttl": 1_000, "max_ttl": 20}, {50: 20}),
]


@pytest.mark.spec("A-009", "A-010a", "A-010b", "A-010c", "A-011a", "A-011b", "A-012a", "A-012b", "A-012c", "A-012d")
@pytest.mark.spec("A-012e", "A-013", "A-014", "S-002", "S-003", "S-004", "TTL-09", "A-001")
@pytest.mark.parametrize("options, deadlines", RULES, ids=str)
def test_the_options_of_its_queue_decide_the_deadline_of_a_message(
    clocked: Clocked, options: dict[str, Any], deadlines: dict[int | None, int | None]
) -> None:
    given = {name: value if value is True else ms(value) for name, value in options.items()}
    queue = clocked.declare_queue("q", **dict[str, Any](given))

    for own, deadline in deadlines.items():
        receipt = queue.enqueue(b"x", expires_at=None if own is None else at(own))
        assert receipt.expires_at == (None if deadline is None else at(deadline)), own
        assert receipt.expired == (deadline is not None and deadline <= 0)
    ended = sum(deadline is not None and deadline <= 0 for deadline in deadlines.values())
    assert queue.stats().deaths["expired"] == ended


@pytest.mark.spec("A-005", "S-007")
@pytest.mark.parametrize("ttl", [2**31 - 1, 2**32 - 1, 2**32, 315_360_000_000])
def test_long_ttls_are_taken_exactly(clocked: Clocked, queue: Queue, ttl: int) -> None:
    receipt = queue.enqueue(b"x", ttl=ms(ttl))

    assert receipt.expires_at == at(ttl)
    assert ready(queue) == [b"x"]


@pytest.mark.spec("A-003", "TTL-22", "TTL-21")
def test_a_deadline_in_the_past_is_accepted_and_dies_at_once_through_the_normal_path(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    receipt = queue.enqueue(b"x", expires_at=START - 1, id="late")

    assert receipt == Receipt("late", at(-1), expired=True)
    assert queue.receive() is None
    letter = one(clocked.queue("d"))
    assert (letter.id, letter.deaths[0].reason, letter.deaths[0].expires_at) == ("late", "expired", at(-1))


@pytest.mark.spec("A-017", "TTL-10", "S-009")
def test_the_rules_act_once_when_the_message_is_stored(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_ttl="1s")
    queue.enqueue(b"early")

    queue.update(max_ttl="10ms")
    queue.enqueue(b"late")

    assert [message.expires_at for message in queue.peek()] == [at(1_000), at(10)]


@pytest.mark.spec("S-008", "S-001")
@pytest.mark.parametrize(
    "options, ttl", [({"message_ttl": "500ms"}, None), ({}, "500ms"), ({"max_ttl": "500ms"}, "1h")], ids=str
)
def test_every_path_shows_the_same_deadline(clocked: Clocked, options: dict[str, Any], ttl: str | None) -> None:
    queue = clocked.declare_queue("q", **options)

    receipt = queue.enqueue(b"x", ttl=ttl)

    assert receipt.expires_at == queue.peek()[0].expires_at == one(queue).expires_at == at(500)


BATCH: list[Any] = [
    Message(b"late", expires_at=START - 1, id="late"),
    Message(b"zero", ttl=0),
    b"stays",
    Message(b"now", expires_at=START),
    Message(b"named", id="named"),
    Message(b"in time", ttl="1ms", id="in time"),
]


@pytest.mark.spec("TTL-19", "TTL-20", "TTL-21", "A-003")
def test_each_receipt_of_a_batch_says_whether_its_message_was_dead_on_arrival(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    receipts = queue.enqueue_many(BATCH)

    assert [receipt.expired for receipt in receipts if isinstance(receipt, Receipt)] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert receipts[0] == Receipt("late", at(-1), expired=True)
    assert (receipts[1].expires_at, receipts[5]) == (at(0), Receipt("in time", at(1)))  # type: ignore[union-attr]
    assert (len(bodies(queue)), dead(queue)) == (3, {"expired": 3})


@pytest.mark.spec("TTL-19")
@pytest.mark.parametrize("options, ttl", [({}, 0), ({"message_ttl": 0}, None), ({"default_ttl": 0}, None)], ids=str)
def test_ttl_zero_is_handed_to_a_consumer_that_waits(
    clocked: Clocked, options: dict[str, Any], ttl: Literal[0] | None
) -> None:
    queue = clocked.declare_queue("q", **options)
    clocked.while_waiting(lambda: queue.enqueue(b"zero", ttl=ttl))

    delivery = one(queue, wait="1s")

    assert (delivery.body, delivery.delivery_count, delivery.expires_at) == (b"zero", 1, at(0))
    assert delivery.leased_until == at(30_000)
    assert dead(queue) == {}
    delivery.nack()
    assert (queue.receive(), dead(queue)) == (None, {"expired": 1})


@pytest.mark.parametrize("limit, sent", [(0, [b"arriving"]), (1, [b"ready", b"other"])])
def test_a_message_that_was_handed_over_is_not_delivered_past_its_deadline(
    clocked: Clocked, limit: int, sent: list[bytes]
) -> None:
    queue = clocked.declare_queue("q", message_ttl="1s", max_length=limit, dead_letter="d")
    batches = iter([sent])

    def arrive() -> None:
        for body in next(batches, ()):
            queue.enqueue(body)
        clocked.advance("2s")

    clocked.while_waiting(arrive)

    assert queue.receive(wait="4s") is None
    assert dead(queue) == {"expired": len(sent)}
    assert sorted(bodies(clocked.queue("d"))) == sorted(sent)
    assert queue.stats().leased == 0


@pytest.mark.spec("TTL-11", "TTL-12", "TTL-16", "A-001", "S-010", "S-011")
@pytest.mark.parametrize("ttl", [1, 100])
def test_a_message_is_delivered_up_to_its_deadline_and_not_at_it(clocked: Clocked, queue: Queue, ttl: int) -> None:
    queue.enqueue_many([Message(b"in time", ttl=ms(ttl)), Message(b"too late", ttl=ms(ttl))])

    clocked.advance(ttl - 1)
    assert [swept.expired for swept in queue.sweep()] == [0]
    assert one(queue).body == b"in time"
    clocked.advance(1)
    assert queue.receive() is None

    assert dead(queue) == {"expired": 1}


@pytest.mark.spec("TTL-15", "S-011")
def test_a_receive_skips_the_expired_and_keeps_the_order_of_the_rest(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="200ms")
    for time in (0, 150, 250):
        clocked.go_to(time)
        queue.enqueue(b"at %d" % time)

    assert taken(queue) == [b"at 150", b"at 250"]


@pytest.mark.spec("TTL-23", "TTL-24", "A-069")
def test_a_short_life_behind_a_long_one_leaves_from_the_middle(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"long", ttl="500ms"), Message(b"short", ttl="100ms"), b"for ever"])
    clocked.advance(100)

    stats = queue.stats()

    assert (stats.ready, stats.ready_bytes) == (2, 12)
    assert ready(queue) == [b"long", b"for ever"]
    assert bodies(clocked.queue("d")) == [b"short"]


@pytest.mark.spec("TTL-17", "TTL-25", "S-013", "A-067")
def test_every_message_leaves_at_its_own_deadline_without_any_consumer_also_if_it_was_given_back(
    clocked: Clocked,
) -> None:
    queue = clocked.declare_queue("q", message_ttl="2s", dead_letter="d")
    for time in (0, 300, 700):
        clocked.go_to(time)
        queue.enqueue(b"at %d" % time)
    for delivery in queue.receive_many(2):
        delivery.nack()

    for time in (2_000, 2_300, 2_700):
        clocked.go_to(time)
        queue.sweep()

    letters = take(clocked.queue("d"))
    assert [letter.body for letter in letters] == [b"at 0", b"at 300", b"at 700"]
    assert [letter.deaths[0].last_at for letter in letters] == [at(2_000), at(2_300), at(2_700)]


@pytest.mark.spec("TTL-26")
def test_a_sweep_says_when_the_next_message_is_due(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"later", ttl="500ms")
    assert queue.sweep()[-1].due == START + 500

    queue.enqueue(b"sooner", ttl="100ms")
    assert queue.sweep()[-1].due == START + 100

    clocked.advance(100)
    assert queue.sweep()[-1].due == START + 500
    clocked.advance(400)
    assert queue.sweep()[-1].due is None


@pytest.mark.spec("A-026", "DLX-11")
def test_messages_that_expire_together_die_by_deadline_then_by_arrival(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="50ms", dead_letter="d")
    queue.enqueue_many([b"3", Message(b"2", ttl="20ms"), b"4", Message(b"1", ttl="10ms"), Message(b"5", ttl="60ms")])
    clocked.advance(100)

    queue.sweep()

    assert bodies(clocked.queue("d")) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.spec("TTL-18", "S-014", "S-015", "S-017", "A-064")
@pytest.mark.parametrize("settle", ["ack", "reject", "renew"])
def test_a_leased_message_does_not_expire_and_settling_it_wins(clocked: Clocked, settle: str) -> None:
    queue = clocked.declare_queue("q", message_ttl="100ms", lease="1m")
    queue.enqueue(b"x", ttl="50ms")
    delivery = one(queue)
    clocked.advance(1_000)
    queue.sweep()

    assert (queue.stats().leased, dead(queue)) == (1, {})
    assert delivery.expires_at == queue.peek()[0].expires_at == at(50)
    getattr(delivery, settle)()

    assert dead(queue) == ({"rejected": 1} if settle == "reject" else {})
    assert queue.stats().leased == (1 if settle == "renew" else 0)


@pytest.mark.spec("TTL-18", "S-016", "S-018", "A-065")
@pytest.mark.parametrize("most, reason", [(None, "expired"), (2, "expired"), (1, "delivery_limit")])
@pytest.mark.parametrize("back", ["nack", "lease"])
def test_a_message_that_comes_back_after_its_deadline_is_not_delivered_again(
    clocked: Clocked, most: int | None, reason: str, back: str
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", max_deliveries=most, lease="200ms")
    queue.enqueue(b"x", ttl="100ms")
    delivery = one(queue)
    clocked.advance(199)
    assert queue.stats().leased == 1

    delivery.nack() if back == "nack" else clocked.advance(1)

    assert queue.receive() is None
    assert [death.reason for death in one(clocked.queue("d")).deaths] == [reason]


@pytest.mark.spec("TTL-38", "A-068")
def test_a_delayed_message_expires_at_its_deadline_not_at_the_end_of_the_delay(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"x", ttl="100ms")
    one(queue).nack("1h")
    clocked.advance(99)
    assert queue.stats().delayed == 1

    clocked.advance(1)

    assert queue.stats().delayed == 0
    assert dead(queue) == {"expired": 1}


@pytest.mark.spec("TTL-29", "TTL-30", "TTL-33", "S-009")
def test_a_shorter_retention_acts_at_once_on_what_is_there(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"old"] * 600)
    clocked.advance(100)
    queue.enqueue(b"young")

    queue.update(message_ttl="100ms")

    assert (queue.stats().ready, clocked.queue("d").stats().ready) == (1, 600)
    assert ready(queue) == [b"young"]
    assert queue.enqueue(b"new").expires_at == at(200)


@pytest.mark.spec("TTL-31", "S-009")
def test_a_longer_or_no_retention_acts_at_once_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="100ms")
    queue.enqueue_many([b"kept", Message(b"own", ttl="60ms")])
    assert [message.expires_at for message in queue.peek()] == [at(100), at(60)]

    queue.update(message_ttl=None)
    assert [message.expires_at for message in queue.peek()] == [None, at(60)]
    clocked.advance(100)

    assert taken(queue) == [b"kept"]


@pytest.mark.spec("TTL-13")
def test_a_message_in_two_queues_lives_and_dies_in_each_on_its_own(clocked: Clocked) -> None:
    first, second = clocked.declare_queue("first", message_ttl="100ms"), clocked.declare_queue("second")
    for queue in (first, second):
        queue.enqueue(b"x", id="same")

    clocked.advance(100)

    assert (bodies(first), bodies(second)) == ([], [b"x"])


@pytest.mark.spec("S-012", "A-072")
def test_counts_and_peeks_leave_out_what_has_expired(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([Message(b"x", ttl="100ms")] * 2_000)
    clocked.advance(100)

    assert queue.peek() == []
    assert (queue.stats().ready, queue.stats().ready_bytes, queue.stats().oldest_ready_age) == (0, 0, None)


@pytest.mark.parametrize("before", [None, 8_000, 60_000])
@pytest.mark.parametrize("count", [1, 700])
def test_a_lower_retention_reaches_delayed_messages(clocked: Clocked, before: int | None, count: int) -> None:
    queue = clocked.declare_queue("q", message_ttl=ms(before))
    queue.enqueue_many([b"x"] * count)
    queue.nack_many(queue.receive_many(count), delay="10s", counted=False)
    clocked.advance(1_000)

    queue.update(message_ttl=ms(4_000))

    clocked.go_to(3_999)
    assert queue.stats().delayed == count
    clocked.advance(1)
    assert queue.stats().delayed == 0
    assert dead(queue) == {"expired": count}


@pytest.mark.spec("A-060")
def test_one_sweep_meets_an_expired_message_behind_very_many_others(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue_many([b"x"] * 5_000)
    queue.enqueue(b"last", ttl="1s")
    clocked.advance("1s")

    [step] = queue.sweep()

    assert (step.expired, step.more) == (1, False)
    assert queue.stats(sweep=False).ready == 5_000


@pytest.mark.spec("A-023", "A-059", "A-061", "DLX-23")
def test_each_step_of_a_sweep_is_whole(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="q/d")
    queue.enqueue_many([Message(b"x", ttl="1s" if i % 2 else None) for i in range(4_000)])
    clocked.advance("1s")
    depths: list[tuple[int, int]] = []

    def look(event: CommandEvent) -> None:
        if event.name == "sweep":
            depths.append((queue.stats(sweep=False).ready, clocked.queue("q/d").stats(sweep=False).ready))

    clocked.events.subscribe(look, CommandEvent)
    steps = queue.sweep()

    assert len(steps) > 1
    assert [left + moved for left, moved in depths] == [4_000] * len(depths)
    assert depths[-1] == (2_000, 2_000)


@pytest.mark.spec("A-051", "A-062")
def test_sweeps_at_once_all_return_and_each_message_expires_once(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, ttl="1s") for i in range(1_000)])
    clocked.advance("1s")

    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: queue.sweep(), range(10)))

    assert sum(step.expired for steps in results for step in steps) == 1_000
    assert bodies(clocked.queue("d")) == [b"%d" % i for i in range(1_000)]


@pytest.mark.spec("A-066")
def test_a_fetched_message_is_leased_so_it_is_handled_also_past_its_deadline(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue_many([Message(b"%d" % i, ttl="1s") for i in range(3)])
    handled = []

    with queue.consume(prefetch=2, wait=0) as deliveries:
        for delivery in deliveries:
            with delivery:
                handled.append((delivery.body, delivery.expires_at == at(1_000)))
                clocked.advance("1s")

    assert handled == [(b"0", True), (b"1", True)]
    assert queue.stats().deaths["expired"] == 1


def order(clocked: Clocked) -> list[int]:
    """The deadlines that the letters in `d` name, in ms after the start, in the died in which they died."""
    letters: list[int] = []
    while some := take(clocked.queue("d")):
        for letter in some:
            ends = letter.deaths[0].expires_at
            assert ends is not None
            letters.append(round(ends.timestamp() * 1000) - START)
    return letters


def send(queue: Queue, ttls: list[int]) -> None:
    queue.enqueue_many([Message(b"%d" % ttl, ttl=ms(ttl)) for ttl in ttls])


SHUFFLED = random.Random(7).sample(range(1, 2_001), 900)


@pytest.mark.parametrize("options", [{}, {"message_ttl": "700ms"}, {"max_length": 10_000}], ids=str)
def test_900_messages_die_in_the_order_of_their_deadlines_across_steps(
    clocked: Clocked, options: dict[str, Any]
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", **options)
    for start in range(0, 900, 100):
        send(queue, SHUFFLED[start : start + 100])
        clocked.advance(1)
    clocked.advance(5_000)

    queue.sweep()

    died = order(clocked)
    assert (len(died), died) == (900, sorted(died))


@pytest.mark.spec("S-011", "A-003", "A-057")
@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("options", [{}, {"message_ttl": "1500ms"}], ids=str)
def test_a_receive_that_meets_overdue_messages_keeps_the_order_of_their_deaths(
    clocked: Clocked, options: dict[str, Any], count: int
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", **options)
    send(queue, SHUFFLED)
    clocked.advance(1_500)
    queue.enqueue_many([b"alive"] * 100)
    clocked.advance(600)

    while got := queue.receive_many(count):
        assert {delivery.body for delivery in got} == {b"alive"}
        queue.ack_many(got)

    queue.sweep()
    died = order(clocked)
    assert (len(died), died) == (900, sorted(died))
