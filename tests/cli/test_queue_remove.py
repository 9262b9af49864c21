"""`rqttl queue purge` and `rqttl queue delete`: the question, the removal, and the dry run."""

from __future__ import annotations

import pytest

from rqttl import Broker
from tests.cli import golden
from tests.cli.conftest import Run
from tests.cli.processes import Terminal
from tests.contract.clocked import Clocked


@pytest.fixture
def filled(broker: Broker) -> Broker:
    fill(broker)
    return broker


def fill(broker: Broker) -> None:
    """Make `orders` with messages in each state, `mails` with ready ones, and `empty`."""
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x" * 100] * 1240)
    first, *_ = orders.receive_many(6, lease="1h")
    first.nack("1h")
    broker.declare_queue("mails").enqueue_many([b"x"] * 3)
    broker.declare_queue("empty")


def ready(broker: Broker) -> dict[str, int]:
    return {name: stats.ready for name, stats in broker.stats().items()}


@pytest.mark.parametrize("what", ["purge", "delete"])
@pytest.mark.parametrize("extra, name", [([], ""), (["--dry-run"], "-dry-run")])
def test_each_queue_has_its_own_outcome(
    run_clocked: Run, clocked: Clocked, what: str, extra: list[str], name: str
) -> None:
    fill(clocked)
    words = ["queue", what, "orders", "nope", "mails", "orders", "empty", "--yes", *extra]

    result = run_clocked(*words)

    document = run_clocked(*words[:-1], "--dry-run", "--json") if extra else None

    assert result.exit_code == 3
    golden.check(f"queue-{what}{name}.txt", result.stdout)
    if document:
        golden.check(f"queue-{what}{name}.json", document.stdout)
    assert result.stderr == (
        "rqttl: queue 'nope' does not exist: `rqttl queue declare nope` creates it [not_found]\n"
        "rqttl: 1 of 4 queues refused; the lines above say why\n"
    )
    if extra:
        assert ready(clocked) == {"empty": 0, "mails": 3, "orders": 1234}
    else:
        left = {name: (one.ready, one.leased, one.delayed) for name, one in clocked.stats().items()}
        purged = {"empty": (0, 0, 0), "mails": (0, 0, 0), "orders": (0, 5, 1)}
        assert left == ({} if what == "delete" else purged)


@pytest.mark.parametrize("extra", [["--yes"], ["--dry-run"]])
def test_a_queue_that_is_not_empty_can_be_spared(run: Run, filled: Broker, extra: list[str]) -> None:
    result = run("queue", "delete", "orders", "empty", "--if-empty", *extra)

    assert result.exit_code == 3
    assert result.stderr == (
        "rqttl: queue 'orders' was not deleted: it has 1,240 messages, and --if-empty is given [in_use]\n"
        "rqttl: 1 of 2 queues refused; the lines above say why\n"
    )
    assert result.stdout == (
        "queue empty would be deleted (empty)\n"
        if extra == ["--dry-run"]
        else "queue empty deleted, with 0 ready messages\n"
    )
    assert ("empty" in filled.queues()) == (extra == ["--dry-run"])


@pytest.mark.parametrize("extra", [["--yes"], ["--dry-run"]])
def test_a_queue_with_consumers_can_be_spared(run: Run, filled: Broker, extra: list[str]) -> None:
    with filled.queue("mails").consume(wait="1m") as consumer:
        next(consumer)
        result = run("queue", "delete", "mails", "--if-unused", *extra)

    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "rqttl: queue 'mails' was not deleted: it has 1 consumer, and --if-unused is given [in_use]\n"
    )
    assert run("queue", "delete", "mails", "--if-unused", "--yes").exit_code == 0


@pytest.mark.parametrize("what", ["purge", "delete"])
@pytest.mark.parametrize("stdin", [None, b"y\n"])
def test_without_a_terminal_nothing_is_removed(run: Run, filled: Broker, what: str, stdin: bytes | None) -> None:
    result = run("queue", what, "orders", stdin=stdin)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.replace("`cli", "`rqttl") == (
        "rqttl: no terminal for the question: use --yes to go on, or --dry-run to see the changes "
        f"(see `rqttl queue {what} --help`)\n"
    )
    assert ready(filled)["orders"] == 1234


PURGE = (
    ("purge", "orders", "mails"),
    ("rqttl: orders: 1,234 ready, 123 kB\nrqttl: mails: 3 ready, 3 B\nPurge these 2 queues? [y/N]: "),
    "queue orders: 1,234 ready messages removed\nqueue mails: 3 ready messages removed\n",
)
DELETE = (
    ("delete", "orders"),
    "Delete orders (1,234 ready, 5 leased, 1 delayed)? [y/N]: ",
    "queue orders deleted, with 1,234 ready messages\n",
)


def answered(words: tuple[str, ...], keys: bytes, redis_url: str) -> tuple[int, str]:
    with Terminal("queue", *words, RQTTL_URL=redis_url) as terminal:
        terminal.until("[y/N]: ")
        terminal.type(keys)
        return terminal.end(), terminal.screen


@pytest.mark.slow
@pytest.mark.parametrize("words, question, outcome", [PURGE, DELETE], ids=str)
def test_a_yes_is_a_yes(filled: Broker, redis_url: str, words: tuple[str, ...], question: str, outcome: str) -> None:
    assert answered(words, b"y\r", redis_url) == (0, f"{question}y\n{outcome}")

    left = ready(filled)
    assert [left.get(name, 0) for name in words[1:]] == [0] * len(words[1:])


@pytest.mark.slow
@pytest.mark.parametrize("words, question", [PURGE[:2], DELETE[:2]], ids=str)
@pytest.mark.parametrize("keys, printed", [(b"n\r", "n\n"), (b"\x04", "\n")], ids=["n", "ctrl-d"])
def test_anything_else_is_a_no(
    filled: Broker, redis_url: str, words: tuple[str, ...], question: str, keys: bytes, printed: str
) -> None:
    before = ready(filled)

    assert answered(words, keys, redis_url) == (3, f"{question}{printed}rqttl: nothing was done\n")
    assert ready(filled) == before


@pytest.mark.slow
@pytest.mark.parametrize("words, question", [PURGE[:2], DELETE[:2]], ids=str)
def test_ctrl_c_is_an_interruption(filled: Broker, redis_url: str, words: tuple[str, ...], question: str) -> None:
    before = ready(filled)

    with Terminal("queue", *words, RQTTL_URL=redis_url) as terminal:
        terminal.until(question)
        assert terminal.interrupt() == 130

    assert terminal.screen.replace("^C", "") == f"{question}\nrqttl: interrupted\n"
    assert ready(filled) == before


@pytest.mark.slow
def test_without_a_queue_nothing_is_asked(redis_url: str) -> None:
    with Terminal("queue", "purge", "nope", "no", RQTTL_URL=redis_url) as terminal:
        assert terminal.end() == 3

    assert terminal.screen.splitlines()[-1] == "rqttl: 2 of 2 queues refused; the lines above say why"
    assert "[y/N]" not in terminal.screen
