"""Scripts that Redis has forgotten, as after a restart, are loaded again, and nothing gets out of order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

import rqttl
from rqttl import SweepEvent
from rqttl.protocol import scripts
from rqttl.protocol.commands import Command
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.drivers import broker_of
from tests.process.proxy import Proxy
from tests.servers import Server
from tests.waiting import PATIENCE


@pytest.fixture
def orders(broker: rqttl.Broker) -> rqttl.Queue:
    """A queue."""
    return broker.declare_queue("orders")


def test_batches_that_went_out_together_keep_their_order_where_the_script_is_gone(
    orders: rqttl.Queue, client: redis.Redis
) -> None:
    bodies = [b"%d" % i for i in range(1500)]
    orders.enqueue_many(bodies)
    orders.purge()
    client.script_flush()

    receipts = orders.enqueue_many(bodies)

    assert [one.body for one in orders.peek(2000)] == bodies
    assert [one.id for one in receipts if isinstance(one, rqttl.Receipt)] == [one.id for one in orders.peek(2000)]


@contextmanager
def forgotten(broker: rqttl.Broker, script: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the first three calls of one script fail as if a user flushed the scripts all the time. Gives the calls."""
    store, calls = driver_of(broker).store, []
    run = store.run

    def fail(command: Command) -> Any:
        if command.script.name == script:
            calls.append(script)
            if len(calls) <= 3:
                raise rqttl.ScriptsForgotten(script)
        return run(command)

    with monkeypatch.context() as patch:
        patch.setattr(store, "run", fail)
        yield calls


def test_a_consumer_goes_on_after_a_storm_of_flushes(
    orders: rqttl.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    orders.enqueue(b"x")

    with forgotten(broker_of(orders), "receive", monkeypatch) as calls, orders.consume() as deliveries:
        assert next(iter(deliveries)).body == b"x"

    assert len(calls) >= 4
    assert "queue orders: Redis refuses for now (script receive: Redis forgot it again and again" in caplog.text


def test_a_reaper_goes_on_after_a_storm_of_flushes(
    orders: rqttl.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    orders.enqueue(b"x", ttl="1ms")
    reaper = Reaper(broker_of(orders))
    broker_of(orders).events.subscribe(lambda event: reaper.stop() if event.swept.expired else None, SweepEvent)

    with forgotten(broker_of(orders), "sweep", monkeypatch) as calls:
        assert reaper.run().expired == 1

    assert len(calls) >= 4
    assert "Redis refuses for now: script sweep: Redis forgot it again and again" in caplog.text


@contextmanager
def again_and_again(act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread, as often as it can, within the block."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_batches_keep_their_order_while_others_flush_and_load_the_script(orders: rqttl.Queue, server: Server) -> None:
    bodies = [b"%d" % i + b" " * 500 for i in range(2000)]
    text = scripts.load("enqueue").text
    with server.client() as one, server.client() as other:
        for _ in range(5):
            with again_and_again(one.script_flush), again_and_again(lambda: other.script_load(text)):
                receipts = orders.enqueue_many(bodies)
            assert [one.body for one in orders.peek(3000)] == bodies
            assert len({receipt.id for receipt in receipts if isinstance(receipt, rqttl.Receipt)}) == len(bodies)
            orders.purge()


def test_scripts_that_are_forgotten_over_and_over_never_reach_the_caller_as_no_script(
    orders: rqttl.Queue, server: Server
) -> None:
    with server.client() as one, again_and_again(one.script_flush):
        sent = 0
        while sent < 50:
            # a storm may win all the attempts of one call, which has stored nothing then
            with suppress(rqttl.ScriptsForgotten):
                orders.enqueue(b"%d" % sent)
                sent += 1

    assert [one.body for one in orders.peek(250)] == [b"%d" % i for i in range(50)]


def test_a_script_that_is_gone_after_each_loading_is_a_typed_error(proxy: Proxy) -> None:
    with redis.Redis("127.0.0.1", proxy.port, socket_timeout=PATIENCE) as client, rqttl.Broker(client) as broker:
        queue = broker.declare_queue("orders")
        gone = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        proxy.spoil(gone, *[b"$40\r\n" + b"0" * 40 + b"\r\n" + gone] * 5, script="touch")

        with pytest.raises(rqttl.RqttlError, match="touch: Redis forgot it again and again") as forgotten:
            queue.touch()

        assert forgotten.value.code == "scripts_forgotten"


def test_a_user_who_may_make_no_transaction_sends_batches_all_the_same(
    orders: rqttl.Queue, client: redis.Redis, server: Server
) -> None:
    client.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "~*", "&*", "+@all", "-multi", "-exec")
    bodies = [b"%d" % i for i in range(1000)]
    with rqttl.Broker(server.client(username="half")) as broker:
        broker.queue("orders").enqueue_many(bodies)
        driver_of(broker).store.client.close()
    client.execute_command("ACL", "DELUSER", "half")

    assert [one.body for one in orders.peek(2000)] == bodies


def test_a_message_can_be_acked_under_full_memory_although_its_script_is_forgotten(
    start_server: Callable[..., Server],
) -> None:
    server = start_server()
    with server.client() as client, rqttl.Broker(client) as broker:
        queue = broker.declare_queue("orders")
        queue.enqueue(b"x")
        delivery = queue.receive()
        assert delivery is not None
        client.config_set("maxmemory", 1)
        client.script_flush()

        delivery.ack()

        assert queue.stats().acked == 1
