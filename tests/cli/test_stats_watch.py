"""`rqttl stats`: frames from snapshots made up here; and live on a terminal, while it, Redis and the queues change."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rqttl import Broker
from rqttl.cli.stats.frame import FrameSettings, frame, sort_rows
from rqttl.cli.stats.table import ASCII, TOTALS, UNICODE, compact, glyphs_for, rate, sparkline, table
from rqttl.inspector.queues import Row, Trend
from rqttl.types import QueueStats
from tests.cli import golden
from tests.cli.processes import Terminal, on_terminal
from tests.inspector.snapshots import stats, trend_of
from tests.servers import Server

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "n,short",
    [
        (12_345, "12,345"),
        (99_999.6, "100k"),
        (999_500, "1.0M"),
        (99_950_000, "100M"),
        (5e9, "5.0G"),
        (7e15, "7,000T"),
    ],
)
def test_large_numbers_are_short(n: float, short: str) -> None:
    assert compact(n) == short


@pytest.mark.parametrize(
    "n,short",
    [
        (None, "-"),
        (0.001, "<0.1"),
        (1.25, "1.2"),
        (9.96, "10"),
        (9_999.4, "9,999"),
        (9_999.6, "10.0k"),
    ],
)
def test_rates_are_short(n: float | None, short: str) -> None:
    assert rate(n) == short


@pytest.mark.parametrize(
    "values,width,bars",
    [
        ((0, 0, 0), 5, "  ▁▁▁"),
        ((0, 1, 4, 7), 4, "▁▂▅█"),
        ((1, 1_000_000), 2, "▂█"),  # what is there is not shown as nothing
        ((9, 9, 0, 1), 2, "▁█"),  # what has scrolled out has no say
    ],
)
def test_bars_show_how_the_depth_changed(values: tuple[int, ...], width: int, bars: str) -> None:
    assert sparkline(values, width, UNICODE.bars) == bars


@pytest.mark.parametrize(
    "encoding,glyphs",
    [("utf-8", UNICODE), ("latin-1", ASCII), (None, ASCII), ("no such encoding", ASCII)],
)
def test_an_encoding_without_bars_has_other_glyphs(encoding: str | None, glyphs: Any) -> None:
    assert glyphs_for(encoding) is glyphs
    assert f"{ASCII.bars}{ASCII.cut}{ASCII.dot}{ASCII.rule}".isascii()
    assert len(ASCII.bars) == len(UNICODE.bars) == len(set(ASCII.bars))


def rows(*names: str) -> list[Row]:
    return [Row(name, stats(1_234_567, enqueued=7, deaths={"expired": 1})) for name in names]


def test_columns_of_zeros_are_left_out_first() -> None:
    every = rows("orders")
    whole = table(TOTALS, every, every[0], None, gap=2)

    narrow = table(TOTALS, every, every[0], len(whole.head) - 1, gap=2)
    narrower = table(TOTALS, every, every[0], 40, gap=2)

    assert (whole.left_out, narrow.left_out) == ({}, {"refused": True})
    assert narrower.head.split() == ["queue", "ready", "in", "expired", "dead"]
    assert narrower.left_out == dict.fromkeys(
        ("leased", "delayed", "oldest", "out", "acked", "refused", "consumers", "overdue"), True
    )
    assert table(TOTALS, every, every[0], 30, gap=2).left_out["expired"] is False


def test_names_without_room_are_folded_or_cut() -> None:
    every = rows("a" * 30 + "b" * 30)

    folded = table(TOTALS, every, every[0], 60, gap=2)
    cut = table(TOTALS, every, every[0], 60, gap=2, cut="~")

    assert "".join(line.split()[0] for line in folded.body) == every[0].name
    assert [line.split()[0] for line in cut.body] == ["a" * 12 + "~" + "b" * 12]
    assert max(map(len, (*folded.body, *cut.body))) <= 60


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


def text_of(trend: Trend, settings: FrameSettings, *troubles: str) -> str:
    return "".join(f"{line.text}\n" for line in frame(trend, settings, troubles))


TERMINAL = FrameSettings("2s", "depth", UNICODE, 80, 24)


def test_a_frame_on_a_terminal_of_80_columns() -> None:
    golden.check("stats-frame-80.txt", text_of(busy(50), TERMINAL))


def test_a_frame_with_troubles() -> None:
    late = trend_of({"a": stats(3)}, {"a": stats(3, overdue=2_000)}, reapers=0)

    printed = text_of(late, replace(TERMINAL, width=60), "Redis does not answer: \x1b[31mgone; " + "trying again " * 5)

    golden.check("stats-frame-troubles.txt", printed)
    assert [line.style for line in frame(late, TERMINAL, ["x"])] == ["bold", "alarm", "alarm", "bold", ""]


@pytest.mark.parametrize("n", [0, 2, 50])
def test_a_frame_never_is_higher_than_the_terminal_and_says_how_many_are_missing(n: int) -> None:
    trend = busy(n)
    for height in range(1, 60):
        lines = text_of(trend, replace(TERMINAL, height=height)).splitlines()

        assert len(lines) <= height
        printed = sum(line.startswith("orders.") for line in lines)
        if height >= 6:
            missing = [line for line in lines if "not shown" in line]
            assert missing == [] if printed == n else missing[0].startswith(f"({n - printed} queues not shown, ")
            assert printed == n or len(lines) == height
            assert lines[-1].startswith(f"{n} queues") == (n > 1)


@pytest.mark.parametrize("name,queues", [("50", {}), ("long", {"q" * 128: stats(10**12, enqueued=10**15)})])
def test_a_frame_never_is_wider_than_the_terminal(name: str, queues: dict[str, QueueStats]) -> None:
    trend = trend_of(queues) if queues else busy(int(name), 70)
    for width in (*range(1, 130), 300):
        lines = text_of(trend, replace(TERMINAL, width=width), "Redis does not answer").splitlines()

        assert max(map(len, lines)) <= width
        if width >= 20:
            assert ["queue", "ready"] in [line.split()[:2] for line in lines]


def test_without_queues_a_frame_says_so() -> None:
    assert text_of(trend_of({}, reapers=None), TERMINAL) == "2023-11-14 22:13:20Z · no queue · every 2s\n"


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
        sort: "".join(row.name for row in sort_rows(trend.rows(), sort))
        for sort in ("name", "depth", "age", "rate", "dead", "overdue")
    }

    assert found == {"name": "abcd", "depth": "bacd", "age": "cabd", "rate": "bacd", "dead": "dabc", "overdue": "cabd"}


ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
WATCH = ("stats", "--watch", "--interval", "100ms")
#: The frame says nothing about a Redis that is slow to answer: on a busy machine each one may be.
UNHURRIED = "from rqttl.cli.stats import watch; watch.SLOW = 3600"


def screens(raw: bytes) -> list[list[str]]:
    """The lines of each frame, without the escapes for style and place."""
    frames = re.findall(rb"\x1b\[\?7l\x1b\[H(.*?)\x1b\[J\x1b\[\?7h", raw, re.DOTALL)
    return [re.sub(r"\x1b\[[0-9;]*[mK]", "", one.decode()).replace("\r", "").split("\n") for one in frames]


@pytest.mark.slow
def test_a_watch_shows_what_changes_until_ctrl_c_and_leaves_the_screen_as_it_was(
    broker: Broker, redis_url: str
) -> None:
    orders = broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", redis_url, first=UNHURRIED) as terminal:
        terminal.until("orders")
        orders.enqueue_many([b"x"] * 1_234)
        terminal.until("1,234")
        orders.receive_many(234, auto_ack=True)
        terminal.until("1,000")
        assert terminal.interrupt() == 0

    raw = terminal.raw
    assert (raw.startswith(ENTER), raw.count(ENTER), raw.count(LEAVE)) == (True, 1, 1)
    assert raw.removesuffix(b"\r\n").removesuffix(LEAVE) != raw  # nothing comes after it, at most the echo of ^C
    frames = screens(raw)
    assert max(len(line) for one in frames for line in one) <= 80
    assert max(map(len, frames)) <= 24
    assert any(re.search(r"orders +1,234 .* [1-9][\d.,]*k? +0 +0", line) for one in frames for line in one)  # a rate
    assert all(" · 1 queue · every 100ms · no reaper" in one[0] for one in frames)


@pytest.mark.slow
def test_a_watch_fits_a_terminal_that_changes_its_size(broker: Broker, redis_url: str) -> None:
    for i in range(20):
        broker.declare_queue(f"orders.{i:02}")

    with Terminal(*WATCH, "--url", redis_url, first=UNHURRIED) as terminal:
        terminal.until("orders.19")
        terminal.resize(40, 10)
        terminal.until("(15 queues not shown")
        terminal.resize(100, 50)
        assert "ref/s" not in terminal.screen  # only a wide terminal has room for it
        terminal.until("ref/s", 2)  # the first frame is whole then; Ctrl-C may cut the last one short
        assert terminal.interrupt() == 0

    frames = screens(terminal.raw)
    assert [max(map(len, one)) <= 40 and len(one) == 10 for one in frames if "(15" in one[-2]].count(False) == 0
    assert max(map(len, frames[-1])) > 80
    assert len(frames[-1]) == 23


@pytest.mark.slow
def test_a_watch_outlives_redis(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with Broker(server.client()) as broker:
        broker.declare_queue("orders")

        with Terminal(*WATCH, "orders", "--url", server.url, first=UNHURRIED) as terminal:
            terminal.until("1 queue")
            server.kill()
            terminal.until("Redis does not answer: ")
            terminal.until("trying again (these numbers")
            server.start()
            terminal.until("not there: orders")
            broker.declare_queue("orders").enqueue_many([b"x"] * 4_321)
            terminal.until("4,321")
            assert terminal.interrupt() == 0

    last = screens(terminal.raw)[-1]
    assert [line.split()[0] for line in last[1:]] == ["queue", "orders"]


@pytest.mark.slow
def test_a_redis_that_hangs_freezes_neither_the_screen_nor_ctrl_c(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with Broker(server.client()) as broker:
        broker.declare_queue("orders")

    with Terminal(*WATCH, "--url", server.url) as terminal:
        terminal.until("orders")
        server.process.send_signal(signal.SIGSTOP)
        try:
            terminal.until("Redis has not answered for ")
            terminal.resize(29, 24)
            terminal.until("Redis has not answered for\x1b[K\n")  # then a number of seconds of any length
            assert terminal.interrupt() == 0
        finally:
            server.process.send_signal(signal.SIGCONT)

    assert terminal.raw.count(LEAVE) == 1


@pytest.mark.slow
def test_a_watch_ends_after_so_many_looks(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    with Terminal(*WATCH, "--count", "3", "--url", redis_url, first=UNHURRIED) as terminal:
        assert terminal.end() == 0

    assert len({tuple(one) for one in screens(terminal.raw)}) <= len(screens(terminal.raw)) <= 3
    assert terminal.raw.endswith(LEAVE)


@pytest.mark.slow
def test_without_colour_a_watch_still_draws(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    def styled(*flags: str) -> bool:
        with Terminal(*WATCH, "--count", "2", "--url", redis_url, **dict.fromkeys(flags, "1")) as terminal:  # type: ignore[arg-type]  # no flag is called columns
            assert terminal.end() == 0
        assert screens(terminal.raw)
        return b"m" in b"".join(re.findall(rb"\x1b\[[0-9;]*[a-zA-Z]", terminal.raw))

    assert (styled(), styled("NO_COLOR")) == (True, False)


@pytest.mark.slow
def test_a_watch_on_a_dumb_terminal_prints_tables(broker: Broker, redis_url: str) -> None:
    broker.declare_queue("orders")

    printed = on_terminal(*WATCH, "--count", "2", "--url", redis_url, TERM="dumb")

    assert "\x1b" not in printed
    assert [line.split()[0] for line in printed.splitlines() if line.startswith(("queue", "orders"))] == [
        "queue",
        "orders",
    ] * 2


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

    zeros = "rqttl: columns left out, all 0: delayed, "
    assert notes(80) == [f"{zeros}acked, expired, refused, consumers"]
    assert notes(45) == [
        f"{zeros}acked, expired, dead, refused, consumers, overdue",
        "rqttl: no room for leased, oldest: a wider terminal or --json shows them",
    ]
