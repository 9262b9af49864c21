"""The command line within this process, against the shared server; dead letters of several kinds; golden output."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from rqttl import Broker, Message, Queue
from rqttl.cli import cli
from rqttl.cli.common.settings import Settings
from rqttl.store import exchanges
from tests.contract.clocked import Clocked

#: What is in `orders/dead`: id -> where and why it died, in the order in which they came.
LETTERS = {
    "order-1": ("orders", "rejected"),
    "order-2": ("orders", "rejected"),
    "order-3": ("orders", "delivery_limit"),
    "mail-1": ("mails", "expired"),
    "mail-2": ("mails", "expired"),
    "mail-3": ("mails", "expired"),
    "order-4": ("orders", "maxlen"),
}


def bury(clocked: Clocked) -> Queue:
    """The queue `orders/dead` with `LETTERS`, ten minutes between each two groups of them."""
    everything: dict[str, Any] = {"dead_letter": "orders/dead", "dead_letter_rejected": "orders/dead"}
    orders = clocked.declare_queue("orders", max_deliveries=2, **everything)
    mails = clocked.declare_queue("mails", message_ttl="5m", **everything)
    orders.enqueue_many(
        [
            Message({"sku": "A-17", "count": 2}, id="order-1", headers={"region": "eu", "attempt": 3, "vip": True}),
            Message(b"two", id="order-2", headers={"region": "us"}),
            Message(b"three", id="order-3"),
        ]
    )
    clocked.advance(60_000)
    for delivery in orders.receive_many(2):
        delivery.reject("no such item")
    clocked.advance(600_000)
    for _ in range(2):
        orders.nack_many(orders.receive_many(1))
    mails.enqueue_many([Message(b"mail", id=f"mail-{i}", headers={"region": "eu"}) for i in (1, 2, 3)])
    clocked.advance(600_000)
    mails.sweep()
    orders.enqueue(Message(b"four" * 500, id="order-4", content_type="text/plain"))
    orders.update(max_length=0)
    return clocked.queue("orders/dead")


Die = Callable[..., None]


def ids(queue: Queue) -> list[str]:
    """The ids of the messages of a queue."""
    return [message.id for message in queue.peek(1_000)]


Run = Callable[..., Result]


@pytest.fixture
def run(redis_url: str) -> Run:
    """`run("queue", "ls", stdin=b"")`: the result has `stdout`, `stderr` and `exit_code`."""

    def call(*arguments: str | bytes, stdin: bytes | None = None) -> Result:
        return CliRunner(env={"RQTTL_URL": redis_url}).invoke(cli, arguments, input=stdin)  # type: ignore[arg-type]  # bytes are what the system gives

    return call


@pytest.fixture
def run_clocked(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run`, at the time of `clocked`."""
    monkeypatch.setattr(Settings, "connect", lambda *_: clocked)
    monkeypatch.setattr(clocked, "close", lambda: None)  # the test goes on with it

    def call(*arguments: str | bytes, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, arguments, input=stdin)  # type: ignore[arg-type]  # bytes are what the system gives

    return call


@pytest.fixture
def url_of_user(client: redis.Redis, redis_url: str) -> Iterator[Callable[..., str]]:
    """`url_of_user(*rules)`: the URL of a user with these rules."""

    def make(*rules: str) -> str:
        client.execute_command("ACL", "SETUSER", "guest", "reset", "resetchannels", "on", ">S3CR3T", *rules)
        return redis_url.replace("://", "://guest:S3CR3T@")

    yield make
    client.execute_command("ACL", "DELUSER", "guest")


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


GOLDEN = Path(__file__).parent.parent / "golden" / "cli"


def check_golden(name: str, printed: str) -> None:
    """Compare the output of a command with a file. `RQTTL_WRITE_GOLDEN=1` writes it anew: read the difference then."""
    path = GOLDEN / name
    if os.environ.get("RQTTL_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(printed, encoding="utf-8")
    assert printed == path.read_text(encoding="utf-8")
