"""Settles whose reply was lost, and that are repeated after the lease has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import rqttl
from tests.process.proxy import Proxy
from tests.servers import Server


@pytest.fixture
def proxy(server: Server, redis_url: str) -> Iterator[Proxy]:
    proxy = Proxy(server.socket)
    yield proxy
    proxy.stop_listening()


@pytest.fixture
def orders(proxy: Proxy) -> Iterator[rqttl.Queue]:
    """A queue behind the proxy."""
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        yield broker.declare_queue("orders", dead_letter="dead")


@pytest.fixture
def late(orders: rqttl.Queue, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[rqttl.Delivery]:
    """A delivery whose lease is over; before a call is repeated, another consumer handles the message."""
    orders.enqueue(b"x")
    delivery = orders.receive(lease="1ms")
    assert delivery
    assert any(swept.reclaimed for _ in range(100_000) for swept in orders.sweep())
    with rqttl.connect(redis_url) as other:

        def handle(pause: float) -> None:
            taken = other.queue("orders").receive()
            assert taken
            taken.ack()

        monkeypatch.setattr(time, "sleep", handle)
        yield delivery


@pytest.mark.parametrize("settle", ["ack", "nack", "reject"])
def test_a_repeated_settle_does_not_claim_the_work_of_another_consumer(
    orders: rqttl.Queue, proxy: Proxy, late: rqttl.Delivery, settle: str
) -> None:
    proxy.spoil("cut")

    with pytest.raises(rqttl.OutcomeUnknown, match=late.id) as unknown:
        getattr(late, settle)()

    assert (unknown.value.queue, unknown.value.action, unknown.value.ids) == ("orders", settle, (late.id,))
    assert late.settled == "outcome unknown"
    with pytest.raises(rqttl.AlreadySettled, match="outcome unknown"):
        late.ack()
