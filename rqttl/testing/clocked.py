"""A broker whose time a test moves: the real library and its scripts, with an injected `now` in every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import redis

from rqttl import flows
from rqttl.broker import Broker
from rqttl.protocol.commands import Command
from rqttl.store.driver import RedisDriver
from rqttl.testing.clock import Clock
from rqttl.testing.timing import ClockedTiming
from rqttl.units import Instant


class ClockedDriver(RedisDriver):
    """A driver on any Redis at the time of `clock`."""

    def __init__(self, client: redis.Redis, namespace: str, clock: Clock) -> None:
        super().__init__(client, namespace, ClockedTiming(clock))
        self.clock = clock

    def step(self, step: flows.steps.Step) -> Any:
        """Carry out one step of a flow, at the time of the clock."""
        if isinstance(step, Command):
            return super().step(self.timed(step))
        if isinstance(step, flows.steps.Pipeline):
            return super().step(replace(step, commands=[self.timed(command) for command in step.commands]))
        if isinstance(step, flows.steps.Read | flows.steps.Write):
            now = list(divmod(self.clock.ms * 1000, 1_000_000))
            return [
                now if call[0] == "TIME" else reply for call, reply in zip(step.calls, super().step(step), strict=True)
            ]
        return super().step(step)

    def timed(self, command: Command) -> Command:
        """Return the command with the time of the clock."""
        if "now" not in command.script.args:
            return command
        return command.with_word("now", self.clock.ms)


class ClockedBroker(Broker):
    """A broker on any Redis at the time of `clock`. Without `clock` it makes one, which begins at `start`."""

    def __init__(
        self,
        client: redis.Redis,
        namespace: str = "rqttl",
        *,
        start: Instant | None = None,
        clock: Clock | None = None,
        driver: Callable[[redis.Redis, str, Clock], RedisDriver] = ClockedDriver,
    ) -> None:
        #: The time of this broker.
        self.clock = clock or Clock(start)
        super().__init__(client, namespace, driver=lambda client, namespace: driver(client, namespace, self.clock))
