"""Dead letters: the four reasons, where each goes, what arrives there, the history of deaths, and circles."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from rqttl import Death, Delivery, Message, Queue, QueueOptions
from tests.contract.clocked import Clocked, at, ms
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


@pytest.mark.spec("DLX-05", "DLX-16", "LEN-32", "A-021", "S-029")
@pytest.mark.parametrize("emptied", [False, True])
@every_reason
def test_without_a_target_or_with_an_empty_one_of_its_reason_a_dead_message_is_dropped_and_counted(
    clocked: Clocked, reason: str, kill: Kill, emptied: bool
) -> None:
    options = {"dead_letter": "d", f"dead_letter_{reason}": ""} if emptied else {}
    queue = clocked.declare_queue("q", **dict[str, Any](options))

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


@pytest.mark.spec("S-028")
def test_a_template_gives_every_queue_its_own_target(clocked: Clocked) -> None:
    for name in ("a", "b"):
        reject(clocked, clocked.declare_queue(name, dead_letter="EXP.{queue}.end"), name.encode())

    assert clocked.queues() == ["EXP.a.end", "EXP.b.end", "a", "b"]
    assert (bodies(clocked.queue("EXP.a.end")), bodies(clocked.queue("EXP.b.end"))) == ([b"a"], [b"b"])


@pytest.mark.spec("DLX-01", "DLX-09", "DH-08", "A-023", "S-029", "S-030", "S-031")
@pytest.mark.spec("DLX-12", "DLX-13", "A-022", "S-036")
@every_reason
def test_each_of_the_four_reasons_moves_the_message_to_the_target_which_the_first_letter_creates(
    clocked: Clocked, reason: str, kill: Kill
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    assert clocked.queues() == ["q"]

    kill(clocked, queue, b"x")

    assert clocked.queues() == ["d", "q"]
    assert clocked.queue("d").options() == QueueOptions.read("d", {})
    letter = one(clocked.queue("d"))
    assert (letter.body, [death.reason for death in letter.deaths]) == (b"x", [reason])
    assert (bodies(queue), dead(queue), dropped(queue)) == ([], {reason: 1}, {})


def test_a_target_is_listed_that_an_arrival_made_while_it_made_room(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="1s", max_length_bytes=300, dead_letter="d")
    queue.enqueue_many([b"x"] * 300)
    clocked.advance("1s")

    queue.enqueue(b"x" * 300)  # the first call makes the target, and has to come again

    assert (clocked.queues(), queue.stats().ready) == (["d", "q"], 1)


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


@pytest.mark.spec("DLX-18", "S-034", "DH-06", "DH-09", "DH-10", "A-042", "A-055")
def test_a_letter_may_die_again_and_keeps_every_death_the_newest_first(clocked: Clocked) -> None:
    for i in range(3):
        clocked.declare_queue(f"q{i}", dead_letter=f"q{i + 1}")
    clocked.queue("q0").enqueue(b"x", id="same")

    for i in range(3):
        clocked.advance(1)
        one(clocked.queue(f"q{i}")).reject(f"description {i}")

    letter = one(clocked.queue("q3"))
    assert letter.id == "same"
    assert [(death.queue, death.description) for death in letter.deaths] == [
        (f"q{i}", f"description {i}") for i in (2, 1, 0)
    ]
    assert min(letter.deaths, key=lambda death: death.first_at).queue == "q0"


@pytest.mark.spec("DLX-26", "DLX-27", "A-027")
def test_the_target_is_the_one_at_the_time_of_death(clocked: Clocked, queue: Queue) -> None:
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

    assert (bodies(target), target.stats().refused, dead(target)) == ([b"3"], 0, {"maxlen": 2})


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


@pytest.mark.spec("DH-01", "DH-08", "A-039", "A-040", "A-044", "S-030", "W16")
def test_a_record_says_where_why_when_and_what_was_before(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x", ttl="500ms")
    clocked.go_to(100)
    one(queue).nack()
    clocked.go_to(730)
    queue.sweep()

    assert one(clocked.queue("d")).deaths == (
        Death(
            "q",
            "expired",
            1,
            at(730),
            at(730),
            enqueued_at=at(0),
            expires_at=at(500),
            delivery_count=1,
            description=None,
        ),
    )


@pytest.mark.spec("DH-04", "A-040")
@pytest.mark.parametrize("own, retention, deadline", [(None, None, None), (50, None, 50), (None, 70, 70), (50, 20, 20)])
def test_a_record_of_any_reason_keeps_the_deadline_in_force(
    clocked: Clocked, own: int | None, retention: int | None, deadline: int | None
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", message_ttl=ms(retention))
    queue.enqueue(b"x", ttl=ms(own))

    one(queue).reject()

    assert one(clocked.queue("d")).deaths[0].expires_at == (None if deadline is None else at(deadline))


@pytest.mark.spec("DH-05", "DH-10", "CYC-03")
def test_the_same_death_again_counts_up_and_moves_to_the_front(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="wait")
    clocked.declare_queue("wait", dead_letter="q", message_ttl="100ms")
    queue.enqueue(b"x")

    for _ in range(3):
        delivery = one(queue)
        delivery.reject("round")
        clocked.advance(100)
        clocked.queue("wait").sweep()

    deaths = one(queue).deaths
    assert [(death.queue, death.reason, death.count) for death in deaths] == [
        ("wait", "expired", 3),
        ("q", "rejected", 3),
    ]
    assert [(death.first_at, death.last_at) for death in deaths] == [(at(100), at(300)), (at(0), at(200))]
    assert [death.enqueued_at for death in deaths] == [at(200), at(200)]


@pytest.mark.spec("DH-07")
def test_the_history_grows_with_the_places_not_with_the_deaths(clocked: Clocked) -> None:
    names = ("a", "b", "c", "a")
    for name in names[:3]:
        clocked.declare_queue(name)
    clocked.queue("a").enqueue(b"x")

    for name, target in pairwise(names):
        clocked.queue(name).update(dead_letter_rejected=target)
        one(clocked.queue(name)).reject()
    clocked.queue("a").update(dead_letter_rejected="a")
    for _ in range(9):
        one(clocked.queue("a")).reject()

    assert [(death.queue, death.count) for death in one(clocked.queue("a")).deaths] == [("a", 10), ("c", 1), ("b", 1)]


@pytest.mark.spec("DH-11", "DH-12", "DH-14")
@pytest.mark.parametrize("forged", ["x-death", "deaths", "x-first-death-queue", "_AMQ_ORIG_QUEUE", "BCC"])
def test_nothing_that_a_sender_writes_into_headers_is_a_death(clocked: Clocked, forged: str) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x", headers={forged: "q expired 7 0 0 0 - 0 0 "})

    delivery = one(queue)
    assert delivery.deaths == ()
    delivery.reject()

    letter = one(clocked.queue("d"))
    assert [(death.queue, death.reason, death.count) for death in letter.deaths] == [("q", "rejected", 1)]
    assert letter.headers == {forged: "q expired 7 0 0 0 - 0 0 "}


def sent_round(clocked: Clocked, queues: int, description: str = "") -> Delivery:
    """A message that was rejected once in each of so many queues, and sent back from one of dead letters in between."""
    clocked.declare_queue("d")
    clocked.declare_queue("q0", dead_letter="d").enqueue(b"x", id="mine")
    for i in range(queues):
        one(clocked.queue(f"q{i}")).reject(description)
        clocked.declare_queue(f"q{i + 1}", dead_letter="d")
        clocked.advance(1)
        clocked.queue("d").redrive(to=f"q{i + 1}")
    return one(clocked.queue(f"q{queues}"))


@pytest.mark.parametrize("queues, description, kept", [(70, "", 63), (20, "y" * 4096, 15)], ids=["64", "64 KB"])
def test_a_history_keeps_its_newest_64_records_of_64_kb(
    clocked: Clocked, queues: int, description: str, kept: int
) -> None:
    letter = sent_round(clocked, queues, description)

    # of 64, one record says that the message went back
    assert [death.queue for death in letter.deaths] == [f"q{i}" for i in range(queues - 1, queues - 1 - kept, -1)]
    assert {(death.count, death.description or "") for death in letter.deaths} == {(1, description)}


def ring(clocked: Clocked, *names: str, **options: Any) -> None:
    """Queues that dead-letter to the next one, the last to the first."""
    for name, following in zip(names, (*names[1:], names[0]), strict=True):
        clocked.declare_queue(name, dead_letter=following, **options)


@pytest.mark.spec("CYC-01", "CYC-04", "CYC-09")
@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")], ids=len)
def test_a_message_that_only_expires_goes_round_once_and_is_dropped_and_counted(
    clocked: Clocked, names: tuple[str, ...]
) -> None:
    ring(clocked, *names, message_ttl="100ms")
    clocked.queue("a").enqueue(b"x")

    for name in names:
        clocked.advance(100)
        clocked.queue(name).sweep()

    assert [bodies(clocked.queue(name)) for name in names] == [[]] * len(names)
    assert [dead(clocked.queue(name)) for name in names] == [{"expired": 1}] * len(names)
    assert [dropped(clocked.queue(name)) for name in names] == [*[{}] * (len(names) - 1), {"cycle": 1}]


@pytest.mark.spec("CYC-02")
def test_a_message_that_a_limit_pushes_round_a_circle_is_dropped_and_the_others_stay(clocked: Clocked) -> None:
    ring(clocked, "a", "b", max_length=1)
    for body in (b"1", b"2", b"3"):
        clocked.queue("a").enqueue(body)

    assert (bodies(clocked.queue("a")), bodies(clocked.queue("b"))) == ([b"3"], [b"2"])
    assert dropped(clocked.queue("b")) == {"cycle": 1}


@pytest.mark.spec("CYC-06", "CYC-04")
def test_a_retry_circle_with_a_rejection_in_it_goes_round_for_ever(clocked: Clocked) -> None:
    clocked.declare_queue("work", dead_letter="wait")
    clocked.declare_queue("wait", dead_letter="wait-again", message_ttl="100ms")
    clocked.declare_queue("wait-again", dead_letter="work", message_ttl="100ms")
    clocked.queue("work").enqueue(b"x")

    for _ in range(10):
        one(clocked.queue("work")).reject()
        for name in ("wait", "wait-again"):
            clocked.advance(100)
            clocked.queue(name).sweep()

    assert [death.count for death in one(clocked.queue("work")).deaths] == [10, 10, 10]


@pytest.mark.spec("CYC-10")
def test_once_the_circle_is_opened_letters_pass_again(clocked: Clocked) -> None:
    ring(clocked, "a", "b", message_ttl="100ms")
    clocked.queue("a").enqueue(b"x")
    clocked.advance(100)
    clocked.queue("a").sweep()
    clocked.queue("b").update(dead_letter="c")
    clocked.advance(100)

    clocked.queue("b").sweep()

    assert taken(clocked.queue("c")) == [b"x"]


def die(clocked: Clocked, name: str, reason: str, target: str) -> None:
    """The message in the queue dies of `reason` and goes to `target`, if it may."""
    queue = clocked.queue(name)
    queue.update(dead_letter=target)
    if reason == "expired":
        queue.update(message_ttl=0)
    elif reason == "maxlen":
        queue.update(max_length=0)
    elif reason == "delivery_limit":
        queue.update(max_deliveries=1)
        one(queue).nack()
    else:
        one(queue).reject()
    queue.update(message_ttl=None, max_length=None, max_deliveries=None, dead_letter=None)


@pytest.mark.spec("CYC-04", "CYC-05", "CYC-08")
@pytest.mark.parametrize(
    "deaths, passes",
    [
        ("1 expired 2 expired 1", False),
        ("1 expired 2 rejected 1", True),
        ("1 rejected 2 expired 1", True),
        ("1 expired 2 maxlen 3 delivery_limit 1", False),
        ("1 expired 2 rejected 3 expired 1", True),
        ("1 rejected 2 expired 3 expired 2", False),
        ("1 expired 2 expired 3 expired 2", False),
        ("1 expired 2 expired 3 rejected 2 expired 3", True),
        ("1 rejected 2 expired 1 expired 2", False),
        ("1 rejected 2 expired 1 rejected 2 expired 1", True),
        ("1 expired 2 expired 3 expired 4", True),
    ],
)
def test_the_walk_from_the_newest_death_to_the_target_decides(clocked: Clocked, deaths: str, passes: bool) -> None:
    words = deaths.split()
    names, reasons = words[::2], words[1::2]
    for name in set(names):
        clocked.declare_queue(name)
    clocked.queue(names[0]).enqueue(b"x")

    for name, reason, target in zip(names, reasons, names[1:], strict=False):
        die(clocked, name, reason, target)

    assert bodies(clocked.queue(names[-1])) == ([b"x"] if passes else [])
    assert dropped(clocked.queue(names[-2])) == ({} if passes else {"cycle": 1})
    assert dead(clocked.queue(names[-2]))[reasons[-1]] >= 1
