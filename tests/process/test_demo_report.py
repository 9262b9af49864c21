"""The report of Spark at the end of the demo, and the lines for a missing package. No test needs a JVM."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rqttl.demo import ending
from rqttl.demo.accounts import Counts
from rqttl.demo.ending import ReportResult
from rqttl.demo.report import Report
from rqttl.demo.show import print_hours
from spark_connectors import demo_report
from tests.process.demo_runs import check_document, start
from tests.process.embedded_users import data_folder

pytestmark = pytest.mark.once


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


def test_a_letter_that_spark_has_not_counted_is_noticed() -> None:
    counts = {"UA": Counts(dead_lettered=3), "DL": Counts()}

    assert Report({"UA": {5: 1, 7: 2}}).problems(counts) == []
    assert Report({"UA": {5: 1, 7: 1}}).problems(counts) == ["UA: dead letters, by the queue and by Spark: 3 is not 2"]
    assert Report(missing="no Java").problems(counts) == []


@pytest.mark.parametrize("width, carriers", [(80, ["UA", "DL", "AA"]), (22, ["UA", "other"]), (16, ["other"])])
def test_hours_and_carriers_are_a_table_that_fits(width: int, carriers: list[str]) -> None:
    written = io.StringIO()
    console = Console(file=written, width=width)
    hours = {"UA": {5: 1_000, 7: 2}, "DL": {7: 100}, "AA": {23: 7}}

    print_hours(console, hours, 3.2)

    lines = [line.split() for line in written.getvalue().splitlines()]
    assert ["hour", *carriers, "all"] in lines
    assert ["07", *{3: ["2", "100"], 2: ["2", "100"], 1: ["102"]}[len(carriers)], "102"] in lines
    assert lines[-1][0] == "all"
    assert lines[-1][-1] == "1,109"


def tell(monkeypatch: pytest.MonkeyPatch, report: Report, picture: Path) -> tuple[ReportResult, str]:
    monkeypatch.setattr(ending, "ask_spark", lambda _: report)
    written = io.StringIO()
    counts = {carrier: Counts(dead_lettered=sum(found.values())) for carrier, found in report.carriers.items()}
    result = ending.print_report(
        Console(file=written, width=80), None, counts, {"UA": "United Air Lines"}, str(picture)
    )
    return result, written.getvalue()


def test_the_picture_is_a_png_in_a_folder_that_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "build" / "[red]picture.png"

    result, printed = tell(monkeypatch, Report({"DL": {7: 1}, "UA": {5: 1_200, 23: 2}}), path)

    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 5_000
    assert result == ReportResult([], {"hours": {"UA": {5: 1_200, 23: 2}, "DL": {7: 1}}, "picture": str(path)})
    assert printed.endswith(f"The same as a picture: {path}\n")


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    result, printed = tell(monkeypatch, Report({"UA": {5: 1}}), tmp_path / "picture.png")

    assert result.document == {"hours": {"UA": {5: 1}}, "picture": None}
    assert printed.endswith(
        "There is no picture: no matplotlib is installed; `pip install '.[demo]'` in a checkout of rqttl\n"
    )


def test_a_picture_that_cannot_be_written_is_an_error_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result, printed = tell(monkeypatch, Report({"UA": {5: 1}}), tmp_path / "file" / "picture.png")

    assert result.document["picture"] is None
    assert "There is no picture: " in printed


def test_a_missing_package_of_spark_is_named() -> None:
    assert demo_report.missing_requirements(["click", "no_such_one"]) == (
        "no no_such_one is installed; `pip install '.[spark]'` in a checkout of rqttl"
    )


@pytest.mark.slow
def test_without_java_a_run_leaves_the_report_out_and_ends_well(redis_url: str, folder: Path, tmp_path: Path) -> None:
    with start(folder, "--url", redis_url, "--json", spark=True, JAVA_HOME=str(tmp_path)) as process:
        out, printed = process.communicate()

    assert process.returncode == 0, printed
    document = json.loads(out)
    check_document(document)
    [line] = [line for line in printed.splitlines() if "Spark" in line]
    assert line == f"The report of Spark is left out: {document['spark']['missing']}"
    assert "apt-get install openjdk-17-jre-headless" in line
