"""Frames and tables of `rqttl stats`, from snapshots made up here, without Redis and without time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rqttl.cli.stats.frame import FrameSettings, frame, sort_rows
from rqttl.cli.stats.table import ASCII, TOTALS, UNICODE, compact, glyphs_for, rate, sparkline, table
from rqttl.inspector.queues import Row, Trend
from rqttl.types import QueueStats
from tests.cli import golden
from tests.inspector.snapshots import stats, trend_of

pytestmark = pytest.mark.once

# Numbers and bars


@pytest.mark.parametrize(
    "n,short",
    [
        (0, "0"),
        (12_345, "12,345"),
        (99_999, "99,999"),
        (99_999.6, "100k"),
        (999_499, "999k"),
        (999_500, "1.0M"),
        (9_949_999, "9.9M"),
        (99_949_999, "99.9M"),
        (99_950_000, "100M"),
        (123_456_789, "123M"),
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
        (0.0, "0"),
        (0.001, "<0.1"),
        (0.05, "0.1"),
        (1.25, "1.2"),
        (9.94, "9.9"),
        (9.96, "10"),
        (1_234.4, "1,234"),
        (9_999.4, "9,999"),
        (9_999.6, "10.0k"),
        (250_000.0, "250k"),
    ],
)
def test_rates_are_short(n: float | None, short: str) -> None:
    assert rate(n) == short


@pytest.mark.parametrize(
    "values,width,bars",
    [
        ((), 3, "   "),
        ((0, 0, 0), 5, "  ▁▁▁"),
        ((5,), 1, "█"),
        ((0, 1, 4, 7), 4, "▁▂▅█"),
        ((1, 1_000_000), 2, "▂█"),  # what is there is not shown as nothing
        ((9, 9, 0, 1), 2, "▁█"),  # what has scrolled out has no say
        ((1, 2), 0, ""),
    ],
)
def test_bars_show_how_the_depth_changed(values: tuple[int, ...], width: int, bars: str) -> None:
    assert sparkline(values, width, UNICODE.bars) == bars


@pytest.mark.parametrize(
    "encoding,glyphs",
    [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("no such encoding", ASCII)],
)
def test_an_encoding_without_bars_has_other_glyphs(encoding: str | None, glyphs: Any) -> None:
    assert glyphs_for(encoding) is glyphs
    assert f"{ASCII.bars}{ASCII.cut}{ASCII.dot}{ASCII.rule}".isascii()
    assert len(ASCII.bars) == len(UNICODE.bars) == len(set(ASCII.bars))


# Tables and frames


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


def test_a_frame_on_a_narrow_terminal_without_bars() -> None:
    golden.check("stats-frame-60-ascii.txt", text_of(busy(5), replace(TERMINAL, glyphs=ASCII, width=60, sort="rate")))


def test_a_frame_on_a_wide_terminal_has_all_columns() -> None:
    golden.check("stats-frame-160.txt", text_of(busy(3), replace(TERMINAL, width=160, height=50, sort="name")))


def test_a_frame_with_troubles() -> None:
    late = trend_of({"a": stats(3)}, {"a": stats(3, overdue=2_000)}, reapers=0)

    printed = text_of(late, replace(TERMINAL, width=60), "Redis does not answer: \x1b[31mgone; " + "trying again " * 5)

    golden.check("stats-frame-troubles.txt", printed)
    assert [line.style for line in frame(late, TERMINAL, ["x"])] == ["bold", "alarm", "alarm", "bold", ""]


@pytest.mark.parametrize("n", [0, 1, 2, 50])
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


@pytest.mark.parametrize(
    "width, title",
    [
        (25, ["2023-11-14 22:13:42Z", "50 queues · every 2s", "1 reaper"]),
        (48, ["2023-11-14 22:13:42Z · 50 queues · every 2s", "1 reaper"]),
        (80, ["2023-11-14 22:13:42Z · 50 queues · every 2s · 1 reaper"]),
    ],
)
def test_a_title_without_room_goes_on_in_the_next_line(width: int, title: list[str]) -> None:
    lines = [line.text for line in frame(busy(50), replace(TERMINAL, width=width))]

    assert lines[: len(title)] == title


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
