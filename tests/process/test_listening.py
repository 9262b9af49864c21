"""Blocking calls on connections that fall silent, and the state of a connection after a wait."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Literal

import pytest
import redis

import rqttl
from rqttl.flows.steps import ENDED
from rqttl.protocol.contract import pack_command
from rqttl.runtime.interrupt import Interrupt
from rqttl.store import blocking
from rqttl.store.blocking import patiently
from rqttl.store.connections import RedisNode
from rqttl.store.driver import RedisDriver, driver_of
from rqttl.store.slot_waits import SlotWaits
from rqttl.store.topology import OneServer
from tests.drivers import broker_on
from tests.process.proxy import Proxy
from tests.servers import Server
from tests.two_nodes import TwoNodeDriver
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

WAKEUP = "rqttl:{q}:wakeup"


def test_a_blocking_call_that_redis_does_not_end_is_ended_by_its_reader(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    # as after a step back of its clock: `BLPOP` then lasts as long as the step
    monkeypatch.setattr(blocking, "REPLY", 0.1)
    server = start_server()
    with rqttl.connect(server.url) as broker:
        broker.declare_queue("q")
        with server.hanging():
            assert driver_of(broker).store.listen(["q"], [WAKEUP], 50) is None
        broker.queue("q").enqueue(b"x")
        assert broker.queue("q").receive() is not None


class Late:
    """Makes Redis end each blocking call an hour late, as after a step back of its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(blocking, "pack_command", lambda words: pack_command((*words[:2], "3600")))


def test_the_call_after_a_wait_uses_the_connection_of_the_wait(start_server: Callable[..., Server]) -> None:
    with rqttl.connect(start_server().url) as broker:
        store = driver_of(broker).store
        store.topology.nodes[0].connections.release_idle()

        assert store.listen(["q"], [WAKEUP], 10) is None
        assert len(store.topology.nodes[0].connections) == 1


def test_a_wait_ends_by_the_clock_of_the_client(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "REPLY", 3600.0)
    with rqttl.connect(redis_url) as broker, ThreadPoolExecutor(1) as pool:
        queue = broker.declare_queue("q")
        Late(monkeypatch)

        assert pool.submit(queue.receive, wait="50ms").result(timeout=PATIENCE) is None

        queue.enqueue(b"x")
        assert queue.receive() is not None


@pytest.mark.parametrize("queues, is_away", [("a", False), ("ab", False), ("b", True)])
def test_a_wait_ends_while_a_test_has_frozen_the_functions_of_modules(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, queues: str, is_away: bool
) -> None:
    first, second = start_server(), start_server()
    with broker_on(TwoNodeDriver(first, second)) as broker, ThreadPoolExecutor(1) as pool:
        for name in queues:
            broker.declare_queue(name)
        driver_of(broker).store.exchanges.patience = 0.2
        if is_away:
            second.kill()
        monkeypatch.setattr("time.monotonic", lambda: 1_700_000_000.0)

        waits = pool.submit(broker.receive, list(queues), wait="1s")
        try:
            with pytest.raises(redis.ConnectionError) if is_away else nullcontext():
                assert waits.result(timeout=PATIENCE) == []
        finally:
            broker.interrupt()
            if is_away and not waits.done():
                second.start()


@pytest.mark.parametrize("ttl", [None, 0])
def test_a_message_that_comes_as_a_late_wait_is_ended_is_not_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, ttl: Literal[0] | None
) -> None:
    monkeypatch.setattr(blocking, "SLACK", 0.0)  # the notes of a waiting consumer are kept for 5 s only
    with rqttl.connect(redis_url) as broker, rqttl.connect(redis_url) as sender:
        queue = broker.declare_queue("q")
        Late(monkeypatch)
        hang_up = blocking.shut_down

        def send_first(sock: socket.socket) -> None:
            sender.queue("q").enqueue(b"x", ttl=ttl)
            hang_up(sock)

        monkeypatch.setattr(blocking, "shut_down", send_first)

        delivery = queue.receive(wait="50ms")

    assert delivery is not None
    assert (delivery.body, delivery.delivery_count) == (b"x", 1)


def test_a_replica_ends_a_wait_and_what_looks_next_finds_out(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client, rqttl.connect(server.url) as broker:
        broker.declare_queue("q")
        client.replicaof("127.0.0.1", 1)

        assert driver_of(broker).store.listen(["q"], [WAKEUP], 600_000) is None


def test_a_connection_on_which_redis_broke_off_a_wait_is_not_used_again(start_server: Callable[..., Server]) -> None:
    # Redis closes such a connection a moment later, when the next call may be on its way
    server = start_server()
    with server.client() as client, rqttl.connect(server.url) as broker, ThreadPoolExecutor(1) as pool:
        broker.declare_queue("q")
        waits = pool.submit(driver_of(broker).store.listen, "q", WAKEUP, 600_000)
        until(lambda: bool(client.info("clients")["blocked_clients"] == 1))
        [before] = [one["id"] for one in client.client_list() if one["cmd"] == "blpop"]

        client.client_unblock(int(before), error=True)

        assert waits.result(timeout=PATIENCE) == b""
        assert broker.queue("q").receive() is None
        until(lambda: before not in {one["id"] for one in client.client_list()})


def test_a_connection_that_ends_while_it_listens_ends_the_wait_at_once(proxy: Proxy) -> None:
    with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
        broker.declare_queue("q")
        ended = threading.Timer(0.1, proxy.stop_listening)
        ended.start()

        assert driver_of(broker).store.listen(["q"], [WAKEUP], 600_000) is None
        ended.join()


@pytest.mark.parametrize("own", [None, {socket.TCP_KEEPINTVL: 7}])
def test_tcp_asks_whether_the_other_machine_is_there_unless_the_client_says_how(
    proxy: Proxy, own: dict[int, int] | None
) -> None:
    options = {"socket_keepalive": own is not None, "socket_keepalive_options": own}
    with redis.Redis(host="127.0.0.1", port=proxy.port, socket_timeout=PATIENCE, **options) as client:  # type: ignore[arg-type]  # one of them at a time
        connection = client.connection_pool.get_connection()
        sock = connection._sock

        with patiently(connection, 240_000) as longest:
            assert longest == 240_000
            assert sock.gettimeout() == 240 + blocking.REPLY
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == (7 if own else 10)
        assert sock.gettimeout() == PATIENCE
        client.connection_pool.release(connection)


@pytest.mark.parametrize("timeout, longest", [(None, 5_000), (4, 2_000), (0.001, 10)])
def test_a_call_blocks_for_half_of_the_time_out_if_redis_py_shows_no_socket(
    timeout: float | None, longest: int
) -> None:
    connection = redis.Connection(socket_timeout=timeout)

    with patiently(connection, 240_000) as ms:
        assert ms == longest


# Lists in several slots


class Alone(OneServer[RedisNode]):
    """A topology of one server, with a slot for each list."""

    def slot_of(self, key: object) -> object:
        return key


@pytest.fixture
def slot_waits(server: Server, client: redis.Redis, request: pytest.FixtureRequest) -> Iterator[SlotWaits]:
    """Waits on a database that is empty. The parameter limits the connections."""
    with server.client(max_connections=getattr(request, "param", 100)) as own:
        driver = RedisDriver(own, "rqttl", topology=Alone(RedisNode(own)))
        slot_waits = driver.store.slot_waits()
        yield slot_waits
        slot_waits.end()
        driver.close()


def test_an_element_that_comes_while_nobody_waits_is_there_later(slot_waits: SlotWaits, client: redis.Redis) -> None:
    assert slot_waits.wait(["a", "b"], 0, []) is None
    client.rpush("a", "1")
    until(lambda: client.info("clients")["blocked_clients"] == 1)
    assert (slot_waits.collect(), len(slot_waits)) == ([("a", b"1")], 1)

    client.rpush("b", "2")
    assert slot_waits.wait(["a", "c"], 0, []) == [("b", b"2")]
    client.rpush("c", "3")
    assert (sorted(slot_waits.end()), len(slot_waits)) == ([("a", None), ("c", b"3")], 0)


def test_a_wait_for_several_slots_outlives_its_calls(
    slot_waits: SlotWaits, client: redis.Redis, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.slot_waits.PERIOD", 0.01)
    waits = pool.submit(slot_waits.wait, ["a", "b"], 600_000, [])
    until(lambda: client.info("commandstats").get("cmdstat_blpop", {"calls": 0})["calls"] > 10)

    client.rpush("b", "1")

    assert waits.result(PATIENCE) == [("b", b"1")]


@pytest.mark.parametrize("how", ["interrupt", "kill", "refuse"])
def test_a_wait_for_several_slots_is_ended_from_outside(
    slot_waits: SlotWaits, client: redis.Redis, pool: ThreadPoolExecutor, how: str
) -> None:
    interrupt = Interrupt()
    waits = pool.submit(slot_waits.wait, ["a", "b"], 600_000, [interrupt])
    until(lambda: client.info("clients")["blocked_clients"] == 2)

    if how == "interrupt":
        interrupt.ask()
        assert waits.result(PATIENCE) == ENDED
        return
    for one in client.client_list():
        if one["cmd"] == "blpop":
            client.client_kill_filter(_id=one["id"]) if how == "kill" else client.client_unblock(
                int(one["id"]), error=True
            )
    found = waits.result(PATIENCE)
    assert isinstance(found, list)
    assert {key for key, _ in found} <= {"a", "b"}
    assert found


@pytest.mark.parametrize("slot_waits", [3], indirect=True)
def test_lists_for_which_no_connection_is_left_are_looked_at(
    slot_waits: SlotWaits, client: redis.Redis, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three connections is kept for commands."""
    monkeypatch.setattr("rqttl.store.slot_waits.LOOK", 0.01)
    for key in [*"abcd", *"dcba"]:
        waits = pool.submit(slot_waits.wait, [*"abcd"], 600_000, [])
        until(lambda: client.info("clients")["blocked_clients"] == 2)
        client.rpush(key, "1")
        found: Any = waits.result(PATIENCE)
        while (key, b"1") not in found:  # a call made room for that of this list, and has left a hint
            found = slot_waits.wait([*"abcd"], 600_000, [])
