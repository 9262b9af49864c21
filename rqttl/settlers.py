"""The functions that settle deliveries: those of a queue, of a consumer, or of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rqttl.decisions import Decision, Reject, Retry
from rqttl.events import Events
from rqttl.protocol import codec
from rqttl.units import Duration, as_timedelta

D = TypeVar("D")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Settlers(Generic[D, R]):
    """The functions that settle deliveries: those of the queue or of the consumer that handed them out."""

    ack: Callable[[Sequence[D]], R]
    nack: Callable[[Sequence[D], Duration | None, str | None], R]
    reject: Callable[[Sequence[D], str | None], R]
    renew: Callable[[Sequence[D], Duration | None], R]
    release: Callable[[Sequence[D]], R]
    #: The events of the broker; `None` in a child of a worker.
    events: Events | None

    def settle_after(self, delivery: D, error: BaseException | None, pause: Duration | None = None) -> R:
        """Settle a delivery whose handler has returned, or has raised an error or a decision.

        `pause` is the delay of a failure, and of a `Retry` without one.
        """
        if error is None:
            return self.ack([delivery])
        if isinstance(error, Reject):
            return self.reject([delivery], error.description)
        if isinstance(error, Retry):
            delay = pause if error.delay is None else as_timedelta(error.delay)
            return self.nack([delivery], delay, error.description)
        if isinstance(error, Decision):
            return self.release([delivery])
        return self.nack([delivery], pause, codec.describe(error))
