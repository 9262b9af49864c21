"""The death history: what one record says, how records add up, and that nobody can forge one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rqttl import Death, Delivery, Message
from tests.contract.clocked import Clocked, at, ms
from tests.contract.looks import one, take


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


@pytest.mark.spec("DH-06", "DH-09", "DH-10", "A-042")
def test_the_newest_death_comes_first_and_none_is_lost(clocked: Clocked) -> None:
    for i in range(5):
        clocked.declare_queue(f"q{i}", dead_letter=f"q{i + 1}")
    clocked.queue("q0").enqueue(b"x", id="same")

    for i in range(5):
        clocked.advance(1)
        one(clocked.queue(f"q{i}")).reject(f"description {i}")

    letter = one(clocked.queue("q5"))
    assert letter.id == "same"
    assert [death.queue for death in letter.deaths] == ["q4", "q3", "q2", "q1", "q0"]
    assert [death.description for death in letter.deaths] == [f"description {i}" for i in (4, 3, 2, 1, 0)]
    assert min(letter.deaths, key=lambda death: death.first_at).queue == "q0"


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


@pytest.mark.spec("DH-12")
@pytest.mark.parametrize("id", [";5;5;", "q expired 7 0 0 0 - 0 0 ", "123", "é;;"])
def test_nothing_that_a_sender_writes_into_an_id_is_a_death(clocked: Clocked, id: str) -> None:
    clocked.declare_queue("d", dead_letter="dd")
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x", id=id, headers={"a": ";;"})
    one(queue).reject("; 5 " + id)

    one(clocked.queue("d")).reject()

    letter = one(clocked.queue("dd"))
    assert (letter.id, letter.headers, len(letter.deaths)) == (id, {"a": ";;"}, 2)
    assert letter.deaths[1].description == "; 5 " + id


@pytest.mark.spec("DH-11")
def test_a_message_that_is_sent_again_by_an_application_starts_without_a_history(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"x", id="mine")
    one(queue).reject()
    letter = one(clocked.queue("d"))

    queue.enqueue(Message(letter.body, headers=letter.headers, id=letter.id))
    one(queue).reject()

    assert [death.count for death in take(clocked.queue("d"))[-1].deaths] == [1]


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


def test_a_history_keeps_its_newest_64_records(clocked: Clocked) -> None:
    letter = sent_round(clocked, 70)

    # one record says that the message went back
    assert [death.queue for death in letter.deaths] == [f"q{i}" for i in range(69, 6, -1)]
    assert {death.count for death in letter.deaths} == {1}


def test_a_history_keeps_64_kb_of_long_descriptions(clocked: Clocked) -> None:
    letter = sent_round(clocked, 20, "y" * 4096)

    assert [death.queue for death in letter.deaths] == [f"q{i}" for i in range(19, 4, -1)]
    assert {len(death.description or "") for death in letter.deaths} == {4096}


def test_a_circle_of_more_queues_than_a_history_keeps_is_found(clocked: Clocked) -> None:
    names = [f"q{i}" for i in range(80)]
    for name, following in zip(names, (*names[1:], names[0]), strict=True):
        clocked.declare_queue(name, dead_letter=following, message_ttl=ms(10))
    clocked.queue("q0").enqueue(b"x")

    for name in names:
        clocked.advance(10)
        clocked.queue(name).sweep()

    assert clocked.queue("q79").stats().dropped == {**clocked.queue("q0").stats().dropped, "cycle": 1}
    assert clocked.queue("q0").stats().ready == 0
