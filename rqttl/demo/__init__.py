"""`rqttl demo`: queues, consumers and a reaper at work, on real data.

Boarding calls of real flights are messages with a TTL. Two workers are too slow for the rush hours. A reaper moves
expired calls into dead-letter queues. At the end every call is accounted for.
"""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType

from rich.console import Console

import rqttl
from rqttl.demo import flights, show, stage
from rqttl.demo.flights import DemoUnavailable
from rqttl.demo.report import print_report
from rqttl.demo.stage import NAMESPACE

__all__ = ["NAMESPACE", "DemoUnavailable", "run"]


def run(limit: int, url: str | None, *, as_json: bool = False, spark: bool = True, picture: str | None = None) -> int:
    """Play the first `limit` departures. Returns the exit code: 0 if every sum adds up, 1 if not or if a process died.

    With `spark` the report of Spark follows, and a picture of it in the file `picture`, or in a temporary file. A
    missing package is named and is no failure. With `as_json` the tables are printed as JSON, and all other lines go to
    stderr. Raises `DemoUnavailable` without the data, and the errors of `connect`.
    """
    console = Console(stderr=as_json, highlight=False, soft_wrap=False)
    folder = flights.data_folder()
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        with rqttl.connect(url, namespace=NAMESPACE) as broker, stage.clean(broker):
            with console.status("reading the departures of 2013"):
                played = flights.read_flights(folder, limit)
            day, airlines = flights.plan(played), flights.read_airlines(folder)
            show.print_opening(console, played, day)
            counts, problems = stage.play(broker, url, played, day, show.Progress(console, played).show)
            show.print_result(console, counts, problems, airlines)
            show.print_dead_letters(console, broker, next(iter(counts)), day)
            document: dict[str, object] = {
                "carriers": {carrier: row._asdict() for carrier, row in counts.items()},
                "total": stage.total(counts.values())._asdict(),
                "problems": problems,
            }
            if spark:
                more, document["spark"] = print_report(console, url, counts, airlines, picture)
                problems += more
            if as_json:
                sys.stdout.write(json.dumps(document, indent=2) + "\n")
    except stage.ProgramFailed as failed:
        sys.stderr.write(f"rqttl: the demo ended early: {failed}\n")
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1 if problems else 0


def _exit(number: int, _: FrameType | None) -> None:
    """Exit with all clean-ups."""
    sys.exit(128 + number)
