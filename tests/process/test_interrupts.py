"""Exceptions that signal handlers raise in the middle of a call: no reply answers another call, and nothing leaks."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rqttl
from rqttl.errors import ContractError
from rqttl.store import connections
from rqttl.store.driver import driver_of
from tests.drivers import redis_of
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
    queue, pool = broker.queue("orders"), redis_of(broker).connection_pool
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
    with ThreadPoolExecutor(1) as thread:
        with server.hanging():  # no reply comes yet
            with pytest.raises(Interrupt):
                calls[how]()
            names = thread.submit(broker.queues)

        assert names.result(timeout=PATIENCE) == ["orders"]
    gc.collect()
    assert len(pool._in_use_connections) == 1


def forget_without_a_trace(things: Any) -> None:
    """Let the one thing in a weak set die as where a signal handler raises while its reference is taken out."""
    (one,) = things
    things.data.clear()
    things.data.add(weakref.ref(one))


@pytest.mark.parametrize("traceless", [False, True])
def test_a_connection_that_nobody_holds_any_more_takes_no_place_in_its_pool(redis_url: str, traceless: bool) -> None:
    with rqttl.connect(f"{redis_url}?max_connections=1") as broker:
        pool = redis_of(broker).connection_pool
        for _ in range(1 if traceless else 5):
            lost = pool.get_connection()  # as if a signal handler had raised before anybody had it
            if traceless:
                forget_without_a_trace(pool._in_use_connections)
            del lost
        broker.server_time()


@pytest.mark.parametrize("traceless", [False, True])
def test_a_place_to_wait_that_nobody_holds_any_more_is_free(redis_url: str, traceless: bool) -> None:
    with rqttl.connect(f"{redis_url}?max_connections=2") as broker:
        places = connections.places_of(redis_of(broker).connection_pool)
        for _ in range(1 if traceless else 3):
            lost = places.take(0, lambda: False)
            assert lost
            if traceless:
                forget_without_a_trace(places._taken)
            del lost

        assert broker.declare_queue("orders").receive(wait="10ms") is None


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


@pytest.mark.parametrize("reply", [b"OK", 7, [b"yes"]])
@pytest.mark.parametrize("how", ["script", "plain"])
def test_a_reply_that_redis_cannot_give_is_a_bug_and_its_connection_is_closed(
    broker: rqttl.Broker, monkeypatch: pytest.MonkeyPatch, reply: object, how: str
) -> None:
    call, store = broker.queue("orders").touch if how == "script" else broker.server_time, driver_of(broker).store
    call()
    kept = store.topology.nodes[0].connections.checkout()
    store.topology.nodes[0].connections.keep(kept)
    with monkeypatch.context() as patched:
        patched.setattr(type(kept), "read_response", lambda *_, **__: reply)
        with pytest.raises(ContractError, match="unexpected reply"):
            call()

    assert len(store.topology.nodes[0].connections) == 0
    call()


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
