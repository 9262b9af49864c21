"""The comparison with other queues, with the two candidates that need no package of a peer."""

import pytest

from tests.bench.compare import __main__ as compare

pytestmark = pytest.mark.once


def test_a_comparison_measures_sending_and_consuming_against_redis_py(capsys: pytest.CaptureFixture[str]) -> None:
    compare.main(["--peers", "raw-redis-py", "--workloads", "batch", "one", "--messages", "200", "--rounds", "1"])

    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    rows = [line for line in lines if line[:1] == ["rqttl"] or line[:2] == ["raw", "redis-py"]]
    assert [row[0] for row in rows] == ["rqttl", "raw", "rqttl", "raw"]
    assert "failed" not in printed
    assert all(float(row[-10].replace(",", "")) > 0 for row in rows)  # messages a second
    [reached] = [line for line in lines if line[:4] == ["consume,", "against", "raw", *line[3:4]]]
    assert float(reached[3]) > 0
