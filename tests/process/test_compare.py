"""The comparison with other queues, with the two candidates that need no package of a peer."""

import re
from pathlib import Path

import pytest

from tests.bench.compare import __main__ as compare
from tests.bench.compare import page
from tests.bench.compare.candidates import CANDIDATES

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


def test_a_comparison_for_the_page_writes_shares_with_date_and_command_between_their_marks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(compare, "CANDIDATES", CANDIDATES[:2])
    page.PAGE.write_text("before\n<!-- shares -->\nold\n<!-- /shares -->\nafter\n")
    compare.main(["--page", "--messages", "200", "--rounds", "1", "--wakings", "2"])

    text = page.PAGE.read_text()
    assert re.match(
        r"before\n<!-- shares -->\nMeasured on [\d-]+ by `make compare PAGE=1 MESSAGES=200 ROUNDS=1`: ", text
    )
    assert text.endswith("\n<!-- /shares -->\nafter\n")
    [row] = re.findall(r"^\| rqttl \| (.*) \|$", text, re.MULTILINE)
    assert len(row.split(" | ")) == 4
    assert all(float(share) > 0 for share in row.split(" | "))


def test_a_page_is_written_of_all_peers_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.parsed(["--page", "--peers", "rq"])
    assert "--page: with all peers" in capsys.readouterr().err
