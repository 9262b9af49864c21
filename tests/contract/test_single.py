"""Single messages: found, moved, deleted, expired, dead-lettered and redelivered, by the table of their states."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import (
    CommandEvent,
    InvalidInput,
    Message,
    MessageLeased,
    MessageView,
    Queue,
    QueueFull,
    QueueNotFound,
    SearchIncomplete,
    WaitEvent,
)
from tests.contract.clocked import START, Clocked, at, ms
from tests.contract.looks import bodies, dead, one, ready
from tests.lua.states import everything

HOUR = 3_600_000
STATES = ["ready", "delayed", "scheduled", "leased"]
#: The calls on single messages by their names.
CALLS: dict[str, Callable[..., int]] = {
    "delete_message": Queue.delete_message,
    "expire": Queue.expire,
    "dead_letter": lambda queue, id, **how: queue.dead_letter(id, "poison", **how),
    "redeliver_now": Queue.redeliver_now,
    "move": lambda queue, id, **how: queue.move(id, "q/other", **how),
}
#: The queue in which a message is after a call.
PLACES = {"expire": "q/d", "dead_letter": "q/d", "redeliver_now": "q", "move": "q/other"}

every_call = pytest.mark.parametrize("call", CALLS)


def put(queue: Queue, state: str, body: bytes = b"x", id: str | None = "me", **how: Any) -> str:
    """Store one message, and bring it into a state. Returns its sequence."""
    queue.enqueue(body, id=id, headers={"n": 1}, **how, delay="1h" if state == "scheduled" else None)
    if state in ("leased", "delayed"):
        delivery = one(queue, lease="1m")
        assert delivery.body == body
        if state == "delayed":
            delivery.nack("1h", "failed")
    return (queue.scheduled() if state == "scheduled" else queue.peek())[-1].sequence


def all_of(queue: Queue) -> list[MessageView]:
    """All messages, scheduled ones too."""
    return [*queue.peek(1_000), *queue.scheduled()]


@pytest.fixture
def queues(clocked: Clocked) -> tuple[Queue, ...]:
    """The queues `q`, its dead-letter queue `d`, and `other`."""
    own = clocked.declare_queue("q", dead_letter="q/d", never_expire=True)
    return own, clocked.declare_queue("q/d"), clocked.declare_queue("q/other")


# Each call on each state


@pytest.mark.spec("A-112", "A-114", "A-118", "A-120", "A-121", "A-123", "A-124", "C-41", "WA-15")
@pytest.mark.parametrize("by", ["id", "sequence"])
@pytest.mark.parametrize("state", STATES)
@every_call
def test_a_call_acts_on_a_message_in_any_state_but_leased_and_a_dry_run_only_says_so(
    clocked: Clocked, client: redis.Redis, queues: tuple[Queue, ...], call: str, state: str, by: str
) -> None:
    queue = queues[0]
    sequence = put(queue, state)
    queue.enqueue(b"neighbour", id="you")
    name = "me" if by == "id" else sequence
    before = everything(client)

    view = queue.message(name)
    assert view is not None
    assert (view.state, view.sequence, view.body, view.complete) == (state, sequence, b"x", True)
    if state == "leased":
        for dry_run in (True, False):
            with pytest.raises(MessageLeased, match="has message 'me', its lease ends at 2023-11-14 22:14:20") as error:
                CALLS[call](queue, name, dry_run=dry_run)
            assert (error.value.queue, error.value.id, error.value.until) == ("q", "me", at(60_000))
        assert everything(client) == before
        clocked.advance(60_000)
        assert CALLS[call](queue, name, dry_run=True) == CALLS[call](queue, name) == 1  # an ended lease is none
        return
    assert CALLS[call](queue, name, dry_run=True) == 1
    assert everything(client) == before
    assert CALLS[call](queue, name) == 1

    if (call, state) == ("redeliver_now", "delayed"):
        assert ready(queue) == [b"x", b"neighbour"]  # in its old place
    assert queue.delete_message("you") == 1
    found = {one.name: view for one in queues for view in all_of(one)}
    stays = "scheduled" if (call, state) == ("move", "scheduled") else "ready"
    assert {name: view.state for name, view in found.items()} == ({PLACES[call]: stays} if call in PLACES else {})
    for view in found.values():
        assert (view.id, view.body, view.headers) == ("me", b"x", {"n": 1})
        assert view.delivery_count == (call == "redeliver_now" and state == "delayed")
        reason = {"expire": "expired", "dead_letter": "rejected"}.get(call)
        description = "poison" if call == "dead_letter" else None
        told = [(death.queue, death.reason, death.last_at, death.description) for death in view.deaths]
        assert told == ([("q", reason, at(0), description)] if reason else [])
    if call != "redeliver_now":
        left = {key.rpartition(b":")[2] for key in everything(client) if b":{q}:" in key}
        assert left <= {b"meta", b"log"}


@every_call
def test_hundreds_of_messages_with_one_id_and_large_ones_take_several_steps(
    queues: tuple[Queue, ...], call: str
) -> None:
    queue = queues[0]
    queue.enqueue_many([Message(b"%d" % i, id="me") for i in range(260)])
    queue.enqueue_many([Message(b"x" * 900_000, id="me", delay=ms(HOUR * (i % 2))) for i in range(12)])

    assert CALLS[call](queue, "me") == 272
    assert len(all_of(queue)) == queue.stats().ready == (272 if call == "redeliver_now" else 0)


# Where they go


@pytest.mark.spec("A-120")
def test_deleted_messages_count_as_purged_or_cancelled_and_scheduled_ones_free_their_ids(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", duplicate_window="1d")
    for state in ("delayed", "ready", "scheduled"):
        put(queue, state, id=state)

    assert [queue.delete_message(state) for state in STATES[:3]] == [1, 1, 1]

    stats = queue.stats()
    assert (stats.purged, stats.cancelled, stats.depth, stats.ready_bytes) == (2, 1, 0, 0)
    assert [queue.enqueue(b"x", id=state).duplicate for state in STATES[:3]] == [True, True, False]


@pytest.mark.spec("A-124")
@pytest.mark.parametrize(
    "call, state", [("redeliver_now", "delayed"), ("redeliver_now", "scheduled"), ("dead_letter", "delayed")]
)
def test_a_waiting_consumer_gets_what_is_redelivered_or_rejected_into_its_queue(
    clocked: Clocked, call: str, state: str
) -> None:
    queue = clocked.declare_queue("q", dead_letter_rejected="q")
    put(queue, state)

    clocked.events.subscribe(lambda _: CALLS[call](queue, "me") if all_of(queue) else None, WaitEvent)
    assert (one(queue, wait="1m").id, clocked.now) == ("me", START)


# Moving


@pytest.mark.spec("A-118")
def test_a_move_keeps_deadline_deaths_and_due_time_and_its_end_is_behind_the_others(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="2h")
    other = clocked.declare_queue("q/other", message_ttl="3h")
    other.enqueue(b"there")
    place = put(queue, "ready", b"1", None, ttl="1h")
    later = put(queue, "scheduled", id=None, ttl="5m")
    clocked.advance(1_000)

    assert [queue.move(place, "q/other"), queue.move(later, "q/other")] == [1, 1]

    _, moved, scheduled = all_of(other)
    assert (moved.id, moved.body, moved.expires_at, moved.deaths) == (place, b"1", at(HOUR), ())
    assert (scheduled.id, scheduled.until, scheduled.expires_at) == (later, at(HOUR), at(HOUR + 300_000))
    assert (queue.stats().redriven, queue.stats().depth, other.stats().enqueued) == (2, 0, 2)
    assert scheduled.sequence != later
    assert other.message(later) == scheduled
    clocked.advance(HOUR)
    other.sweep()
    assert (bodies(other), other.peek()[1].id) == ([b"there", b"x"], later)


@pytest.mark.spec("A-116", "A-118", "WA-16")
@pytest.mark.parametrize("limit", ["max_length", "max_length_bytes"])
def test_a_queue_without_room_refuses_all_of_a_move(clocked: Clocked, client: redis.Redis, limit: str) -> None:
    queue = clocked.declare_queue("q")
    other = clocked.declare_queue("q/other", **{limit: 2}, overflow="reject-publish-dlx", dead_letter="q/d")  # type: ignore[arg-type]  # by name
    other.enqueue(b"x")
    for state in ("delayed", "ready", "scheduled"):
        put(queue, state)
    queue.sweep()
    before = everything(client)

    for dry_run in (True, False):
        with pytest.raises(QueueFull, match=f"queue 'q/other' is full: {limit} is 2"):
            queue.move("me", "q/other", dry_run=dry_run)
    assert everything(client) == before
    other.update(**{limit: 3})  # type: ignore[arg-type]  # by name
    assert queue.move("me", "q/other", dry_run=True) == queue.move("me", "q/other") == 3


# Finding


@pytest.mark.spec("A-112", "A-120", "A-121", "WA-16")
@pytest.mark.parametrize("call", [*CALLS, "message"])
def test_a_call_on_nothing_says_nothing(client: redis.Redis, queues: tuple[Queue, ...], call: str) -> None:
    put(queues[0], "ready", id="other")
    before = everything(client)

    for id in ("me", "1700000000000-100000x", "1700000000000-999999"):
        if call == "message":
            assert queues[0].message(id) is None
        else:
            assert [CALLS[call](queues[0], id, dry_run=dry_run) for dry_run in (True, False)] == [0, 0]
    assert everything(client) == before


@pytest.mark.spec("A-121", "WA-15")
def test_a_search_says_whether_it_saw_the_whole_queue(queue: Queue) -> None:
    queue.enqueue_many([Message(b"%d" % i, id="me" if i in (5, 299) else None) for i in range(300)])
    first = queue.peek(6)[5]

    for scan, complete in ((6, False), (299, False), (300, True), (10_000, True), (None, True)):
        view = queue.message("me", scan=scan)
        assert view is not None
        assert (view.sequence, view.complete) == (first.sequence, complete)
        found = queue.messages("me", scan=scan)
        assert {one.complete for one in found} == {complete}
        assert len(found) == 2 or not complete
    with pytest.raises(SearchIncomplete, match="'me' found none, and did not see the whole queue"):
        queue.message("me", scan=4)
    assert queue.message(first.sequence, scan=1) == first
    assert queue.expire("me") == 2


@pytest.mark.spec("A-121", "WA-15")
def test_a_search_that_cannot_see_all_messages_that_are_out_says_so(
    clocked: Clocked, client: redis.Redis, queue: Queue
) -> None:
    queue.enqueue_many([Message(b"x" * 200, ttl=None if i % 20 == 0 else "1s") for i in range(4_000)])
    clocked.advance(1_000)
    queue.sweep()  # the rest is moved aside
    queue.enqueue_many([b"x"] * 4_800)
    for _ in range(20):
        queue.receive_many(250, lease="1h")
    queue.enqueue(b"here", id="me")
    before = everything(client)

    view = queue.message("me")
    assert view is not None
    assert not view.complete
    with pytest.raises(SearchIncomplete):
        queue.message("none", scan=None)
    for dry_run in (True, False):
        with pytest.raises(SearchIncomplete, match="did not see the whole queue") as error:
            queue.expire("me", dry_run=dry_run)
        assert error.value.sequences == (view.sequence,)
    assert everything(client) == before
    assert queue.expire(view.sequence) == 1


@every_call
def test_an_expired_message_is_not_there_also_if_it_expires_while_it_is_looked_for(
    clocked: Clocked, queues: tuple[Queue, ...], call: str
) -> None:
    queue = clocked.declare_queue("q/mortal", dead_letter="q/d")
    put(queue, "ready", ttl="1m")
    clocked.advance(60_000)
    assert (queue.message("me"), CALLS[call](queue, "me", dry_run=True)) == (None, 0)
    put(queue, "ready", ttl="1m")
    clocked.events.subscribe(lambda event: clocked.advance(30_000) if event.name == "peek" else None, CommandEvent)

    assert CALLS[call](queue, "me") == 0
    assert dead(queue) == {"expired": 2}


@pytest.mark.spec("A-118")
def test_a_move_to_the_own_queue_or_to_none_is_refused(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q")
    put(queue, "ready", ttl="1m")
    clocked.advance(HOUR)  # a sweep would end it
    before = everything(client)

    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match=r"^to: expected another queue than 'q'$"):
            queue.move("me", "q", dry_run=dry_run)
        with pytest.raises(QueueNotFound, match="'q/none'"):
            queue.move("me", "q/none", dry_run=dry_run)
    assert everything(client) == before
