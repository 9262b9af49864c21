"""The steps that a flow asks its driver to perform, and the ways to run a command.

A flow is a generator: it yields a step and receives the answer to it, from a driver or from a test.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from rqttl.errors import ContractError, DataDamaged, MalformedMessage, QueueNotFound
from rqttl.events import Events
from rqttl.protocol import replies
from rqttl.protocol.commands import Command, Ok, QueueConfig, Refused, Reply, Word
from rqttl.protocol.contract import IncompleteReply
from rqttl.protocol.keys import WAKEUP, Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.types import Message
from rqttl.units import Ms

S = TypeVar("S")
T = TypeVar("T")


class GetConfig(NamedTuple):  # each call makes one, and a named tuple costs the least
    """Step: get the `QueueConfig` of a queue from the cache; with `fresh`, from Redis.

    `newest`, from a reply that has just come, goes into the cache and is the answer. A queue at the end of its lifetime
    is deleted by this step, except with `for_sweep`: the sweep deletes it, and tells so.
    """

    queue: str
    fresh: bool = False
    newest: QueueConfig | None = None
    for_sweep: bool = False


@dataclass(frozen=True, slots=True)
class GetConfigs:
    """Step: get the `QueueConfig` of several queues of one slot; those that the cache lacks in one round trip.

    `fresh`: all of them. The answer is a dictionary with the queues in this order; one that does not exist has `None`.
    """

    queues: Sequence[str]
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class GetPolicies:
    """Step: the policies of a namespace; the answer is `PolicySet`, from memory if that one has this version."""

    version: bytes | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Step: run several commands in one round trip. The answer is the list of replies.

    With `partial` the error of a node that is away takes the place of its replies while other nodes answer, and that of
    a damaged queue the place of its reply.
    """

    commands: Sequence[Command]
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """Step: run plain commands of Redis that change nothing, in one round trip. The answer is the list of replies.

    A call goes to the node of its key, one without a key to `node`, or to any that answers. All nodes get their calls
    before one of them is waited for. Redis carries out `then` after all `calls`; its replies come last.
    With `keep_errors` an error takes the place of a reply, with `partial` only `DataDamaged`; with both that of a node
    that is away while others answer takes the place of its replies. With `timed` the answer is the replies, and for
    each of `calls` the time of its node in ms (`None` for one that is away). With `fails_fast` they leave a node
    alone that does not answer at once.
    """

    calls: Sequence[tuple[Word, ...]]
    keep_errors: bool = False
    then: Sequence[tuple[Word, ...]] = ()
    timed: bool = False
    node: Hashable = None
    partial: bool = False
    fails_fast: bool = False


@dataclass(frozen=True, slots=True)
class Write(Read):
    """Step: run plain, repeatable commands of Redis in one round trip, all at one node. See `Read`."""


@dataclass(frozen=True, slots=True)
class ReadEachNode:
    """Step: run plain commands of Redis that change nothing, at every node. The answer is the replies of each node.

    With `keep_errors` or `partial` an error takes the place of a reply, as in `Read`.
    """

    calls: Sequence[tuple[Word, ...]]
    keep_errors: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Rehearse:
    """Step: plain commands whose rights Redis checks and that it does not carry out.

    The answer has the refusal of each command, or `None`. The step fails where Redis cannot tell.
    """

    calls: Sequence[Sequence[Word]]


@dataclass(frozen=True, slots=True)
class Register:
    """Step: add a queue to the registry. The answer is 1 if it was missing."""

    queue: str


@dataclass(frozen=True, slots=True)
class Unregister:
    """Step: remove a deleted queue from the registry, and its binding to `<topic>` if it was `<topic>/<name>`."""

    queue: str
    stays_bound: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    """Step: send messages to a topic; see `topics.publish`. The answer has the receipt or the refusal of each."""

    config: QueueConfig
    messages: Sequence[Message | object]
    window: int = 0


@dataclass(frozen=True, slots=True)
class HandleNotes:
    """Step: carry out the notes of a script about other queues; see `queues.follow`."""

    notes: Sequence[bytes]


#: The answer to `WaitForWakeup` after an interrupt: the flow must not wait again.
ENDED = b"ended"
#: The same if nobody waits for the messages any more: the flow takes no message.
ABANDONED = b"abandoned"


#: The ms by which Redis may end a wait late.
LATENESS = 120


@dataclass(frozen=True, slots=True)
class WaitForWakeup:
    """Step: wait for an element of the wake-up list of one of several queues. The answer is the queue and the element.

    It is a list of such pairs if the queues are in several slots of a cluster; then calls to Redis may stay pending
    between the waits of one caller: these are its `slot_waits`. It is `None` when the time is over, and `ENDED` after
    `interrupt`. A ticket has to be shown with the next receive of its queue. The whole wait ends in `left` ms. One step
    blocks for `longest` ms at most, and not beyond the next due work in `due` ms: then the flow looks at the queue and
    waits again. Redis ends a wait up to 0.1 s late, so this process waits for the end of an `exact` one.
    """

    queues: Sequence[str]
    longest: int
    left: int
    due: int | None = None
    interrupt: Interrupt | None = field(default=None, compare=False)
    exact: bool = False
    slot_waits: Any = field(default=None, compare=False)

    @property
    def in_redis(self) -> int:
        """The ms to block in Redis."""
        return max(0, self.ms - LATENESS) if self.exact else self.ms

    @property
    def ms(self) -> int:
        """The ms to block."""
        return min(self.longest, self.left, self.longest if self.due is None else self.due)

    def keys(self, keyspace: Keyspace) -> dict[str, str]:
        """Return the queues by their wake-up lists."""
        return {keyspace.key(queue, WAKEUP): queue for queue in self.queues}


@dataclass(frozen=True, slots=True)
class Now:
    """Step: read a clock of this process that never goes back. The answer is a time in ms."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Step: let `ms` pass."""

    ms: int


Step = (
    Command
    | GetConfig
    | GetConfigs
    | GetPolicies
    | Pipeline
    | Read
    | ReadEachNode
    | Rehearse
    | Register
    | Unregister
    | Publish
    | HandleNotes
    | WaitForWakeup
    | Now
    | Sleep
)
Flow = Generator[Step, Any, T]


class Recent(dict[str, T]):
    """Values by name: those remembered last, `limit` at most. Safe to share between threads.

    A full memory forgets its older half, so it is as fast as a dictionary.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def put(self, name: str, value: T) -> None:
        """Remember a value, as the youngest one."""
        self.pop(name, None)
        if len(self) >= self._limit:
            for old in list(islice(self, self._limit // 2)):
                self.pop(old, None)
        self[name] = value

    def make_room(self, limit: int) -> None:
        """Raise the limit to `limit`. It never falls."""
        self._limit = max(self._limit, limit)


class Sender(Protocol):
    """What a call that stores messages needs of a driver, of either kind."""

    events: Events
    #: The options of the queues that were used last.
    configs: Recent[QueueConfig]


class Driver(Sender, Protocol):
    """Performs flows for queues and consumers, for one namespace."""

    keyspace: Keyspace
    #: The interrupt that ends each wait outside of Redis when the driver is closed.
    closed: Interrupt

    @property
    def timing(self) -> Timing:
        """The clock of this driver, and the way in which time passes."""

    def perform(self, flow: Flow[T]) -> T:
        """Carry out a flow: perform each step, and send its answer or throw its error back into the flow."""

    def step(self, step: Step) -> Any:
        """Perform one step of a flow. Returns its answer."""

    def failing_fast(self) -> Driver:
        """The same driver for calls that leave a node of several alone that does not answer at once."""

    def node_of(self, queue: str) -> Hashable:
        """The node that has a queue. Each node has a clock of its own, and may be away while others answer."""

    def check_open(self) -> None:
        """Raise `BrokerClosed` if the driver is closed."""


def drive(flow: Generator[S, Any, T] | Coroutine[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Carry out a flow. `perform` performs one step; its answer or its error goes back into the flow."""
    try:
        step = flow.send(None)
        while True:
            try:
                answer = perform(step)
            except Exception as error:  # noqa: BLE001  # the flow decides about it
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


#: The refusal of a queue that still exists after the end of its lifetime.
EXPIRED = frozenset(("queue_expired",))
#: Refusals of a queue that does not exist, or is at its end.
NOT_THERE = frozenset(("not_found", "queue_expired"))
#: Refusals after which a client reads the options of the queue again, and repeats the call with them.
OUTDATED = frozenset(("stale", "not_found", "queue_expired"))


def dispatch(command: Command, answered: Container[str] = (), reply: Reply | None = None) -> Flow[Ok | Refused]:
    """Run a command to its end. This is the only place that knows the protocol between scripts and flows.

    After `ok` it handles the notes and returns the values. After `retry` it handles the notes and runs the command
    again. Any other refusal is returned if its code is in `answered`, else it raises an error. `reply` is the reply to
    a first run.
    """
    while True:
        if reply is None:
            reply = yield command
        answer = answer_of(command, reply)
        if type(answer) is not Refused:
            if answer.notes:
                yield HandleNotes(answer.notes)
            return answer
        if answer.code in answered:
            return answer
        if answer.code == "not_found":
            raise QueueNotFound(command.queue)
        if answer.code == "malformed":
            raise MalformedMessage(command.queue, int(answer.details[0]))
        if answer.code != "retry":
            raise ContractError(f"script {command.script.name}: unexpected refusal {answer.code!r}")
        if answer.details:
            yield HandleNotes(answer.details)
        reply = None


def answer_of(command: Command, reply: Reply) -> Ok | Refused:
    """The answer in a reply. Most replies have no notes and are no refusal: these need no `dispatch`."""
    try:
        return command.script.read(reply)
    except IncompleteReply:
        raise DataDamaged(command.queue, "a field of its record is missing or not a number") from None


def pipeline(calls: Sequence[Command], answered: Container[str]) -> Flow[list[Ok | Refused]]:
    """Run commands in one round trip, each to its end as `dispatch` does. Returns their answers in order."""
    replies: list[Reply] = (yield Pipeline(calls)) if calls else []
    answers: list[Ok | Refused] = []
    for command, reply in zip(calls, replies, strict=True):
        answers.append((yield from dispatch(command, answered, reply)))
    return answers


def partly(calls: Sequence[Command], answered: Container[str]) -> Flow[list[Ok | Refused | Exception]]:
    """The same for several nodes: the error of one that is away, or of a damaged queue, takes the place of answers."""
    replies: list[Any] = (yield Pipeline(calls, partial=True)) if calls else []
    answers: list[Ok | Refused | Exception] = []
    for command, reply in zip(calls, replies, strict=True):
        try:
            answers.append(reply if isinstance(reply, Exception) else (yield from dispatch(command, answered, reply)))
        except DataDamaged as error:
            answers.append(error)
    return answers


def execute(read: Callable[[Any], T], *words: Word) -> Flow[T]:
    """Run one plain, repeatable command. `read` reads its reply, and raises for a reply of another shape."""
    (reply,) = yield Write([words])
    return replies.shaped(replies.command_name(words), read, reply)


def run(command: Command) -> Flow[Ok]:
    """Run a command that does not depend on the options of the queue."""
    return cast("Flow[Ok]", dispatch(command))  # no refusal is answered


def existing(queue: str, command: Command) -> Flow[Ok]:
    """Run a command that does not depend on options. A queue at the end of its lifetime refuses it."""
    while True:
        answer = yield from dispatch(command, EXPIRED)
        if type(answer) is not Refused:
            return answer
        yield GetConfig(queue, fresh=True)  # this step deletes the queue, or shows that it lives on


def with_config(
    queue: str, build: Callable[[QueueConfig], Command], config: QueueConfig | None = None, reply: Reply | None = None
) -> Flow[Ok]:
    """Run a command with the options of the queue. Repeat it with newer options while it is refused as outdated.

    `reply` is the reply to a first run with the options `config`. Redis may have carried out a call whose reply was
    lost, and refuse the repeated one as outdated: then the calls after it have the mark of a replay, too.
    """
    if config is None:
        config = yield GetConfig(queue)
    repeated = False
    while True:
        command = build(config)
        if repeated:
            command = command.as_replay()
        if reply is None:
            reply = yield command
        answer = answer_of(command, reply)
        if type(answer) is not Refused and not answer.notes:
            return answer
        answer = yield from dispatch(command, OUTDATED, reply)
        if type(answer) is not Refused:
            return answer
        reply = None
        repeated = repeated or answer.repeated
        # `not_found` may be outdated, too: the step raises `QueueNotFound` if the queue does not exist now
        config = yield GetConfig(queue, fresh=True)


def server_time() -> Flow[Ms]:
    """The time by the clock of Redis."""
    return Ms((yield from execute(replies.milliseconds, "TIME")))
