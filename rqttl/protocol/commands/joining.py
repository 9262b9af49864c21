"""Enqueue calls of one queue that become one call, and the reply to each of them.

A batch of many messages takes Redis a fifth of the time of as many calls. The calls keep their order, and each one has
the effect and the reply that it would have alone: a batch meets limits, TTLs and windows message by message.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from rqttl.errors import ContractError
from rqttl.protocol.commands.messages import BATCH, BATCH_BYTES, Command
from rqttl.protocol.contract import Word


class Joined:
    """Calls that become one. `take` adds one more at the end, if it fits."""

    __slots__ = ("_batch", "_ends", "_most", "_step", "first", "size")

    def __init__(self, command: Command) -> None:
        #: The first call.
        self.first = command
        self._batch = list(command.words[len(command.head) :])
        self._step = 2 if command.word("form") in ("", "ids") else 1
        self._most = BATCH * self._step
        #: The number of words of the calls up to each one.
        self._ends = [0, len(self._batch)]
        #: The bytes of all envelopes and bodies.
        self.size = _size(self._batch)

    @staticmethod
    def can_begin(command: Command | None) -> bool:
        """Return True if other calls may join this one."""
        return command is not None and command.head != ()

    def take(self, command: Command) -> bool:
        """Add a call. Returns False if its queue, options or form are other ones, or if a call would carry too much."""
        first, head = self.first, command.head
        if (head is not first.head and head != first.head) or command.repeatable is not first.repeatable:
            return False
        batch = command.words[len(head) :]
        size, end = self.size + sum(map(len, batch)), self._ends[-1] + len(batch)  # type: ignore[arg-type]  # as in `_size`
        if end > self._most or size > BATCH_BYTES:
            return False
        self._batch += batch
        self._ends.append(end)
        self.size = size
        return True

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the one call."""
        return (*self.first.head, *self._batch)

    def replies(self, reply: Any) -> list[Any]:
        """Make the reply to each call of the reply to all. `None` stands for a call that was not carried out.

        The script refuses all messages because of a malformed one. Only its own call gets this refusal. Notes are
        handled once, so only the first call has them.
        """
        calls = [(begin // self._step, end // self._step) for begin, end in pairwise(self._ends)]
        if type(reply) is not list:
            return [reply] * len(calls)
        if reply[:2] == [b"refused", b"malformed"]:
            place = reply[2]
            return [[*reply[:2], place - begin] if begin < place <= end else None for begin, end in calls]
        if reply[0] != b"ok":
            return [reply] * len(calls)
        _, notes, results = reply
        if len(results) != calls[-1][1]:
            text = f"script enqueue: {len(results)} results for {calls[-1][1]} messages"
            return [ContractError(text) for _ in calls]
        return [[b"ok", b"" if begin else notes, results[begin:end]] for begin, end in calls]


def _size(batch: Iterable[Word]) -> int:
    return sum(map(len, batch))  # type: ignore[arg-type]  # envelopes and bodies are bytes
