"""A driver whose scripts read the test's clock, and that notes the commands it has run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis

from rqttl.flows import Step
from rqttl.protocol.commands import Command, Reply
from rqttl.store.driver import RedisDriver

#: How many clients there are, each with what it knows of the queues.
CLIENTS = 2
#: Commands that one operation takes at most. A wrong script may ask for more of them forever.
MOST = 1000


@dataclass
class Clock:
    now: int = 1_700_000_000_000
    #: The latest that it has ever been; it may step back.
    latest: int = field(default=1_700_000_000_000)

    def move(self, ms: int) -> None:
        self.now += ms
        self.latest = max(self.latest, self.now)


class Client(RedisDriver):
    """Everything it runs is the real thing, except for the `now` of each script call.

    `log` holds the commands that were carried out since it was cleared, with their replies; `steps` counts all commands
    since then. While it is `deaf`, what scripts ask to do for other queues is not done, as if the process died after
    its call.
    """

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client, "rqttl")
        self.begin(Clock())

    def begin(self, clock: Clock) -> None:
        """Know nothing, as a process that has just started."""
        self.configs.clear()
        self.clock = clock
        self.log: list[tuple[Command, Reply]] = []
        self.steps = 0
        self.stale = 0
        self.deaf = False

    def clear_log(self) -> None:
        self.log.clear()
        self.steps = 0

    def step(self, step: Step) -> Any:
        if not isinstance(step, Command):
            return super().step(step)
        command = self.at_now(step)
        reply = super().step(command)
        self.steps += 1
        assert self.steps <= MOST, f"the operation does not end: {command.script.name} {reply!r}"
        if reply[0] == b"ok":
            self.log.append((command, reply))
            if self.deaf:
                return [reply[0], b"", *reply[2:]]
        elif reply[1] == b"stale":
            self.stale += 1
        return reply

    def at_now(self, command: Command) -> Command:
        """The command with the clock of the test in the place of Redis' own."""
        if "now" not in command.script.args:
            return command
        return command.with_word("now", self.clock.now)
