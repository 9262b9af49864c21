"""A repeated call whose attempts all fail: it may have been carried out, and the caller is told so."""

from __future__ import annotations

import pytest
import redis

import rqttl
from rqttl.store import exchanges
from tests.process.proxy import Proxy
from tests.servers import Server


@pytest.mark.parametrize("action", ["enqueue", "ack", "nack", "reject"])
@pytest.mark.parametrize("last", [b"", b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"])
def test_after_the_last_attempt_the_outcome_of_a_call_that_may_have_been_carried_out_is_unknown(
    server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch, action: str, last: bytes
) -> None:
    monkeypatch.setattr(exchanges, "PAUSES", (0.001,) * 4)
    proxy = Proxy(server.socket)
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        orders = broker.declare_queue("orders", duplicate_window="1m")
        orders.enqueue(b"x")
        delivery = orders.receive()
        call = {"enqueue": lambda: orders.enqueue(b"x", id="x")}.get(action) or getattr(delivery, action)
        proxy.spoil(*["cut"] * (1 if last else 5), *[last] * bool(last))

        with pytest.raises(rqttl.OutcomeUnknown) as unknown:
            call()

        assert unknown.value.action == action
        assert isinstance(unknown.value.__cause__, redis.ResponseError if last else redis.ConnectionError)
    proxy.stop_listening()


def test_a_call_whose_reply_was_lost_before_its_script_was_forgotten_is_not_told_as_not_carried_out(
    server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "PAUSES", (0.001,) * 4)
    proxy = Proxy(server.socket)
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        orders = broker.declare_queue("orders")
        orders.enqueue_many([b"x", b"y"])
        first, delivery = orders.receive_many(2)
        first.ack()  # Redis knows the script now
        gone = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        loaded = b"$40\r\n" + b"0" * 40 + b"\r\n" + gone
        proxy.spoil("cut", gone, *[loaded] * 5, script="ack")

        with pytest.raises(rqttl.OutcomeUnknown) as unknown:
            delivery.ack()

        assert (unknown.value.action, orders.stats().acked) == ("ack", 2)
        assert isinstance(unknown.value.__cause__, rqttl.ScriptsForgotten)
    proxy.stop_listening()
