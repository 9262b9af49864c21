"""The deliveries that a consumer has out: how many it may still fetch, and when somebody settled one. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence

from rqttl.delivery import Delivery
from rqttl.runtime.interrupt import Gate, Interrupt


class Held:
    """Deliveries that are not settled, as far as they were when somebody last looked. One thread adds and waits."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._deliveries: list[Delivery] = []
        self._gate: Gate | None = None

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Add deliveries that were fetched."""
        self._deliveries += deliveries

    def unsettled(self) -> list[Delivery]:
        """Return those that are not settled. Any thread may ask."""
        return [one for one in list(self._deliveries) if one.settled is None]

    def announce(self) -> None:
        """Somebody has settled some. Any thread may say so."""
        gate = self._gate
        if gate is not None:
            gate.open()

    def wait_for_room(self, stop: Interrupt) -> int:
        """Wait until fewer than `most` are out. Returns how many more may come, 0 after `stop`."""
        self._deliveries = self.unsettled()
        while len(self._deliveries) >= self._most:
            self._gate = gate = Gate()
            with stop.ending(gate.open):
                # looked at only now: whoever stops or settles from here on opens the gate
                if stop.asked():
                    return 0
                if len(self.unsettled()) == len(self._deliveries):
                    gate.wait(1.0)
            self._deliveries = self.unsettled()
        self._gate = None
        return self._most - len(self._deliveries)
