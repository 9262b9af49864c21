"""`rqttl stats`: once and, with `--watch`, again and again, as text and as JSON; no terminal."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker, Message
from rqttl.cli.stats import looks
from tests.cli.conftest import Run, check_golden
from tests.contract.clocked import Clocked
from tests.drivers import enter_reaper

Pauses = Callable[..., list[float]]


@pytest.fixture
def pauses(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """`pauses(a, b)`: between two looks of a watch no time passes, but `a`, then `b` is called."""

    def plan(*actions: Callable[[], object]) -> list[float]:
        left, seconds = iter(actions), []

        def pause(length: float) -> None:
            seconds.append(length)
            next(left)()

        monkeypatch.setattr("rqttl.cli.stats.sleep", pause)
        return seconds

    return plan


def fill(clocked: Clocked) -> None:
    """Two queues in which everything has happened, and one that is empty."""
    orders = clocked.declare_queue(
        "orders", dead_letter="orders/dead", max_length=2_000, overflow="reject-publish", lease="10s"
    )
    clocked.declare_queue("orders/dead")
    clocked.declare_queue("mails")
    orders.enqueue_many([Message(b"x", ttl="500ms" if i < 3 else None) for i in range(2_010)])
    clocked.advance(1_500)
    first, second, third, *_ = orders.receive_many(5)
    first.ack()
    second.reject()
    third.nack("1h")
    clocked.advance(75_000)


@pytest.mark.parametrize("name, flags", [("stats.txt", ()), ("stats.json", ("--json",))])
def test_stats_tell_what_queues_hold_and_what_has_happened(
    clocked: Clocked, run_clocked: Run, name: str, flags: tuple[str, ...]
) -> None:
    fill(clocked)

    result = run_clocked("stats", *flags)

    late = "rqttl: no reaper runs: oldest due work waits 1m 5s (`rqttl reaper` does it)\n"
    assert (result.exit_code, result.stderr) == (0, "" if flags else late)
    check_golden(name, result.stdout)


@pytest.mark.parametrize(
    "values,printed",
    [
        ((), ["mails", "orders", "orders.late", "orders/dead"]),
        (("orders*",), ["orders", "orders.late", "orders/dead"]),
        (("orders", "orders", "mails"), ["mails", "orders"]),
        (("--sort", "depth"), ["orders", "mails", "orders.late", "orders/dead"]),
        (("--sort", "overdue"), ["orders.late", "mails", "orders", "orders/dead"]),
        (("--sort", "dead"), ["orders.late", "mails", "orders", "orders/dead"]),
    ],
)
def test_queues_are_selected_and_sorted(clocked: Clocked, run_clocked: Run, values: Any, printed: list[str]) -> None:
    clocked.declare_queue("mails").enqueue_many([b"x"] * 2)
    clocked.declare_queue("orders/dead")
    clocked.advance(100)
    clocked.declare_queue("orders").enqueue_many([b"x"] * 3)
    late = clocked.declare_queue("orders.late")
    late.enqueue_many([b"rejected", Message(b"x", ttl="50ms"), b"y"])
    late.reject_many(late.receive_many(1))
    clocked.advance(100)

    text = run_clocked("stats", *values).stdout.splitlines()

    assert [line.split()[0] for line in text[2 : 2 + len(printed)]] == printed
    document = json.loads(run_clocked("stats", *values, "--json").stdout)
    assert [one["queue"] for one in document["queues"]] == printed


def test_no_queue_is_an_empty_answer_and_a_note(run: Run) -> None:
    assert (run("stats").stdout, run("stats").stderr) == (
        "",
        "rqttl: no queue yet: `rqttl queue declare QUEUE` creates one\n",
    )
    assert run("stats", "a*", "b?").stderr == "rqttl: no queue matches a* or b?\n"
    document = json.loads(run("stats", "--json").stdout)
    assert (document["queues"], document["totals"]["ready"], document["totals"]["deaths"]) == ([], 0, {})


@pytest.mark.parametrize(
    "wrong,line",
    [
        (("--count", "3"), "--interval and --count are for --watch"),
        (("--watch", "--interval", "99ms"), "invalid value for '--interval' / '-n': at least 100ms"),
        (("--sort", "size"), "invalid value for '--sort': 'size' is not one of"),
    ],
)
def test_a_wrong_option_is_refused(run: Run, wrong: tuple[str, ...], line: str) -> None:
    result = run("stats", *wrong)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"rqttl: {line}")


def test_reapers_are_counted_if_the_user_may_ask_for_them(
    run: Run, broker: Broker, url_of_user: Callable[..., str]
) -> None:
    broker.declare_queue("orders")
    assert json.loads(run("stats", "--json").stdout)["reapers"] == 0
    enter_reaper(broker)
    assert json.loads(run("stats", "--json").stdout)["reapers"] == broker.reaper_count() == 1

    result = run("stats", "--json", "--url", url_of_user("~*", "&*", "+@all", "-hgetall"))
    assert (json.loads(result.stdout)["reapers"], result.stderr) == (None, "")


def test_a_watch_prints_a_table_of_rates_for_each_look(clocked: Clocked, run_clocked: Run, pauses: Pauses) -> None:
    fill(clocked)
    orders = clocked.queue("orders")

    def work() -> None:
        clocked.queue("mails").enqueue_many([Message(b"x", ttl="500ms") for _ in range(30)])
        orders.ack_many(orders.receive_many(5))
        clocked.advance(2_500)

    def others() -> None:
        clocked.advance(2_000)

    seconds = pauses(work, others)

    result = run_clocked("stats", "--watch", "--count", "3", "--sort", "name")

    assert (result.exit_code, result.stderr, len(seconds)) == (0, "", 2)
    check_golden("stats-watch.txt", result.stdout)


def test_a_watch_as_json_is_one_line_for_each_look(clocked: Clocked, run_clocked: Run, pauses: Pauses) -> None:
    orders = clocked.declare_queue("orders")

    def send() -> None:
        orders.enqueue_many([b"x"] * 5)
        clocked.advance(2_000)

    def replace() -> None:
        orders.delete()
        clocked.declare_queue("orders").enqueue(b"x")
        clocked.declare_queue("mails").enqueue(b"x")
        clocked.advance(2_000)

    def stop() -> None:
        clocked.advance(1_000)
        orders.receive_many(1, auto_ack=True)

    pauses(send, replace, stop)

    result = run_clocked("stats", "--watch", "--json", "--count", "4")

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["elapsed_ms"] for line in lines] == [None, 2_000, 2_000, 1_000]
    rates = [{one["queue"]: one["rates"] and one["rates"]["in"] for one in line["queues"]} for line in lines]
    assert rates == [{"orders": None}, {"orders": 2.5}, {"mails": None, "orders": None}, {"mails": 0, "orders": 0}]
    none = dict.fromkeys(("in", "expired", "dead", "refused", "copies", "unrouted"), 0)
    assert lines[3]["totals"]["rates"] == {**none, "out": 1, "acked": 1}
    check_golden("stats-watch.json", result.stdout)


@pytest.mark.parametrize("arguments", [(), ("orders",), ("o*", "mails")])
def test_a_watch_goes_on_while_queues_come_and_go(
    clocked: Clocked, run_clocked: Run, pauses: Pauses, arguments: tuple[str, ...]
) -> None:
    clocked.declare_queue("mails")
    orders = clocked.declare_queue("orders")
    pauses(orders.delete, lambda: clocked.declare_queue("orders"))

    lines = run_clocked("stats", *arguments, "--watch", "--json", "--count", "3").stdout.splitlines()

    existing = ["orders" in [one["queue"] for one in json.loads(line)["queues"]] for line in lines]
    assert existing == [True, False, True]


@pytest.fixture
def away(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], None]:
    """`away(error)`: from now on Redis answers with it; `away(None)`: it is back."""
    time = clocked.server_time

    def meet(error: Exception | None) -> None:
        def answer() -> Any:
            if error is not None:
                raise error
            return time()

        monkeypatch.setattr(clocked, "server_time", answer)

    return meet


@pytest.mark.parametrize(
    "error,line",
    [
        (redis.ConnectionError("gone."), "Redis does not answer: gone; check --url or $RQTTL_URL"),
        (redis.BusyLoadingError("loading"), "Redis does not answer: loading; check --url or $RQTTL_URL"),
        (redis.ResponseError("BUSY a script"), "Redis refused: BUSY a script"),
    ],
    ids=["away", "loading", "busy"],
)
def test_a_watch_outlives_a_redis_that_is_away(
    clocked: Clocked, run_clocked: Run, pauses: Pauses, away: Any, error: Exception, line: str
) -> None:
    clocked.declare_queue("orders")

    def back() -> None:
        away(None)
        clocked.advance(8_000)

    pauses(lambda: away(error), lambda: None, back, lambda: away(error), lambda: away(None))

    result = run_clocked("stats", "--watch", "--json", "--count", "3")

    assert result.exit_code == 0
    assert [json.loads(one)["elapsed_ms"] for one in result.stdout.splitlines()] == [None, 8_000, 0]
    deleted = f"rqttl: {line}; trying again until it does\n"
    assert result.stderr == f"{deleted}rqttl: Redis answers again\n" * 2


@pytest.mark.parametrize(
    "number,code,words",
    [(signal.SIGINT, 0, ""), (signal.SIGTERM, 143, "rqttl: terminated\n"), (signal.SIGHUP, 129, "rqttl: hung up\n")],
)
def test_a_signal_ends_a_watch(
    clocked: Clocked, run_clocked: Run, pauses: Pauses, number: signal.Signals, code: int, words: str
) -> None:
    clocked.declare_queue("orders")
    pauses(lambda: signal.raise_signal(number))

    result = run_clocked("stats", "--watch", "--json")

    assert (result.exit_code, result.stderr, result.stdout.count("\n")) == (code, words, 1)


def test_looks_follow_each_other_at_the_interval_but_never_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 100.0, []

    class Added:
        def add(self, snapshot: Any) -> None:
            pass

    def take() -> Any:
        nonlocal now
        now += durations.pop(0)

    def wait(seconds: float) -> None:
        nonlocal now
        waits.append(round(seconds, 3))
        now += seconds

    monkeypatch.setattr("time.monotonic", lambda: now)
    durations = [0.5, 0.5, 7.0, 0.1, 0.1]
    troubles: Any = looks(take, Added(), 2.0, 6, wait)  # type: ignore[arg-type]  # all that it asks of a trend

    assert list(troubles) == [""] * 6
    assert waits == [2.0, 1.5, 1.5, 0.0, 1.9]
