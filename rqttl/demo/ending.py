"""The end of the demo: the dead letters as Spark counts them, in numbers and in a picture."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rqttl.demo import chart, show
from rqttl.demo.accounts import Counts
from rqttl.demo.report import Hours, ask_spark
from rqttl.text import install

#: The extra of rqttl that installs matplotlib.
EXTRA = "demo"


@dataclass(frozen=True)
class ReportResult:
    """A line for each sum that does not add up, and the report as JSON."""

    problems: list[str]
    document: Mapping[str, Any]


def print_report(
    console: Console, url: str | None, counts: Mapping[str, Counts], airlines: Mapping[str, str], picture: str | None
) -> ReportResult:
    """Print the report of Spark on the server of `rqttl.connect(url)`. Raises `ChildFailed` if it fails."""
    with console.status("Spark counts the dead letters"):
        report = ask_spark(url)
    if report.missing:
        _print(console, f"\nThe report of Spark is left out: {report.missing}")
        return ReportResult([], {"missing": report.missing})
    problems = report.problems(counts)
    hours = {carrier: report.carriers[carrier] for carrier in sorted(report.carriers, key=_busiest(report.carriers))}
    if not hours:
        _print(console, "\nSpark has found no dead letters.")
        return ReportResult(problems, {"hours": {}, "picture": None})
    show.print_hours(console, hours, report.seconds)
    path = _draw(console, picture, hours, airlines)
    for problem in problems:
        _print(console, f"It does not add up: {problem}")
    return ReportResult(problems, {"hours": hours, "picture": str(path) if path else None})


def _busiest(carriers: Mapping[str, Hours]) -> Any:
    return lambda carrier: (-sum(carriers[carrier].values()), carrier)


def _draw(console: Console, file: str | None, hours: Mapping[str, Hours], airlines: Mapping[str, str]) -> Path | None:
    """Draw the picture and print its path, or the reason why there is none."""
    try:
        path = Path(file) if file else Path(tempfile.mkdtemp(prefix="rqttl-demo-"), "dead-letters.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        chart.draw(path, hours, airlines)
    except ImportError:
        _print(console, f"\nThere is no picture: no matplotlib is installed; {install(EXTRA)}")
        return None
    except OSError as error:
        _print(console, f"\nThere is no picture: {error}")
        return None
    _print(console, f"\nThe same as a picture: {path}")
    return path


def _print(console: Console, text: str) -> None:
    """Print a line that may hold paths, neither folded nor read as markup."""
    console.print(text, markup=False, soft_wrap=True)
