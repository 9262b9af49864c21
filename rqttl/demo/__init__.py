"""`rqttl demo`: queues, consumers and a reaper at work, on real data.

Boarding calls of real flights are messages with a TTL. Two consumer processes are too slow for the rush hours. A reaper
moves expired calls into dead-letter queues. At the end every call is accounted for.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

import rqttl
from rqttl.demo import ending, flights, show
from rqttl.demo.accounts import to_json
from rqttl.demo.children import ChildFailed
from rqttl.demo.day import plan
from rqttl.demo.flights import DemoUnavailable
from rqttl.demo.names import NAMESPACE
from rqttl.demo.stage import Stage, clean

__all__ = ["NAMESPACE", "DemoUnavailable", "run"]


def run(limit: int, url: str | None, *, as_json: bool = False, spark: bool = True, picture: str | None = None) -> int:
    """Play the first `limit` departures. Returns the exit code: 0 if every sum adds up, 1 if not or if a process died.

    With `spark` the report of Spark follows, and a picture of it in the file `picture`, or in a temporary file. A
    missing package is named and is no failure. With `as_json` the tables are printed as JSON, and all other lines go to
    stderr. Raises `DemoUnavailable` without the data, and the errors of `connect`.
    """
    console = show.console(stderr=as_json)
    folder = flights.data_folder()
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        with rqttl.connect(url, namespace=NAMESPACE) as broker, clean(broker):
            with console.status("reading the departures of 2013"):
                played = flights.schedule(flights.read_departures(folder), limit)
            day = plan(played)
            show.print_opening(console, played, day)
            with show.Progress(console, day) as progress:
                outcome = Stage(broker, url, played, day, progress.show).run()
            airlines = flights.read_airlines(folder)
            show.print_result(console, outcome, airlines)
            show.print_letters(console, broker, list(outcome.counts), day)
            problems = list(outcome.problems)
            document: dict[str, object] = {}
            if spark:
                report = ending.print_report(console, url, outcome.counts, airlines, picture)
                problems += report.problems
                document["spark"] = report.document
            if as_json:
                elapsed_ms = round(outcome.seconds * 1000)
                document |= {"problems": problems, "reaped": outcome.reaped, "elapsed_ms": elapsed_ms}
                show.print_json(to_json(outcome.counts, outcome.total) | document)
    except ChildFailed as failed:
        show.print_failure(str(failed))
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1 if problems else 0


def _exit(number: int, _: FrameType | None) -> None:
    """Exit with all clean-ups."""
    sys.exit(128 + number)
