"""The fake broker: all of rqttl in this process, with its real scripts, no server, and a clock that the test moves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from rqttl.flows.steps import Step
from rqttl.store.driver import driver_of
from rqttl.testing.clocked import Clock, ClockedBroker, ClockedDriver
from rqttl.testing.errors import FakeUnavailable, NotSupportedByFake
from rqttl.text import install
from rqttl.units import Instant

if TYPE_CHECKING:
    import redis

    from rqttl.reaper import Totals
    from rqttl.testing._client import FakeClient


def fake_broker(namespace: str = "rqttl", *, start: Instant | None = None) -> FakeBroker:
    """A new broker on an empty Redis of its own, within this process; no server is needed.

    Its clock begins at `start` (an aware datetime, ISO 8601 text with a zone, or milliseconds since 1970), or at the
    time of this machine, and stands still. Raises `FakeUnavailable` where fakeredis is not installed, `InvalidName`,
    `InvalidInput`.
    """
    return FakeBroker(namespace, start=start)


class FakeDriver(ClockedDriver):
    """The driver of a fake broker. It works only in the process that made it."""

    def __init__(self, client: redis.Redis, namespace: str, clock: Clock) -> None:
        super().__init__(client, namespace, clock)
        self._process = os.getpid()

    def step(self, step: Step) -> Any:
        """Carry out one step of a flow, at the time of the clock."""
        if os.getpid() != self._process:
            raise NotSupportedByFake("being used in a forked process")
        return super().step(step)

    def __reduce__(self) -> NoReturn:
        raise NotSupportedByFake("being pickled for another process")


class FakeBroker(ClockedBroker):
    """A `Broker` for unit tests: the same API, the same scripts, nothing shared with any other broker.

    * `clock.advance("5s")` lets time pass, `clock.now` is the time.
    * A wait takes no time in the thread that made the broker. `receive(wait="5s")` takes a message that is there, or
      one that listeners of `WaitEvent` and other threads send meanwhile. Else it moves the clock to the next due time
      of the queue, or to the end of the wait. A wait without an end raises `WaitWouldNeverEnd` if nothing more can
      happen. In any other thread a wait is a real one. A message ends it, and so does a move of the clock past its end.
    * `consume` keeps its leases when the clock is advanced, as it does in real time. `clock.set` lets them end.
    * The next call on a queue does its due work, and so does `run_reaper()`.

    It lives in one process, and raises `NotSupportedByFake` for an operation that it cannot do. Code that connects and
    closes by itself gets its brokers from `connect`. The messages exist as long as one of these brokers is referenced.
    """

    def __init__(
        self, namespace: str = "rqttl", *, start: Instant | None = None, beside: FakeBroker | None = None
    ) -> None:
        if beside is None:
            super().__init__(_open_client(), namespace, start=start, driver=FakeDriver)
        else:
            client = _open_client(driver_of(beside).store.client)
            super().__init__(client, namespace, clock=beside.clock, driver=FakeDriver)

    def __repr__(self) -> str:
        return f"<FakeBroker namespace {driver_of(self).keyspace.namespace!r}>"

    def connect(self, url: str | None = None, *, namespace: str | None = None) -> FakeBroker:
        """Make a further broker on the same messages and the same clock, in the place of `rqttl.connect`.

        It ignores `url`. When it is closed, this broker stays open.
        """
        del url
        return FakeBroker(driver_of(self).keyspace.namespace if namespace is None else namespace, beside=self)

    def __enter__(self) -> FakeBroker:
        super().__enter__()
        return self

    def __reduce__(self) -> NoReturn:
        raise NotSupportedByFake("being pickled for another process")

    def run_reaper(self) -> Totals:
        """Do all due work of all queues once, as a reaper would have done. Returns its totals."""
        from rqttl.reaper import Reaper

        return Reaper(self).run_once()


def _open_client(beside: redis.Redis | None = None) -> FakeClient:
    try:
        from rqttl.testing._client import BrokerClient, FakeClient
    except ImportError as error:
        raise FakeUnavailable(f"fake broker: {error}; install what it needs: {install('testing')}") from error
    return BrokerClient(beside if isinstance(beside, FakeClient) else None)
