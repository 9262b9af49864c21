"""Notes of scripts: the work that a script asks its client to do for other queues."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rqttl.errors import QueueNotFound, ScriptsForgotten
from rqttl.flows import policies
from rqttl.flows.steps import Flow, Register, Unregister
from rqttl.flows.sweeping import SWEEPS, sweep
from rqttl.protocol.keys import Keyspace

logger = logging.getLogger("rqttl")


def follow(keyspace: Keyspace, notes: Sequence[bytes]) -> Flow[None]:
    """Do the work of each note.

    A created queue is registered and gets the options of its policies. A deleted queue is unregistered.
    A queue with too many messages is swept. The call of the script has succeeded and must not seem to have failed. So
    errors of Redis are logged, and reapers do the work.
    """
    for kind, name in zip(notes[::2], notes[1::2], strict=True):
        queue = name.decode()
        try:
            if kind == b"created":
                yield Register(queue)
                yield from policies.reconcile(keyspace, [queue])
            elif kind == b"deleted":
                yield Unregister(queue)
            elif kind == b"sweep":
                yield from sweep(queue, rounds=SWEEPS)
        except QueueNotFound:
            continue  # deleted meanwhile, so there is nothing left to do
        except Exception as error:
            from redis.exceptions import RedisError  # slow to load: a program that only prints help has no use for it

            if not isinstance(error, (RedisError, ScriptsForgotten)):
                raise
            logger.warning("queue %s: %s was not followed up, a reaper will: %s", queue, kind.decode(), error)
