"""`afterCommit=purge`: messages that committed batches have read leave their queues.

Spark hands in the end of the last committed batch as the start of the next one, also after a restart. So the messages
of a queue between the start of the query and this mark were read, and their batches are in the sink. The removal is a
decision about messages that were handled, like an ack: nobody counts it as a loss. A message that a consumer holds, or
that is delayed, stays; once it is ready again, a later trigger removes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rqttl import Broker
from rqttl.doctor import rights
from rqttl.flows.steps import NOT_THERE, Flow, Read, pipeline
from rqttl.protocol import commands, roles, scripts
from rqttl.protocol.commands import Command, Ok, Refused, Word
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import RedisDriver, driver_of
from spark_connectors.errors import NoPermission, RefusedByRedis
from spark_connectors.options.options import Options
from spark_connectors.ranges import FIRST
from spark_connectors.read.positions import QueuePosition
from spark_connectors.redis.broker import open_broker, with_retries

#: Calls of one round trip. Each removes at most 250 messages.
_CALLS_AT_ONCE = 200
#: Calls for one queue in a round trip.
_CALLS_A_QUEUE = 16


def _ask(key: str, calls: Sequence[tuple[Word, ...]]) -> Flow[list[str]]:
    """Ask for rights, after a read: until the first one, the nodes of a cluster are not known."""
    yield Read([("HMGET", key, "version")], keep_errors=True)
    return (yield from rights.ask(calls))


class CommittedPurge:
    """Removes what committed batches have read, if the option says so. Connects at its first work."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._enabled = options.text("afterCommit") == "purge"
        self._keys = Keyspace(options.text("namespace"))
        self._open_broker: Broker | None = None
        self._may_write = False
        #: The marks up to which nothing is left to remove.
        self._done: dict[str, QueuePosition] = {}

    def close(self) -> None:
        """Close the connections. The next work opens them again."""
        if self._open_broker is not None:
            self._open_broker.close()
            self._open_broker = None

    def check_rights(self, queue: str) -> None:
        """Raise `NoPermission` if this user may not remove messages. The check carries nothing out."""
        if not self._enabled or self._may_write:
            return
        script = scripts.load("discard")
        inner = roles.inner(script)
        keys = [self._keys.key(queue, part) for part in script.keys]
        calls: list[tuple[Word, ...]] = [("EVALSHA", script.sha, len(keys), *keys), ("SCRIPT", "LOAD", "return 1")]
        calls += [rights.words(self._keys, queue, command) for command in inner]
        names = ["evalsha", "script|load", *[command.lower() for command in inner]]
        try:
            refusals = with_retries(self._options, lambda: self._driver().perform(_ask(keys[0], calls)))
        except NoPermission:
            # the text of this error is about readers
            raise self._no_permission("multi") from None
        except RefusedByRedis as error:
            raise self._no_permission("multi", str(error).removeprefix(f"[{error.code}] ")) from None
        denied = [name for name, refusal in zip(names, refusals, strict=True) if refusal]
        if denied:
            raise self._no_permission(", ".join(denied), next(filter(None, refusals)))
        self._may_write = True

    def remove(self, positions: Mapping[str, QueuePosition], since: Mapping[str, str]) -> None:
        """Remove the ready messages up to these committed positions. Messages up to `since` were never read."""
        if not self._enabled:
            return
        left = {
            name: position
            for name, position in positions.items()
            if position.after > since.get(name, FIRST) and self._done.get(name) != position
        }
        for name in sorted(left)[:1]:
            self.check_rights(name)
        calls_of = dict.fromkeys(left, 1)
        while left:
            names = sorted(left)[: _CALLS_AT_ONCE // max(calls_of[name] for name in left)]
            calls: list[Command] = []
            for name in names:
                made, read_upto = left[name].created_at, left[name].after
                calls += [commands.discard(self._keys, name, made, since.get(name, FIRST), read_upto)] * calls_of[name]
            for call, reply in zip(calls, self._perform(calls), strict=True):
                if type(reply) is Refused or not reply.more:
                    finished = left.pop(call.queue, None)
                    if finished and type(reply) is not Refused and not reply.away:
                        self._done[call.queue] = finished
            calls_of.update({name: _CALLS_A_QUEUE for name in names if name in left})

    def _perform(self, calls: Sequence[Command]) -> Sequence[Ok | Refused]:
        return with_retries(self._options, lambda: self._driver().perform(pipeline(calls, NOT_THERE)))

    def _no_permission(self, names: str, cause: str = "") -> NoPermission:
        user, reason = self._options.optional_text("username") or "default", cause and f": {cause}"
        return NoPermission(
            f"afterCommit: purge removes messages, and user {user!r} may not run {names}{reason}. It needs the rights "
            "of a program that uses rqttl; `rqttl doctor`, run as this user, names the missing rights"
        )

    def _driver(self) -> RedisDriver:
        if self._open_broker is None:
            self._open_broker = open_broker(self._options)
        return driver_of(self._open_broker)
