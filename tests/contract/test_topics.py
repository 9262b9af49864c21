"""Topics: each bound queue gets its copy of the messages that its filter wants, all in one step or none."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import (
    Delivery,
    InvalidInput,
    InvalidName,
    Message,
    Queue,
    QueueForwards,
    QueueFull,
    QueueInUse,
    QueueMismatch,
    QueueNotFound,
    Receipt,
    Topic,
)
from rqttl.protocol import commands
from rqttl.protocol.commands import BriefCommand, Command
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, at
from tests.contract.looks import bodies, dead, dropped, one, scripts, taken
from tests.contract.test_passing_on import reap
from tests.drivers import before_step, redis_of
from tests.lua.states import everything

MINUTE, HOUR = 60_000, 3_600_000


@pytest.fixture
def topic(clocked: Clocked) -> Topic:
    """The topic `news` without options."""
    return clocked.declare_topic("news")


# Copies


@pytest.mark.spec("S-081", "S-083", "TTL-13")
def test_each_subscription_has_a_copy_with_a_lease_a_life_and_dead_letters_of_its_own(
    clocked: Clocked, topic: Topic
) -> None:
    eu, us = topic.subscribe("eu", message_ttl="1m", dead_letter="{queue}/dead"), topic.subscribe("us")

    receipt = topic.enqueue({"n": 1}, headers={"kind": "a"}, subject="orders.eu")

    assert (eu.name, us.name, us.declared) == ("news/eu", "news/us", "created")
    kept = one(us, lease="1h")
    assert (kept.id, kept.decode(), kept.headers) == (receipt.id, {"n": 1}, {"kind": "a", "subject": "orders.eu"})
    clocked.advance(MINUTE)
    assert (eu.receive(), dead(eu), dead(us)) == (None, {"expired": 1}, {})
    assert one(clocked.queue("news/eu/dead")).id == receipt.id
    kept.ack()
    stats = topic.stats()
    assert (stats.enqueued, stats.copies, stats.unrouted, stats.depth) == (1, 2, 0, 0)


@pytest.mark.spec("S-082", "C-26", "TE-15")
@pytest.mark.parametrize(
    "message,topic,queue,expected",
    [
        ("30m", "1h", {"message_ttl": "2h"}, 30 * MINUTE),
        (None, "1h", {"message_ttl": "2h"}, HOUR),
        ("3h", "2h", {"message_ttl": "1h"}, HOUR),
        (None, None, {"message_ttl": "1h"}, HOUR),
        (None, "1h", {}, HOUR),
        (None, "1h", {"default_ttl": "1m"}, MINUTE),
        (None, "1h", {"default_ttl": "2h"}, HOUR),
        ("30m", "1h", {"default_ttl": "1m"}, 30 * MINUTE),
        ("30m", "1h", {"min_ttl": "2h"}, 2 * HOUR),
        ("30m", "1h", {"max_ttl": "1m"}, MINUTE),
        ("30m", "1h", {"never_expire": True}, None),
        (None, None, {}, None),
    ],
)
def test_a_copy_lives_for_the_shortest_of_the_ttls_of_message_topic_and_queue(
    clocked: Clocked, message: str | None, topic: str | None, queue: dict[str, Any], expected: int | None
) -> None:
    """A message for 30 minutes or none, a topic for an hour, a queue for two; and a queue with a `min_ttl`."""
    news = clocked.declare_topic("news", message_ttl=topic)
    copy = news.subscribe("eu", **queue)

    receipt = news.enqueue(b"x", ttl=message)

    news.pause()
    news.enqueue(b"y", ttl=message)
    news.resume()
    assert [view.expires_at for view in copy.peek()] == [None if expected is None else at(expected)] * 2
    assert receipt.expires_at == {"30m": at(30 * MINUTE), "3h": at(2 * HOUR)}.get(message or "", topic and at(HOUR))


@pytest.mark.spec("S-084")
def test_a_message_that_no_queue_wants_is_counted_and_goes_to_the_queue_for_the_unmatched(topic: Topic) -> None:
    assert topic.enqueue(b"nobody").id
    eu = topic.subscribe("eu", "eu.#")
    topic.enqueue_many([Message(b"a", subject="us.x"), Message(b"b", subject="eu.x"), b"c"])
    rest = topic.subscribe("rest", {"unmatched": True})
    topic.enqueue_many([Message(b"d", subject="us.x"), Message(b"e", subject="eu.x"), b"f"])

    assert (bodies(eu), bodies(rest)) == ([b"b", b"e"], [b"d", b"f"])
    stats = topic.stats()
    assert (stats.enqueued, stats.copies, stats.unrouted) == (7, 4, 3)


@pytest.mark.spec("S-085", "S-086", "C-44")
@pytest.mark.parametrize(
    "filter,expected",
    [
        (None, "abcd"),
        ("orders.*", "ac"),
        ({"region": "eu"}, "ad"),
        ({"region": ["eu", "us"], "size": 1}, "ac"),
        ({"size": True}, "d"),
        ({"size": {"not": 1}}, "bd"),
        ([{"region": "us"}, {"size": 1}, "orders.eu"], "ac"),
    ],
)
def test_a_queue_gets_one_copy_of_what_its_filter_wants(topic: Topic, filter: Any, expected: str) -> None:
    queue = topic.subscribe("q", filter)

    topic.enqueue_many(
        [
            Message(b"a", subject="orders.eu", headers={"region": "eu", "size": 1}),
            Message(b"b", subject="orders.eu.created"),
            Message(b"c", subject="orders.us", headers={"region": "us", "size": 1.0}),
            Message(b"d", headers={"region": "eu", "size": True}),
        ]
    )

    assert b"".join(bodies(queue)).decode() == expected


@pytest.mark.parametrize("by_its_queue", [True, False])
def test_who_sends_to_the_queue_of_the_topic_publishes_in_one_round_trip_and_in_order(
    clocked: Clocked, topic: Topic, by_its_queue: bool
) -> None:
    eu, us = topic.subscribe("eu"), topic.subscribe("us")
    sender: Queue = clocked.queue("news") if by_its_queue else topic
    sender.enqueue(b"first")
    called = scripts(clocked)

    sender.enqueue(b"one")
    sender.enqueue_many([b"%d" % i for i in range(300)])

    assert called == ["publish"] * 3
    expected = [b"first", b"one", *(b"%d" % i for i in range(300))]
    assert bodies(eu) == bodies(us) == expected
    assert sender.enqueue_many([]) == []


@pytest.mark.parametrize("window", ["topic", "call", "queue"])
@pytest.mark.spec("TE-08")
def test_an_id_is_stored_once_for_all_queues_also_for_those_bound_later(clocked: Clocked, window: str) -> None:
    """Windows of the topic, of a call and of a queue: that of a queue drops its copy alone."""
    topic = clocked.declare_topic("news", duplicate_window="1h" if window == "topic" else None)
    eu = topic.subscribe("eu", duplicate_window="1h" if window == "queue" else None)
    sent, how = [Message(b"x", id="a")], {"duplicate_window": "1h"} if window == "call" else {}
    topic.enqueue_many(sent, **how)
    us = topic.subscribe("us")

    [again] = topic.enqueue_many(sent, **how)

    assert again == Receipt("a", duplicate=window != "queue")
    assert (topic.stats().copies, topic.stats().unrouted) == (3 if window == "queue" else 1, 0)
    assert (bodies(eu), bodies(us)) == ([b"x"], [b"x"] if window == "queue" else [])


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
@pytest.mark.spec("TE-02")
def test_a_full_queue_that_refuses_refuses_for_all_and_of_a_batch_only_messages_for_it(
    clocked: Clocked, topic: Topic, client: redis.Redis, overflow: Any
) -> None:
    """One full queue of ten."""
    for i in range(9):
        topic.subscribe(f"q{i}", None if i else {"for": "q0"})
    full = topic.subscribe("full", {"for": "full"}, max_length=1, overflow=overflow)
    topic.enqueue(b"fits", headers={"for": "full"})
    before = everything(client)

    with pytest.raises(QueueFull) as refused:
        topic.enqueue(b"x", headers={"for": "full"})
    assert everything(client) == before
    assert (refused.value.queue, refused.value.limit, refused.value.value) == ("news/full", "max_length", 1)
    sent = [Message(b"%d" % i, headers={"for": "full" if i in (1, 2, 5) else "q0"}) for i in range(7)]
    results = topic.enqueue_many(sent)
    assert [i for i, one in enumerate(results) if isinstance(one, QueueFull)] == [1, 2, 5]
    assert bodies(clocked.queue("news/q0")) == [b"0", b"3", b"4", b"6"]
    assert (bodies(full), topic.stats().copies) == ([b"fits"], 9 + 4 * 9)


def test_a_full_queue_refuses_a_batch_in_one_call_and_takes_what_has_room(clocked: Clocked, topic: Topic) -> None:
    topic.subscribe("length", "a", max_length=1, overflow="reject-publish")
    size = topic.subscribe("size", "b", max_length_bytes=2, overflow="reject-publish")
    topic.enqueue_many([Message(b"1", subject="a"), Message(b"1", subject="b")])
    called = scripts(clocked)

    refused = topic.enqueue_many([Message(b"2", subject="a")] * 200)
    [_, dead_at_once] = topic.enqueue_many([Message(b"2", subject="a"), Message(b"3", subject="a", ttl=0)])
    sizes = topic.enqueue_many([Message(body, subject="b") for body in (b"22", b"2", *[b"3"] * 200)])

    assert (called[:1], len(called) < 10) == (["publish"], True)
    assert [type(one) for one in (*refused, dead_at_once)] == [QueueFull] * 200 + [Receipt]
    assert [type(one) for one in sizes] == [QueueFull, Receipt, *[QueueFull] * 200]
    assert bodies(size) == [b"1", b"2"]


@pytest.mark.spec("TE-16")
def test_a_copy_with_a_ttl_of_0_goes_to_a_consumer_that_waits_or_dies_there(clocked: Clocked, topic: Topic) -> None:
    eu, us = topic.subscribe("eu"), topic.subscribe("us")
    clocked.while_waiting(lambda: topic.enqueue(b"x", ttl=0))

    one(eu, wait="1s").ack()

    assert (dead(eu), dead(us)) == ({}, {"expired": 1})


@pytest.mark.spec("A-025", "TE-17")
def test_copies_of_a_message_whose_time_is_over_die_in_their_queues(clocked: Clocked, topic: Topic) -> None:
    queues = [topic.subscribe(name, dead_letter="news/x/dead") for name in ("eu", "us")]

    topic.enqueue(b"x", expires_at=at(-1))
    topic.enqueue(b"y", ttl="1ms")
    clocked.advance(1)

    assert [(dead(queue), queue.stats().ready) for queue in queues] == [({"expired": 2}, 0)] * 2
    assert (dead(topic), bodies(clocked.queue("news/x/dead"))) == ({}, [b"x", b"x", b"y", b"y"])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.spec("TE-18")
def test_a_copy_may_push_a_message_out_into_a_queue_that_gets_a_copy_too_or_into_the_topic(
    clocked: Clocked, topic: Topic, waits: bool
) -> None:
    topic.subscribe("a", max_length=1, dead_letter="news/b")
    topic.subscribe("b")
    topic.subscribe("c", max_length=1, dead_letter="news")
    topic.enqueue(b"1")

    topic.update(paused=waits)
    topic.enqueue(b"2")
    topic.resume()

    assert [bodies(clocked.queue(f"news/{name}")) for name in "abc"] == [[b"1"], [b"1", b"2", b"1", b"1", b"2"], [b"2"]]
    assert (bodies(topic), topic.stats().ready_bytes, dropped(topic)) == ([], 0, {"cycle": 1})


def test_queues_that_bury_into_each_other_take_the_log_and_lose_nothing(clocked: Clocked, topic: Topic) -> None:
    topic.subscribe("a", max_length=1, dead_letter="news/b")
    topic.subscribe("b", max_length=1, dead_letter="news/a")

    topic.enqueue_many([b"1", b"2"])

    assert (bodies(topic), topic.stats().copies) == ([], 4)
    assert [len(bodies(clocked.queue(f"news/{name}"))) for name in "ab"] == [1, 1]


@pytest.mark.spec("TE-19")
def test_a_queue_that_is_bound_to_two_topics_gets_two_copies(clocked: Clocked, topic: Topic) -> None:
    queue, other = topic.subscribe("q"), clocked.declare_topic("news/other")
    other.bind(queue.name)

    topic.enqueue(b"x")
    other.enqueue(b"x")

    assert bodies(queue) == [b"x", b"x"]


@pytest.mark.spec("TE-20")
def test_the_largest_body_is_that_of_the_topic(clocked: Clocked) -> None:
    topic = clocked.declare_topic("news", max_message_bytes=10)
    queue = topic.subscribe("q", max_message_bytes=2)

    topic.enqueue(b"0123456789")
    with pytest.raises(InvalidInput, match="11 bytes are more than max_message_bytes, 10"):
        topic.enqueue_many([b"x", b"0123456789x"])

    assert bodies(queue) == [b"0123456789"]


@pytest.mark.spec("TE-07")
def test_a_paused_subscription_collects(topic: Topic) -> None:
    eu = topic.subscribe("eu")
    eu.pause()
    topic.enqueue(b"1")

    assert (eu.receive(), bodies(eu)) == (None, [b"1"])
    eu.resume()
    assert taken(eu) == [b"1"]


@pytest.mark.parametrize("options", [{"max_leased": 1}, {"rate": "1/1m"}])
def test_a_bound_queue_keeps_to_its_own_pace(clocked: Clocked, topic: Topic, options: dict[str, Any]) -> None:
    slow, fast = topic.subscribe("slow", **options), topic.subscribe("fast")
    clocked.while_waiting(lambda: topic.enqueue_many([b"1", b"2"]))

    found = slow.receive_many(9, wait="1s")

    assert ([one.body for one in found], slow.receive()) == ([b"1"], None)
    assert taken(fast)[:2] == [b"1", b"2"]
    found[0].ack()
    clocked.advance(MINUTE)
    assert one(slow).body == b"2"


# Receiving


def consumed(queue: Queue) -> list[Delivery]:
    """What a consumer gets until it ends."""
    with queue.consume(wait="1s") as deliveries:
        return list(deliveries)


@pytest.mark.parametrize("to", [(), ("eu",), ("a", "b", "c", "d")])
@pytest.mark.parametrize("how", ["receive", "receive_many", "consume", "run", "of several", "behind others"])
@pytest.mark.spec("TE-01")
def test_nobody_receives_from_a_topic_and_the_error_says_where_its_messages_go(
    clocked: Clocked, topic: Topic, how: str, to: tuple[str, ...]
) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    for name in to:
        topic.subscribe(name)
    calls: dict[str, Callable[[], object]] = {
        "receive": lambda: topic.receive(wait="1s"),
        "receive_many": lambda: clocked.queue("news").receive_many(3),
        "consume": lambda: consumed(topic),
        "run": lambda: topic.run(print, wait="1s"),
        "of several": lambda: clocked.receive(["news"]),
        "behind others": lambda: clocked.receive(["q", "news"], wait="1s"),
    }

    with pytest.raises(QueueForwards) as told:
        calls[how]()

    assert isinstance(told.value, QueueNotFound)
    assert told.value.to == tuple(f"news/{name}" for name in to)
    text = str(told.value)
    assert [name in text for name in told.value.to] == [True] * len(to[:3]) + [False] * len(to[3:])
    assert ("and 1 more" in text) is (len(to) > 3)
    assert (queue.stats().ready, queue.stats().delivered) == (1, 0)


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    "names,what",
    [
        (["news", "q"], "is a topic, which passes its messages on: subscribe to it first"),
        (["q", "news"], "is a topic, which passes its messages on: subscribe to it first"),
        (["q/inbox", "q"], "forwards its messages: receive from 'q'"),
    ],
)
def test_a_consumer_of_several_queues_logs_one_that_passes_on_at_the_start_and_goes_on(
    clocked: Clocked, caplog: pytest.LogCaptureFixture, names: list[str], what: str
) -> None:
    queue = clocked.declare_queue("q")
    clocked.declare_queue("q/inbox", forward_to="q").enqueue(b"x")
    [name] = {*names} - {"q"}

    def told() -> list[str]:
        return [message for message in caplog.messages if repr(name) in message]

    expected = f"queue '{name}' {what}; looking again every 5 s"
    with caplog.at_level(logging.WARNING), clocked.consume(names, prefetch=1, wait="1m") as deliveries:
        for delivery in deliveries:
            assert told() == [expected]
            delivery.ack()

    assert told() == [expected]
    assert queue.stats().acked == 1


def test_a_client_that_knows_the_topic_receives_from_a_queue_that_took_its_name(
    clocked: Clocked, topic: Topic, client: redis.Redis
) -> None:
    with pytest.raises(QueueForwards):
        topic.receive()
    other = Clocked(client)
    other.topic("news").delete()
    other.declare_queue("news").enqueue(b"x")

    assert one(topic).body == b"x"
    topic.enqueue(b"y")
    assert one(topic).body == b"y"


# Bindings


def test_bindings_are_told_in_one_form_and_can_be_given_again(clocked: Clocked, topic: Topic) -> None:
    topic.subscribe("eu", ("orders.eu", {"size": 1.0}))
    topic.subscribe("all")
    clocked.declare_queue("news/x/y")
    topic.bind("news/x/y", {"kind": ["b", "a"]})
    told = topic.bindings()

    assert told == {
        "news/eu": [{"size": 1}, {"subject": "orders.eu"}],
        "news/all": [],
        "news/x/y": [{"kind": ["a", "b"]}],
    }
    for queue, filter in told.items():
        topic.bind(queue, filter)
    topic.subscribe("eu", told["news/eu"])
    assert topic.bindings() == told
    assert clocked.declare_topic("news").declared == "existing"
    assert "bindings" not in topic.options().as_arguments()


@pytest.mark.spec("TE-06")
def test_a_changed_filter_acts_on_the_next_call_of_every_client_and_stored_copies_stay(
    topic: Topic, client: redis.Redis
) -> None:
    """The client that publishes knows the old version: it stores nothing by that."""
    eu, us = topic.subscribe("eu", "a"), topic.subscribe("us")
    topic.enqueue(b"1", subject="a")
    other = Clocked(client).topic("news")

    other.set_filter("eu", "b")
    topic.enqueue_many([Message(b"2", subject="a"), Message(b"3", subject="b")])
    assert other.unbind("news/us") is True
    topic.enqueue(b"4", subject="b")
    other.set_filter("news/eu", None)
    other.bind("news/us", "c")
    topic.enqueue(b"5", subject="c")

    assert (bodies(eu), bodies(us)) == ([b"1", b"3", b"4", b"5"], [b"1", b"2", b"3", b"5"])
    assert other.unbind("news/gone") is False


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.spec("TE-04")
def test_the_binding_of_a_deleted_queue_goes_with_the_next_message_unless_it_is_made_again_before(
    topic: Topic, client: redis.Redis, made_again: bool
) -> None:
    clocked = Clocked(client)
    clocked.declare_queue("news/x/y")
    eu = topic.subscribe("eu")
    topic.bind("news/x/y")
    topic.enqueue(b"1")

    clocked.queue("news/x/y").delete()
    if made_again:
        clocked.declare_queue("news/x/y")
    topic.enqueue(b"2")

    assert topic.bindings().keys() == {"news/eu"} | ({"news/x/y"} if made_again else set())
    assert bodies(eu) == [b"1", b"2"]
    if made_again:
        assert bodies(clocked.queue("news/x/y")) == [b"2"]


@pytest.mark.parametrize("how", ["a message", "a reaper"])
def test_the_bindings_of_all_queues_that_are_gone_go_in_one_change(
    clocked: Clocked, topic: Topic, client: redis.Redis, how: str
) -> None:
    names = [f"news/x/{number}" for number in range(20)]
    for name in names:
        clocked.declare_queue(name)
        topic.bind(name)
    topic.enqueue(b"1")
    for name in names[1:]:
        Clocked(client).queue(name).delete()
    called = scripts(clocked)

    if how == "a message":
        topic.enqueue(b"2")
    else:
        reap(clocked)

    assert (called.count("update"), topic.bindings()) == (1, {names[0]: []})


@pytest.mark.spec("TR-02")
def test_a_client_learns_that_another_one_has_removed_a_binding_also_if_it_has_forgotten_the_queue(
    clocked: Clocked, topic: Topic, client: redis.Redis
) -> None:
    eu = topic.subscribe("eu")
    topic.subscribe("us")
    topic.enqueue(b"1")
    Clocked(client).topic("news").unsubscribe("us")
    driver_of(clocked).configs.pop("news/us")

    topic.enqueue(b"2")

    assert bodies(eu) == [b"1", b"2"]


@pytest.mark.spec("TE-04")
def test_a_subscription_that_is_deleted_or_ends_is_unbound_and_one_that_is_made_again_gets_the_new_filter(
    clocked: Clocked, topic: Topic
) -> None:
    topic.subscribe("eu", "a").delete()
    topic.subscribe("us", expires="1m")
    clocked.advance(MINUTE)
    clocked.queue("news/us").sweep()
    assert topic.bindings() == {}

    topic.subscribe("eu", "a")
    driver_of(clocked).perform(_delete_in_silence(clocked))
    assert topic.bindings().keys() == {"news/eu"}
    eu = topic.subscribe("eu", "b")
    topic.enqueue_many([Message(b"1", subject="a"), Message(b"2", subject="b")])

    assert (bodies(eu), topic.unsubscribe("eu"), topic.bindings()) == ([b"2"], 1, {})


def _delete_in_silence(clocked: Clocked, queue: str = "news/eu") -> Any:
    """A client that dies right after it has deleted a subscription."""
    yield commands.delete(driver_of(clocked).keyspace, queue, if_unused=False, if_empty=False)


def test_a_damaged_record_of_another_queue_does_not_end_a_deletion(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q/a")
    redis_of(clocked).set("rqttl:{q}:meta", "damaged")

    assert queue.delete() == 0
    assert clocked.queues() == []


def test_a_queue_never_becomes_a_topic_and_another_filter_is_a_mismatch(clocked: Clocked, topic: Topic) -> None:
    topic.subscribe("eu", "a")
    clocked.declare_queue("q")

    kind: list[Callable[[], object]] = [lambda: clocked.declare_queue("news"), lambda: clocked.declare_topic("q")]
    again: list[Callable[[], object]] = [lambda: topic.subscribe("eu", "b"), lambda: topic.bind("news/eu", None)]
    for call in kind:
        with pytest.raises(QueueMismatch) as kinds:
            call()
        assert kinds.value.differences == {}
    for call in again:
        with pytest.raises(QueueMismatch, match=r"use set_filter") as filters:
            call()
        assert filters.value.differences["filter"][1] == [{"subject": "a"}]
    with pytest.raises(QueueMismatch, match="message_ttl"):
        clocked.declare_topic("news", message_ttl="1h")
    with pytest.raises(QueueMismatch, match="no topic"):
        clocked.topic("q").subscribe("x")


@pytest.mark.spec("S-087")
def test_a_topic_has_a_most_of_bindings_and_a_subscription_beyond_it_makes_no_queue(
    clocked: Clocked, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.flows.bindings.MOST_BINDINGS", 2)
    topic.subscribe("a")
    topic.subscribe("b")
    topic.subscribe("b")

    with pytest.raises(InvalidInput, match="2 bound queues"):
        topic.subscribe("c")

    assert clocked.queues() == ["news", "news/a", "news/b"]


SUBJECTS = [("", "words"), (".a", "words"), ("a..b", "words"), ("x" * 256, "255"), (7, "int 7"), ("a\n", "printable")]
#: Calls of a broker and its topic, of which a part is wrong.
REFUSED: list[tuple[str, Callable[[Any, Any], object], type[Exception], str]] = [
    *[
        (f"filter {filter!r}", lambda _, news, filter=filter: news.subscribe("x", filter), InvalidInput, rule)
        for filter, rule in [
            (7, "expected text, a mapping or a list"),
            ("a..b", "expected words"),
            ({"a": {"like": "x"}}, "operators"),
            ({"unmatched": True, "a": 1}, "without another rule"),
        ]
    ],
    *[
        (f"name {name!r}", lambda _, news, name=name: news.subscribe(name), InvalidName, "name: expected")
        for name in ("", "a/b", "a b", "x" * 124, None, 7, "{a}")
    ],
    ("options", lambda _, news: news.subscribe("x", None, max_length=-1), InvalidInput, "max_length"),
    ("bindings as an option", lambda broker, _: broker.declare_queue("x", bindings={}), InvalidInput, "no such queue"),
    ("bindings of a topic", lambda broker, _: broker.declare_topic("x", bindings={}), InvalidInput, "no such queue"),
    ("bindings by update", lambda _, news: news.update(bindings={}), InvalidInput, "no such queue option"),
    ("bindings by policy", lambda broker, _: broker.set_policy("p", "#", {"bindings": {}}), InvalidInput, "bindings"),
    ("a way back", lambda _, news: news.subscribe("x", forward_to="news"), InvalidInput, "come back: .news. >"),
    ("a long way back", lambda _, news: news.subscribe("x", forward_to="news/x/f"), InvalidInput, "> .news/x/f. >"),
    ("window", lambda _, news: news.enqueue_many([b"x"], duplicate_window=-1), InvalidInput, "duplicate_window"),
    ("no messages", lambda _, news: news.enqueue_many(None), InvalidInput, "expected a sequence"),
    ("a list as a name", lambda _, news: news.set_filter(["eu"], None), InvalidInput, "name: expected"),
    ("a missing queue", lambda _, news: news.bind("news/x/gone"), QueueNotFound, "gone"),
    ("the topic itself", lambda _, news: news.bind("news"), InvalidInput, "another queue than the topic"),
    ("no name", lambda _, news: news.bind("a b"), InvalidName, "queue: expected"),
    ("filter of a stranger", lambda _, news: news.set_filter("q", None), InvalidInput, "subscription of 'news'"),
    ("bad filter of a queue", lambda _, news: news.set_filter("eu", {"a": []}), InvalidInput, "empty list"),
    ("no subscription", lambda _, news: news.unsubscribe("gone"), QueueNotFound, "gone"),
    ("a missing topic", lambda broker, _: broker.topic("gone").subscribe("x"), QueueNotFound, "gone"),
    ("bindings of a missing topic", lambda broker, _: broker.topic("gone").bindings(), QueueNotFound, "gone"),
    ("a message to a missing topic", lambda broker, _: broker.topic("gone").enqueue(b"x"), QueueNotFound, "gone"),
    ("bindings of a queue", lambda broker, _: broker.topic("q").bindings(), QueueMismatch, "no topic"),
    ("name of a topic", lambda broker, _: broker.declare_topic("a b"), InvalidName, "expected"),
    *[
        (f"subject {text!r}", lambda _, news, text=text: news.enqueue(b"x", subject=text), InvalidInput, rule)
        for text, rule in SUBJECTS
    ],
    ("subject twice", lambda _, news: news.enqueue(b"x", headers={"subject": "a"}, subject="a"), InvalidInput, "as a"),
    ("body", lambda _, news: news.enqueue_many([b"x", {1, 2}]), InvalidInput, "body"),
    ("header", lambda _, news: news.enqueue(b"x", headers={"a": []}), InvalidInput, "headers"),
]


@pytest.mark.parametrize("call,error,rule", [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_refused_call_names_the_rule_and_changes_nothing(
    clocked: Clocked,
    topic: Topic,
    client: redis.Redis,
    call: Callable[[Clocked, Topic], object],
    error: type[Exception],
    rule: str,
) -> None:
    topic.subscribe("eu", "a")
    clocked.declare_queue("q")
    clocked.declare_queue("news/x/f", forward_to="news")
    before = everything(client)

    with pytest.raises(error, match=rule):
        call(clocked, topic)

    assert everything(client) == before


# Life


def test_a_topic_is_deleted_with_its_subscriptions_and_other_bound_queues_stay(clocked: Clocked, topic: Topic) -> None:
    eu, _ = topic.subscribe("eu", dead_letter="{queue}/dead"), topic.subscribe("us")
    clocked.declare_queue("news/x/y")
    topic.bind("news/x/y")
    topic.enqueue_many([b"1", b"2"])
    one(eu).reject()

    with pytest.raises(QueueInUse) as used:
        topic.delete(if_empty=True)
    assert (used.value.condition, len(topic.bindings())) == ("if_empty", 3)
    assert clocked.queue("news").delete() == 1 + 2

    assert clocked.queues() == ["news/eu/dead", "news/x/y"]
    with pytest.raises(QueueNotFound):
        topic.enqueue(b"3")


def test_a_topic_without_messages_and_consumers_may_be_deleted_on_that_condition(
    clocked: Clocked, topic: Topic
) -> None:
    topic.subscribe("eu")
    topic.subscribe("us", message_ttl="1ms")
    topic.enqueue(b"x")
    clocked.advance(MINUTE)
    taken(clocked.queue("news/eu"))

    assert topic.delete(if_unused=True, if_empty=True) == 0
    assert clocked.queues() == []


@pytest.mark.spec("TE-09")
def test_a_topic_that_another_client_deleted_stores_nothing(
    clocked: Clocked, topic: Topic, client: redis.Redis
) -> None:
    clocked.declare_queue("news/x/y")
    topic.bind("news/x/y")
    topic.enqueue(b"1")

    Clocked(client).topic("news").delete()
    with pytest.raises(QueueNotFound, match="news"):
        topic.enqueue(b"2")

    assert bodies(clocked.queue("news/x/y")) == [b"1"]


def test_a_purge_takes_what_waits_at_the_topic_and_subscriptions_keep_theirs(topic: Topic) -> None:
    eu = topic.subscribe("eu")
    topic.enqueue(b"1")
    topic.enqueue(b"2", delay="1h")
    topic.pause()
    topic.enqueue(b"3")

    assert (topic.purge(), topic.purge("scheduled"), bodies(eu), bodies(topic)) == (1, 1, [b"1"], [])


@pytest.mark.spec("S-075")
@pytest.mark.parametrize("use", ["receive", "update", "peek", "set_filter", "copies"])
def test_a_subscription_ends_without_receives_updates_and_peeks(clocked: Clocked, topic: Topic, use: str) -> None:
    eu = topic.subscribe("eu", auto_delete_on_idle="10m")
    clocked.advance(5 * MINUTE)
    calls: dict[str, Callable[[], object]] = {
        "receive": eu.receive,
        "update": lambda: eu.update(max_length=9),
        "peek": eu.peek,
        "set_filter": lambda: topic.set_filter("eu", "a.*"),
        "copies": lambda: topic.enqueue_many([b"1", b"2"]),
    }
    calls[use]()

    assert eu.stats().ends_at == at((15 if use in ("receive", "update", "peek") else 10) * MINUTE)


@pytest.mark.spec("S-074", "TE-10")
def test_a_topic_ends_after_its_last_subscription_and_these_have_its_lifetime(clocked: Clocked) -> None:
    """An idle topic for 10 minutes, with subscriptions that are idle."""
    topic = clocked.declare_topic("news", auto_delete_on_idle="10m")
    eu = topic.subscribe("eu")
    kept = topic.subscribe("kept", auto_delete_on_idle=None)
    assert (eu.options().auto_delete_on_idle, kept.options().auto_delete_on_idle) == (10 * MINUTE, None)
    assert eu.explain()["auto_delete_on_idle"].source == "declared"
    assert (topic.stats().ends_at, eu.stats().ends_at) == (None, at(10 * MINUTE))
    topic.update(auto_delete_on_idle="20m")
    assert topic.subscribe("eu").declared == "existing"

    clocked.advance(10 * MINUTE - 1)
    topic.enqueue(b"x")  # a copy is no use of a subscription
    clocked.advance(1)
    assert eu.sweep()[-1].retired == 1
    clocked.advance(20 * MINUTE)
    assert topic.bindings().keys() == {"news/kept"}
    topic.unbind("news/kept")
    assert topic.stats().ends_at == at(50 * MINUTE)
    clocked.advance(20 * MINUTE)
    topic.sweep()

    assert clocked.queues() == ["news/kept"]
    assert dropped(kept) == {}


@pytest.mark.spec("S-074", "TE-10")
@pytest.mark.parametrize("how", ["by a client", "by one that dies then", "by its own lifetime"])
def test_a_topic_to_which_nobody_sends_ends_after_its_last_bound_queue_whatever_its_name(
    clocked: Clocked, client: redis.Redis, how: str
) -> None:
    topic, other = clocked.declare_topic("news", auto_delete_on_idle="10m"), Clocked(client)
    clocked.declare_queue("news/eu/x", expires="1m" if how == "by its own lifetime" else None)
    topic.bind("news/eu/x")
    if how == "by a client":
        other.queue("news/eu/x").delete()
    elif how == "by one that dies then":
        driver_of(other).perform(_delete_in_silence(other, "news/eu/x"))
    reap(clocked, MINUTE)

    assert (topic.bindings(), topic.stats().ends_at) == ({}, at(11 * MINUTE))
    reap(clocked, 10 * MINUTE)
    assert clocked.queues() == []


# Races


@pytest.mark.spec("TR-01")
def test_a_binding_that_comes_between_look_up_and_call_gets_the_message(
    clocked: Clocked, topic: Topic, client: redis.Redis
) -> None:
    """Another client binds, sets a filter and deletes a queue while this one is about to publish."""
    eu, us = topic.subscribe("eu"), topic.subscribe("us")
    topic.enqueue(b"0")
    other = Clocked(client).topic("news")

    def meanwhile() -> None:
        other.subscribe("asia")
        other.set_filter("eu", "never")
        other.unsubscribe("us")

    before_step(driver_of(clocked), Command, meanwhile)
    topic.enqueue(b"1")

    assert (bodies(eu), bodies(clocked.queue("news/asia"))) == ([b"0"], [b"1"])
    with pytest.raises(QueueNotFound):
        us.peek()


@pytest.mark.parametrize("filter", ["a", "b"])
@pytest.mark.spec("TR-06")
def test_of_two_who_subscribe_at_once_one_with_another_filter_is_told(
    clocked: Clocked, topic: Topic, client: redis.Redis, filter: str
) -> None:
    other = Clocked(client).topic("news")
    before_step(driver_of(clocked), BriefCommand, lambda: other.subscribe("eu", "a"))

    if filter == "a":
        topic.subscribe("eu", filter)
    else:
        with pytest.raises(QueueMismatch, match="another filter"):
            topic.subscribe("eu", filter)

    assert topic.bindings() == {"news/eu": [{"subject": "a"}]}


@pytest.mark.spec("TR-07")
def test_two_who_bind_at_once_are_both_bound(clocked: Clocked, topic: Topic, client: redis.Redis) -> None:
    clocked.declare_queue("news/x/1")
    clocked.declare_queue("news/x/2")
    other = Clocked(client).topic("news")
    before_step(driver_of(clocked), BriefCommand, lambda: other.bind("news/x/2", "b"))

    topic.bind("news/x/1", "a")

    assert topic.bindings() == {"news/x/1": [{"subject": "a"}], "news/x/2": [{"subject": "b"}]}


def test_who_removes_the_binding_of_a_missing_queue_removes_none_that_was_made_since(
    clocked: Clocked, topic: Topic, client: redis.Redis
) -> None:
    """The publisher has found the queue missing; it is made and bound again, with the same filter, right then."""
    topic.subscribe("eu")
    topic.enqueue(b"1")
    driver_of(clocked).perform(_delete_in_silence(clocked))
    other = Clocked(client).topic("news")

    before_step(driver_of(clocked), BriefCommand, lambda: other.subscribe("eu"))
    topic.enqueue(b"2")

    assert (topic.bindings(), bodies(clocked.queue("news/eu"))) == ({"news/eu": []}, [b"2"])


def test_who_subscribes_while_the_topic_is_deleted_has_no_queue_that_gets_nothing(
    clocked: Clocked, topic: Topic, client: redis.Redis
) -> None:
    topic.subscribe("eu")
    other, driver = Clocked(client).topic("news"), driver_of(clocked)
    deletion = commands.delete(driver.keyspace, "news/eu", if_unused=False, if_empty=False)

    before_step(driver, deletion, lambda: [other.subscribe("late"), other.enqueue_many([b"1", b"2"])])

    assert (topic.delete(), clocked.queues()) == (4, [])
