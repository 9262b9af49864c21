"""A real redis-server for each test process, and an empty database for each test.

`RQTTL_TEST_REDIS` chooses the server: `7.0` (the system's, the default), or one in a wheel: `valkey` (9), `6.2`, `8`.
When it is missing, the tests that need it fail. `fake` is for the contract tests only: they run on the fake broker of
`rqttl.testing` then. `aio` runs them on the asyncio interface, `cluster` on a Redis Cluster of three nodes,
`cluster-aio` on both; `aio-valkey` is another server.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import redis

from rqttl import Queue
from rqttl.store.driver import RedisDriver
from tests.cluster_servers import ClusterServers, shared_client
from tests.servers import Server, server_binary

#: Whether this run is that of the contract tests on the fake broker.
FAKE = os.environ.get("RQTTL_TEST_REDIS") == "fake"
_LEG = os.environ.get("RQTTL_TEST_REDIS", "7.0").split("-")
#: Whether this run is that of the contract tests on the asyncio interface.
AIO = "aio" in _LEG
#: Whether this run is that of the contract tests on a Redis Cluster.
CLUSTER = "cluster" in _LEG

if AIO and not TYPE_CHECKING:
    import rqttl
    from tests.contract.portal import PortalBroker as Broker

    rqttl.Broker = Broker
else:
    from rqttl import Broker

if TYPE_CHECKING:
    from tests.contract.clocked import Clocked

# A shell that starts a command in the background makes it ignore Ctrl-C, `nohup` makes it ignore SIGHUP, and each
# program that it starts does so, too.
# The tests send these signals to programs.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# No test may fail because a machine is slow.
hypothesis.settings.register_profile("rqttl", deadline=None)
hypothesis.settings.load_profile("rqttl")


@pytest.fixture(scope="session")
def launch() -> Callable[..., Server]:
    """Starts the chosen redis-server; the caller removes it."""
    if FAKE:
        pytest.fail("RQTTL_TEST_REDIS=fake: there is no server for what is not the fake broker", pytrace=False)
    series = "-".join(word for word in _LEG if word not in ("aio", "cluster")) or "7.0"
    return partial(Server, server_binary(series))


@pytest.fixture(scope="session")
def server(launch: Callable[..., Server]) -> Iterator[Any]:
    """The server that the tests of this process share. To stop, kill or configure one, use `start_server`."""
    server = ClusterServers(launch) if CLUSTER else launch()
    yield server
    server.remove()


@pytest.fixture
def redis_url(server: Any) -> str:
    """The URL of the shared server, its database empty."""
    if isinstance(server, ClusterServers):
        shared_client(server.ports[0]).flushall()
        return str(server.url())
    with server.client() as client:
        client.flushall()
    return str(server.url)


@pytest.fixture
def client(server: Any, redis_url: str) -> Iterator[Any]:
    """A plain redis-py client of the shared server, its database empty."""
    if isinstance(server, ClusterServers):
        yield shared_client(server.ports[0])
        return
    with server.client() as client:
        yield client


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Brokers that a test leaves open are closed. The collector would end a socket before the connection around it."""
    made: list[RedisDriver] = []
    init = RedisDriver.__init__

    def noted(driver: RedisDriver, *args: Any, **options: Any) -> None:
        init(driver, *args, **options)
        made.append(driver)

    monkeypatch.setattr(RedisDriver, "__init__", noted)
    yield
    for driver in made:
        driver.store.close()


@pytest.fixture
def broker(client: redis.Redis) -> Iterator[Broker]:
    """A broker on the shared server, its database empty."""
    broker = Broker(client)
    yield broker
    broker.close()


@pytest.fixture
def clocked(client: redis.Redis) -> Iterator["Clocked"]:
    """A broker whose time stands still until the test moves it."""
    from tests.contract.clocked import Clocked  # it asks this module about the run

    broker = Clocked(client)
    yield broker
    broker.close()


@pytest.fixture
def restricted(server: Server, client: redis.Redis) -> Iterator[Callable[..., redis.Redis]]:
    """`restricted("-scan")`: a client as a user who may do all but what these rules of Redis take away."""
    with ExitStack() as stack:

        def connect(*rules: str) -> redis.Redis:
            client.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "~*", "&*", "+@all", *rules)
            stack.callback(client.execute_command, "ACL", "DELUSER", "half")
            half: redis.Redis = stack.enter_context(server.client(username="half"))
            return half

        yield connect


@pytest.fixture
def full_memory(client: redis.Redis) -> Callable[[], AbstractContextManager[None]]:
    """Redis refuses all calls that need memory, within `with full_memory():`."""

    @contextmanager
    def full() -> Iterator[None]:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)

    return full


@pytest.fixture
def queue(broker: Broker) -> Queue:
    """The queue `q`, without options."""
    return broker.declare_queue("q")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Four threads; they have ended when the test has."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def start_server(launch: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    """Starts further servers, private to the test: `start_server(appendonly="yes", maxmemory="4mb")`."""
    servers: list[Server] = []

    def start(**config: object) -> Server:
        servers.append(launch(**config))
        return servers[-1]

    yield start
    for server in servers:
        server.remove()
