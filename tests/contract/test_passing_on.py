"""What reaches a topic other than by its publisher waits there, and goes on to each bound queue, once and in order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from rqttl import Broker, InvalidInput, Message, Queue, QueueFull, Topic
from rqttl.flows import topics
from rqttl.flows.steps import GetConfig, HandleNotes, Step
from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from rqttl.testing.fake import ClockedBroker
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import bodies, dead, dropped, one, taken
from tests.drivers import redis_of


def news(broker: Broker, *names: str, **options: Any) -> tuple[Topic, list[Queue]]:
    """A topic with subscriptions that get everything."""
    topic = broker.declare_topic("news", **options)
    return topic, [topic.subscribe(name) for name in names]


def contents(queues: list[Queue]) -> list[list[bytes]]:
    return [bodies(queue) for queue in queues]


def reap(broker: Clocked | ClockedBroker, ms: int = 0) -> None:
    """Let a reaper do what is due in `ms`."""
    broker.clock.set(broker.clock.ms + ms)
    Reaper(broker).run_once()


@contextmanager
def observed(broker: Broker, look: Callable[[Step], object]) -> Iterator[None]:
    """Within the block `look` sees each step before it is performed; what it raises ends the client."""
    driver: Any = driver_of(broker)
    perform = driver.step

    def step(one: Step) -> Any:
        look(one)
        return perform(one)

    driver.step = step
    yield
    driver.step = perform


class Killed(Exception):
    """A client ends here."""


def without_following(step: Step) -> None:
    if isinstance(step, HandleNotes):
        raise Killed


def dies(broker: Broker, call: Callable[[], object]) -> None:
    """Make a call of a client that dies right after its script."""
    with observed(broker, without_following), suppress(Killed):
        call()


def is_passage(step: Step) -> bool:
    return isinstance(step, Command) and step.script.name == "publish" and step.word("form") == "log"


def killed_before(broker: Broker, call: Callable[[], object], number: int) -> bool:
    """Make a call of a client that dies before passage `number`. Returns False if it makes fewer of them."""
    seen = 0

    def look(step: Step) -> None:
        nonlocal seen
        seen += is_passage(step)
        if seen == number:
            raise Killed

    with observed(broker, look), suppress(Killed):
        call()
    return seen == number


# What waits at a topic


@pytest.mark.spec("S-087", "TE-07")
def test_messages_of_a_paused_topic_wait_there_and_go_on_when_it_is_resumed(clocked: Clocked) -> None:
    topic, (eu, us) = news(clocked, "eu", "us")
    topic.set_filter("us", {"kind": "b"})
    topic.pause()

    topic.enqueue_many([Message(b"1"), Message(b"2", headers={"kind": "b"}), Message(b"3", ttl="5ms")])
    reap(clocked, 10)
    assert (contents([topic, eu, us]), dead(topic)) == ([[b"1", b"2"], [], []], {"expired": 1})
    topic.resume()

    assert contents([topic, eu, us]) == [[], [b"1", b"2"], [b"2"]]
    assert [view.id for view in us.peek()] == [view.id for view in eu.peek()][1:]
    assert (topic.stats().copies, topic.stats().enqueued) == (3, 3)


@pytest.mark.spec("S-025", "S-019")
def test_a_scheduled_message_waits_at_the_topic_and_the_filters_of_its_due_time_decide(clocked: Clocked) -> None:
    topic, (eu, _) = news(clocked, "eu", "us")

    messages = [b"0", *(Message(b"%d" % n, delay=f"{n}s", id=f"{n}") for n in (1, 2))]
    receipts = topic.enqueue_many([*messages, Message(b"3", delay="1s")])
    assert [getattr(one, "deliver_at", one) for one in receipts] == [None, at(1_000), at(2_000), at(1_000)]
    assert (bodies(eu), [one.id for one in topic.scheduled()][-1]) == ([b"0"], "2")
    topic.unsubscribe("us")
    asia = topic.subscribe("asia")
    assert topic.cancel("2") == 1
    reap(clocked, 1_000)

    assert contents([topic, eu, asia]) == [[], [b"0", b"1", b"3"], [b"1", b"3"]]


@pytest.mark.spec("A-025", "TE-11")
def test_dead_letters_find_the_queue_of_their_origin_by_an_expiry_topic(clocked: Clocked) -> None:
    topic = clocked.declare_topic("expired")
    orders, bills = [clocked.declare_queue(name, dead_letter_expired="expired") for name in ("orders", "bills")]
    by_origin = [topic.subscribe(name, {"death.queue": name}) for name in ("orders", "bills")]
    late = topic.subscribe("late", [{"death.reason": "expired", "kind": "x"}, "a.*"])
    other = topic.subscribe("other", {"unmatched": True})

    orders.enqueue_many([Message(b"1", ttl=0), Message(b"2", ttl="9ms", headers={"kind": "x"})])
    bills.enqueue(b"3", ttl="1ms", subject="a.b")
    reap(clocked, 9)

    assert contents([topic, *by_origin, other]) == [[], [b"1", b"2"], [b"3"], []]
    assert sorted(bodies(late)) == [b"2", b"3"]
    view = by_origin[1].peek()[0]
    assert (view.deaths[0].queue, view.expires_at) == ("bills", None)


@pytest.mark.spec("A-025", "TE-11", "TE-14")
@pytest.mark.parametrize("origin", ["orders", "far"])
def test_one_expired_message_reaches_three_queues_also_from_another_slot(client: Any, origin: str) -> None:
    with ClockedBroker(client, start=START, slotted=True) as broker:
        topic, queues = news(broker, "eu", "us", "asia")
        queue = broker.declare_queue(origin, dead_letter="news")

        queue.enqueue(b"late", ttl="1ms", id="x")
        reap(broker, 1)

        assert contents([topic, *queues]) == [[], [b"late"], [b"late"], [b"late"]]
        assert {view.id for queue in queues for view in queue.peek()} == {"x"}


def test_dead_letters_of_a_topic_go_on_once_they_are_redriven(clocked: Clocked) -> None:
    topic, (eu,) = news(clocked, "eu", dead_letter="news/dead")
    topic.pause()
    topic.enqueue_many([Message(b"1", ttl="1ms"), Message(b"2", ttl="1ms")])
    reap(clocked, 1)
    topic.resume()

    assert clocked.queue("news/dead").redrive() == 2

    assert contents([topic, eu]) == [[], [b"1", b"2"]]


def test_dead_letters_of_a_subscription_go_back_to_it_or_to_all_and_a_schedule_is_brought_forward(
    clocked: Clocked,
) -> None:
    topic, (us,) = news(clocked, "us")
    eu, letters = topic.subscribe("eu", dead_letter="{queue}/dead"), clocked.queue("news/eu/dead")
    topic.enqueue(b"1", id="one", delay="1h")
    assert topic.reschedule("one", delay=0) == 1
    for to, expected in ((None, [b"1"]), ("news", [b"1", b"1"])):
        one(eu).reject()
        assert letters.redrive(to=to) == 1
        assert contents([topic, letters, us]) == [[], [], expected]
    one(eu).reject()
    assert letters.move("one", "news") == 1

    assert contents([topic, letters, us, eu]) == [[], [], [b"1"] * 3, [b"1"]]


# What holds it back


@pytest.mark.spec("S-083", "TE-03")
def test_a_full_queue_holds_back_what_waits_and_who_sends(clocked: Clocked, caplog: pytest.LogCaptureFixture) -> None:
    topic, (eu,) = news(clocked, "eu")
    full = topic.subscribe("full", max_length=1, overflow="reject-publish")
    topic.enqueue(b"0")
    topic.enqueue_many([Message(b"%d" % n, delay=f"{n}ms") for n in (1, 2, 3)])
    reap(clocked, 3)

    assert contents([topic, eu, full]) == [[b"1", b"2", b"3"], [b"0"], [b"0"]]
    refused = topic.enqueue_many([b"4", b"5"])
    assert [(type(one), getattr(one, "queue", "")) for one in refused] == [(QueueFull, "news/full")] * 2
    assert taken(full) == [b"0"]
    reap(clocked, 1_000)
    assert contents([topic, eu, full]) == [[b"2", b"3"], [b"0", b"1"], [b"1"]]
    assert topic.unbind("news/full")
    reap(clocked)

    assert contents([topic, eu]) == [[], [b"0", b"1", b"2", b"3"]]
    assert caplog.messages == ["queue news: messages wait: queue 'news/full' is full: max_length is 1"]


def test_a_queue_that_is_gone_holds_nobody_up(clocked: Clocked) -> None:
    topic, (eu,) = news(clocked, "eu")
    clocked.declare_queue("news/guest")
    topic.bind("news/guest")
    topic.enqueue(b"1", delay="1ms")
    topic.pause()
    clocked.queue("news/guest").delete()
    topic.resume()
    reap(clocked, 1)

    assert (contents([topic, eu]), [*topic.bindings()]) == ([[], [b"1"]], ["news/eu"])


@pytest.mark.parametrize("how", ["purge", "delete"])
@pytest.mark.spec("TR-08")
def test_what_is_out_of_the_log_survives_a_purge_and_the_end_of_the_topic(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The script of another client comes between two steps of the second message."""
    monkeypatch.setattr(topics, "QUEUES", 1)
    topic, driver, seen = clocked.declare_topic("news"), driver_of(Clocked(redis_of(clocked))), iter(range(1, 99))
    calls = {
        "purge": commands.purge(driver.keyspace, "news", "", ()),
        "delete": commands.delete(driver.keyspace, "news", if_unused=False, if_empty=False),
    }
    queues = [clocked.declare_queue(f"news/x/{name}") for name in "ab"]
    for queue in queues:
        topic.bind(queue.name)
    topic.pause()
    topic.enqueue_many([b"1", b"2", b"3"])

    def look(step: Step) -> None:
        if is_passage(step) and next(seen) == 4:
            driver.step(calls[how])

    with observed(clocked, look):
        topic.resume()
    reap(clocked, 2_000)

    assert contents(queues) == [[b"1", b"2"], [b"1"]]
    if how == "purge":
        topic.enqueue(b"4")
        assert contents([topic, *queues]) == [[], [b"1", b"2", b"4"], [b"1", b"4"]]


@pytest.mark.spec("TE-03")
def test_letters_that_wait_behind_a_full_queue_trim_a_topic_with_a_limit(clocked: Clocked) -> None:
    topic, _ = news(clocked, "eu", max_length=2, dead_letter="news/x/trimmed")
    full = topic.subscribe("full", max_length=0, overflow="reject-publish")
    queue = clocked.declare_queue("news/x/q", dead_letter="news")

    queue.enqueue_many([Message(b"%d" % n, ttl=0) for n in range(4)])
    reap(clocked, 2_000)
    assert contents([topic, clocked.queue("news/x/trimmed")]) == [[b"2", b"3"], [b"0", b"1"]]
    topic.unbind(full.name)
    reap(clocked, 2_000)

    assert contents([topic, clocked.queue("news/eu")]) == [[], [b"2", b"3"]]


@pytest.mark.spec("TE-21")
def test_a_limit_by_policy_acts_on_what_waits_at_topics(clocked: Clocked) -> None:
    topic, (eu,) = news(clocked, "eu")
    clocked.set_policy("short", "#", {"max_length": 1})
    topic.enqueue_many([b"1", b"2"])
    topic.pause()
    topic.enqueue_many([b"3", b"4"])

    assert contents([topic, eu]) == [[b"4"], [b"2"]]
    topic.resume()
    assert contents([topic, eu]) == [[], [b"4"]]


@pytest.mark.spec("TE-27")
def test_a_bound_queue_may_be_the_one_for_dead_letters_of_the_topic(clocked: Clocked) -> None:
    topic, (eu, both) = news(clocked, "eu", "dead", dead_letter="news/dead")
    both.update(dead_letter="news")
    topic.pause()
    topic.enqueue(b"late", ttl="1ms")
    reap(clocked, 1)
    topic.resume()
    topic.enqueue(b"x")
    assert contents([topic, eu, both]) == [[], [b"x"], [b"late", b"x"]]

    clocked.queue("news/dead").update(message_ttl=0)
    reap(clocked, 2_000)

    assert (contents([topic, eu, both]), dropped(both)["cycle"]) == ([[], [b"x", b"x"], []], 1)


def test_a_clock_that_is_set_back_changes_no_order_and_lets_nothing_wait(clocked: Clocked) -> None:
    topic, (eu,) = news(clocked, "eu")
    clocked.advance(3_600_000)
    topic.enqueue(b"1")
    topic.pause()
    topic.enqueue(b"2")
    dies(clocked, topic.resume)

    clocked.advance(-3_600_000)
    reap(clocked)
    topic.enqueue_many([b"3", Message(b"4", ttl="1ms")])

    assert contents([topic, eu]) == [[], [b"1", b"2", b"3", b"4"]]
    clocked.advance(1)
    assert bodies(eu) == [b"1", b"2", b"3"]


# Clients that die, and clients at once


@pytest.mark.parametrize("how", ["a death", "a schedule"])
@pytest.mark.spec("TR-05")
def test_a_reaper_passes_on_for_a_client_that_died(clocked: Clocked, how: str) -> None:
    topic, queues = news(clocked, "eu", "us")
    if how == "a death":
        queue = clocked.declare_queue("news/q", dead_letter="news")
        queue.enqueue(b"1")
        dies(clocked, one(queue).reject)
    else:
        topic.enqueue(b"1", delay="1ms")
        clocked.advance(1)
        dies(clocked, topic.sweep)
    assert contents([topic, *queues]) == [[b"1"], [], []]

    reap(clocked, 2_000)

    assert contents([topic, *queues]) == [[], [b"1"], [b"1"]]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call stores copies in two queues, and three copies."""
    monkeypatch.setattr(topics, "QUEUES", 2)
    monkeypatch.setattr(topics, "COPIES", 3)


@pytest.mark.usefixtures("narrow")
@pytest.mark.spec("S-081", "TE-05")
def test_a_message_for_many_queues_goes_in_steps_that_any_client_finishes(clocked: Clocked) -> None:
    topic, queues = news(clocked, "a", "b", "c", "d", "e")
    expected: list[bytes] = []

    for kill in range(1, 12):
        texts = [b"%d.%d" % (kill, n) for n in range(3)]
        expected += texts
        topic.pause()
        topic.enqueue_many(texts)
        was_killed = killed_before(clocked, topic.resume, kill)
        reap(clocked, 2_000)
        if not was_killed:
            break

    assert contents([topic, *queues]) == [[]] + [expected] * 5
    assert (kill, topic.stats().copies, topic.stats().unrouted) == (10, 5 * len(expected), 0)


@pytest.mark.usefixtures("narrow")
@pytest.mark.spec("S-083", "TE-03")
def test_a_message_for_many_queues_is_refused_while_a_full_queue_holds_back_an_earlier_one(clocked: Clocked) -> None:
    topic, queues = news(clocked, "a", "b", "c")
    full = topic.subscribe("full", {"k": 1}, max_length=1, overflow="reject-publish")
    topic.enqueue_many([Message(b"0", headers={"k": 1}), Message(b"1", headers={"k": 1}, delay="1ms")])
    reap(clocked, 1)

    refused = topic.enqueue_many([b"2", b"3"])

    assert [getattr(one, "queue", one) for one in refused] == [full.name] * 2
    assert contents([topic, full]) == [[b"1"], [b"0"]]
    taken(full)
    assert not isinstance(topic.enqueue_many([b"4"])[0], QueueFull)
    assert contents([topic, *queues, full]) == [[], *[[b"0", b"1", b"4"]] * 3, [b"1"]]


@pytest.mark.usefixtures("narrow")
def test_a_new_client_looks_up_all_queues_at_once_and_lets_all_large_messages_wait_in_one_call(client: Any) -> None:
    with ClockedBroker(client, start=START) as broker, ClockedBroker(client, start=START) as other:
        _, queues = news(broker, "a", "b")
        topic, asked = other.topic("news"), list[str]()

        with observed(other, lambda step: asked.append(step.script.name if isinstance(step, Command) else "")):
            topic.enqueue(b"0")
            assert [name for name in asked if name] == ["lookup", "publish"]
            queues.append(broker.topic("news").subscribe("c"))
            topic.enqueue_many([b"1", b"2", b"3"])

        assert asked.count("enqueue") == 1
        assert contents(queues) == [[b"0", b"1", b"2", b"3"]] * 2 + [[b"1", b"2", b"3"]]


@pytest.mark.spec("TE-05")
def test_messages_of_many_bytes_go_in_steps(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "COPY_BYTES", 2_500)
    topic, queues = news(clocked, "a", "b", "c")

    topic.enqueue_many([b"x" * 1_000, b"y" * 3_000, b"z"])

    assert contents([topic, *queues]) == [[]] + [[b"x" * 1_000, b"y" * 3_000, b"z"]] * 3


@pytest.mark.usefixtures("narrow")
def test_an_empty_message_goes_in_steps_as_any_other(clocked: Clocked) -> None:
    topic, queues = news(clocked, "a", "b", "c")

    topic.enqueue(b"")

    assert contents([topic, *queues]) == [[], [b""], [b""], [b""]]


@pytest.mark.usefixtures("narrow")
def test_a_message_that_nobody_wants_goes_before_one_for_queues_that_bury_into_each_other(clocked: Clocked) -> None:
    topic = clocked.declare_topic("news")
    queues = [topic.subscribe(a, {"k": 1}, dead_letter=f"news/{b}") for a, b in ("ab", "ba")]
    topic.pause()
    topic.enqueue_many([b"0", Message(b"1", headers={"k": 1})])

    topic.resume()

    assert (contents([topic, *queues]), topic.stats().unrouted) == ([[], [b"1"], [b"1"]], 1)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kill", [1, 2, 3, 4])
def test_messages_that_a_redrive_puts_back_wait_for_one_in_steps(client: Any, kill: int) -> None:
    with ClockedBroker(client, start=START, slotted=True) as broker:
        other = ClockedBroker(client, start=START, slotted=True)
        topic, queues = news(broker, "a", "b", "c", "d", "e")
        broker.declare_queue("far", max_length=0, overflow="reject-publish")
        topic.pause()
        topic.enqueue_many([b"0", b"1", b"2"])

        def look(step: Step) -> None:
            """The steps of the first message begin before the others come back."""
            if isinstance(step, Command) and step.script.name == "redrive_out" and step.word("verdict") == "accepted":
                killed_before(other, other.topic("news").resume, kill)

        with observed(broker, look):
            told = topic.redrive_many([(view.sequence, "far") for view in topic.peek() if view.body != b"1"])
        reap(broker, 2_000)

        assert [one.outcome for one in told] == ["full", "full"]
        assert contents([topic, *queues]) == [[]] + [[b"0", b"1", b"2"] if kill == 1 else [b"1", b"0", b"2"]] * 5
        assert not client.hexists("rqttl:{news}:meta", "fan_at")


@pytest.mark.usefixtures("narrow")
@pytest.mark.spec("TR-09")
def test_a_message_that_expires_within_its_steps_counts_at_the_topic(clocked: Clocked) -> None:
    topic, queues = news(clocked, "a", "b", "c")
    topic.enqueue(b"kept")
    assert killed_before(clocked, lambda: topic.enqueue(b"late", ttl="1s"), 2)

    reap(clocked, 1_000)

    assert contents([topic, *queues]) == [[], [b"kept"], [b"kept"], [b"kept"]]
    assert [dead(queue) for queue in (topic, *queues)] == [{"expired": 1}, {"expired": 1}, {"expired": 1}, {}]


@pytest.mark.usefixtures("narrow")
@pytest.mark.spec("TE-06")
def test_steps_go_on_behind_the_mark_by_the_bindings_of_now(clocked: Clocked) -> None:
    topic, queues = news(clocked, "b", "c", "d", "e")
    assert killed_before(clocked, lambda: topic.enqueue(b"x"), 2)
    early, late = topic.subscribe("a"), topic.subscribe("z")
    topic.unbind("news/d")
    reap(clocked, 2_000)

    assert contents([topic, *queues, early, late]) == [[], [b"x"], [b"x"], [], [b"x"], [], [b"x"]]


@pytest.mark.usefixtures("narrow")
@pytest.mark.spec("TR-03")
def test_two_clients_that_pass_on_at_once_store_each_copy_once_and_in_order(clocked: Clocked) -> None:
    topic, queues = news(clocked, "a", "b", "c")
    texts = [b"%d" % n for n in range(6)]
    other, turns = Clocked(redis_of(clocked)), iter(range(20))
    other.clock.set(clocked.clock.ms)
    driver = driver_of(other)

    def look(step: Step) -> None:
        """Another client is faster, every third time by all and else by one step."""
        if is_passage(step) and next(turns) % 3 != 2:
            flow = topics.pass_on(driver.keyspace, "news")
            answer = None
            with suppress(StopIteration):
                while True:
                    step = flow.send(answer)
                    answer = driver.step(step)
                    if is_passage(step):
                        break

    topic.pause()
    topic.enqueue_many(texts)
    with observed(clocked, look):
        topic.resume()
    reap(clocked, 2_000)

    assert contents([topic, *queues]) == [[]] + [texts] * 3
    assert topic.stats().copies == 18


# Circles


@pytest.mark.spec("A-025", "TE-12")
def test_a_subscription_whose_dead_letters_go_to_its_own_topic_gets_each_message_once(clocked: Clocked) -> None:
    topic, (eu,) = news(clocked, "eu")
    us = topic.subscribe("us", dead_letter="news", message_ttl="1ms")

    topic.enqueue(b"x", id="x")
    reap(clocked, 1)
    reap(clocked, 10)

    assert contents([topic, eu, us]) == [[], [b"x", b"x"], []]
    assert [len(view.deaths) for view in eu.peek()] == [0, 1]
    assert (dropped(topic), dead(us)) == ({"cycle": 1}, {"expired": 1})


@pytest.mark.spec("TE-13")
def test_a_circle_of_topics_is_refused_and_holds_its_messages_if_two_clients_close_it(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    topic, (eu,) = news(clocked, "eu")
    b, c = [clocked.declare_topic(f"news/{name}") for name in "bc"]
    topic.bind("news/b")
    b.bind("news/c")
    with pytest.raises(InvalidInput, match="come back: 'news/c' > 'news' > 'news/b' > 'news/c'; unbind"):
        c.bind("news")
    driver = driver_of(clocked)
    config = driver.step(GetConfig("news/c", fresh=True))
    assert driver.perform(topics.rebind(driver.keyspace, config, {"news": []}))

    topic.enqueue(b"x")
    reap(clocked, 9)
    assert (contents([topic, eu]), len(caplog.messages)) == ([[], [b"x"]], 1)
    assert sorted(contents([b, c])) == [[], [b"x"]]
    c.unbind("news")
    reap(clocked)

    assert contents([topic, eu, b, c]) == [[], [b"x"], [], []]
