"""Flows that move dead letters to queues in other slots of a cluster. See `lua/lib/dying/outbox.lua`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from rqttl.flows.steps import Flow, Read, dispatch, run
from rqttl.protocol import commands, replies
from rqttl.protocol.contract import Refused
from rqttl.protocol.keys import OUTGOING, Keyspace

#: The most pages that one call moves. A sweep of the queue goes on with the next ones.
PAGES = 4


def move(keyspace: Keyspace, source: str, target: str) -> Flow[None]:
    """Move the letters that wait in the outbox of a queue for one target, unless another mover has them.

    After an error the letters wait in the outbox, and the next mover sends the same page again.
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
        answer = yield from dispatch(accept, ("behind",))
        verdict = answer.details[0] if type(answer) is Refused else "accepted"


def outgoing(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[dict[str, int]]]:
    """The number of letters on the way from each queue, by target."""
    answers = (yield Read([("HGETALL", keyspace.key(queue, OUTGOING)) for queue in queues])) if queues else []
    found = [replies.shaped("HGETALL", replies.pairs, answer) for answer in answers]
    return [{target.decode(): int(line.split()[0]) for target, line in lines.items()} for lines in found]
