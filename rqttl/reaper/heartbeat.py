"""The entry of a worker or reaper among those that live: it is written every 10 s."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from redis.exceptions import RedisError

from rqttl.errors import RqttlError
from rqttl.flows import registry, steps
from rqttl.flows.steps import Driver
from rqttl.store.exchanges import is_away

logger = logging.getLogger("rqttl.heartbeat")

#: The ms between two heartbeats, and the number after which the clock of Redis is read again.
PERIOD, CLOCK_EVERY = 10_000, 60


class Heartbeat:
    """Writes the entry of this process. `details` returns the details that change."""

    def __init__(self, driver: Driver, role: str, details: Callable[[], Mapping[str, Any]]) -> None:
        host = socket.gethostname()
        #: The name of the entry.
        self.name = f"{host}.{os.getpid()}.{secrets.token_hex(3)}"
        self._driver, self._details = driver, details
        version = import_module("rqttl").__version__
        self._fixed: dict[str, Any] = {"role": role, "host": host, "pid": os.getpid(), "version": version}
        self._next = self._ahead = 0.0
        self._beats = 0
        self._refused = False

    def ms_left(self) -> float:
        """Return the ms until the entry is due."""
        return max(0.0, self._next - self._driver.timing.now())

    def hurry(self) -> None:
        """Make the entry due: its details have changed much."""
        self._next = 0.0

    def write_if_due(self) -> None:
        """Write the entry if it is due. A refusal of Redis is logged, and ends nothing."""
        now = self._driver.timing.now()
        if now < self._next:
            return
        self._next = now + PERIOD
        try:
            if self._beats % CLOCK_EVERY == 0:
                self._ahead = self._driver.perform(steps.server_time()) - now
            beat = int(now + self._ahead)
            self._fixed.setdefault("started", beat)
            entry = {**self._fixed, **self._details()}
            self._driver.perform(registry.beat(self._driver.keyspace, self.name, entry, now=beat))
            self._beats += 1
        except RedisError as error:
            if is_away(error):
                raise
            if not self._refused:
                logger.warning("cannot register this process: %s", error)
            self._refused = True

    def leave(self) -> None:
        """Remove the entry. If Redis is away or the broker is closed, readers drop it in 30 s."""
        if not self._beats:
            return
        now = int(self._driver.timing.now() + self._ahead)
        try:
            self._driver.perform(registry.leave_roster(self._driver.keyspace, self.name, now=now))
        except (RedisError, RqttlError) as error:
            logger.info("cannot unregister this process: %s", error)
