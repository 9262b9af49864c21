"""The rhythm in which a consumer renews leases, and the rest of its keeper between two turns. No I/O here."""

from __future__ import annotations

from collections.abc import Collection

from rqttl.runtime.interrupt import Gate, Interrupt

#: Seconds that a keeper rests at most: acks that wait are sent then.
LONGEST = 1.0


class Pace:
    """A third of the shortest lease at hand. Safe to share between threads; one of them rests."""

    def __init__(self) -> None:
        #: Seconds between two renewals.
        self.rhythm = LONGEST
        self._gate: Gate | None = None

    def follow(self, leases: Collection[int]) -> None:
        """Take the rhythm from leases of so many ms. Without any it stays. A shorter rhythm ends the rest at hand."""
        if not leases:
            return
        before, self.rhythm = self.rhythm, min(leases) / 3000
        gate = self._gate
        if self.rhythm < before and gate is not None:
            gate.open()

    def rest(self, stop: Interrupt) -> None:
        """Wait for the next turn, or until `stop` is asked."""
        self._gate = gate = Gate()
        seconds = min(LONGEST, self.rhythm)  # looked at only now: a shorter rhythm from here on opens the gate
        with stop.ending(gate.open):
            if not stop.asked():
                gate.wait(seconds)
