"""Queues with `forward_to`: each message goes on to one other queue, once and in order."""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import count, pairwise
from typing import Any

import pytest
import redis

from rqttl import (
    Broker,
    InvalidInput,
    InvalidOption,
    InvalidPolicy,
    Message,
    Queue,
    QueueForwards,
    QueueFull,
    QueueMismatch,
    Topic,
)
from rqttl.protocol.commands import BriefCommand
from rqttl.store.driver import driver_of
from rqttl.testing.fake import ClockedBroker
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import bodies, dead, dropped, one, scripts, taken
from tests.contract.test_passing_on import contents, dies, reap
from tests.contract.test_waking import Waiters, waiters
from tests.drivers import before_step, redis_of
from tests.lua.states import everything


def chain(broker: Broker, *names: str, **options: Any) -> list[Queue]:
    """Queues of which each forwards to the next one; `options` are those of the last."""
    last = broker.declare_queue(names[-1], **options)
    return [*(broker.declare_queue(name, forward_to=after) for name, after in pairwise(names)), last]


__all__ = ["waiters"]


@pytest.mark.spec("S-089", "S-094", "TE-25")
def test_a_message_moves_in_one_step_and_keeps_its_id_headers_and_deadline(clocked: Clocked) -> None:
    source, target = chain(clocked, "q", "q/next")
    called = scripts(clocked)

    receipts = source.enqueue_many([Message(b"1", ttl="1m", headers={"kind": "a"}), b"2"])
    receipts.append(source.enqueue(b"3", id="x"))

    assert called.count("publish") == 2
    assert "enqueue" not in called
    views = target.peek()
    assert [(view.body, view.headers, view.expires_at) for view in views] == [
        (b"1", {"kind": "a"}, at(60_000)),
        (b"2", {}, None),
        (b"3", {}, None),
    ]
    assert [view.id for view in views] == [getattr(receipt, "id", "") for receipt in receipts]
    assert views[2].id == "x"
    stats = source.stats()
    assert (stats.ready, stats.enqueued, stats.copies, target.stats().enqueued) == (0, 3, 3, 3)


@pytest.mark.spec("S-089", "C-45", "TE-01", "TR-10")
def test_what_waits_goes_on_and_what_is_leased_is_settled_as_usual(clocked: Clocked) -> None:
    source, target = clocked.declare_queue("q", redelivery_delay="5ms"), clocked.declare_queue("q/next")
    other = Clocked(redis_of(clocked)).queue("q")  # a client that knows the old options
    source.enqueue_many([b"acked", b"nacked", b"later", b"lapsed", b"1", Message(b"due", delay="20ms")])
    other.enqueue(b"2")
    acked, nacked, later, lapsed = [one(source, lease="10ms") for _ in range(4)]

    source.update(forward_to="q/next")
    assert (bodies(target), source.stats().copies) == ([b"1", b"2"], 2)
    other.enqueue(b"3")
    assert bodies(target) == [b"1", b"2", b"3"]
    acked.ack()
    nacked.nack(delay=0)
    later.nack()
    assert bodies(target) == [b"1", b"2", b"3", b"nacked"]
    reap(clocked, 5)
    reap(clocked, 5)
    reap(clocked, 10)

    assert contents([source, target]) == [[], [b"1", b"2", b"3", b"nacked", b"later", b"lapsed", b"due"]]
    assert (lapsed.body, source.stats().acked) == (b"lapsed", 1)


@pytest.mark.parametrize("is_late", [False, True], ids=["", "after a renewal"])
def test_a_consumer_of_several_queues_renews_and_settles_what_it_has_of_one_that_begins_to_forward(
    clocked: Clocked, is_late: bool
) -> None:
    source = clocked.declare_queue("q", lease="30s")
    clocked.declare_queue("other")
    source.enqueue_many([b"1", b"2"])

    with clocked.consume(["q", "other"], wait="1s") as deliveries:
        first, second = next(deliveries), next(deliveries)
        source.update(forward_to="q/next")
        first.ack()
        assert next(deliveries, None) is None
        for _ in range(6 * is_late):
            clocked.advance(10_000)
            assert next(deliveries, None) is None
        second.ack()

    stats = source.stats()
    assert (stats.acked, stats.leased, stats.ready, deliveries.lost_count) == (2, 0, 0, 0)
    assert "q/next" not in clocked.queues(), "nothing went on"


def test_what_is_leased_between_messages_that_go_on_stays(clocked: Clocked) -> None:
    queue, target = clocked.declare_queue("q"), clocked.declare_queue("q/next")
    queue.enqueue_many([b"1", b"2", b"3"])
    first, second = queue.receive_many(2)
    first.nack()

    queue.update(forward_to="q/next")
    assert bodies(target) == [b"1", b"3"]

    second.nack()
    assert contents([queue, target]) == [[], [b"1", b"3", b"2"]]


def test_a_paused_queue_that_begins_to_forward_keeps_what_waits_until_it_is_resumed(clocked: Clocked) -> None:
    queue, target = clocked.declare_queue("q"), clocked.declare_queue("q/next")
    queue.enqueue(b"1")
    queue.pause()

    queue.update(forward_to="q/next")
    assert contents([queue, target]) == [[b"1"], []]

    queue.resume()
    assert contents([queue, target]) == [[], [b"1"]]


def test_what_waits_is_ready_again_in_order_once_the_queue_forwards_no_more(clocked: Clocked) -> None:
    source, target = chain(clocked, "q", "q/next")
    source.pause()
    source.enqueue_many([b"1", b"2", Message(b"3", delay="1s")])

    source.update(forward_to=None, paused=False)

    source.enqueue(b"4")
    reap(clocked, 1_000)
    assert (taken(source), bodies(target), redis_of(clocked).hexists("rqttl:{q}:meta", "passes_on")) == (
        [b"1", b"2", b"4", b"3"],
        [],
        False,
    )


@pytest.mark.spec("S-080", "S-090")
def test_the_first_message_makes_a_missing_target_and_the_next_one_a_deleted_target(clocked: Clocked) -> None:
    clocked.set_policy("p", "q/next", {"max_length": 2})
    source = clocked.declare_queue("q", forward_to="{queue}/next")
    assert clocked.queues() == ["q"]

    source.enqueue_many([b"1", b"2", b"3"])
    target = clocked.queue("q/next")
    assert (clocked.queues(), bodies(target), target.options().max_length) == (["q", "q/next"], [b"2", b"3"], 2)
    assert clocked.declare_queue("q/next", forward_to="q/last").declared == "adopted"
    assert contents([target, clocked.queue("q/last")]) == [[], [b"2", b"3"]]
    Clocked(redis_of(clocked)).queue("q/next").delete()
    source.enqueue(b"4")
    clocked.queue("q/next").delete()
    source.enqueue(b"5", delay="1ms")
    reap(clocked, 1)

    assert (bodies(target), target.options().forward_to, source.stats().copies) == ([b"5"], None, 5)


@pytest.mark.spec("S-092")
def test_a_full_target_refuses_who_sends_by_its_name_and_holds_back_what_waits(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, target = chain(clocked, "q/1", "q/2", "q/3", max_length=1, overflow="reject-publish")
    second.enqueue(b"0")

    with pytest.raises(QueueFull, match="'q/3'"):
        second.enqueue(b"x")
    first.enqueue(b"1")
    first.enqueue(b"2", delay="1ms")
    reap(clocked, 1)
    assert contents([first, second, target]) == [[], [b"1", b"2"], [b"0"]]
    assert caplog.messages == ["queue q/2: messages wait: queue 'q/3' is full: max_length is 1"]
    assert taken(target) == [b"0"]
    reap(clocked, 1_000)

    assert contents([first, second, target]) == [[], [b"2"], [b"1"]]


@pytest.mark.spec("S-093", "C-45", "TE-24")
def test_the_deadline_of_the_sender_stays_and_the_options_of_the_target_act_there(clocked: Clocked) -> None:
    source, target = chain(clocked, "q", "q/next", message_ttl="10s", dead_letter_expired="q")
    source.update(duplicate_window="1m", message_ttl="1m")

    source.enqueue(b"short", ttl="1s", id="a")
    source.enqueue(b"long", id="b")
    source.enqueue(b"twice", id="b")
    assert [view.expires_at for view in target.peek()] == [at(1_000), at(10_000)]
    reap(clocked, 1_000)
    reap(clocked, 9_000)

    # what expires comes back as a dead letter, and is not passed to the queue where it died
    assert (contents([source, target]), dead(target), dropped(source)) == ([[], []], {"expired": 2}, {"cycle": 2})


@pytest.mark.spec("S-091", "C-45", "TE-13")
def test_a_chain_has_any_length(clocked: Clocked) -> None:
    topics = [clocked.declare_topic(f"q/t/{n}") for n in range(30)]
    queues = [*topics, *chain(clocked, *(f"q/{n}" for n in range(30)))]
    for topic, after in zip(topics, queues[1:], strict=False):
        topic.bind(after.name)

    queues[0].enqueue_many([b"1", b"2"])

    assert contents(queues) == [[]] * 59 + [[b"1", b"2"]]


@pytest.mark.spec("A-025", "S-091")
def test_dead_letters_go_on_also_after_the_death_of_a_client_and_to_the_queues_of_a_topic(clocked: Clocked) -> None:
    topic = clocked.declare_topic("dead")
    subscriptions = [topic.subscribe(name, {"death.queue": f"dead/of/{name}"}) for name in ("a", "b")]
    clocked.declare_queue("dead/box", forward_to="dead")
    queues = [clocked.declare_queue(f"dead/of/{name}", dead_letter="dead/box") for name in ("a", "b")]
    for queue in queues:
        queue.enqueue(queue.name[-1].encode())
        dies(clocked, one(queue).reject)
    assert bodies(clocked.queue("dead/box")) == [b"a", b"b"]

    reap(clocked, 2_000)

    assert contents([clocked.queue("dead/box"), topic, *subscriptions]) == [[], [], [b"a"], [b"b"]]
    assert subscriptions[1].peek()[0].deaths[0].queue == "dead/of/b"


# Refusals and circles


@pytest.mark.spec("S-090")
@pytest.mark.parametrize(
    "call,rule",
    [
        (lambda b: b.declare_queue("x", forward_to="x"), "cannot forward to itself"),
        (lambda b: b.declare_queue("x", forward_to="{queue}"), "cannot forward to itself"),
        (lambda b: b.declare_queue("x", forward_to="a b"), "forward_to: .*'a b'"),
        (lambda b: b.declare_queue("x", forward_to=""), "forward_to: "),
        (lambda b: b.declare_queue("x" * 100, forward_to="{queue}/{queue}"), "forward_to: "),
        (lambda b: b.declare_queue("x", forward_to=7), "expected a queue name or a template"),
        (lambda b: b.declare_topic("x", forward_to="y"), "'x' is a topic: bind 'y' to it"),
        (lambda b: b.topic("t").update(forward_to="y"), "'t' is a topic: bind 'y' to it"),
        (lambda b: b.set_policy("p", "#", {"forward_to": "y"}), "declare it for each queue"),
        (lambda b: b.set_policy("p", "#", {"forward-to": "y"}, operator=True), "declare it for each queue"),
        (lambda b: b.queue("t/c").update(forward_to="t/a"), "come back: 't/c' > 't/a' > 't/b' > 't' > 't/c'$"),
        (lambda b: b.queue("t/c").preview_update(forward_to="t/a"), "come back: 't/c' > 't/a' > 't/b' > 't' > 't/c'$"),
        (lambda b: b.declare_queue("t/gone", forward_to="t/to"), "come back: 't/gone' > 't/to' > 't/gone'"),
    ],
)
def test_a_refused_target_is_named_with_the_rule_and_changes_nothing(
    clocked: Clocked, client: redis.Redis, call: Callable[[Broker], object], rule: str
) -> None:
    topic = clocked.declare_topic("t")
    topic.subscribe("c", "never")
    clocked.declare_queue("t/b", forward_to="t")
    clocked.declare_queue("t/a", forward_to="t/b")
    clocked.declare_queue("t/to", forward_to="t/gone")
    before = everything(client)

    with pytest.raises((InvalidOption, InvalidPolicy), match=rule):
        call(clocked)

    assert everything(client) == before


@pytest.mark.spec("TE-14")
def test_a_queue_in_another_slot_is_refused_with_the_name_that_would_do(client: redis.Redis) -> None:
    with ClockedBroker(client, start=START, slotted=True) as broker:
        with pytest.raises(InvalidOption, match=r"forward_to: 'far' is in another slot .* '\{q\}.far' would be"):
            broker.declare_queue("q/a", forward_to="far")
        source = broker.declare_queue("q/a", forward_to="{q}.far")
        with pytest.raises(InvalidOption, match="another slot"):
            source.update(forward_to="far")
        origin = broker.declare_queue("other", dead_letter="q/a")

        source.enqueue(b"1")
        origin.enqueue(b"2", ttl="1ms")
        reap(broker, 1)

        assert contents([source, broker.queue("{q}.far")]) == [[], [b"1", b"2"]]


@pytest.mark.spec("C-45", "TE-13", "TR-11")
def test_a_circle_that_two_clients_close_holds_its_messages_until_it_is_open(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = (clocked.declare_queue(name) for name in ("q/a", "q/b", "q/c"))
    b.update(forward_to="q/c")
    other = Clocked(redis_of(clocked))

    # the other client is as far as this one: both have seen no circle
    before_step(driver_of(clocked), BriefCommand, lambda: other.queue("q/c").update(forward_to="q/a"))
    a.update(forward_to="q/b")
    a.enqueue(b"1")
    b.enqueue(b"2")
    reap(clocked, 5_000)
    reap(clocked, 5_000)

    assert sorted(body for found in contents([a, b, c]) for body in found) == [b"1", b"2"]
    assert len(caplog.messages) == len(set(caplog.messages)) > 0
    assert "would come back: 'q/" in caplog.messages[0]
    other.queue("q/c").update(forward_to=None)
    reap(clocked, 2_000)
    assert [*map(len, contents([a, b, c]))] == [0, 0, 2]


def test_a_topic_sees_a_circle_over_forwards_and_a_second_declaration_must_be_equal(clocked: Clocked) -> None:
    topic = clocked.declare_topic("news")
    desk = topic.subscribe("desk", forward_to="{queue}/box")
    assert (clocked.declare_queue("news/desk", forward_to="{queue}/box").declared) == "existing"
    with pytest.raises(QueueMismatch, match="forward_to"):
        clocked.declare_queue("news/desk", forward_to="news/other")
    clocked.declare_queue("news/back", forward_to="news")
    with pytest.raises(InvalidInput, match="come back: 'news' > 'news/back' > 'news'; unbind"):
        topic.bind("news/back")

    topic.enqueue(b"x")

    assert contents([topic, desk, clocked.queue("news/desk/box")]) == [[], [], [b"x"]]
    shown = desk.explain()["forward_to"]
    assert (shown.value, shown.source, desk.options().forwards_to) == ("{queue}/box", "declared", "news/desk/box")


# Life


@pytest.mark.spec("S-077", "C-28")
@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_a_queue_that_forwards_has_no_lifetime_and_has_it_again_afterwards(clocked: Clocked, option: str) -> None:
    queue = clocked.declare_queue("q", **{option: "1s"})  # type: ignore[arg-type]  # a name of an option
    queue.update(forward_to="q/next")
    reap(clocked, 5_000)
    queue.enqueue(b"x")
    assert (clocked.queues(), queue.options()[option]) == (["q", "q/next"], 1_000)
    queue.pause()
    queue.enqueue(b"y", id="y")
    changes: list[dict[str, Any]] = [{option: "1ms"}, {"forward_to": None}]
    assert [queue.preview_update(**change).ending for change in changes] == [0, 1]
    queue.purge()

    queue.update(forward_to=None)
    reap(clocked, 999)
    assert clocked.queues() == ["q", "q/next"]
    reap(clocked, 1)

    assert clocked.queues() == ["q/next"]


@pytest.mark.parametrize("how", ["update", "adoption"])
@pytest.mark.spec("TE-26")
def test_consumers_that_wait_learn_at_once_that_the_queue_forwards(broker: Broker, waiters: Waiters, how: str) -> None:
    if how == "update":
        broker.declare_queue("q")
    else:
        broker.declare_queue("origin", dead_letter="q").enqueue(b"x", ttl=0)
        assert taken(broker.queue("q")) == [b"x"]
    queue = broker.queue("q")
    told = waiters.start(queue, 3)

    if how == "update":
        queue.update(forward_to="q/next")
    else:
        assert broker.declare_queue("q", forward_to="q/next").declared == "adopted"

    for waiter in told:
        assert isinstance(waiter.exception(timeout=60), QueueForwards)
    queue.update(forward_to=None)
    assert queue.enqueue(b"for nobody", ttl=0).expired
    [waiter] = waiters.start(queue)
    queue.enqueue(b"y")
    assert waiter.result(timeout=60).body == b"y"


@pytest.mark.spec("S-089")
def test_a_message_on_its_way_to_a_consumer_that_waits_goes_on_and_counts_no_delivery(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=1, max_deliveries=1)
    other = Clocked(redis_of(clocked))
    arrivals = [b"1", b"2"]

    def act() -> None:
        if arrivals:
            queue.enqueue_many(arrivals)
            arrivals.clear()
            other.queue("q").update(forward_to="q/next")

    clocked.while_waiting(act)

    text = r"^queue 'q' forwards its messages: receive from 'q/next'$"
    with pytest.raises(QueueForwards, match=text) as told:
        queue.receive(wait="10s")

    assert (told.value.to, told.value.is_topic) == (("q/next",), False)
    assert contents([queue, clocked.queue("q/next")]) == [[], [b"2", b"1"]]
    assert (queue.stats().leased, dead(queue)) == (0, {})


# Random graphs

GRAPHS = int(os.environ.get("RQTTL_TEST_GRAPHS", "12"))


def random_graph(broker: Broker, chance: random.Random) -> list[Queue]:
    """Queues and topics that forward, bind and bury into each other at random, where no rule forbids it."""
    names = [f"g/{number}" for number in range(chance.randint(2, 9))]
    queues: list[Queue] = []
    for name in names:
        options: dict[str, Any] = {}
        if chance.random() < 0.3:
            options["message_ttl"] = chance.choice(["1ms", "2s"])
        if chance.random() < 0.3:
            overflow = chance.choice(["drop-head", "reject-publish"])
            options |= {"max_length": chance.randint(1, 3), "overflow": overflow}
        make = broker.declare_topic if chance.random() < 0.3 else broker.declare_queue
        queues.append(make(name, **options))
    for queue in chance.sample(queues, len(queues)):
        with suppress(InvalidInput):
            if isinstance(queue, Topic):
                for name in chance.sample(names, chance.randint(0, len(names))):
                    with suppress(InvalidInput):
                        queue.bind(name, chance.choice([None, "a.*", {"unmatched": True}]))
            elif chance.random() < 0.5:
                queue.update(forward_to=chance.choice(names))
            else:
                queue.update(dead_letter=chance.choice([*names, "{queue}/late"]))
    return queues


def passes_on(queue: Queue) -> bool:
    return queue.options().passes_to is not None


def used_at_random(clocked: Clocked, queues: list[Queue], chance: random.Random) -> int:
    """Send and receive at random. Returns the number of messages that were taken."""
    taken_in = 0
    for _ in range(chance.randint(5, 25)):
        queue = chance.choice(queues)
        messages = [
            Message(b"x", chance.choice([None, "0ms", "3s"]), delay=chance.choice([None, "2s"]), subject=subject)
            for subject in chance.choices(["a.b", "c"], k=chance.randint(1, 4))
        ]
        taken_in += sum(not isinstance(one, QueueFull) for one in queue.enqueue_many(messages))
        if chance.random() < 0.3 and not passes_on(queue):
            for delivery in queue.receive_many(3):
                getattr(delivery, chance.choice(["ack", "nack", "reject"]))()
        if chance.random() < 0.3:
            reap(clocked, chance.choice([0, 1, 1_000]))
    return taken_in


@pytest.mark.spec("C-45")
@pytest.mark.parametrize("seed", range(GRAPHS))
def test_in_any_graph_every_message_ends_and_is_counted(clocked: Clocked, seed: int) -> None:
    chance = random.Random(seed)
    sent, queues = used_at_random(clocked, random_graph(clocked, chance), chance), list[Queue]()

    for turn in count():
        reap(clocked, 1_000)
        queues = [clocked.queue(name) for name in clocked.queues()]
        if not any(queue.stats().depth for queue in queues):
            break
        assert turn < 60, contents(queues)
        for queue in queues:
            if not passes_on(queue):
                queue.ack_many(queue.receive_many(100))

    enqueued = arrivals = 0
    for queue in queues:
        stats, deaths = queue.stats(), sum(queue.stats().deaths.values())
        enqueued += stats.enqueued
        # a copy that would go back to where its message died is counted as dropped, too
        circles = stats.dropped.get("cycle", 0) if passes_on(queue) else 0
        arrivals += stats.copies + deaths - sum(stats.dropped.values()) + circles
        if not passes_on(queue):
            assert stats.enqueued == stats.acked + deaths
        elif queue.options().forward_to:
            assert stats.enqueued == stats.copies + circles + deaths
    assert enqueued == sent + arrivals
