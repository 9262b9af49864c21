"""The demo's last act: what Spark says about the dead letters, in numbers and in a picture."""

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

#: What brings matplotlib.
EXTRA = "demo"


@dataclass(frozen=True)
class Told:
    """What does not add up, and the report for programs."""

    problems: list[str]
    document: Mapping[str, Any]


def tell(
    console: Console, url: str | None, counts: Mapping[str, Counts], airlines: Mapping[str, str], picture: str | None
) -> Told:
    """Show the report of Spark on the server that `rqttl.connect(url)` uses. Raises `ChildFailed` if it fails."""
    with console.status("Spark counts the dead letters"):
        report = ask_spark(url)
    if report.missing:
        _print(console, f"\nThe report of Spark is left out: {report.missing}")
        return Told([], {"missing": report.missing})
    problems = report.problems(counts)
    found = {carrier: report.carriers[carrier] for carrier in sorted(report.carriers, key=_busiest(report.carriers))}
    if not found:
        _print(console, "\nSpark has found no dead letters.")
        return Told(problems, {"hours": {}, "picture": None})
    show.hours(console, found, report.seconds)
    path = _draw(console, picture, found, airlines)
    for problem in problems:
        _print(console, f"It does not add up: {problem}")
    return Told(problems, {"hours": found, "picture": str(path) if path else None})


def _busiest(carriers: Mapping[str, Hours]) -> Any:
    return lambda carrier: (-sum(carriers[carrier].values()), carrier)


def _draw(console: Console, chosen: str | None, found: Mapping[str, Hours], airlines: Mapping[str, str]) -> Path | None:
    """Draw the picture and say where it is; or say why there is none."""
    try:
        path = Path(chosen) if chosen else Path(tempfile.mkdtemp(prefix="rqttl-demo-"), "dead-letters.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        chart.draw(path, found, airlines)
    except ImportError:
        _print(console, f"\nThere is no picture: no matplotlib is installed; {install(EXTRA)}")
        return None
    except OSError as error:
        _print(console, f"\nThere is no picture: {error}")
        return None
    _print(console, f"\nThe same as a picture: {path}")
    return path


def _print(console: Console, text: str) -> None:
    """A line that may hold paths: neither folded nor read as markup."""
    console.print(text, markup=False, soft_wrap=True)
