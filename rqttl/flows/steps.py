"""What a flow can ask its shell to do, and the ways in which a command is run.

A flow is a generator: it yields what is to be done and gets the result sent back. No I/O here. A shell performs the
steps; every flow can be tested by sending answers into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rqttl.errors import ContractError, MalformedMessage, QueueNotFound
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Known, Reply, Word
from rqttl.runtime.interrupt import Interrupt
from rqttl.types import SweepResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """Step: what is known of a queue, from the cache unless `fresh`; the answer is `Known`.

    `newest` goes into the cache: a reply has just brought it.
    """

    queue: str
    fresh: bool = False
    newest: Known | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """Step: several commands in one round trip; the answer is the list of replies.

    `tolerant`: the error of a command that met a damaged queue takes the place of its reply.
    """

    commands: Sequence[Command]
    tolerant: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """Step: commands of Redis that change nothing, in one round trip; the answer is the list of replies.

    The error of a command that met a key of another type takes the place of its reply.
    """

    calls: Sequence[tuple[Word, ...]]


@dataclass(frozen=True, slots=True)
class Enter:
    """Step: enter a queue into the registry, or take it out."""

    queue: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """Step: do what a script has asked for other queues (`follow`). Never fails: its call has succeeded already."""

    notes: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Listen:
    """Step: wait for the bell of a queue, at most `ms`; the answer is what it gave, or `None`.

    The whole wait would go on for `left` ms, and something becomes due in `due`: a shell need not wait in real time.
    `interrupt` ends it at once.
    """

    queue: str
    ms: int
    left: int = field(default=0, compare=False)
    due: int | None = field(default=None, compare=False)
    interrupt: Interrupt | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Clock:
    """Step: the answer is a clock of this process that never goes back, in ms."""


Step = Command | Look | Together | Read | Enter | Follow | Listen | Clock
Flow = Generator[Step, Any, T]

#: How many bounded steps a sweep before a statistic may take.
SWEEPS = 50


def refused(command: Command, reply: Reply) -> Exception:
    """The error for a refusal that the flow has no better answer to."""
    code = reply[1].decode()
    if code == "not_found":
        return QueueNotFound(command.queue)
    if code == "malformed":
        return MalformedMessage(command.queue, int(reply[2]))
    return ContractError(f"script {command.script.name}: unexpected refusal {code!r}")


def plain(command: Command) -> Flow[Reply]:
    """Run a command that no option can make stale."""
    reply: Reply = yield command
    if reply[0] == b"ok":
        return reply
    raise refused(command, reply)


def living(queue: str, command: Command) -> Flow[Reply]:
    """Run a command that no option can make stale, but that a queue whose lifetime is over refuses."""
    while True:
        reply: Reply = yield command
        if reply[0] == b"ok":
            return reply
        if reply[1] != b"queue_expired":
            raise refused(command, reply)
        yield Look(queue, fresh=True)  # it is gone then, or lives on after all


def fenced(queue: str, build: Callable[[Known], Command], known: Known | None = None) -> Flow[Reply]:
    """Run a command with what is known of the queue; ask anew whenever the script says that this is outdated."""
    if known is None:
        known = yield Look(queue)
    while True:
        command = build(known)
        reply: Reply = yield command
        if reply[0] == b"ok":
            if reply[1]:
                yield Follow(reply[1])
            return reply
        if reply[1] in (b"stale", b"not_found", b"queue_expired"):
            # a queue that was deleted and declared again is `not_found` for nobody: Look raises if it is gone
            known = yield Look(queue, fresh=True)
        elif reply[1] != b"retry":
            raise refused(command, reply)


def follow(notes: Sequence[bytes]) -> Flow[None]:
    """Do what a script asks for other queues: enter those it created, sweep those whose limit must act now."""
    for what, name in zip(notes[::2], notes[1::2], strict=True):
        if what == b"created":
            yield Enter(name.decode())
        elif what == b"deleted":
            yield Enter(name.decode(), gone=True)
        elif what == b"sweep":
            yield from sweep(name.decode(), rounds=SWEEPS)


def sweep(queue: str, *, rounds: int | None = None, now: Word = "") -> Flow[list[SweepResult]]:
    """Sweep in bounded steps until nothing is due, or `rounds` times."""
    done: list[SweepResult] = []
    while rounds is None or len(done) < rounds:
        reply = yield from fenced(queue, lambda known: commands.sweep(known, now=now))
        done.append(_swept(reply))
        if not done[-1].more:
            break
    return done


def _swept(reply: Reply) -> SweepResult:
    at, due, more, reclaimed, promoted, expired, trimmed, compacted, retired = reply[2:]
    return SweepResult(
        at, int(due) if due else None, bool(more), reclaimed, promoted, expired, trimmed, compacted,
        None if retired == b"" else retired,
    )  # fmt: skip


def retire(known: Known, *, now: Word = "") -> Flow[None]:
    """Delete a queue whose lifetime is over, in bounded steps; or find that it lives on."""
    while True:
        reply: Reply = yield commands.sweep(known, now=now)
        if reply[0] != b"ok":
            return  # somebody else was faster
        if reply[1]:
            yield Follow(reply[1])
        if not _swept(reply).more:
            return
