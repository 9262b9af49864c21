"""The entry of a consumer, worker or reaper in the roster of those that live."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import PurePath
from typing import Any

from rqttl.errors import PoolExhausted, RqttlError
from rqttl.flows import roster, steps
from rqttl.flows.steps import Flow, Now
from rqttl.outages import TEMPORARY, is_away
from rqttl.protocol.keys import Keyspace

logger = logging.getLogger("rqttl.heartbeat")

#: The ms between two heartbeats, the ms after which new leases may hasten the next one, and those while idle.
PERIOD, SOON, IDLE = 10_000, 5_000, 30_000
#: The ms for which readers wait for a heartbeat that is late.
LATE = 5_000


class Heartbeat:
    """Writes the entry of a part of this process. `details` returns the details that change; it gets the time in ms.

    An entry is written every 10 s. A part that `is_idle` writes one every 30 s, once its entry has said so. `look`
    reads the time of Redis, and what else the part wants to know as often. The caller performs the flows, one at a
    time.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        role: str,
        details: Callable[[int], Mapping[str, Any]],
        is_idle: Callable[[], bool] = lambda: False,
        look: Callable[[], Flow[int]] = steps.server_time,
    ) -> None:
        host = socket.gethostname()
        #: The name of the entry.
        self.name = f"{host}.{os.getpid()}.{secrets.token_hex(3)}"
        self._keyspace, self._details, self._is_idle, self._look = keyspace, details, is_idle, look
        version = import_module("rqttl").__version__
        self._fixed: dict[str, Any] = {
            "role": role,
            "host": host,
            "pid": os.getpid(),
            "program": program(),
            "version": version,
        }
        self._written_at, self._soon = -math.inf, False
        self._rests = self._was_refused = False

    def ms_left(self, now: float) -> float:
        """Return the ms until the entry is due."""
        every = SOON if self._soon else IDLE if self._rests and self._is_idle() else PERIOD
        return max(0.0, self._written_at + every - now)

    def hurry(self) -> None:
        """Make the entry due: its details have changed much."""
        self._written_at = -math.inf

    def renewed(self) -> None:
        """Tell that leases have other ends than before: the next entry comes sooner."""
        self._soon = True

    def beat(self) -> Flow[None]:
        """Write the entry if it is due. A refusal of Redis is logged, and ends nothing."""
        now = yield Now()
        if self.ms_left(now):
            return
        self._written_at, self._soon = now, False
        try:
            yield from self.write()
            self._was_refused = False
        except (*TEMPORARY, PoolExhausted) as error:
            if is_away(error):
                raise
            self._tell(error)

    def beat_if_possible(self) -> Flow[None]:
        """The same for a part that does not need the node of the roster: that one may be away."""
        try:
            yield from self.beat()
        except TEMPORARY as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if not self._was_refused:
            logger.warning("cannot register this process in %s: %s", self._keyspace.workers, error)
        self._was_refused = True

    def write(self, leap: int = 0) -> Flow[None]:
        """Write the entry as it is in `leap` ms."""
        now = (yield from self._look()) + leap
        self._rests = self._is_idle()
        self._fixed.setdefault("started", now)
        lives = IDLE + LATE if self._rests else 3 * PERIOD
        entry = {**self._fixed, **self._details(now), "beat": now, "lives": lives}
        yield from roster.enter(self._keyspace, self.name, entry)

    def leave(self) -> Flow[None]:
        """Remove the entry. If Redis is away or the broker is closed, readers drop it in 30 s."""
        if "started" not in self._fixed:
            return
        try:
            yield from roster.leave(self._keyspace, self.name)
        except (*TEMPORARY, RqttlError) as error:
            logger.info("cannot unregister this process: %s", error)


def program() -> str:
    """The name of this program without its arguments, which may hold secrets: `jobs.py`, `shop.jobs`, `rqttl receive`.

    A command of rqttl has the name of the command with it.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec else PurePath(sys.argv[0]).name
    command = next(iter(sys.argv[1:]), "")
    return f"{name} {command}" if name == "rqttl" and command.isalpha() else name or "python"
