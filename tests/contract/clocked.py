"""A broker whose time the test moves, counted in ms from a fixed start: `rqttl.testing`'s, on the server of the test.

Waiting takes no time either. A consumer that would block takes an element of the wake-up list, or the clock moves to
the next due time or to the end of the wait. A listener of `WaitEvent` plays another client that acts during the wait.
"""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import redis

from rqttl import Duration, WaitEvent, units
from rqttl.testing.fake import ClockedBroker
from tests.conftest import AIO

START = 1_700_000_000_000

if TYPE_CHECKING or not AIO:
    Base = ClockedBroker
else:
    from tests.contract.portal import PortalClocked as Base


def at(ms: int) -> datetime:
    """The instant `ms` after the start of the test's clock."""
    return datetime.fromtimestamp((START + ms) / 1000, tz=timezone.utc)


def ms(n: int | None) -> timedelta | None:
    """So many ms as a duration; nothing as nothing."""
    return None if n is None else units.as_timedelta(n)


class Clocked(Base):
    """A broker at the time `now`, in ms; it stands still until `advance`, which no keeper of leases notices."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client, start=START)

    @property
    def now(self) -> int:
        return self.clock.ms

    def advance(self, time: int | Duration) -> None:
        """Go forward; a number is ms, as everywhere in this class, and back where it is negative."""
        self.clock.set(self.now + (time if isinstance(time, int) else units.duration(time, "time")))

    def go_to(self, ms: int) -> None:
        """Go to `ms` after the start."""
        self.clock.set(START + ms)

    def while_waiting(self, action: Callable[[], object]) -> None:
        """Do this whenever a consumer is about to block."""

        def listen(_: WaitEvent) -> None:
            action()

        self.events.subscribe(listen, WaitEvent)
