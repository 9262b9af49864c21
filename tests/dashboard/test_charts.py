"""Charts, from histories made up here: the points of their lines, their axes, their tables, and what pages draw."""

import re
from math import nan

import pytest

from rqttl.dashboard import charts
from rqttl.dashboard.sampler import Points
from rqttl.dashboard.visit import _environment

pytestmark = pytest.mark.once


def drawn(template: str, **values: object) -> str:
    source = "{% import 'charts.html' as charts %}" + template
    return _environment().from_string(source).render(values)


def chart_of(*numbers: float, seconds: int = 2) -> charts.Chart:
    return charts.chart(Points(seconds, {"depth": numbers}), "depth")


def test_a_line_has_a_point_for_each_slot_and_ends_at_the_right() -> None:
    chart = chart_of(0, 50, 100)

    assert chart.lines == {"depth": ["0,150.0 300,75.0 600,0.0"]}


@pytest.mark.parametrize(
    "numbers, places",
    [
        ([1, 1, nan, nan, nan, 1, 1], ["0 100", "500 600"]),  # a process that slept
        ([1, nan, nan, 1, 1, 1, 1], ["0 300 400 500 600"]),  # a tick that was late
        ([1, nan, nan, 1, nan, nan, 1], ["0 300 600"]),  # queues that are read in turn
        ([nan, nan, nan, 1, nan, nan, nan], ["300 300"]),  # a line of no length is a dot
        ([nan] * 7, []),
    ],
)
def test_a_gap_in_the_history_is_a_gap_in_the_line(numbers: list[float], places: list[str]) -> None:
    pieces = chart_of(*numbers).lines["depth"]

    assert [" ".join(re.findall(r"(\d+),", piece)) for piece in pieces] == places


@pytest.mark.parametrize(
    "most, labels",
    [
        (0, ["0", "0.5", "1"]),
        (0.2, ["0", "0.5", "1"]),
        (7, ["0", "5", "10"]),
        (11, ["0", "10", "20"]),
        (10, ["0", "5", "10"]),
        (3_000_000, ["0", "2,500,000", "5,000,000"]),
    ],
)
def test_the_scale_ends_at_a_round_number(most: float, labels: list[str]) -> None:
    assert [label for _, label in chart_of(0, most).y] == labels
    assert [at for at, _ in chart_of(0, most).y] == [150, 75, 0]


def test_the_time_axis_tells_ages() -> None:
    assert [label for _, label in chart_of(*[1.0] * 300).x] == ["10m ago", "7m 30s ago", "5m ago", "2m 30s ago", "now"]
    assert chart_of(*[1.0] * 288, seconds=300).x[0] == (0, "1d ago")


def test_the_table_has_means_of_at_most_thirty_times() -> None:
    points = Points(2, {"in": [nan] * 100 + [1.0, 3.0] * 100, "dead": [nan] * 300})

    rows = charts.chart(points, "in", "dead").rows

    assert len(rows) == 20
    assert rows[0] == ("6m 40s ago", [2.0, None])
    assert rows[-1] == ("20s ago", [2.0, None])


def test_series_share_a_scale() -> None:
    chart = charts.chart(Points(2, {"in": [10, 10], "acked": [5, 5], "dead": [99, 99]}), "in", "acked")

    assert chart.lines == {"in": ["0,0.0 600,0.0"], "acked": ["0,75.0 600,75.0"]}


def test_a_small_line_fills_its_box() -> None:
    assert charts.spark([0, 2, 4]) == "0,20.0 50,10.0 100,0.0"
    assert charts.spark([0, 0]) == "0,20.0 100,20.0"
    assert (charts.spark([3]), charts.spark([])) == ("", "")


def test_bars_are_as_high_as_their_numbers() -> None:
    assert charts.bars({"10:00": 5, "11:00": 0}) == [
        ("10:00", 5, 0.0, 0.0, 40.0, 150.0),
        ("11:00", 0, 50.0, 150.0, 40.0, 0.0),
    ]
    assert charts.bars({}) == []


def test_a_page_draws_lines_with_a_legend_and_the_same_numbers_as_a_table() -> None:
    points = Points(2, {"in": [1.0, 2.0], "dead": [nan, 0.5]})

    page = drawn("{{ charts.lines(chart, 'Messages <per> second') }}", chart=charts.chart(points, "in", "dead"))

    assert re.findall(r'<polyline class="(.*?)" points="(.*?)"', page) == [
        ("series-1", "0,75.0 600,0.0"),
        ("series-2", "600,112.5 600,112.5"),
    ]
    assert re.findall(r'class="key series-\d">(\w+)<', page) == ["in", "dead"]
    assert re.findall(r'<td class="number">(.*?)</td>', page) == ["1.0", "-", "2.0", "0.5"]
    assert page.count("Messages &lt;per&gt; second") == 2
    assert not re.search(r"style=|NaN|nan", page)


def test_a_page_draws_bars_and_small_lines() -> None:
    bars = drawn("{{ charts.bars(bars, 'Deaths by hour') }}", bars=charts.bars({"<10:00>": 1_234}))

    assert re.findall(r'width="(.*?)" height="(.*?)"><title>(.*?)<', bars) == [("40.0", "92.5", "&lt;10:00&gt;: 1,234")]
    assert '<th scope="row">&lt;10:00&gt;</th><td class="number">1,234</td>' in bars
    assert 'points="0,20.0 100,0.0"' in drawn("{{ charts.spark([0, 1] | spark) }}")
    assert "<svg" not in drawn("{{ charts.spark([1] | spark) }}")
