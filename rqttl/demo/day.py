"""How the demo plays time: the flights of many dates as one day, in which a minute takes some milliseconds.

Each flight keeps its time of day, so the rush hours of the real schedule are the rush hours of the demo. Its boarding
call is worth something until the same carrier's next departure from the same airport, as the schedule of its own date
has it: that gap, at the same milliseconds to a minute, is the TTL of its message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from rqttl.demo.flights import Flight
from rqttl.types import Message
from rqttl.units import MAX_DURATION, as_timedelta

#: Flights in a second, all day round: what decides how long the day takes.
RATE = 1_250
#: No day is shorter, in seconds: a gap of a minute would be less than a millisecond.
SHORTEST = 8.0
#: What the consumers can handle, as a part of what departs in an average minute. The rest is for the rush to expire.
CAPACITY = 0.9
#: ... but no call takes longer than so many ms: so few flights are no rush.
LONGEST_HANDLING = 250
CONSUMERS = 2
#: How many calls one consumer handles at a time.
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
        """How long an agent is busy with one call."""
        length = (DAY - self.first) * self.minute_ms
        return min(LONGEST_HANDLING, CONSUMERS * AGENTS * length / (self.flights * CAPACITY))

    @property
    def rush(self) -> bool:
        """Whether there are enough flights for a rush that the consumers cannot handle."""
        return self.handling_ms < LONGEST_HANDLING

    def seconds(self, minute: int) -> float:
        """When a minute of the day comes, in seconds after the start."""
        return (minute - self.first) * self.minute_ms / 1000

    def minute(self, seconds: float) -> int:
        """Which minute of the day it is, so many seconds after the start."""
        return min(DAY, self.first + int(seconds * 1000 / self.minute_ms))

    def ttl(self, flight: Flight) -> timedelta | None:
        """The TTL of a flight's call; none for the carrier's last departure of all."""
        if flight.gap is None:
            return None
        return as_timedelta(min(MAX_DURATION, max(1, round(flight.gap * self.minute_ms))))


def plan(flights: Sequence[Flight]) -> Day:
    """The day for these flights: it begins with the hour of the first one."""
    first = min(flight.minute for flight in flights) // 60 * 60
    length = max(SHORTEST, len(flights) / RATE)
    dates = {flight.departure.at - flight.minute for flight in flights}  # each date's midnight
    return Day(len(flights), len(dates), first, length * 1000 / (DAY - first))


def by_minute(flights: Sequence[Flight]) -> list[tuple[int, dict[str, list[Flight]]]]:
    """For each minute of the day that has departures the flights of each carrier, in the order of the schedule."""
    minutes: dict[int, dict[str, list[Flight]]] = {}
    for flight in flights:
        minutes.setdefault(flight.minute, {}).setdefault(flight.carrier, []).append(flight)
    return sorted(minutes.items())


def boarding_call(flight: Flight, day: Day) -> Message:
    """The message that is sent for a flight."""
    one = flight.departure
    date = datetime.fromtimestamp((one.at - one.minute) * 60, timezone.utc).date()  # of its midnight in New York
    scheduled = f"{date} {clock(one.minute)}"
    body = {
        "flight": flight.name, "from": one.origin, "to": one.destination, "scheduled": scheduled,
        "gap_minutes": flight.gap, "cancelled": one.cancelled,
    }  # fmt: skip
    return Message(body, ttl=day.ttl(flight), id=f"{flight.name} {one.origin} {scheduled}")


def clock(minute: int) -> str:
    """400 -> 06:40."""
    return f"{minute // 60:02}:{minute % 60:02}"
