"""A check of rights on every server that carries out no command.

Redis checks rights when a command is queued in a transaction. So each command is queued, and the connection is closed
before anything is carried out. (`ACL DRYRUN` needs Redis 7.0 and an administrator.)
"""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import ResponseError

from rqttl.protocol.commands import Word
from rqttl.store.connections import Connections
from rqttl.store.pools import Held


def rehearse(connections: Connections, calls: Sequence[Sequence[Word]]) -> list[ResponseError | None]:
    """Return the refusal of each call, or `None`. Raises `ResponseError` if Redis makes no transaction."""
    refusals: list[ResponseError | None] = []
    # never `clean`, so the connection is closed at the end, which discards the transaction
    with Held(connections) as held:
        connection = held.connection
        connection.connect()
        connection.send_packed_command(connection.pack_command("MULTI"), check_health=False)
        connection.read_response()  # raises where MULTI itself is denied: what follows would be carried out
        connection.send_packed_command(connection.pack_commands(calls), check_health=False)
        for _ in calls:
            try:
                connection.read_response()
                refusals.append(None)
            except ResponseError as error:
                refusals.append(error)
    return refusals
