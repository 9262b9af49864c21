"""`rqttl demo`: queues, consumers and a reaper at work, on real data.

Boarding calls of real flights are messages with a TTL. Two workers are too slow for the rush hours. A reaper moves
expired calls into dead-letter queues. At the end every call is accounted for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

import rqttl
from rqttl.demo import flights, show, stage

__all__ = ["run"]


def run(limit: int, url: str | None, *, as_json: bool = False, spark: bool = True, picture: str | None = None) -> int:
    """Play the first `limit` departures. Returns the exit code: 0 if every sum adds up, 1 if not or if a process died.

    With `spark` the report of Spark follows, and a picture of it in the file `picture`. A missing package is named and
    is no failure. With `as_json` the tables are printed as JSON, and all other lines go to stderr. Raises
    `DemoUnavailable` without the data, and the errors of `connect`.
    """
    console = Console(stderr=as_json, highlight=False, soft_wrap=False)
    folder = flights.data_folder()
    try:
        with rqttl.connect(url, namespace=stage.NAMESPACE) as broker, stage.clean(broker):
            with console.status("reading the departures of 2013"):
                played = flights.read_flights(folder, limit)
            day = flights.plan(played)
            show.print_opening(console, played, day)
            counts, problems = stage.play(broker, url, played, day, show.Progress(console, played).show)
            show.print_result(console, counts, problems)
            stage.show_dead_letters(url, next(iter(counts)))
            document: dict[str, object] = {
                "carriers": {carrier: row._asdict() for carrier, row in counts.items()},
                "total": stage.total(counts.values())._asdict(),
                "problems": problems,
            }
            if spark:
                with console.status("Spark counts the dead letters"):
                    answer = stage.ask_spark(url)
                hours, more = show.print_report(console, counts, answer)
                document["spark"] = answer if "missing" in answer else {"hours": hours, "picture": picture}
                problems += more
                if hours and picture:
                    show.print_picture(console, Path(picture), hours)
            if as_json:
                sys.stdout.write(json.dumps(document, indent=2) + "\n")
    except stage.ProgramFailed as failed:
        sys.stderr.write(f"rqttl: the demo ended early: {failed}\n")
        return 1
    return 1 if problems else 0
