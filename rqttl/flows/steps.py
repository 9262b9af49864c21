"""The steps that a flow asks its shell to perform, and the ways to run a command.

A flow is a generator: it yields what is to be done and gets the result sent back. No I/O here. A shell performs the
steps; every flow can be tested by sending answers into it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from rqttl.errors import ContractError, MalformedMessage, QueueNotFound
from rqttl.events import Events
from rqttl.protocol import commands, replies
from rqttl.protocol.commands import Command, Ok, QueueConfig, Refused, Reply, Word
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.timing import Timing
from rqttl.types import SweepResult

T = TypeVar("T")


class GetConfig(NamedTuple):
    """Step: what is known of a queue, from the cache unless `fresh`; the answer is `QueueConfig`.

    `newest` goes into the cache: a reply has just brought it.
    """

    queue: str
    fresh: bool = False
    newest: QueueConfig | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Step: several commands in one round trip; the answer is the list of replies.

    `tolerant`: the error of a command that met a damaged queue takes the place of its reply.
    """

    commands: Sequence[Command]
    tolerant: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """Step: plain commands of Redis that change nothing, in one round trip; the answer is the list of replies.

    The error of a command that met a key of another type takes the place of its reply; with `keep_errors` that of any.
    """

    calls: Sequence[tuple[Word, ...]]
    keep_errors: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Step: plain commands of Redis that may be repeated, in one round trip; see `Read`."""

    calls: Sequence[tuple[Word, ...]]
    keep_errors: bool = False


@dataclass(frozen=True, slots=True)
class Rehearse:
    """Step: plain commands whose rights Redis checks and that it does not carry out.

    The answer has the refusal of each command, or `None`. The step fails where Redis cannot tell.
    """

    calls: Sequence[Sequence[Word]]


@dataclass(frozen=True, slots=True)
class Register:
    """Step: enter a queue into the registry; the answer is 1 if it was missing."""

    queue: str


@dataclass(frozen=True, slots=True)
class Unregister:
    """Step: take a queue out of the registry."""

    queue: str


@dataclass(frozen=True, slots=True)
class HandleNotes:
    """Step: do what a script has asked for other queues; see `notes.follow`."""

    notes: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class WaitForWakeup:
    """Step: wait for an element of the wake-up list of a queue; the answer is that element, or `None`.

    The wait ends in `left` ms. It may end before, and be begun anew after a look at the queue: in `longest` ms at the
    latest, and when something becomes due, in `due` ms. `interrupt` ends it at once.
    """

    queue: str
    longest: int
    left: int
    due: int | None = None
    interrupt: Interrupt | None = field(default=None, compare=False)

    @property
    def ms(self) -> int:
        """The ms to block."""
        return min(self.longest, self.left, self.longest if self.due is None else self.due)


@dataclass(frozen=True, slots=True)
class Now:
    """Step: the answer is a clock of this process that never goes back, in ms."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Step: let `ms` pass."""

    ms: int


Step = (
    Command | GetConfig | Pipeline | Read | Write | Rehearse | Register | Unregister | HandleNotes | WaitForWakeup | Now
    | Sleep
)  # fmt: skip
Flow = Generator[Step, Any, T]


class Driver(Protocol):
    """Performs flows: what queues and consumers are given. One driver stands for one namespace of one server."""

    @property
    def keyspace(self) -> Keyspace:
        """The names of all keys."""

    @property
    def events(self) -> Events:
        """The hooks that hear of calls, waits and renewals."""

    @property
    def timing(self) -> Timing:
        """The clock of this driver, and the way in which time passes."""

    @property
    def closed(self) -> Interrupt:
        """Ends each wait outside of Redis when the driver is closed."""

    def perform(self, flow: Flow[T]) -> T:
        """Carry out a flow: perform each step, and send its answer or throw its error back into the flow."""

    def step(self, step: Step) -> Any:
        """Perform one step of a flow. Returns its answer."""

    def check_open(self) -> None:
        """Raise `BrokerClosed` if the driver is closed."""


#: How many bounded steps a sweep before a statistic may take.
SWEEPS = 50


#: The refusal of a queue whose lifetime is over, and that nobody has deleted yet.
EXPIRED = frozenset(("queue_expired",))
#: Refusals of a queue that holds nothing any more.
NOT_THERE = frozenset(("not_found", "queue_expired"))
#: Refusals after which a client reads the options of the queue again, and repeats the call with them.
OUTDATED = frozenset(("stale", "not_found", "queue_expired"))


def dispatch(command: Command, answered: Container[str] = (), reply: Reply | None = None) -> Flow[Ok | Refused]:
    """Run a command to its end. This is the only place that knows the protocol between scripts and flows.

    `ok` returns the values, after the notes were handled. `retry` runs the command again. Any other refusal is returned
    if its code is among `answered`, and raises else. `reply` is the reply to a first run, which a pipeline made.
    """
    while True:
        if reply is None:
            reply = yield command
        answer = command.script.read(reply)
        if type(answer) is not Refused:
            if answer.notes:
                yield HandleNotes(answer.notes)
            return answer
        if answer.code in answered:
            return answer
        if answer.code != "retry":
            raise _error(command, answer)
        reply = None


def pipeline(calls: Sequence[Command], answered: Container[str]) -> Flow[list[Ok | Refused]]:
    """Run commands in one round trip, each to its end as `dispatch` does. Returns their answers in order."""
    replies: list[Reply] = yield Pipeline(calls)
    answers: list[Ok | Refused] = []
    for command, reply in zip(calls, replies, strict=True):
        answers.append((yield from dispatch(command, answered, reply)))
    return answers


def execute(read: Callable[[Any], T], *words: Word) -> Flow[T]:
    """Run one plain command that may be repeated. `read` reads its reply, and raises for one of another shape."""
    (reply,) = yield Write([words])
    if isinstance(reply, Exception):
        raise reply
    return replies.shaped(replies.command_name(words), read, reply)


def _error(command: Command, refused: Refused) -> Exception:
    if refused.code == "not_found":
        return QueueNotFound(command.queue)
    if refused.code == "malformed":
        return MalformedMessage(command.queue, int(refused.details[0]))
    return ContractError(f"script {command.script.name}: unexpected refusal {refused.code!r}")


def run(command: Command) -> Flow[Ok]:
    """Run a command that no option can make stale."""
    return cast("Flow[Ok]", dispatch(command))  # no refusal is answered


def existing(queue: str, command: Command) -> Flow[Ok]:
    """Run a command that no option can make stale, but that a queue whose lifetime is over refuses."""
    while True:
        answer = yield from dispatch(command, EXPIRED)
        if type(answer) is not Refused:
            return answer
        yield GetConfig(queue, fresh=True)  # deletes the queue, or finds that it lives on


def with_config(queue: str, build: Callable[[QueueConfig], Command], config: QueueConfig | None = None) -> Flow[Ok]:
    """Run a command with the options of the queue. Repeat it with those in force while they are other ones."""
    if config is None:
        config = yield GetConfig(queue)
    while True:
        answer = yield from dispatch(build(config), OUTDATED)
        if type(answer) is not Refused:
            return answer
        # a queue that was deleted and declared again is `not_found` for nobody: Look raises if it does not exist
        config = yield GetConfig(queue, fresh=True)


def sweep(queue: str, *, rounds: int | None = None, now: Word = "") -> Flow[list[SweepResult]]:
    """Sweep in bounded steps until nothing is due, or `rounds` times."""
    done: list[SweepResult] = []
    while rounds is None or len(done) < rounds:
        values = yield from with_config(queue, lambda config: commands.sweep(config, now=now))
        done.append(_swept(values))
        if not done[-1].more:
            break
    return done


def _swept(values: Ok) -> SweepResult:
    return SweepResult(
        values.now, int(values.due) if values.due else None, bool(values.more), values.reclaimed, values.promoted,
        values.expired, values.trimmed, values.compacted, None if values.retired == b"" else values.retired,
    )  # fmt: skip


def retire(config: QueueConfig, *, now: Word = "") -> Flow[None]:
    """Delete a queue whose lifetime is over, in bounded steps; or find that it lives on."""
    while True:
        answer = yield from dispatch(commands.sweep(config, now=now), OUTDATED)
        if type(answer) is Refused or not answer.more:  # after a refusal: another client was faster
            return
