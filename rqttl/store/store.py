"""Calls to Redis: scripts, plain commands, and the treatment of lost replies. All I/O of the core is here.

Scripts never use redis-py's own retries. Redis may have carried out a call whose reply was lost, and only the command
knows whether it may run again. No call goes through a client of redis-py: after an exception the client's pool would
keep a connection with an unread reply, and that reply would answer the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import BusyLoadingError, ConnectionError, NoScriptError, ResponseError, TimeoutError
from redis.retry import Retry

from rqttl.errors import InvalidInput, PoolExhausted
from rqttl.events import Events, Place, Timed
from rqttl.protocol.commands import Command, Reply, Word
from rqttl.protocol.contract import Repeated, pack_command
from rqttl.protocol.replies import command_name
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.blocking import Listener
from rqttl.store.connections import Connections, Held, open_pool
from rqttl.store.exchanges import Calls, Exchange, Exchanges, NotSent, alone, check, strictest, try_again, with_retries
from rqttl.store.outcomes import checked, reply_outcome, reply_outcomes, wait_outcome
from rqttl.store.urls import TIME_OUTS, pool_for
from rqttl.text import type_name


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


T = TypeVar("T")


def open_client(url: str) -> redis.Redis:
    """A client for a URL, with time-outs, without hidden retries. Raises `InvalidInput`, which never shows the URL."""
    return redis.Redis(
        connection_pool=pool_for(url, lambda url: open_pool(url, retry=Retry(NoBackoff(), 0), **TIME_OUTS))
    )


class Store:
    """Runs commands on one Redis server. Safe to share between threads."""

    def __init__(self, client: redis.Redis, events: Events) -> None:
        if not isinstance(client, redis.Redis):
            raise InvalidInput(f"client: expected a redis.Redis (or a URL for connect()), got {type_name(client)}")
        settings = client.connection_pool.connection_kwargs
        if settings.get("decode_responses"):
            raise InvalidInput("client: decode_responses=True is not supported, bodies are bytes")
        self.client = client
        self.connections = Connections(client.connection_pool)
        self._events = events
        self._exchanges = Exchanges(leave=self.connections.renew)
        #: Ends every `listen` from the moment at which it is asked.
        self.interrupted = Interrupt()
        self._listener = Listener(client, self._call, self.connections, self.interrupted)

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        self.connections.check_open()

    def run(self, command: Command) -> Reply:
        """Run a command. After a lost reply a repeatable command runs again; any other raises `OutcomeUnknown`."""
        if self._events.notify is None:  # as `_observed` decides; each call comes here
            return with_retries(command, self._send_one)
        place = command.script.name, command.queue
        return self._observed(
            [place], lambda: with_retries(command, self._send_one), lambda reply: [reply_outcome(reply)]
        )

    def run_together(self, commands: Sequence[Command], *, tolerant: bool = False) -> list[Any]:
        """Run commands in one round trip, in order. Returns their replies.

        After a lost reply all commands run again if all are repeatable, else none does. Redis carries out several
        commands that store messages as one transaction: all of them, with nothing in between, or none.

        `tolerant`: the error of a command on a damaged queue takes the place of its reply. Every other error is raised.
        """
        replies = self._observed(
            [(command.script.name, command.queue) for command in commands],
            lambda: with_retries(
                strictest(commands), lambda _: self._carry_out(self._exchanges.in_one_round_trip(commands))
            ),
            reply_outcomes,
        )
        replies = [
            self.run(command) if isinstance(reply, NoScriptError) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]
        return checked(replies, tolerant=tolerant)

    def execute(self, calls: Sequence[tuple[Any, ...]], *, keep_errors: bool = False) -> list[Any]:
        """Run plain, repeatable commands of Redis in one round trip, in order. Returns their replies.

        The error of a command on a key of another type takes the place of its reply; with `keep_errors` every error
        does. Any other error is raised.
        """
        send = self._send_all if keep_errors else self._send_judged
        places = [(command_name(call), None) for call in calls]
        sent = self._observed(places, lambda: try_again(lambda: send(calls)), reply_outcomes)
        return sent if keep_errors else checked(sent, tolerant=True)

    def listen(self, queue: str, key: str, ms: int, interrupt: Interrupt | None = None) -> bytes | PoolExhausted | None:
        """Wait for an element of a list on a connection of its own; see `Listener`. Returns the element."""
        reply = self._wait(queue, (key,), ms, interrupt)
        return reply[1] if isinstance(reply, tuple) else reply

    def listen_to_all(
        self, keys: Sequence[str], ms: int, interrupt: Interrupt | None = None
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        """Wait for an element of one of several lists; see `Listener`."""
        return self._wait(None, keys, ms, interrupt)

    def _wait(
        self, queue: str | None, keys: Sequence[str], ms: int, interrupt: Interrupt | None
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        listen = self._listener.listen
        return self._observed(
            [("BLPOP", queue)], lambda: listen(keys, ms, interrupt), lambda answer: [wait_outcome(answer)]
        )

    def interrupt(self) -> None:
        """End every `listen`, from now on. It takes no lock, so a signal handler may call it."""
        self.interrupted.ask()

    def close(self) -> None:
        """Close all free connections now, and each connection in use after its call."""
        self.connections.close()
        self.interrupt()
        self._listener.close()

    def _send_one(self, command: Command) -> Reply:
        reply: Reply | None = None
        try:
            with Held(self.connections) as held:
                try:
                    reply = self._call(held.connection, ("EVALSHA", command.script.sha, *command.words))
                except ResponseError:
                    held.clean = True
                    raise
                check(command, reply)
                held.clean = True
        except NoScriptError:
            pass  # the script is loaded outside of this handler: a later error has no part in this one
        if reply is None:
            reply = self._observed([("SCRIPT LOAD", None)], lambda: self._send_with_text(command), lambda _: ["ok"])
        return Repeated(reply) if reply[0] == b"refused" and command.is_replay else reply

    def _observed(self, places: Sequence[Place], call: Callable[[], T], outcomes: Callable[[T], Sequence[str]]) -> T:
        """Make a call, and tell listeners of events the commands in it."""
        notify = self._events.notify
        if notify is None:
            return call()
        with Timed(notify, places) as timed:
            answer = call()
            timed.outcomes = outcomes(answer)
        return answer

    def _send_with_text(self, command: Command) -> Reply:
        return self._carry_out(self._exchanges.with_text(command))

    def _send_all(self, calls: Calls) -> list[Any]:
        """Send calls together, and read their replies; errors of Redis are among them."""
        return self._carry_out(alone(calls))

    def _send_judged(self, calls: Calls) -> list[Any]:
        return self._carry_out(self._exchanges.plain(calls))

    def _carry_out(self, exchange: Exchange[T]) -> T:
        """Make the round trips of an exchange. A `ContractError` that it raises closes the connection."""
        try:
            calls = next(exchange)
            while True:
                with Held(self.connections) as held:
                    try:
                        replies = self._round_trip(held.connection, calls)
                    except ConnectionError as error:
                        calls = exchange.throw(error)
                    else:
                        calls = self._continued(exchange, replies, held)
        except StopIteration as done:
            result: T = done.value
            return result

    def _continued(self, exchange: Exchange[T], replies: list[Any], held: Held) -> Calls:
        try:
            calls = exchange.send(replies)
        except (StopIteration, ResponseError):
            held.clean = True
            raise
        held.clean = True
        return calls

    def _round_trip(self, connection: Connection, calls: Calls) -> list[Any]:
        self._connect(connection)
        # a failure here is no `NotSent`: the first of the calls may have arrived whole
        connection.send_packed_command([b"".join([pack_command(call) for call in calls])])
        return [_reply(connection) for _ in calls]

    def _connect(self, connection: Connection) -> None:
        try:
            connection.connect()
        except (ConnectionError, TimeoutError) as error:
            raise NotSent from error

    def _call(self, connection: Connection, words: tuple[Any, ...]) -> Any:
        self._write(connection, pack_command(words))
        try:
            return connection.read_response()
        except BusyLoadingError as error:
            raise NotSent from error
        except ResponseError as error:
            self._exchanges.raise_if_refused(error)
            raise

    def _write(self, connection: Connection, packed: bytes) -> None:
        try:
            connection.send_packed_command([packed])
        except (ConnectionError, TimeoutError) as error:
            # Redis runs only calls that it has received whole
            raise NotSent from error


def _reply(connection: Connection) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
