"""Public names of the four classes of users. All other names begin with an underscore."""

from __future__ import annotations

import inspect

import pytest

import rqttl
from rqttl.store.driver import driver_of
from rqttl.testing import fake_broker

PUBLIC = {
    rqttl.Broker: {
        "check_policy",
        "close",
        "declare_queue",
        "delete_operator_policy",
        "delete_policy",
        "events",
        "explain",
        "interrupt",
        "observer",
        "operator_policies",
        "options",
        "policies",
        "preview_policy",
        "queue",
        "queues",
        "reaper_count",
        "reconcile",
        "server_time",
        "set_operator_policy",
        "set_policy",
        "stats",
        "workers",
    },
    rqttl.Queue: {
        "ack_many",
        "consume",
        "declared",
        "delete",
        "enqueue",
        "enqueue_many",
        "explain",
        "nack_many",
        "name",
        "options",
        "peek",
        "preview_update",
        "purge",
        "purge_many",
        "receive",
        "receive_many",
        "redrive",
        "redrive_many",
        "reject_many",
        "renew_many",
        "run",
        "stats",
        "sweep",
        "touch",
        "update",
    },
    rqttl.Delivery: {
        "ack",
        "body",
        "content_type",
        "deaths",
        "decode",
        "delivery_count",
        "enqueued_at",
        "expires_at",
        "headers",
        "id",
        "leased_until",
        "nack",
        "queue",
        "reject",
        "renew",
        "sequence",
        "settled",
    },
    rqttl.Consumer: {"close", "lost", "lost_count", "queue", "release", "stop", "unknown", "unknown_count"},
}


def names(one: object) -> set[str]:
    return {name for name in dir(one) if not name.startswith("_")}


def test_a_user_reaches_these_names_and_no_others() -> None:
    broker = fake_broker()
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None

    reached = {
        rqttl.Broker: names(rqttl.Broker(driver_of(broker).store.client)),
        rqttl.Queue: names(rqttl.Broker(driver_of(broker).store.client).queue("orders")),
        rqttl.Delivery: names(delivery),
        rqttl.Consumer: names(queue.consume()),
    }

    assert reached == PUBLIC


def test_the_fake_broker_adds_a_clock_a_reaper_and_twins_to_a_broker() -> None:
    broker = fake_broker()

    assert names(broker) - PUBLIC[rqttl.Broker] == {"clock", "connect", "run_reaper"}
    assert names(broker.queue("orders")) == PUBLIC[rqttl.Queue]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: str(kind.__name__))
def test_every_public_method_and_property_says_what_it_does(kind: type) -> None:
    assert [
        name
        for name in names(kind)
        if (inspect.isfunction(one := inspect.getattr_static(kind, name)) or isinstance(one, property))
        and not inspect.getdoc(one)
    ] == []


def test_users_cannot_change_how_a_delivery_was_settled() -> None:
    queue = fake_broker().declare_queue("orders")
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None

    with pytest.raises(AttributeError):
        delivery.settled = "ack"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        delivery.sequence = "0-0"  # type: ignore[misc]


def test_a_delivery_shows_its_sequence_as_peek_does() -> None:
    queue = fake_broker().declare_queue("orders")
    queue.enqueue(b"x")
    (shown,) = queue.peek()
    delivery = queue.receive()

    assert delivery is not None
    assert delivery.sequence == shown.sequence
