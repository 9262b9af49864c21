"""`rqttl stats`: frames from snapshots made up here; and live on a terminal, while it, Redis and the queues change."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from rich.console import Console

from rqttl import Broker
from rqttl.cli.stats import frame, queue_table, sort_rows, sparkline
from rqttl.inspector.queues import Row, Trend
from rqttl.text import format_rate
from rqttl.types import QueueStats
from tests.cli.conftest import check_golden
from tests.cli.processes import Terminal, on_terminal
from tests.inspector.snapshots import stats, trend_of
from tests.servers import Server

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "n,short",
    [(None, "-"), (0.0, "0"), (0.001, "<0.1"), (0.05, "0.1"), (9.94, "9.9"), (9.96, "10"), (1_234.4, "1,234")],
)
def test_rates_are_short(n: float | None, short: str) -> None:
    assert format_rate(n) == short


@pytest.mark.parametrize(
    "depths, bars",
    [
        ((), ""),
        ((0, 0, 0), "▁▁▁"),
        ((5,), "█"),
        ((0, 1, 4, 7), "▁▂▅█"),
        ((1, 1_000_000), "▂█"),  # what is there is not shown as nothing
        ((9, *[0] * 23, 1), "▁" * 23 + "█"),  # what has scrolled out has no say
    ],
)
def test_bars_show_how_the_depth_changed(depths: tuple[int, ...], bars: str) -> None:
    assert sparkline(depths, 24) == bars


def test_columns_of_zeros_are_left_out_first_and_then_the_least_important() -> None:
    every = [Row("orders", stats(1_234_567, enqueued=7, deaths={"expired": 1}))]

    left_out = {width: queue_table(every, every[0], width)[1] for width in (200, 100, 40, 30)}

    assert left_out[200] == []
    assert (
        set(left_out[100])
        <= set(left_out[40])
        == {*("leased", "delayed", "oldest", "out", "acked", "refused", "cons", "overdue")}
    )
    assert "expired" in left_out[30]


def busy(n: int, looks: int = 12) -> Trend:
    """`n` queues in which something happens."""

    def look(i: int) -> dict[str, QueueStats]:
        return {
            f"orders.{q:02}.region-{'abc'[q % 3]}": stats(
                (q * 977 + i * q * 31) % 5_000,
                leased=q % 7,
                enqueued=i * q * 40,
                delivered=i * q * 39,
                acked=i * q * 39,
                deaths={"expired": i * (q % 3), "rejected": i * (q % 2)},
                oldest_ready_age=timedelta(seconds=q * 9),
            )
            for q in range(n)
        }

    return trend_of(*map(look, range(looks)))


def printed(trend: Trend, width: int = 80, height: int | None = 24, troubles: tuple[str, ...] = ()) -> list[str]:
    """The lines of a frame on a terminal of this size."""
    console = Console(width=width, height=height or 100, color_system=None, markup=False)
    with console.capture() as captured:
        console.print(frame(trend, "depth", "every 2s", console, height, troubles))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_frame_on_a_terminal() -> None:
    check_golden("stats-frame-80.txt", "\n".join(printed(busy(50))) + "\n")


def test_a_frame_with_troubles() -> None:
    late = trend_of({"a": stats(3)}, {"a": stats(3, overdue=2_000)}, reapers=0)

    lines = printed(late, 60, 24, ("Redis does not answer: \x1b[31mgone; " + "trying again " * 5,))

    check_golden("stats-frame-troubles.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_a_frame_never_is_higher_than_the_terminal_and_says_how_many_are_missing(n: int) -> None:
    trend = busy(n)
    for height in range(9, 60):
        lines = printed(trend, 80, height)

        assert len(lines) <= height
        shown = sum(line.startswith("orders.") for line in lines)
        assert shown == n or lines[-1].startswith(f"({n - shown} queues not shown, ")
        assert any(line.startswith(f"{n} queues ") for line in lines[1:]) == (n > 1)


@pytest.mark.parametrize("name,queues", [("50", {}), ("long", {"q" * 128: stats(10**9, enqueued=10**9)})])
def test_a_frame_never_is_wider_than_the_terminal(name: str, queues: dict[str, QueueStats]) -> None:
    trend = trend_of(queues) if queues else busy(int(name), 70)
    for width in (*range(30, 130, 3), 300):
        lines = printed(trend, width, 100, ("Redis does not answer",))

        assert max(map(len, lines)) <= width
        assert any(line.startswith("queue ") for line in lines)


def test_without_queues_a_frame_says_so() -> None:
    assert printed(trend_of({}, reapers=None)) == ["2023-11-14 22:13:20Z, no queue, every 2s"]


def test_rows_are_sorted_by_what_is_watched() -> None:
    before = {name: stats(enqueued=9) for name in ("a", "b", "c", "d")}
    after = {
        "a": stats(5, enqueued=9),
        "b": stats(2, leased=4, enqueued=29),
        "c": stats(5, enqueued=9, overdue=7, oldest_ready_age=timedelta(0)),
        "d": stats(0, enqueued=9, deaths={"maxlen": 1}),
    }
    trend = trend_of(before, after)

    found = {
        sort: "".join(row.name for row in sort_rows(trend, sort))
        for sort in ("name", "depth", "age", "rate", "dead", "overdue")
    }

    assert found == {"name": "abcd", "depth": "bacd", "age": "cabd", "rate": "bacd", "dead": "dabc", "overdue": "cabd"}


ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
WATCH = ("stats", "--watch", "--interval", "100ms")


@pytest.mark.slow
def test_a_watch_shows_what_changes_until_ctrl_c_and_leaves_the_screen_as_it_was(
    broker: Broker, redis_url: str
) -> None:
    orders = broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", redis_url) as terminal:
        terminal.until("orders")
        orders.enqueue_many([b"x"] * 1_234)
        terminal.until("1,234")
        orders.receive_many(234, auto_ack=True)
        terminal.until("1,000")
        assert terminal.interrupt() == 0

    assert (terminal.raw.count(ENTER), terminal.raw.count(LEAVE)) == (1, 1)
    assert ", 1 queue, every 100ms, no reaper" in terminal.screen
    assert re.search(r"orders +1,234 .* [1-9][\d.,]* ", terminal.screen)  # a rate


@pytest.mark.slow
def test_q_ends_a_watch_and_leaves_the_terminal_as_it_was(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    with Terminal("stats", "--watch", "--interval", "1h", "--url", redis_url) as terminal:
        terminal.until("orders")
        edited_lines = terminal.edits_lines
        terminal.type(b"xq")
        assert terminal.end() == 0
        assert (edited_lines, terminal.edits_lines) == (False, True)

    assert terminal.raw.count(LEAVE) == 1


@pytest.mark.slow
def test_a_watch_fits_a_terminal_that_changes_its_size(broker: Broker, redis_url: str) -> None:
    for i in range(20):
        broker.declare_queue(f"orders.{i:02}")

    with Terminal(*WATCH, "--url", redis_url) as terminal:
        terminal.until("orders.17")
        terminal.resize(40, 12)
        terminal.until("(15 queues not shown")
        assert "refused/s" not in terminal.screen  # only a wide terminal has room for it
        terminal.resize(150, 50)
        terminal.until("refused/s")
        assert terminal.interrupt() == 0


@pytest.mark.slow
def test_a_redis_that_hangs_does_not_keep_ctrl_c(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with Broker(server.client()) as broker:
        broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", server.url) as terminal:
        terminal.until("orders")
        with server.hanging():
            assert terminal.interrupt() == 0

    assert terminal.raw.count(LEAVE) == 1


@pytest.mark.slow
def test_stats_fit_a_terminal_and_say_what_is_left_out(broker: Broker, redis_url: str) -> None:
    long = "a" * 60 + "." + "b" * 60
    broker.declare_queue(long).enqueue_many([b"x"] * 12_345)
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x"] * 1_234)
    orders.receive_many(1_000, lease="1h")

    def notes(columns: int) -> list[str]:
        printed = on_terminal("stats", "--url", redis_url, columns=columns)
        assert max(map(len, printed.splitlines())) <= columns
        lines = printed.replace("\n  ", " ").splitlines()  # a note is folded
        assert ("".join(lines).count("a") >= 60, "".join(lines).count("b") >= 60) == (True, True)
        return [line for line in lines if line.startswith("rqttl: ")]

    (first,), (second,) = notes(80), notes(45)
    assert first.startswith("rqttl: no room for delayed, ")
    assert "leased" not in first
    assert second.startswith("rqttl: no room for leased, delayed, ")
    assert first.endswith(": a wider terminal or --json shows them")
