"""Declaring queues, changing and removing them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis

import rqttl
from rqttl import Broker, InvalidDuration, InvalidName, InvalidOption, QueueInUse, QueueMismatch, QueueNotFound
from tests.contract.clocked import Clocked, ms
from tests.contract.looks import bodies, dead, dropped, one, ready, taken

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


def test_an_option_given_with_its_default_value_equals_the_option_left_out(broker: Broker) -> None:
    broker.declare_queue("q")

    broker.declare_queue("q", lease="30s", overflow="drop-head", never_expire=False, max_message_bytes=2**24)
    broker.declare_queue("q", dead_letter=None)


def test_option_names_are_taken_with_hyphens_too(broker: Broker) -> None:
    queue = broker.declare_queue("q", **dict[str, Any]({"message-ttl": "60s", "dead-letter-expired": "d"}))

    assert queue.options().message_ttl == 60_000
    assert queue.options().dead_letter_expired == "d"


def test_an_option_given_in_both_spellings_is_refused(broker: Broker) -> None:
    both: dict[str, Any] = {"max-length": 1, "max_length": 2}
    with pytest.raises(InvalidOption, match="twice"):
        broker.declare_queue("q", **both)
    with pytest.raises(InvalidOption, match="twice"):
        broker.declare_queue("q").update(**both)


def test_an_auto_created_queue_is_adopted_by_the_first_declare(broker: Broker) -> None:
    source = broker.declare_queue("q", dead_letter="d")
    source.enqueue(b"letter")
    one(source).reject()

    adopted = broker.declare_queue("d", max_length=7)

    assert adopted.options().max_length == 7
    assert bodies(adopted) == [b"letter"]
    with pytest.raises(QueueMismatch):
        broker.declare_queue("d", max_length=8)


@pytest.mark.spec("TTL-01", "DEC-04")
@pytest.mark.parametrize(
    "written", ["200ms", " 200 ms ", "0.2s", timedelta(milliseconds=200), timedelta(microseconds=199_001)]
)
def test_a_duration_may_be_written_in_any_of_its_forms(broker: Broker, written: Any) -> None:
    queue = broker.declare_queue("q", message_ttl=written)

    assert queue.options().message_ttl == 200
    broker.declare_queue("q", message_ttl="200ms")


@pytest.mark.spec("TTL-02", "TTL-03", "TTL-05", "TTL-06", "A-016")
@pytest.mark.parametrize("option", ["message_ttl", "default_ttl", "min_ttl", "max_ttl", "lease"])
@pytest.mark.parametrize(
    "wrong", ["foobar", "10x", "10", 10, -10, "-10s", 10.0, True, f"{TEN_YEARS + 1}ms", timedelta(microseconds=-1)]
)
def test_a_wrong_duration_is_refused_by_name_and_makes_no_queue(
    broker: Broker, client: redis.Redis, option: str, wrong: object
) -> None:
    with pytest.raises(InvalidDuration) as caught:
        broker.declare_queue("q", **dict[str, Any]({option: wrong}))

    assert caught.value.code == "invalid_duration"
    assert option in str(caught.value)
    assert repr(wrong) in str(caught.value)
    assert client.keys() == []


@pytest.mark.spec("TTL-04", "TTL-06", "S-006")
@pytest.mark.parametrize("ttl", [0, 1, TEN_YEARS])
def test_any_duration_from_zero_to_ten_years_is_a_ttl(broker: Broker, ttl: int) -> None:
    assert broker.declare_queue("q", message_ttl=ms(ttl)).options().message_ttl == ttl


@pytest.mark.spec(
    "LEN-01", "LEN-02", "DLX-29", "DLX-30", "DLX-32", "S-041", "DEC-04", "DEC-06", "DEC-08", "DEC-09", "W26"
)
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


@pytest.mark.spec("A-015")
def test_a_floor_above_the_ceiling_is_refused(broker: Broker, client: redis.Redis) -> None:
    with pytest.raises(InvalidOption, match="min_ttl"):
        broker.declare_queue("q", min_ttl="100ms", max_ttl="10ms")

    assert client.keys() == []


@pytest.mark.spec("CYC-01", "A-031", "A-032")
@pytest.mark.parametrize(
    "target", [{"dead_letter": "q"}, {"dead_letter_expired": "q"}, {"dead_letter": "{queue}"}], ids=str
)
def test_a_queue_cannot_be_its_own_target_for_what_dies_by_itself(broker: Broker, target: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="its own target"):
        broker.declare_queue("q", **target)


@pytest.mark.parametrize("name", ["", "with space", "x" * 129, "-first", "ünïcode", "a\n", "{unclosed", b"bytes", None])
def test_a_wrong_queue_name_is_refused(broker: Broker, client: redis.Redis, name: str) -> None:
    with pytest.raises(InvalidName):
        broker.declare_queue(name)
    with pytest.raises(InvalidName):
        broker.queue(name)

    assert client.keys() == []


def test_queues_lists_what_is_there_in_order(broker: Broker) -> None:
    for name in ("b", "a", "{billing}.orders"):
        broker.declare_queue(name)

    assert broker.queues() == ["a", "b", "{billing}.orders"]


def test_a_missing_queue_is_told_with_the_namespace_that_was_looked_at(client: redis.Redis) -> None:
    other = rqttl.Broker(client, namespace="other")

    for call in (lambda: other.queue("q").stats(), lambda: other.queue("q").enqueue(b"x")):
        with pytest.raises(QueueNotFound, match=r"^queue 'q' does not exist in namespace 'other': declare it first$"):
            call()


def test_two_namespaces_on_one_server_do_not_meet(broker: Broker, client: redis.Redis) -> None:
    other = rqttl.Broker(client, namespace="other")
    broker.declare_queue("q").enqueue(b"here")
    other.declare_queue("q", max_length=3)

    assert bodies(other.queue("q")) == []
    assert broker.queues() == other.queues() == ["q"]


def test_update_changes_what_it_names_and_none_unsets(broker: Broker) -> None:
    queue = broker.declare_queue("q", message_ttl="60s", max_length=5)

    queue.update(max_length=None, overflow="reject-publish")

    options = queue.options()
    assert (options.message_ttl, options.max_length, options.overflow) == (60_000, None, "reject-publish")


def test_a_wrong_update_changes_nothing(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("q", max_ttl="10ms", max_length=5)
    before = client.hgetall("rqttl:{q}:meta")

    for wrong in ({"max_length": -1}, {"min_ttl": "11ms"}, {"dead_letter": "q"}, {"unknown": 1}):
        with pytest.raises(InvalidOption):
            queue.update(**wrong)

    assert client.hgetall("rqttl:{q}:meta") == before


def test_another_client_follows_an_update(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("q", overflow="reject-publish")
    other = Broker(client).queue("q")
    other.enqueue(b"1")

    queue.update(max_length=1)

    with pytest.raises(rqttl.QueueFull):
        other.enqueue(b"2")


@pytest.mark.spec("DEC-10")
def test_every_operation_on_a_missing_queue_says_so(broker: Broker, client: redis.Redis) -> None:
    queue = broker.queue("missing")

    for operation in (
        lambda: queue.enqueue(b"x"),
        lambda: queue.enqueue_many([b"x"]),
        queue.receive,
        lambda: queue.receive(wait="5s"),
        queue.peek,
        queue.stats,
        queue.options,
        lambda: queue.update(max_length=1),
        queue.sweep,
        queue.purge,
        queue.delete,
    ):
        with pytest.raises(QueueNotFound) as caught:
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
    assert sorted(client.keys()) == [b"rqttl:birth", b"rqttl:{q}:tombstone"]  # for readers that follow the queue


@pytest.mark.spec("DLX-22", "QTL-23")
def test_deleting_and_purging_dead_letter_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"1", b"2", b"3"])

    assert queue.purge() == 3
    assert (queue.stats().purged, dead(queue)) == (3, {})
    queue.enqueue(b"4")
    assert queue.delete() == 1

    assert clocked.queues() == []


@pytest.mark.spec("QTL-23")
def test_purge_leaves_what_is_leased_and_what_is_delayed(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"leased", b"delayed", b"ready"])
    held, later = queue.receive_many(2)
    later.nack("1m")

    assert queue.purge() == 1

    held.nack()
    clocked.advance(60_000)
    assert taken(queue) == [b"leased", b"delayed"]


def test_delete_if_empty_refuses_while_there_are_messages_in_any_state(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
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


def test_delete_if_unused_refuses_while_a_consumer_works(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    with queue.consume(wait=0) as deliveries:
        for delivery in deliveries:
            with pytest.raises(QueueInUse) as caught:
                queue.delete(if_unused=True)
            assert (caught.value.condition, caught.value.count) == ("if_unused", 1)
            delivery.ack()

    queue.delete(if_unused=True)


def test_a_queue_declared_again_after_a_delete_starts_anew(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_length=1)
    queue.enqueue(b"x")
    one(queue).nack("1h")
    queue.delete()

    broker.declare_queue("q")

    assert (queue.stats().enqueued, queue.stats().delayed, ready(queue), dropped(queue)) == (0, 0, [], {})
