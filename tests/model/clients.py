"""A driver whose scripts read the test's clock, and that notes the commands it has run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha1
from typing import Any

import redis

from rqttl.flows.steps import HandleNotes, Pipeline, Step
from rqttl.policies import PolicySet
from rqttl.protocol.commands import Command, Reply
from rqttl.protocol.contract import Script
from rqttl.store.driver import RedisDriver

#: How many clients there are, each with what it knows of the queues.
CLIENTS = 2
#: A mark of arrivals comes with a letter that makes their number a multiple of this, or with the last one of its call.
STEP = 3
#: Commands that one operation takes at most. A wrong script may ask for more of them forever.
MOST = 10_000


@dataclass
class Clock:
    now: int = 1_700_000_000_000
    #: The latest that it has ever been; it may step back.
    latest: int = field(default=1_700_000_000_000)

    def move(self, ms: int) -> None:
        self.now += ms
        self.latest = max(self.latest, self.now)


@cache
def with_small_steps(script: Script) -> Script:
    """The script with a mark of arrivals for every third letter, and with lists of two scheduled messages at most."""
    text = script.text.replace("MARKED = 1024", f"MARKED = {STEP}").replace("LISTED = 503", "LISTED = 41")
    return replace(script, text=text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


class Died(Exception):  # no error: the process ends here
    """The process died before its next call."""


class Client(RedisDriver):
    """Everything it runs is the real thing, except for the `now` of each script call.

    `log` holds the commands that were carried out since it was cleared, with their replies; `steps` counts all commands
    since then. The `listener` hears of each one at once. While it is `deaf`, what scripts ask to do for other queues is
    not done, as if the process died after its call. With `lives` it dies after so many calls. `meanwhile` has a script,
    and what another client does before the next call of it.
    """

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client, "rqttl")
        self.begin(Clock())

    def begin(self, clock: Clock) -> None:
        """Know nothing, as a process that has just started."""
        self.configs.clear()
        self.memory.policies = PolicySet()
        self.clock = clock
        self.log: list[tuple[Command, Reply]] = []
        self.steps = 0
        self.stale = 0
        self.settle_down()
        #: How deep it is in work that scripts asked for.
        self.depth = 0

    def settle_down(self) -> None:
        """Live on, hear everything, and let nobody come between two calls."""
        self.deaf = False
        self.lives: int | None = None
        self.meanwhile: tuple[str, Callable[[], None]] | None = None
        self.listener: Callable[[Command, Reply], None] = lambda command, reply: None
        #: Hears of each refusal.
        self.refused: Callable[[Command, Reply], None] = lambda command, reply: None
        #: Hears of each command before it is carried out.
        self.ahead: Callable[[Command], None] = lambda command: None

    def clear_log(self) -> None:
        self.log.clear()
        self.steps = 0

    def step(self, step: Step) -> Any:
        if isinstance(step, Command):
            self._before([step])
            command = self.at_now(step)
            self.ahead(command)
            return self._after(command, super().step(command))
        if isinstance(step, Pipeline):
            self._before(step.commands)
            return list(map(self._in_pipeline, step.commands))
        if isinstance(step, HandleNotes):
            self.depth += 1
            try:
                return super().step(step)
            finally:
                self.depth -= 1
        return super().step(step)

    def _in_pipeline(self, step: Command) -> Any:
        """Carry out one command of a pipeline: the model has to see what each of them finds."""
        command = self.at_now(step)
        self.ahead(command)
        (reply,) = super().step(Pipeline([command]))
        return self._after(command, reply)

    def _before(self, calls: Sequence[Command]) -> None:
        if self.meanwhile and any(command.script.name == self.meanwhile[0] for command in calls):
            (_, act), self.meanwhile = self.meanwhile, None
            act()
        if self.lives is not None:
            if self.lives == 0:
                raise Died
            self.lives -= 1

    def _after(self, command: Command, reply: Any) -> Any:
        self.steps += 1
        assert self.steps <= MOST, f"the operation does not end: {command.script.name} {reply!r}"
        assert not isinstance(reply, Exception), f"{command.script.name} of {command.queue}: {reply}"
        if reply[0] == b"ok":
            self.log.append((command, reply))
            self.listener(command, reply)
            if self.deaf:
                return [reply[0], b"", *reply[2:]]
        else:
            self.stale += reply[1] == b"stale"
            self.refused(command, reply)
        return reply

    def at_now(self, command: Command) -> Command:
        """The command with the clock of the test in the place of Redis' own, and without a random number."""
        if command.script.name == "change_policies":  # the model counts versions
            return command.with_word("next", int(command.word("expected")) + 1)
        command = Command(with_small_steps(command.script), command.queue, command.words, command.repeat)
        if "now" not in command.script.args:
            return command
        return command.with_word("now", self.clock.now)
