"""The command line within this process, against the shared server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from click.testing import CliRunner, Result

from rqttl import Broker, Message, Queue
from rqttl.cli import cli
from rqttl.cli.common.settings import Settings
from rqttl.store import exchanges
from tests.cli.deaths import Die, bury
from tests.contract.clocked import Clocked

Run = Callable[..., Result]


@pytest.fixture
def run(redis_url: str) -> Run:
    """`run("queue", "ls", stdin=b"")`: the result has `stdout`, `stderr` and `exit_code`."""

    def call(*arguments: str | bytes, stdin: bytes | None = None) -> Result:
        return CliRunner(env={"RQTTL_URL": redis_url}).invoke(cli, arguments, input=stdin)  # type: ignore[arg-type]  # bytes are what the system gives

    return call


@pytest.fixture
def clocked(client: redis.Redis) -> Clocked:
    """A broker on the shared server whose clock stands still, so that output is always the same."""
    return Clocked(client)


@pytest.fixture
def run_clocked(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run`, at the time of `clocked`."""
    monkeypatch.setattr(Settings, "connect", lambda _: clocked)
    monkeypatch.setattr(clocked, "close", lambda: None)  # the test goes on with it

    def call(*arguments: str | bytes, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, arguments, input=stdin)  # type: ignore[arg-type]  # bytes are what the system gives

    return call


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that fail are made again as often as ever, but without a pause."""
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.0,) * len(exchanges.PAUSES))


@pytest.fixture
def orders(broker: Broker) -> Queue:
    """The queue `orders`, without options."""
    return broker.declare_queue("orders")


@pytest.fixture
def letters(clocked: Clocked) -> Queue:
    """The queue `orders/dead` with `LETTERS`."""
    return bury(clocked)


@pytest.fixture
def die(clocked: Clocked) -> Die:
    """`die(ms, n, source="orders", dead="dead")`: so many die that long after the start of the clock."""

    def die(after: int, n: int = 1, source: str = "orders", dead: str = "dead") -> None:
        clocked.go_to(after)
        clocked.declare_queue(source, dead_letter=dead).enqueue_many([Message(b"x", ttl=0)] * n)

    return die
