"""A bad argument is a typed error, before a single byte in Redis has changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

import rqttl
from rqttl import InvalidInput, Message
from rqttl.store.driver import driver_of
from tests.lua.states import Lab, everything

DURATIONS: list[Any] = [-1, True, 1.5, "5", "soon", b"5s", float("nan"), 10**30, [], {}]
NAMES: list[Any] = [
    "",
    " ",
    "a b",
    "{a}",
    "{",
    "a{b}",
    "-a",
    "é",
    "a\n",
    "a\0",
    "x" * 129,
    None,
    5,
    b"orders",
    ["orders"],
]
COUNTS: list[Any] = [0, -1, True, 1.0, "5", None, []]
INSTANTS: list[Any] = [-1, True, 1.5, "tomorrow", datetime(2030, 1, 1, tzinfo=timezone.utc).replace(tzinfo=None)]
HEADERS: list[Any] = [
    5,
    "x=1",
    [("x", 1)],
    {"": 1},
    {1: 1},
    {b"x": 1},
    {"x": object()},
    {"x": {}},
    {"x": [1]},
    {"x": float("nan")},
    {"x": float("inf")},
    {"x": 2**64},
    {"x": -(2**63) - 1},
    {"\ud800": 1},
    {"x": "\ud800"},
    {"x": "y" * 70_000},
]
IDS: list[Any] = ["", "x" * 256, "é" * 128, "a\n", "\ud800", 5, b"id", ["a"]]
CONTENT_TYPES: list[Any] = ["a\n", 5, b"text/plain", "\ud800", "x" * 70_000]
LISTS: list[Any] = [None, 5, b"xyz", bytearray(b"xyz"), memoryview(b"xyz"), "xyz", {"x": 1}]
BODIES: list[Any] = [object(), {1, 2}, lambda: 0, 2**64, "\ud800", {"x": object()}, Ellipsis]
DESCRIPTIONS: list[Any] = [5, b"no", "x" * 4097, "é" * 2049, ["no"]]
SEQUENCES: list[Any] = ["", "5", 5, b"1700000000000-100000", "1700000000000-1", "1700000000000-100000\n", "x" * 20]

Call = Callable[[rqttl.Broker, rqttl.Queue, rqttl.Delivery], Any]
CALLS: dict[str, tuple[list[Any], Callable[[Any], Call]]] = {
    "queue": (NAMES, lambda bad: lambda b, q, d: b.queue(bad)),
    "declare_queue": (NAMES, lambda bad: lambda b, q, d: b.declare_queue(bad)),
    "declare_queue(message_ttl)": (DURATIONS, lambda bad: lambda b, q, d: b.declare_queue("new", message_ttl=bad)),
    "declare_queue(unknown)": (
        ["max_lenght", "topic"],
        lambda bad: lambda b, q, d: b.declare_queue("n", **dict[str, Any]({bad: 1})),
    ),
    "update(lease)": ([*DURATIONS, 0], lambda bad: lambda b, q, d: q.update(lease=bad)),
    "update(max_length)": ([-1, "5", 1.0, True], lambda bad: lambda b, q, d: q.update(max_length=bad)),
    "update(dead_letter)": (["orders", "{queue}", "", 5], lambda bad: lambda b, q, d: q.update(dead_letter=bad)),
    "update(unknown)": (["zzz"], lambda bad: lambda b, q, d: q.update(**{bad: None})),
    "enqueue(body)": (BODIES, lambda bad: lambda b, q, d: q.enqueue(bad)),
    "enqueue(large body)": ([b"x" * 101, "x" * 101, ["x" * 101]], lambda bad: lambda b, q, d: q.enqueue(bad)),
    "enqueue(ttl)": (DURATIONS, lambda bad: lambda b, q, d: q.enqueue(b"x", ttl=bad)),
    "enqueue(expires_at)": (INSTANTS, lambda bad: lambda b, q, d: q.enqueue(b"x", expires_at=bad)),
    "enqueue(ttl, expires_at)": ([5], lambda bad: lambda b, q, d: q.enqueue(b"x", ttl="5ms", expires_at=bad)),
    "enqueue(headers)": (HEADERS, lambda bad: lambda b, q, d: q.enqueue(b"x", headers=bad)),
    "enqueue(id)": (IDS, lambda bad: lambda b, q, d: q.enqueue(b"x", id=bad)),
    "enqueue(content_type)": (CONTENT_TYPES, lambda bad: lambda b, q, d: q.enqueue(b"x", content_type=bad)),
    "enqueue(Message and more)": ([5], lambda bad: lambda b, q, d: q.enqueue(Message(b"x"), ttl=bad)),
    "enqueue_many": (LISTS, lambda bad: lambda b, q, d: q.enqueue_many(bad)),
    "enqueue_many(body)": (BODIES, lambda bad: lambda b, q, d: q.enqueue_many([b"good", bad, b"good"])),
    "enqueue_many(ttl)": (DURATIONS, lambda bad: lambda b, q, d: q.enqueue_many([b"good", Message(b"x", ttl=bad)])),
    "enqueue_many(id)": (IDS, lambda bad: lambda b, q, d: q.enqueue_many([b"good"] * 600 + [Message(b"x", id=bad)])),
    "receive(wait)": (DURATIONS, lambda bad: lambda b, q, d: q.receive(bad)),
    "receive(lease)": ([*DURATIONS, 0], lambda bad: lambda b, q, d: q.receive(lease=bad)),
    "receive_many": (COUNTS, lambda bad: lambda b, q, d: q.receive_many(bad)),
    "receive_many(wait)": (DURATIONS, lambda bad: lambda b, q, d: q.receive_many(1, bad)),
    "receive_many(lease)": ([*DURATIONS, 0], lambda bad: lambda b, q, d: q.receive_many(1, None, bad)),
    "consume": ([*COUNTS, 251], lambda bad: lambda b, q, d: q.consume(bad)),
    "consume(lease)": ([*DURATIONS, 0], lambda bad: lambda b, q, d: q.consume(lease=bad)),
    "consume(wait)": (DURATIONS, lambda bad: lambda b, q, d: q.consume(wait=bad)),
    "nack(delay)": (DURATIONS, lambda bad: lambda b, q, d: d.nack(bad)),
    "nack_many(delay)": (DURATIONS, lambda bad: lambda b, q, d: q.nack_many([d], bad)),
    "nack(description)": (DESCRIPTIONS, lambda bad: lambda b, q, d: d.nack(None, bad)),
    "nack_many(description)": (DESCRIPTIONS, lambda bad: lambda b, q, d: q.nack_many([d], description=bad)),
    "nack_many(description of no failure)": (
        ["why"],
        lambda bad: lambda b, q, d: q.nack_many([d], counted=False, description=bad),
    ),
    "update(redelivery_delay)": ([*DURATIONS, 0], lambda bad: lambda b, q, d: q.update(redelivery_delay=bad)),
    "update(redelivery_jitter)": (
        [-0.1, 1.1, "1", True, float("nan"), 0.5],
        lambda bad: lambda b, q, d: q.update(redelivery_jitter=bad),
    ),
    "reject": (DESCRIPTIONS, lambda bad: lambda b, q, d: d.reject(bad)),
    "reject_many": (DESCRIPTIONS, lambda bad: lambda b, q, d: q.reject_many([d], bad)),
    "renew": ([*DURATIONS, 0], lambda bad: lambda b, q, d: d.renew(bad)),
    "renew_many": ([*DURATIONS, 0], lambda bad: lambda b, q, d: q.renew_many([d], bad)),
    "ack_many": ([None, 5, "x", [5], [None]], lambda bad: lambda b, q, d: q.ack_many(bad)),
    "ack_many twice": ([2], lambda bad: lambda b, q, d: q.ack_many([d] * bad)),
    "ack_many of another queue": (["other"], lambda bad: lambda b, q, d: b.queue(bad).ack_many([d])),
    "nack_many": ([None, 5, "x", [5]], lambda bad: lambda b, q, d: q.nack_many(bad)),
    "reject_many of": ([None, 5, "x", [5]], lambda bad: lambda b, q, d: q.reject_many(bad)),
    "renew_many of": ([5, "x", [5]], lambda bad: lambda b, q, d: q.renew_many(bad)),
    "peek": (COUNTS, lambda bad: lambda b, q, d: q.peek(bad)),
    "peek(after)": (SEQUENCES, lambda bad: lambda b, q, d: q.peek(5, bad)),
    "purge_many(sequences)": (
        [5, "1700000000000-100000", [5], [b"1"], [None]],
        lambda bad: lambda b, q, d: q.purge_many(bad),
    ),
    "redrive(limit)": (COUNTS[:5], lambda bad: lambda b, q, d: q.redrive(bad)),
    "redrive(reason)": (["none", 5, True, b"expired"], lambda bad: lambda b, q, d: q.redrive(reason=bad)),
    "redrive(source)": ([n for n in NAMES if n is not None], lambda bad: lambda b, q, d: q.redrive(source=bad)),
    "redrive_many": (
        [None, 5, "x", ["ab"], [5], [(5, "q")], [("1", None)]],
        lambda bad: lambda b, q, d: q.redrive_many(bad),
    ),
    "Broker(client)": ([None, 5, "redis://h"], lambda bad: lambda b, q, d: rqttl.Broker(bad)),
    "connect": ([5, b"redis://h"], lambda bad: lambda b, q, d: rqttl.connect(bad)),
    "Broker(namespace)": (
        ["", "a:b", "{a}", "x" * 65, "é", None, 5, b"rqttl"],
        lambda bad: lambda b, q, d: rqttl.Broker(driver_of(b).store.client, bad),
    ),
}


@pytest.mark.parametrize(
    "name,i", [(name, i) for name, (values, _) in CALLS.items() for i in range(len(values))]
)  # numbered, because the values themselves make no names of tests
def test_a_malformed_argument_is_refused_and_nothing_has_changed(lab: Lab, name: str, i: int) -> None:
    values, call = CALLS[name]
    orders = lab.broker.declare_queue("orders", dead_letter="dead", max_message_bytes=100, max_length=1000)
    lab.broker.declare_queue("other")
    orders.enqueue_many([b"held", Message(b"ready", ttl="1h")])
    delivery = orders.receive()
    assert delivery
    before = everything(lab.client)

    with pytest.raises(InvalidInput) as refused:
        call(values[i])(lab.broker, orders, delivery)

    assert isinstance(refused.value, rqttl.RqttlError)
    assert ": " in str(refused.value)
    assert isinstance(values[i], str) or repr(str(values[i])) not in str(refused.value), (
        "shown as text, which it is not"
    )
    assert everything(lab.client) == before


def test_nothing_to_do_is_nothing_done(lab: Lab) -> None:
    orders = lab.broker.declare_queue("orders")
    before = everything(lab.client)

    assert orders.enqueue_many([]) == []
    for settle in (orders.ack_many, orders.nack_many, orders.reject_many, orders.renew_many):
        settle([])

    assert everything(lab.client) == before
