"""Flows that move dead letters to queues in other slots of a cluster. See `lua/lib/dying/outbox.lua`."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from rqttl.errors import DataDamaged, QueueNotFound
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, Read, Sleep, dispatch, run
from rqttl.options import QueueOptions
from rqttl.protocol import commands, replies
from rqttl.protocol.commands import BATCH, Ok, QueueConfig, Refused
from rqttl.protocol.keys import OUTGOING, Keyspace

#: The most pages that one call moves. A sweep of the queue goes on with the next ones.
PAGES = 4
#: The ms for which the first mover has a page, as in `lua/lib/dying/outbox.lua`.
HOLD = 2_000
#: The most ms between two looks at a page that another mover has.
PAUSE = 50
#: The result of a redriven dead letter: it moved, its queue is gone, or a limit of the queue leaves no room.
MOVED, GONE = ".", "-"
LIMITS = {"n": "max_length", "b": "max_length_bytes"}
_LINE = re.compile(rb"\d+ \d+ \S+ \S+ \d+ \d+")


def resume(keyspace: Keyspace, queue: str, target: str) -> Flow[list[bytes]]:
    """Move the dead letters on their way from a queue to a target. Without one, return a note for each target."""
    kind, _, origin = target.rpartition(">")
    if kind:
        yield from redrive(keyspace, queue, origin)
    elif target:
        yield from hand_over(keyspace, queue, target)
    else:
        (waiting,) = yield from outgoing(keyspace, [queue])
        return [f"{queue}>{name}".encode() for name, letters in waiting.items() if letters]
    return []


def hand_over(keyspace: Keyspace, source: str, target: str) -> Flow[None]:
    """Move the dead letters that wait in the outbox of a queue for one target, unless another mover has them.

    After an error they wait in the outbox, and the next mover sends the same page again.
    """
    token = verdict = ""
    for left in range(PAGES, -1, -1):
        fresh = secrets.token_hex(8)
        relay = commands.relay(keyspace, source, target, token=token, verdict=verdict, fresh=fresh, more=left > 0)
        page = yield from run(relay)
        if not page.letters:
            return
        token = page.token
        accept = commands.accept(keyspace, target, source, page.letters, number=page.number, token=token)
        try:
            answer = yield from dispatch(accept, ("behind",))
        except Exception as error:
            from redis.exceptions import NoPermissionError  # slow to load: help has no use for it

            if isinstance(error, NoPermissionError):  # another mover may have the rights
                yield from run(commands.relay(keyspace, source, target, token=token, verdict="forbidden"))
            raise
        if type(answer) is Refused:
            verdict = answer.details[0]
        elif commands.why_unconfirmed(answer.notes) and (yield GetConfig(target)).options.durability == "replica":
            return  # the outbox keeps the page, and the next mover asks again
        else:
            verdict = "accepted"


def redrive(keyspace: Keyspace, source: str, origin: str, sequences: Sequence[str] = ()) -> Flow[dict[str, str]]:
    """Move dead letters to a queue in another slot. Returns the result of each: `MOVED`, `GONE` or one of `LIMITS`.

    One that is not there, or not ready, has no result. Another call may have left some on the way: they go
    first, also without `sequences`.
    """
    results: dict[str, str] = {}
    left = list(sequences)
    while True:
        out = commands.redrive_out(keyspace, source, origin, left[:BATCH], fresh=secrets.token_hex(8))
        page = yield from run(out)
        if page.letters:
            results |= yield from _arrive(keyspace, source, origin, page)
        if page.last:
            del left[: left.index(page.last.decode()) + 1]
        elif page.held and left:
            yield Sleep(min(page.held, PAUSE))
        elif not page.letters:
            return results
        if not left:
            return results


def _arrive(keyspace: Keyspace, source: str, origin: str, page: Ok) -> Flow[dict[str, str]]:
    """Let a page arrive in the queue `origin`. Dead letters without room, or without that queue, go back."""
    token, fresh = page.token, False
    while page.token == token:
        try:
            config: QueueConfig = yield GetConfig(origin, fresh=fresh)
        except QueueNotFound:  # also a queue that is gone has to know what became of the page: another mover may ask
            config = QueueConfig(keyspace, origin, b"", QueueOptions(origin, {}), QueueOptions(origin, {}))
        arrival = commands.redrive_in(config, source, page.letters, number=page.number, token=token)
        answer = yield from dispatch(arrival, {*OUTDATED, "behind"})
        if type(answer) is not Refused:
            sequences = [sequence.decode() for sequence in page.letters[::3]]
            found = dict(zip(sequences, answer.results.decode(), strict=True))
            refused = [sequence for sequence, result in found.items() if result != MOVED]
            yield from run(commands.redrive_out(keyspace, source, origin, refused, token=token, verdict="accepted"))
            return found
        fresh = answer.code != "behind"
        if not fresh:
            verdict = answer.details[0]
            page = yield from run(commands.redrive_out(keyspace, source, origin, token=token, verdict=verdict))
    return {}  # another mover has ended the page long ago


def outgoing(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[dict[str, int]]]:
    """The number of dead letters on the way from each queue, by target; that of a redrive is `redrive>` and the target.

    A damaged line counts as one: who moves it learns what is wrong.
    """
    answers = (yield Read([("HGETALL", keyspace.key(queue, OUTGOING)) for queue in queues])) if queues else []
    return [{field: int(words[0]) if words else 1 for field, words in lines(answer).items()} for answer in answers]


def lines(answer: Any) -> dict[str, list[bytes] | None]:
    """The words of each line of a part `outgoing`, by target; of a redrive by `redrive>` and the target.

    Those of a damaged line are `None`.
    """
    found = replies.shaped("HGETALL", replies.pairs, answer).items()
    return {
        field.decode("utf-8", "backslashreplace"): line.split() if _LINE.fullmatch(line) else None
        for field, line in found
    }


def by_target(queue: str, answer: Any) -> dict[str, int]:
    """The number of dead letters on their way to each target, from a part `outgoing`. Raises `DataDamaged`."""
    counts: dict[str, int] = {}
    for field, words in lines(answer).items():
        target = field.rpartition(">")[2]
        if words is None:
            raise DataDamaged(queue, f"the line of {field} in its part {OUTGOING} has a wrong form")
        if letters := int(words[0]):
            counts[target] = counts.get(target, 0) + letters
    return counts
