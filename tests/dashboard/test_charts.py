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


@pytest.mark.parametrize(
    "numbers, lines",
    [
        ([0, 50, 100], ["0,150.0 300,75.0 600,0.0"]),
        ([1, 1, nan, nan, nan, 0, 0], ["0,0.0 100,0.0", "500,150.0 600,150.0"]),  # a process that slept
        ([1, nan, nan, 0, 0, 0, 0], ["0,0.0 300,150.0 400,150.0 500,150.0 600,150.0"]),  # a tick that was late
        ([1, nan, nan, 1, nan, nan, 1], ["0,0.0 300,0.0 600,0.0"]),  # queues that are read in turn
        ([nan, nan, nan, 1, nan, nan, nan], ["300,0.0 300,0.0"]),  # a line of no length is a dot
        ([nan] * 7, []),
    ],
)
def test_a_gap_in_the_history_is_a_gap_in_the_line(numbers: list[float], lines: list[str]) -> None:
    assert chart_of(*numbers).lines == {"depth": lines}


@pytest.mark.parametrize(
    "most, labels",
    [(0, ["0", "0.5", "1"]), (7, ["0", "5", "10"]), (11, ["0", "10", "20"]), (3e6, ["0", "2,500,000", "5,000,000"])],
)
def test_the_scale_ends_at_a_round_number(most: float, labels: list[str]) -> None:
    assert chart_of(0, most).y == [*zip((150, 75, 0), labels, strict=True)]


def test_the_time_axis_tells_ages_and_the_table_has_means_of_at_most_thirty_times() -> None:
    chart = charts.chart(Points(2, {"in": [nan] * 100 + [1.0, 3.0] * 100, "dead": [nan] * 300}), "in", "dead")

    assert [label for _, label in chart.x] == ["10m ago", "7m 30s ago", "5m ago", "2m 30s ago", "now"]
    assert (len(chart.rows), chart.rows[0], chart.rows[-1][0]) == (20, ("6m 40s ago", [2.0, None]), "20s ago")
    assert chart_of(*[1.0] * 288, seconds=300).x[0] == (0, "1d ago")


def test_a_page_draws_lines_with_a_legend_and_the_same_numbers_as_a_table() -> None:
    points = Points(2, {"in": [1.0, 2.0], "acked": [9.0, 9.0], "dead": [nan, 0.5]})

    page = drawn("{{ charts.lines(chart, 'Messages <per> second') }}", chart=charts.chart(points, "in", "dead"))

    lines = re.findall(r'<polyline class="(.*?)" points="(.*?)"', page)
    assert lines == [("series-1", "0,75.0 600,0.0"), ("series-2", "600,112.5 600,112.5")]
    assert re.findall(r'class="key series-\d">(\w+)<', page) == ["in", "dead"]
    assert re.findall(r'<td class="number">(.*?)</td>', page) == ["1.0", "-", "2.0", "0.5"]
    assert page.count("Messages &lt;per&gt; second") == 2
    assert not re.search(r"style=|nan", page)


def test_a_page_draws_bars_and_small_lines() -> None:
    page = drawn("{{ charts.bars(bars, 'Deaths') }}", bars=charts.bars({"<10:00>": 1_234, "11:00": 0}))

    rects = re.findall(r'x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"><title>(.*?)<', page)
    assert rects == [
        ("0.0", "57.5", "40.0", "92.5", "&lt;10:00&gt;: 1,234"),
        ("50.0", "150.0", "40.0", "0.0", "11:00: 0"),
    ]
    assert '<th scope="row">&lt;10:00&gt;</th><td class="number">1,234</td>' in page
    assert 'points="0,20.0 50,10.0 100,0.0"' in drawn("{{ charts.spark([0, 2, 4] | spark) }}")
    assert "<svg" not in drawn("{{ charts.spark([1] | spark) }}{{ charts.spark([] | spark) }}")
