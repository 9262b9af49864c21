"""Exceptions that signal handlers raise in the middle of a call: no reply answers another call, and nothing leaks."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import rqttl
from rqttl.errors import ContractError
from rqttl.store import connections
from rqttl.store.driver import driver_of
from tests.servers import Server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once


class Interrupt(BaseException):
    """The exception of a signal handler."""


@pytest.fixture
def broker(redis_url: str) -> Iterator[rqttl.Broker]:
    with rqttl.connect(redis_url) as broker:
        broker.declare_queue("orders")
        yield broker


@pytest.mark.parametrize("when", ["send_packed_command", "read_response"])
@pytest.mark.parametrize("how", ["plain", "script", "pipeline", "transaction"])
def test_the_reply_to_an_interrupted_call_answers_no_other_call(
    broker: rqttl.Broker, server: Server, monkeypatch: pytest.MonkeyPatch, how: str, when: str
) -> None:
    queue, pool = broker.queue("orders"), driver_of(broker).store.client.connection_pool
    calls: dict[str, Callable[[], object]] = {
        "plain": broker.server_time,
        "script": queue.touch,
        "pipeline": lambda: broker.stats(["orders"], sweep=False),
        "transaction": lambda: queue.enqueue_many([b"x"] * 251),
    }
    calls[how]()
    broker.queues()
    real = getattr(pool.connection_class, when)

    def interrupted(connection: Any, *args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        if when == "send_packed_command":
            real(connection, *args, **options)
        raise Interrupt

    monkeypatch.setattr(pool.connection_class, when, interrupted)
    server.process.send_signal(signal.SIGSTOP)  # no reply comes yet
    with ThreadPoolExecutor(1) as thread:
        try:
            with pytest.raises(Interrupt):
                calls[how]()
            names = thread.submit(broker.queues)
        finally:
            server.process.send_signal(signal.SIGCONT)

        assert names.result(timeout=PATIENCE) == ["orders"]
    gc.collect()
    assert len(pool._in_use_connections) == 1


def test_a_connection_that_nobody_holds_any_more_takes_no_place_in_its_pool(redis_url: str) -> None:
    with rqttl.connect(f"{redis_url}?max_connections=2") as broker:
        pool = driver_of(broker).store.client.connection_pool
        for _ in range(5):
            pool.get_connection()  # as if a signal handler had raised before anybody had it
        broker.server_time()


def test_a_place_to_wait_that_nobody_holds_any_more_is_free(redis_url: str) -> None:
    with rqttl.connect(f"{redis_url}?max_connections=2") as broker:
        places = connections.places_of(driver_of(broker).store.client.connection_pool)
        for _ in range(3):
            assert places.take(0, lambda: False)

        assert broker.declare_queue("orders").receive(wait="10ms") is None


def forget_without_a_trace(things: Any) -> None:
    """Let the one thing in a weak set die as where a signal handler raises while its reference is taken out."""
    (one,) = things
    things.data.clear()
    things.data.add(weakref.ref(one))


def test_a_lost_connection_takes_no_place_though_a_handler_raised_when_it_was_forgotten(redis_url: str) -> None:
    with rqttl.connect(f"{redis_url}?max_connections=1") as broker:
        pool = driver_of(broker).store.client.connection_pool
        lost = pool.get_connection()
        forget_without_a_trace(pool._in_use_connections)
        del lost

        broker.server_time()


def test_a_lost_place_to_wait_is_free_though_a_handler_raised_when_it_was_forgotten(redis_url: str) -> None:
    with rqttl.connect(f"{redis_url}?max_connections=2") as broker:
        places = connections.places_of(driver_of(broker).store.client.connection_pool)
        lost = places.take(0, lambda: False)
        forget_without_a_trace(places._taken)
        del lost

        assert places.take(0, lambda: False)


def test_a_number_is_packed_as_text_since_hiredis_crashes_where_a_signal_handler_raises() -> None:
    ask = """
import signal
from rqttl.protocol.contract import pack_command
class Interrupt(Exception): pass
def interrupt(*_): raise Interrupt
signal.signal(signal.SIGALRM, interrupt)
words, interrupts = ("SET", *[123456] * 2000), 0
while interrupts < 300:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while True:
            pack_command(words)
    except Interrupt:
        interrupts += 1
"""
    assert subprocess.run([sys.executable, "-c", ask], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("reply", [b"+OK\r\n", b":7\r\n", b"*1\r\n$2\r\nok\r\n", b"*2\r\n$3\r\nyes\r\n:1\r\n"])
def test_a_reply_that_a_script_cannot_give_is_a_bug_and_its_connection_is_closed(
    broker: rqttl.Broker, monkeypatch: pytest.MonkeyPatch, reply: bytes
) -> None:
    queue, store = broker.queue("orders"), driver_of(broker).store
    queue.touch()
    kept = store.connections.checkout()
    store.connections.keep(kept)
    reader = type(kept)
    wrong = iter([{b"+": b"OK", b":": 7}.get(reply[:1], [b"yes"])])
    monkeypatch.setattr(reader, "read_response", lambda *_, **__: next(wrong))

    with pytest.raises(ContractError, match="unexpected reply"):
        queue.touch()

    monkeypatch.undo()
    assert len(store.connections) == 0
    queue.touch()


def test_a_plain_reply_of_another_shape_is_a_bug_and_its_connection_is_closed(
    broker: rqttl.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = driver_of(broker).store
    kept = store.connections.checkout()
    store.connections.keep(kept)
    monkeypatch.setattr(type(kept), "read_response", lambda *_, **__: b"OK")

    with pytest.raises(ContractError, match="TIME: unexpected reply"):
        broker.server_time()

    monkeypatch.undo()
    assert len(store.connections) == 0
    assert isinstance(broker.server_time(), datetime)


PROGRAM = Path(__file__).with_name("interrupted_lines.py")
#: Seconds until a process counts as blocked for ever.
LONGEST = 110


@pytest.mark.slow
@pytest.mark.parametrize("what", ["consume", "receive", "run", "run_until_set", "reap"])
def test_a_signal_handler_may_end_a_wait_at_any_line(redis_url: str, what: str) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, redis_url, what], capture_output=True, text=True, timeout=LONGEST, check=False
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
