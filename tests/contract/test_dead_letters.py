"""Dead letters: the four reasons, where each goes, and what arrives there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rqttl import CommandEvent, Message, Queue, QueueOptions
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, at
from tests.contract.looks import bodies, dead, dropped, one, take, taken


def expire(clocked: Clocked, queue: Queue, body: bytes) -> None:
    queue.enqueue(body, ttl=0)


def overflow(clocked: Clocked, queue: Queue, body: bytes) -> None:
    queue.enqueue(body)
    queue.update(max_length=0)
    queue.update(max_length=None)


def reject(clocked: Clocked, queue: Queue, body: bytes) -> None:
    queue.enqueue(body)
    one(queue).reject()


def fail(clocked: Clocked, queue: Queue, body: bytes) -> None:
    queue.enqueue(body)
    queue.update(max_deliveries=1)
    one(queue).nack()
    queue.update(max_deliveries=None)


Kill = Callable[[Clocked, Queue, bytes], None]
WAYS: dict[str, Kill] = {"expired": expire, "maxlen": overflow, "rejected": reject, "delivery_limit": fail}
every_reason = pytest.mark.parametrize("reason, kill", WAYS.items(), ids=WAYS)


@pytest.mark.spec("DLX-01", "DLX-09", "DH-08", "A-023", "S-029", "S-030", "S-031")
@every_reason
def test_each_of_the_four_reasons_moves_the_message_to_the_target(clocked: Clocked, reason: str, kill: Kill) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    kill(clocked, queue, b"x")

    letter = one(clocked.queue("d"))
    assert (letter.body, [death.reason for death in letter.deaths]) == (b"x", [reason])
    assert (bodies(queue), dead(queue), dropped(queue)) == ([], {reason: 1}, {})


@pytest.mark.spec("DLX-05", "A-021", "S-029")
@every_reason
def test_without_a_target_a_dead_message_is_dropped_and_counted(clocked: Clocked, reason: str, kill: Kill) -> None:
    queue = clocked.declare_queue("q")

    kill(clocked, queue, b"x")

    assert (bodies(queue), dead(queue), dropped(queue)) == ([], {reason: 1}, {reason: 1})
    assert clocked.queues() == ["q"]


@every_reason
def test_a_reason_may_have_a_target_of_its_own(clocked: Clocked, reason: str, kill: Kill) -> None:
    queue = clocked.declare_queue("q", dead_letter="others", **dict[str, Any]({f"dead_letter_{reason}": "own"}))

    for way in WAYS.values():
        way(clocked, queue, b"%d" % (way is kill))

    assert taken(clocked.queue("own")) == [b"1"]
    assert taken(clocked.queue("others")) == [b"0"] * 3


@pytest.mark.spec("DLX-16")
@every_reason
def test_an_empty_target_of_a_reason_means_drop(clocked: Clocked, reason: str, kill: Kill) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", **dict[str, Any]({f"dead_letter_{reason}": ""}))

    kill(clocked, queue, b"x")

    assert (dropped(queue), clocked.queues()) == ({reason: 1}, ["q"])


@pytest.mark.spec("A-025", "A-033", "A-024")
def test_many_queues_share_a_target_and_every_letter_arrives_also_under_the_same_id(clocked: Clocked) -> None:
    for name in ("a", "b"):
        queue = clocked.declare_queue(name, dead_letter="d", message_ttl="10ms")
        queue.enqueue_many([Message(name.encode(), id=str(i)) for i in range(100)])
    clocked.advance(10)
    for name in ("a", "b"):
        clocked.queue(name).sweep()

    letters = take(clocked.queue("d"))
    assert [(letter.body, letter.id) for letter in letters] == [
        (name, str(i)) for name in (b"a", b"b") for i in range(100)
    ]
    assert {(letter.body.decode(), letter.deaths[0].queue) for letter in letters} == {("a", "a"), ("b", "b")}


def test_a_target_for_one_reason_needs_no_general_target(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter_rejected="d")

    reject(clocked, queue, b"rejected")
    expire(clocked, queue, b"expired")

    assert (bodies(clocked.queue("d")), dropped(queue)) == ([b"rejected"], {"expired": 1})


@pytest.mark.spec("S-028")
def test_a_template_gives_every_queue_its_own_target(clocked: Clocked) -> None:
    for name in ("a", "b"):
        reject(clocked, clocked.declare_queue(name, dead_letter="EXP.{queue}.end"), name.encode())

    assert clocked.queues() == ["EXP.a.end", "EXP.b.end", "a", "b"]
    assert (bodies(clocked.queue("EXP.a.end")), bodies(clocked.queue("EXP.b.end"))) == ([b"a"], [b"b"])


@pytest.mark.spec("DLX-12", "DLX-13", "A-022", "S-036")
@every_reason
def test_a_target_that_does_not_exist_is_created_by_the_first_letter(clocked: Clocked, reason: str, kill: Kill) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    assert clocked.queues() == ["q"]

    kill(clocked, queue, b"x")

    assert clocked.queues() == ["d", "q"]
    assert clocked.queue("d").options() == QueueOptions.read("d", {})
    assert taken(clocked.queue("d")) == [b"x"]


@pytest.mark.spec("S-080")
def test_a_target_that_was_deleted_is_created_again(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    reject(clocked, queue, b"1")
    clocked.queue("d").delete()

    reject(clocked, queue, b"2")

    assert (clocked.queues(), taken(clocked.queue("d"))) == (["d", "q"], [b"2"])


@pytest.mark.spec("A-038", "A-039", "DH-13")
def test_a_letter_keeps_what_its_sender_gave(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue({"a": 1}, id="mine", headers={"h": b"\0"}, ttl="50ms")
    clocked.advance(50)
    queue.sweep()

    letter = one(clocked.queue("d"))

    assert (letter.id, letter.headers, letter.decode(), letter.queue) == ("mine", {"h": b"\0"}, {"a": 1}, "d")
    assert letter.content_type == "application/msgpack"


@pytest.mark.spec("A-038")
def test_a_letter_keeps_the_id_that_its_queue_gave(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    receipt = queue.enqueue(b"x")
    clocked.advance(1_000)

    one(queue).reject()

    letter = one(clocked.queue("d"))
    assert letter.id == receipt.id
    assert letter.enqueued_at == at(1_000)


@pytest.mark.spec("DLX-20", "A-041", "S-033")
@every_reason
def test_a_letter_has_left_its_own_ttl_behind(clocked: Clocked, reason: str, kill: Kill) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", default_ttl="100ms")

    kill(clocked, queue, b"x")
    clocked.advance(1_000_000)

    letter = one(clocked.queue("d"))
    assert letter.expires_at is None


@pytest.mark.spec("DLX-20", "A-019", "S-033")
def test_the_targets_retention_counts_from_arrival(clocked: Clocked) -> None:
    target = clocked.declare_queue("d", message_ttl="100ms")
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x")
    clocked.advance(500)
    one(queue).reject()
    clocked.advance(99)

    assert one(target).expires_at == at(600)
    clocked.advance(60_000)
    assert (target.receive(), dead(target)) == (None, {"expired": 1})


@pytest.mark.spec("A-017", "A-018")
@pytest.mark.parametrize("rule", [{"default_ttl": "10ms"}, {"min_ttl": "10ms"}, {"max_ttl": "10ms"}], ids=str)
def test_the_targets_rules_for_senders_do_not_act_on_letters(clocked: Clocked, rule: dict[str, Any]) -> None:
    target = clocked.declare_queue("d", **rule)
    reject(clocked, clocked.declare_queue("q", dead_letter="d"), b"x")
    clocked.advance(1_000)

    assert one(target).expires_at is None


@pytest.mark.spec("DLX-18", "S-034", "DH-06", "A-055")
def test_a_letter_may_die_again(clocked: Clocked) -> None:
    clocked.declare_queue("d", dead_letter="dd")
    reject(clocked, clocked.declare_queue("q", dead_letter="d"), b"x")
    clocked.advance(5)

    one(clocked.queue("d")).reject()

    deaths = one(clocked.queue("dd")).deaths
    assert [(death.queue, death.reason) for death in deaths] == [("d", "rejected"), ("q", "rejected")]


@pytest.mark.spec("DLX-26", "DLX-27", "A-027")
def test_the_target_is_the_one_at_the_time_of_death(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"1", b"2", b"3"])
    first, second, third = queue.receive_many(3)

    first.reject()
    queue.update(dead_letter="d")
    second.reject()
    queue.update(dead_letter=None)
    third.reject()

    assert bodies(clocked.queue("d")) == [b"2"]
    assert (dead(queue), dropped(queue)) == ({"rejected": 3}, {"rejected": 2})


@pytest.mark.spec("DH-15", "S-043")
def test_the_count_of_deliveries_starts_anew_in_the_target(clocked: Clocked) -> None:
    target = clocked.declare_queue("d", max_deliveries=3)
    queue = clocked.declare_queue("q", dead_letter="d", max_deliveries=2)
    queue.enqueue(b"x")
    for _ in range(2):
        one(queue).nack()

    letter = one(target)

    assert (letter.delivery_count, letter.deaths[0].delivery_count) == (1, 2)
    letter.nack()
    assert one(target).delivery_count == 2


@pytest.mark.spec("DLX-11")
def test_every_reason_keeps_the_order(clocked: Clocked) -> None:
    order = [b"%d" % i for i in range(300)]
    queue = clocked.declare_queue("q", max_deliveries=1, dead_letter="{queue}.d", dead_letter_delivery_limit="limit")
    queue.enqueue_many(order)
    queue.nack_many(queue.receive_many(300))
    queue.enqueue_many([Message(body, ttl="10ms") for body in order])
    clocked.advance(10)
    queue.sweep()
    queue.enqueue_many(order)
    queue.update(max_length=0)

    assert bodies(clocked.queue("limit")) == order
    assert bodies(clocked.queue("q.d")) == order + order


@pytest.mark.spec("DLX-24", "S-035", "S-037")
def test_a_full_target_that_refuses_senders_takes_letters(clocked: Clocked) -> None:
    target = clocked.declare_queue("d", max_length=1, overflow="reject-publish")
    queue = clocked.declare_queue("q", dead_letter="d")

    for body in (b"1", b"2", b"3"):
        reject(clocked, queue, body)

    assert (bodies(target), target.stats().refused) == ([b"1", b"2", b"3"], 0)


def test_a_full_target_that_drops_its_head_is_trimmed_right_after(clocked: Clocked) -> None:
    target = clocked.declare_queue("d", max_length=2, dead_letter="dd")
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"%d" % i for i in range(5)])

    queue.reject_many(queue.receive_many(5))

    assert (bodies(target), bodies(clocked.queue("dd"))) == ([b"3", b"4"], [b"0", b"1", b"2"])


def test_letters_that_overflow_one_target_go_on_to_the_next(clocked: Clocked) -> None:
    for name, target in (("a", "b"), ("b", "c"), ("c", "d")):
        clocked.declare_queue(name, dead_letter=target, max_length=None if name == "a" else 1)
    queue = clocked.queue("a")
    queue.enqueue_many([b"1", b"2", b"3", b"4"])

    queue.reject_many(queue.receive_many(4))

    assert [bodies(clocked.queue(name)) for name in "bcd"] == [[b"4"], [b"3"], [b"1", b"2"]]


def test_a_rejection_into_the_queue_itself_keeps_its_limit(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=1, dead_letter_rejected="q", dead_letter_maxlen="d")
    queue.enqueue(b"1")
    delivery = one(queue)
    queue.enqueue(b"2")

    delivery.reject()

    assert (bodies(queue), bodies(clocked.queue("d"))) == ([b"1"], [b"2"])


@pytest.mark.spec("A-023", "DLX-23")
def test_a_dead_message_is_in_one_place_after_every_call(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", message_ttl="10ms")
    target = clocked.declare_queue("d")
    queue.enqueue_many([b"%d" % i for i in range(1_000)])
    clocked.advance(10)
    steps: list[int] = []
    clocked.events.subscribe(lambda event: steps.append(1), CommandEvent)

    log = driver_of(clocked).store.client
    assert log.xlen("rqttl:{q}:log") + log.xlen("rqttl:{d}:log") == 1_000
    queue.sweep()

    assert log.xlen("rqttl:{q}:log") == 0
    assert [int(letter.body) for letter in take(target, 1_000)] == list(range(1_000))
    assert len(steps) > 4, "the work of one call is bounded"


@pytest.mark.spec("S-032", "S-040", "S-053")
def test_a_rejection_may_say_why(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"1", b"2", b"3"])
    told = ("no such customer: {7} ü\n%s 100 %", "x" * 4_096, None)

    for delivery, description in zip(queue.receive_many(3), told, strict=True):
        delivery.reject(description)

    letters = take(clocked.queue("d"))
    assert [letter.deaths[0].description for letter in letters] == list(told)
    assert [letter.deaths[0].reason for letter in letters] == ["rejected"] * 3
