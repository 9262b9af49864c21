"""Declaring queues, changing and removing them; plans of deployments."""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import redis

from rqttl import (
    Broker,
    CommandEvent,
    InvalidInput,
    InvalidOption,
    Policy,
    Queue,
    QueueInUse,
    QueueMismatch,
    QueueNotFound,
    QueueOptions,
    UpdateResult,
)
from rqttl.deployments import Deployment, Plan, make_plan
from rqttl.flows.steps import Register
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, ms
from tests.contract.looks import bodies, dead, forget, one, take, taken
from tests.drivers import before_step, redis_of
from tests.lua.states import everything

TEN_YEARS = 315_360_000_000


@pytest.mark.spec("DEC-01")
def test_declaring_again_with_equal_options_changes_nothing(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("q", message_ttl="60s", max_length=5)
    queue.enqueue(b"kept")
    before = client.hgetall("rqttl:{q}:meta")

    broker.declare_queue("q", max_length=5, message_ttl="1m")

    assert client.hgetall("rqttl:{q}:meta") == before
    assert bodies(queue) == [b"kept"]


@pytest.mark.spec("DEC-02", "DEC-03")
def test_declaring_with_other_options_names_each_option_and_both_values(broker: Broker) -> None:
    broker.declare_queue("q", message_ttl="60s", max_length=5, lease="1m")

    with pytest.raises(QueueMismatch) as caught:
        broker.declare_queue("q", message_ttl="30s", lease="1m", dead_letter="d")

    assert caught.value.code == "mismatch"
    assert caught.value.differences == {
        "message_ttl": (30_000, 60_000),
        "max_length": (None, 5),
        "dead_letter": ("d", None),
    }
    for told in ("message_ttl: requested '30s', declared '1m'", "max_length: requested None, declared 5"):
        assert told in str(caught.value)


@pytest.mark.spec("TTL-01", "DEC-04")
@pytest.mark.parametrize(
    "written", ["200ms", " 200 ms ", "0.2s", timedelta(milliseconds=200), timedelta(microseconds=199_001)]
)
def test_a_duration_may_be_written_in_any_of_its_forms(broker: Broker, written: Any) -> None:
    queue = broker.declare_queue("q", message_ttl=written)

    assert queue.options().message_ttl == 200
    broker.declare_queue("q", message_ttl="200ms")


@pytest.mark.spec("TTL-04", "TTL-06", "S-006")
@pytest.mark.parametrize("ttl", [0, 1, TEN_YEARS])
def test_any_duration_from_zero_to_ten_years_is_a_ttl(broker: Broker, ttl: int) -> None:
    assert broker.declare_queue("q", message_ttl=ms(ttl)).options().message_ttl == ttl


@pytest.mark.spec("LEN-01", "LEN-02", "DLX-29", "DLX-30", "DLX-32", "S-041", "DEC-04", "DEC-06")
@pytest.mark.spec("DEC-08", "DEC-09", "W26", "CYC-01", "A-015", "A-031", "A-032")
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_length": -1},
        {"max_length": "10k"},
        {"max_length": 5.0},
        {"max_length_bytes": 1.5},
        {"max_length_bytes": True},
        {"overflow": "drop-tail"},
        {"dead_letter": 5},
        {"dead_letter": ""},
        {"dead_letter": "no spaces"},
        {"dead_letter_expired": b"d"},
        {"max_deliveries": 0},
        {"max_deliveries": 0.5},
        {"queue_type": "quorum"},
        {"max_message_bytes": 0},
        {"never_expire": 1},
        {"dead_letter_strategy": "at-least-once"},
        {"on_expire": "keep-it"},
        {"min_ttl": "100ms", "max_ttl": "10ms"},
        {"dead_letter": "q"},
        {"dead_letter": "{queue}"},
        {"dead_letter": None, "dead_letter_expired": "q"},
        {"max_length": 1, "max-length": 2},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_by_name_and_makes_no_queue(
    broker: Broker, client: redis.Redis, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption) as caught:
        broker.declare_queue("q", **wrong)

    assert caught.value.code == "invalid_option"
    assert next(iter(wrong)) in str(caught.value)
    assert client.keys() == []


@pytest.mark.spec("DEC-10")
def test_every_operation_on_a_missing_queue_says_so_with_the_namespace(client: redis.Redis) -> None:
    queue = Broker(client, namespace="other").queue("missing")

    for operation in (
        lambda: queue.enqueue(b"x"),
        lambda: queue.enqueue_many([b"x"]),
        queue.receive,
        lambda: queue.receive(wait="5s"),
        lambda: queue.consume().__enter__(),
        lambda: queue.run(forget),
        queue.consumers,
        queue.peek,
        queue.stats,
        lambda: queue.stats(sweep=False),
        queue.options,
        lambda: queue.update(max_length=1),
        queue.sweep,
        lambda: queue.purge_many([]),
        lambda: queue.preview_update(max_length=1),
        queue.purge,
        queue.redrive,
        lambda: queue.redrive_many([("1600000000000-100000", "q")]),
        queue.delete,
    ):
        with pytest.raises(
            QueueNotFound, match=r"^queue 'missing' does not exist in namespace 'other': declare"
        ) as caught:
            operation()
        assert caught.value.queue == "missing"
    assert client.keys() == []


def test_a_deleted_queue_is_gone_for_clients_that_knew_it(broker: Broker, client: redis.Redis) -> None:
    other = Broker(client).queue("q")
    queue = broker.declare_queue("q")
    other.enqueue(b"x")

    queue.delete()

    with pytest.raises(QueueNotFound):
        other.enqueue(b"x")
    assert broker.queues() == []
    assert sorted(client.keys()) == [b"rqttl:dataset{rqttl}", b"rqttl:{q}:tombstone"]  # for those who follow it


@pytest.mark.spec("DLX-22", "QTL-23")
def test_deleting_and_purging_dead_letter_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"1", b"2", b"3"])

    assert queue.purge() == 3
    assert (queue.stats().purged, dead(queue)) == (3, {})
    queue.enqueue(b"4")
    assert queue.delete() == 1

    assert clocked.queues() == []


def test_delete_if_empty_refuses_while_there_are_messages_in_any_state(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"x")
    delivery = one(queue)

    with pytest.raises(QueueInUse) as caught:
        queue.delete(if_empty=True)

    assert (caught.value.code, caught.value.condition, caught.value.count) == ("in_use", "if_empty", 1)
    delivery.ack()
    assert queue.delete(if_empty=True) == 0


def test_expired_messages_do_not_count_when_a_queue_is_emptied_or_deleted(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(b"first", ttl="10ms")
    clocked.advance(10)
    assert queue.purge() == 0

    queue.enqueue(b"second", ttl="10ms")
    clocked.advance(10)
    queue.delete(if_empty=True)

    assert taken(clocked.queue("d")) == [b"first", b"second"]


def test_delete_if_unused_refuses_while_a_consumer_works(queue: Queue) -> None:
    queue.enqueue(b"x")
    with queue.consume(wait=0) as deliveries:
        for delivery in deliveries:
            with pytest.raises(QueueInUse) as caught:
                queue.delete(if_unused=True)
            assert (caught.value.condition, caught.value.count) == ("if_unused", 1)
            delivery.ack()

    queue.delete(if_unused=True)


def test_declaring_a_queue_that_is_there_takes_two_round_trips(broker: Broker) -> None:
    broker.declare_queue("q", max_length=5).enqueue(b"x")  # so the server knows the script
    calls: list[str] = []
    broker.events.subscribe(lambda event: calls.append(event.name), CommandEvent)

    queue = broker.declare_queue("q", max_length=5)
    queue.enqueue(b"x")

    # the registry and the version of the policies come in one round trip
    assert calls == ["SISMEMBER", "HGET", "declare", "enqueue"]


@pytest.mark.spec("DEC-05")
@pytest.mark.parametrize("option, value", [("message_ttl", "1m"), ("expires", "1m"), ("dead_letter", "d")])
def test_an_option_that_one_declaration_lacks_is_a_difference(broker: Broker, option: str, value: str) -> None:
    broker.declare_queue("with", **dict[str, Any]({option: value}))
    broker.declare_queue("without")

    with pytest.raises(QueueMismatch) as lacking:
        broker.declare_queue("with")
    with pytest.raises(QueueMismatch) as more:
        broker.declare_queue("without", **dict[str, Any]({option: value}))

    [(requested, declared)] = lacking.value.differences.values()
    assert (requested, more.value.differences) == (None, {option: (declared, None)})


BODIES = [bytes([65 + i % 26]) * (i % 7) for i in range(600)]


def counts(result: UpdateResult) -> tuple[int, int]:
    return result.expired, result.trimmed


def filled(clocked: Clocked) -> Any:
    """600 messages, one a ms; the first 20 were received and came back, the next 30 have an own TTL that is over."""
    queue = clocked.declare_queue("orders", dead_letter_maxlen="over")
    for i, body in enumerate(BODIES):
        queue.enqueue(body, ttl=None if not 20 <= i < 50 else "580ms")
        clocked.advance(1)
    batch = queue.receive_many(20)
    queue.nack_many(batch)
    clocked.advance(100)
    return queue


CHANGES: list[dict[str, Any]] = [
    {"message_ttl": "300ms"},
    {"message_ttl": 0},
    {"message_ttl": "1h"},
    {"max_length": 100},
    {"max_length_bytes": 500},
    {"max_length": 9, "message_ttl": "400ms"},
    {"lease": "5s"},
    {"max_length": 0, "overflow": "reject-publish"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_update_tells_what_a_preview_has_counted(clocked: Clocked, changes: dict[str, Any]) -> None:
    queue = filled(clocked)

    preview = queue.preview_update(**changes)
    before = queue.stats()
    result = queue.update(**changes)
    after = queue.stats()

    assert result == preview._replace(ending=0, ends_after_ms=None)
    assert preview.ending == (after.ready if "message_ttl" in changes else 0)
    assert before.ready == 570
    assert after.ready == 570 - result.expired - result.trimmed
    assert after.deaths.get("expired", 0) == 30 + result.expired
    assert after.deaths.get("maxlen", 0) == result.trimmed
    assert (result.before, result.after) == (queue.options().changed(dict.fromkeys(changes)), queue.options())


def test_a_preview_changes_nothing_but_what_is_due(clocked: Clocked, client: redis.Redis) -> None:
    queue = filled(clocked)
    queue.sweep()
    before = everything(client)

    assert counts(queue.preview_update(message_ttl="300ms", max_length=3)) == (401 - 30, 199 - 3)
    assert everything(client) == before


def nothing_but_delayed(clocked: Clocked, count: int = 1) -> Any:
    """A queue with so many delayed messages, 5 s old."""
    queue = clocked.declare_queue("orders", dead_letter_expired="late")
    queue.enqueue_many([b"x"] * count)
    for _ in range(0, count, 500):
        queue.nack_many(queue.receive_many(500), delay="1h")
    clocked.advance("5s")
    return queue


@pytest.mark.parametrize("count", [1, 600])
@pytest.mark.parametrize("ready", [0, 3])
def test_delayed_messages_that_a_shorter_retention_ends_are_counted_too(
    clocked: Clocked, count: int, ready: int
) -> None:
    queue = nothing_but_delayed(clocked, count)
    queue.enqueue_many([b"young"] * ready)

    preview = queue.preview_update(message_ttl="1s", max_length=1)
    result = queue.update(message_ttl="1s", max_length=1)

    assert counts(preview) == counts(result) == (count, max(0, ready - 1))
    assert queue.stats().deaths["expired"] == clocked.queue("late").stats().ready == count


def test_delayed_messages_that_a_policy_ends_are_counted_too(clocked: Clocked) -> None:
    queue = nothing_but_delayed(clocked)

    preview = clocked.preview_policy(policy("p", message_ttl="1s"))
    result = clocked.set_policy("p", "#", {"message_ttl": "1s"})

    assert preview.expired == result.expired == queue.stats().deaths["expired"] == 1


def policy(name: str, pattern: str = "#", operator: bool = False, **definition: object) -> Policy:
    return Policy.read(name, pattern, definition, operator=operator)


def plan(broker: Broker, desired: Deployment) -> Plan:
    return make_plan(desired, broker.deployment(), prune=True)


DESIRED = Deployment.of(
    [QueueOptions.read("a", {"max_length": 5}), QueueOptions.read("b", {})],
    [policy("p", max_deliveries=3), policy("q", "a", lease="1m"), policy("p", operator=True, max_length=4)],
)


@pytest.fixture
def older(broker: Broker) -> Broker:
    """A broker with other queues and policies."""
    broker.declare_queue("a", max_length=50, lease="1h", max_message_bytes=7).enqueue_many([b"x"] * 9)
    broker.declare_queue("old").enqueue_many([b"x"] * 2)
    broker.set_policy("old", "#", {"lease": "5m"})
    broker.set_policy("old", "#", {"max_message_bytes": 9}, operator=True)
    return broker


def test_all_policies_of_a_plan_change_in_one_call(older: Broker) -> None:
    calls: list[str] = []
    older.events.subscribe(lambda event: calls.append(event.name), CommandEvent)

    older.apply_plan(plan(older, DESIRED))

    assert calls.count("change_policies") == 1
    assert calls.index("change_policies") < calls.index("declare")
    assert older.deployment() == DESIRED


def test_no_message_dies_by_options_between_two_steps(broker: Broker) -> None:
    queue = broker.declare_queue("a", lease="1m")
    queue.enqueue_many([b"x"] * 9)
    desired = Deployment.of([QueueOptions.read("a", {"overflow": "reject-publish"})], [policy("p", max_length=2)])
    steps = plan(broker, desired)

    ahead = broker.preview_plan(steps)
    effect = broker.apply_plan(steps)

    assert (ahead.trimmed, effect.trimmed) == (0, 0)
    assert queue.stats().ready == 9
    assert (queue.options()["max_length"], queue.options()["overflow"]) == (2, "reject-publish")


def test_a_plan_that_broke_off_is_finished_by_the_next(older: Broker) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    before_step(driver_of(older), Register("b"), die)
    with pytest.raises(KeyboardInterrupt):
        older.apply_plan(plan(older, DESIRED))
    assert older.queues() == ["a", "old"]

    rest = plan(older, DESIRED)
    assert [(step.action, step.name) for step in rest.steps] == [("create", "b"), ("update", "a"), ("delete", "old")]
    older.apply_plan(rest)

    assert older.deployment() == DESIRED
    assert plan(older, DESIRED).steps == ()
    assert older.reconcile().changed == {}


@pytest.mark.parametrize("name", ["orders", "orders/eu", "{billing}.orders", "{billing}.orders/eu", "{eu}:a/b"])
def test_letters_name_their_queue_with_any_hash_tag(clocked: Clocked, name: str) -> None:
    queue = clocked.declare_queue(name, dead_letter="{queue}/dead", expires="1h", on_expire="dead-letter")
    queue.enqueue(b"x")
    one(queue).reject()
    queue.enqueue(b"y")

    clocked.advance("1h")
    assert queue.sweep()[-1].retired == 0

    assert clocked.queues() == [f"{name}/dead"]
    letters = take(clocked.queue(f"{name}/dead"))
    assert [(letter.body, letter.deaths[0].queue) for letter in letters] == [(b"x", name), (b"y", name)]


TOPICS = Deployment.of(
    [
        QueueOptions("news", {}, {"news/eu": [{"subject": "eu.#"}], "news/top": []}),
        QueueOptions("news/eu", {}),
        QueueOptions("news/top", {}, {"news/eu": [], "news/us": []}),
        QueueOptions("news/us", {"max_length": 5}),
    ],
    [],
)


@pytest.mark.once
def test_topics_of_a_plan_that_broke_off_at_any_step_are_finished_by_the_next(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kill in count():
        one = Broker(redis_of(broker), f"n{kill}")
        news = one.declare_topic("news")
        for name in ("old", "us", "gone"):
            news.subscribe(name)
        with monkeypatch.context() as patch:  # so that the binding stays
            patch.setattr("rqttl.flows.topics.unbind_gone", lambda *_: iter(()))
            one.queue("news/gone").delete()
        with monkeypatch.context() as patch:
            step, steps = driver_of(one).step, iter(range(kill, -1, -1))

            def carry_out(asked: Any, step: Any = step, steps: Any = steps) -> object:
                if not next(steps):
                    raise KeyboardInterrupt
                return step(asked)

            desired = plan(one, TOPICS)
            patch.setattr(driver_of(one), "step", carry_out)
            try:
                one.apply_plan(desired)
                break
            except KeyboardInterrupt:
                pass

        one.apply_plan(plan(one, TOPICS))

        assert one.deployment() == TOPICS
        assert plan(one, TOPICS).steps == ()
        news.enqueue(b"x", subject="us")
        assert [one.queue(name).stats().ready for name in TOPICS.queues] == [0, 1, 0, 1]
    assert kill > 10


def test_a_chain_that_is_turned_round_by_a_plan_loses_nothing(broker: Broker) -> None:
    broker.declare_queue("news/b")
    broker.declare_queue("news/a", forward_to="news/b").enqueue(b"1")
    turned = [QueueOptions("news/a", {}), QueueOptions("news/b", {"forward_to": "news/a"})]

    broker.apply_plan(plan(broker, Deployment.of(turned, [])))

    assert broker.deployment() == Deployment.of(turned, [])
    broker.queue("news/b").enqueue(b"2")
    assert bodies(broker.queue("news/a")) == [b"1", b"2"]


def test_a_queue_that_is_deleted_after_the_plan_was_made_is_not_bound(broker: Broker) -> None:
    news = broker.declare_topic("news")
    broker.declare_queue("news/eu")
    steps = plan(broker, Deployment.of([QueueOptions("news", {}, {"news/eu": []}), QueueOptions("news/eu", {})], []))
    broker.queue("news/eu").delete()

    with pytest.raises(QueueNotFound, match="'news/eu'"):
        broker.apply_plan(steps)
    assert news.bindings() == {}


def test_a_topic_that_a_plan_deletes_takes_no_queue_along_that_the_file_names(broker: Broker) -> None:
    news = broker.declare_topic("news")
    for name in ("kept", "other"):
        news.subscribe(name)
    news.enqueue(b"x")
    steps = plan(broker, Deployment.of([QueueOptions("news/kept", {})], []))

    ahead = broker.preview_plan(steps)
    effect = broker.apply_plan(steps)

    assert (ahead.deleted, effect.deleted) == (1, 1)
    assert {name: stats.ready for name, stats in broker.stats().items()} == {"news/kept": 1}


@pytest.mark.parametrize(
    "options", [QueueOptions("news", {}, {"mails": []}), QueueOptions("news", {"forward_to": "mails"})]
)
def test_a_queue_in_another_slot_is_refused_before_a_plan_changes_anything(
    broker: Broker, options: QueueOptions
) -> None:
    slotted = Broker(redis_of(broker), slotted=True)
    desired = Deployment.of([options, QueueOptions("mails", {})], [])

    for call in (slotted.preview_plan, slotted.apply_plan):
        with pytest.raises(InvalidInput, match=r"a queue '\{news\}.mails' would be in its slot"):
            call(plan(slotted, desired))
    assert slotted.queues() == []
