"""Tables and pairs without rich look as they do with rich, which folds them."""

from __future__ import annotations

import pytest

from rqttl.cli.common import output
from tests.cli.processes import STYLE

pytestmark = pytest.mark.once

COLUMNS = ("queue", ">ready", "kind")
ROWS = [[f"日本{i}" if i % 3 else f"q{i}", f"{i:,}", "x" * (i % 5)] for i in range(900, 1_300)]
TOTAL = ["400 queues", "440,000", ""]


@pytest.mark.parametrize("total", [None, TOTAL])
def test_a_table_looks_like_one_that_could_be_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, total: list[str] | None
) -> None:
    output.print_table(COLUMNS, ROWS, total)
    quick = capsys.readouterr().out
    monkeypatch.setattr(output, "_fits", lambda _: False)
    monkeypatch.setenv("COLUMNS", "200")
    output.print_table(COLUMNS, ROWS, total)

    assert quick.splitlines() == [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_pairs_look_like_those_that_could_be_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [("queue", "orders"), ("日本", "two\nlines"), ("so far", "")]
    output.print_pairs(pairs)
    quick = capsys.readouterr().out
    monkeypatch.setattr(output, "_fits", lambda _: False)
    monkeypatch.setenv("COLUMNS", "200")
    output.print_pairs(pairs)

    assert quick == capsys.readouterr().out
    assert quick.splitlines()[:3] == ["queue   orders", "日本    two", "        lines"]


@pytest.mark.parametrize("columns, folded", [(80, False), (20, True)])
def test_a_long_table_is_folded_where_a_terminal_is_too_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, folded: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))

    output.print_table(COLUMNS, ROWS)

    lines = STYLE.sub("", capsys.readouterr().out).splitlines()
    assert (len(lines) > len(ROWS) + 2) == folded
    assert max(map(len, lines)) <= columns
