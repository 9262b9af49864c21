"""The time of the demo: the flights of many dates as one day, in which a minute takes some milliseconds.

Each flight keeps its time of day, so the rush hours of the real schedule are the rush hours of the demo. Its boarding
call is useful until the same carrier's next departure from the same airport, in the schedule of its own date. The TTL
of the message is this gap, with the same milliseconds for a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from rqttl.demo.flights import Flight
from rqttl.types import Message
from rqttl.units import MAX_DURATION, as_timedelta

#: Flights in a second, on average. They decide the length of the day.
RATE = 1_250
#: The shortest day, in seconds: in a shorter one a gap of a minute would be less than a millisecond.
SHORTEST = 8.0
#: The calls that the consumers can handle, as a part of the departures of an average minute. In a rush others expire.
CAPACITY = 0.9
#: The longest handling of a call, in ms: few flights are no rush.
LONGEST_HANDLING = 250
CONSUMERS = 2
#: Calls that one consumer handles at a time.
AGENTS = 4
DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Day:
    """The day that is played: from `first` to midnight, in minutes; a minute takes `minute_ms` milliseconds."""

    flights: int
    dates: int
    first: int
    minute_ms: float

    @property
    def handling_ms(self) -> float:
        """The milliseconds that an agent needs for one call."""
        length = (DAY - self.first) * self.minute_ms
        return min(LONGEST_HANDLING, CONSUMERS * AGENTS * length / (self.flights * CAPACITY))

    @property
    def rush(self) -> bool:
        """Return whether there are enough flights for a rush that the consumers cannot handle."""
        return self.handling_ms < LONGEST_HANDLING

    def seconds(self, minute: int) -> float:
        """The time of a minute of the day, in seconds after the start."""
        return (minute - self.first) * self.minute_ms / 1000

    def minute(self, seconds: float) -> int:
        """The minute of the day, some seconds after the start."""
        return min(DAY, self.first + int(seconds * 1000 / self.minute_ms))

    def ttl(self, flight: Flight) -> timedelta | None:
        """The TTL of a flight's call; None for the last departure of a carrier."""
        if flight.gap is None:
            return None
        return as_timedelta(min(MAX_DURATION, max(1, round(flight.gap * self.minute_ms))))


def plan(flights: Sequence[Flight]) -> Day:
    """The day for these flights. It begins with the hour of the first one."""
    first = min(flight.minute for flight in flights) // 60 * 60
    length = max(SHORTEST, len(flights) / RATE)
    dates = {flight.departure.at - flight.minute for flight in flights}  # each date's midnight
    return Day(len(flights), len(dates), first, length * 1000 / (DAY - first))


def by_minute(flights: Sequence[Flight]) -> list[tuple[int, dict[str, list[Flight]]]]:
    """The flights of each carrier for each minute with a departure, in the order of the schedule."""
    minutes: dict[int, dict[str, list[Flight]]] = {}
    for flight in flights:
        minutes.setdefault(flight.minute, {}).setdefault(flight.carrier, []).append(flight)
    return sorted(minutes.items())


def boarding_call(flight: Flight, day: Day) -> Message:
    """The message for a flight."""
    departure = flight.departure
    midnight = departure.at - departure.minute  # in New York
    scheduled = f"{datetime.fromtimestamp(midnight * 60, timezone.utc).date()} {clock(departure.minute)}"
    body = {
        "flight": flight.name,
        "from": departure.origin,
        "to": departure.destination,
        "scheduled": scheduled,
        "gap_minutes": flight.gap,
        "cancelled": departure.cancelled,
    }
    return Message(body, ttl=day.ttl(flight), id=f"{flight.name} {departure.origin} {scheduled}")


def clock(minute: int) -> str:
    """400 -> 06:40."""
    return f"{minute // 60:02}:{minute % 60:02}"
