"""`rqttl demo`: the main job end to end, on real input.

Boarding calls of real flights are messages with a TTL; two consumer processes are too slow for the rush hours; a reaper
moves what expires into dead-letter queues; in the end every call is accounted for.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

import rqttl
from rqttl.demo import ending, flights, show
from rqttl.demo.accounts import as_document
from rqttl.demo.children import ChildFailed
from rqttl.demo.day import plan
from rqttl.demo.flights import DemoUnavailable
from rqttl.demo.names import NAMESPACE
from rqttl.demo.stage import Stage, clean

__all__ = ["NAMESPACE", "DemoUnavailable", "run"]


def run(limit: int, url: str | None, *, as_json: bool = False, spark: bool = True, picture: str | None = None) -> int:
    """Play the first `limit` departures; the exit code. 0: every sum adds up. 1: one does not, or a process died.

    With `spark` it ends with the report of Spark, and with a picture of that in the file `picture`, or in a temporary
    one; what is missing for them is told, and is no failure. With `as_json` the tables are printed as JSON, and
    everything else goes to stderr. Raises `DemoUnavailable` without the data, and the errors of `connect`.
    """
    console = show.console(stderr=as_json)
    folder = flights.data_folder()
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with rqttl.connect(url, namespace=NAMESPACE) as broker, clean(broker):
            with console.status("reading the departures of 2013"):
                chosen = flights.schedule(flights.read_departures(folder), limit)
            day = plan(chosen)
            show.opening(console, chosen, day)
            with show.Progress(console, day) as progress:
                outcome = Stage(broker, url, chosen, day, progress.show).run()
            airlines = flights.read_airlines(folder)
            show.closing(console, outcome, airlines)
            show.dead_letters(console, broker, list(outcome.counts), day)
            problems = list(outcome.problems)
            facts: dict[str, object] = {}
            if spark:
                told = ending.tell(console, url, outcome.counts, airlines, picture)
                problems += told.problems
                facts["spark"] = told.document
            if as_json:
                facts |= {"problems": problems, "reaped": outcome.reaped, "elapsed_ms": round(outcome.seconds * 1000)}
                show.document(as_document(outcome.counts, outcome.total, **facts))
    except ChildFailed as failed:
        show.failure(str(failed))
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1 if problems else 0


def _leave(number: int, _: FrameType | None) -> None:
    """End in the way that cleans up."""
    sys.exit(128 + number)
