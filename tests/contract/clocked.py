"""A broker whose time the test moves: the public API, with an injected `now` in every script call.

Waiting takes no time either: a consumer that would block hears what the bell holds, or its whole wait passes at once.
What another client does while it waits is a listener in `broker.events.on_waiting`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import redis

from rqttl import Broker, flows
from rqttl.commands import Command

START = 1_700_000_000_000


def at(ms: int) -> datetime:
    """The instant `ms` after the start of the test's clock."""
    return datetime.fromtimestamp((START + ms) / 1000, tz=timezone.utc)


class Clocked(Broker):
    """A broker at the time `now`, in ms; it stands still until `advance`."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.now = START

    def advance(self, ms: int) -> None:
        self.now += ms

    def while_waiting(self, action: Callable[[], object]) -> None:
        """Do this whenever a consumer is about to block."""

        def listen(queue: str) -> None:
            action()

        self.events.on_waiting.append(listen)

    def go_to(self, ms: int) -> None:
        """Go to `ms` after the start."""
        self.now = START + ms

    def time(self) -> datetime:
        return at(self.now - START)

    def step(self, step: flows.Step) -> Any:
        if isinstance(step, Command):
            return super().step(self._timed(step))
        if isinstance(step, flows.Together):
            return super().step(flows.Together([self._timed(command) for command in step.commands]))
        if isinstance(step, flows.Clock):
            return self.now
        if isinstance(step, flows.Listen):
            return self._listen(step)
        return super().step(step)

    def _timed(self, command: Command) -> Command:
        if "now" not in command.script.args:
            return command
        place = 1 + int(command.words[0]) + command.script.args.index("now")
        return replace(command, words=(*command.words[:place], self.now, *command.words[place + 1 :]))

    def _listen(self, step: flows.Listen) -> bytes | None:
        for listener in self.events.on_waiting:
            listener(step.queue)
        heard: Any = self.store.client.lpop(self.keyspace.key(step.queue, "bell"))
        if heard is None:
            self.advance(step.ms)
            return None
        assert isinstance(heard, bytes)
        return heard
