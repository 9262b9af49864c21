"""The driver: it performs the steps of flows on one Redis server, for threads. It is not for users; see `driver_of`.

Scripts never use redis-py's own retries: Redis may have carried out a call whose reply was lost, and only the command
knows whether it may run again. No call goes through a client of redis-py: after an exception the client's pool would
keep a connection with an unread reply, and that reply would answer the next call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any, TypeVar

import redis
from redis.connection import Connection
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.checks import check_namespace
from rqttl.errors import ContractError, InvalidInput, PoolExhausted, QueueNotFound
from rqttl.events import Events, WaitEvent, timed
from rqttl.flows.queues import Memory
from rqttl.flows.steps import Flow, Now, Pipeline, Read, Rehearse, Sleep, Step, WaitForWakeup, Write, drive
from rqttl.protocol.commands import Command, Reply, Word
from rqttl.protocol.contract import Repeated, fits, pack_command
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.store.blocking import Listener
from rqttl.store.connections import Connections, Held, checked_client
from rqttl.store.exchanges import FAILURES, Calls, Exchanges, NotSent, wait_outcome
from rqttl.text import format_value

T = TypeVar("T")
#: The answer to a wait: the list with its element, or why it has ended; see `Listener.listen`.
Woken = tuple[str, bytes] | bytes | PoolExhausted | None


class Store:
    """Runs commands on one Redis server. Safe to share between threads."""

    def __init__(self, client: redis.Redis, keyspace: Keyspace, events: Events) -> None:
        self.client = checked_client(client, redis.Redis)
        self.connections = Connections(client.connection_pool)
        self._events = events
        self.exchanges = Exchanges(keyspace, events, self.connections.renew, time.monotonic)
        #: Ends every `listen` from the moment at which it is asked.
        self.interrupted = Interrupt()
        self._listener = Listener(self.connections, self.interrupted)

    def run(self, command: Command) -> Reply:
        """See `Exchanges.run`."""
        if self._events.notify is not None:
            return drive(self.exchanges.run(command), self._perform)
        since = time.monotonic()
        try:
            return self._send_one(command)
        except FAILURES as error:
            again = self.exchanges.run(command, error, since)
        return drive(again, self._perform)  # outside of the handler: a later error has no part in this one

    def run_together(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip; see `Exchanges.run_together`."""
        return drive(self.exchanges.run_together(commands), self._perform)

    def execute(self, calls: Calls, *, keep_errors: bool = False) -> list[Any]:
        """Run plain, repeatable commands of Redis in one round trip; see `Exchanges.execute`."""
        return drive(self.exchanges.execute(calls, keep_errors=keep_errors), self._perform)

    def listen(
        self, queues: Sequence[str], keys: Sequence[str], ms: int, interrupt: Interrupt | None = None
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        """Wait for an element of one of the lists `keys` of queues; see `Listener`."""
        if self._events.notify is None:
            return self._listener.listen(keys, ms, interrupt)
        with timed(self._events.notify, [("BLPOP", queues[0] if len(queues) == 1 else None)]) as outcomes:
            answer = self._listener.listen(keys, ms, interrupt)
            outcomes.append(wait_outcome(answer))
        return answer

    def rehearse(self, calls: Sequence[Sequence[Word]]) -> list[ResponseError | None]:
        """Return the refusal of each call, or `None`. Raises `ResponseError` if Redis makes no transaction."""
        refusals: list[ResponseError | None] = []
        # never `clean`, so the connection is closed at the end, which discards the transaction
        with Held(self.connections) as held:
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

    def close(self) -> None:
        """Close all free connections now, and each connection in use after its call."""
        self.connections.close()
        self.interrupted.ask()
        self._listener.close()

    def _send_one(self, command: Command) -> Reply:
        """Make the first attempt to run a script. Most calls need no other."""
        with Held(self.connections) as held:
            connection = held.connection
            packed = pack_command(("EVALSHA", command.script.sha, *command.words))
            try:
                connection.send_packed_command([packed])
            except (ConnectionError, TimeoutError) as error:
                raise NotSent from error  # Redis runs only calls that it has received whole
            try:
                reply: Reply = connection.read_response()
            except ResponseError:
                held.clean = True
                raise
            command.script.check(reply)
            held.clean = True
        return Repeated(reply) if reply[0] == b"refused" and command.is_replay else reply

    def _perform(self, step: Calls | float) -> Any:
        if isinstance(step, float):
            time.sleep(step)
            return None
        return self._round_trip(step)

    def _round_trip(self, calls: Calls) -> list[Any]:
        """Send calls together, and read their replies; errors of Redis are among them."""
        with Held(self.connections) as held:
            connection = held.connection
            try:
                connection.connect()
            except (ConnectionError, TimeoutError) as error:
                raise NotSent from error
            try:
                connection.send_packed_command([b"".join([pack_command(call) for call in calls])])
            except (ConnectionError, TimeoutError) as error:
                if len(calls) > 1:
                    raise  # the first of the calls may have arrived whole
                raise NotSent from error
            replies = [_reply(connection) for _ in calls]
            # a reply that no script gives may be one to another call: then the connection is closed
            held.clean = all(fits(reply) for call, reply in zip(calls, replies, strict=True) if call[0] == "EVALSHA")
        return replies


def _reply(connection: Connection) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


class Waiter(Timing):
    """A `Timing` that waits for wake-ups as well."""

    def wait(self, store: Store, keys: Sequence[str], step: WaitForWakeup) -> Woken:
        """Wait for an element of one of the lists `keys`, as `step` says. See `Store.listen`."""
        if not step.exact:
            return store.listen(step.queues, keys, step.ms, step.interrupt)
        ends = self.now() + step.ms
        woken = store.listen(step.queues, keys, step.in_redis, step.interrupt) if step.in_redis else None
        if woken is None:
            self.pause(step.interrupt or store.interrupted, lambda: ends - self.now())
        return woken


def driver_of(owner: object) -> RedisDriver:
    """The driver of a broker or of a queue. Raises `InvalidInput` for anything else."""
    driver = getattr(owner, "_driver", None)
    if not isinstance(driver, RedisDriver):
        raise InvalidInput(f"broker: expected a Broker or a Queue, got {format_value(owner)}")
    return driver


class RedisDriver:
    """Performs flows for one namespace of one Redis server. Safe to share between threads."""

    def __init__(self, client: redis.Redis, namespace: str, timing: Waiter | None = None) -> None:
        self.keyspace = Keyspace(check_namespace(namespace))
        self.events = Events()
        self.store = Store(client, self.keyspace, self.events)
        #: The clock and the waiter of this driver.
        self.timing = timing or Waiter()
        #: The interrupt that ends each wait outside of Redis when the driver is closed.
        self.closed = Interrupt()
        self.memory = Memory(self.keyspace)
        self.configs = self.memory.configs
        self._answers: dict[type, Callable[[Any], Any]] = {
            **self.memory.answers,
            Pipeline: self._pipeline,
            Read: self._plain,
            Write: self._plain,
            Rehearse: self._rehearse,
            Now: self._now,
            Sleep: self._sleep,
            WaitForWakeup: self._wait,
        }

    def perform(self, flow: Flow[T]) -> T:
        """See `Driver`."""
        try:
            return drive(flow, self.step)
        except QueueNotFound as error:
            error.namespace = self.keyspace.namespace
            raise
        except ContractError:
            self.store.connections.renew()  # the reply may have been one to another call
            raise

    def step(self, step: Step) -> Any:
        """Perform one step of a flow. Returns its answer."""
        if type(step) is Command:
            return self.store.run(step)
        try:
            answer = self._answers[type(step)]
        except KeyError:
            raise TypeError(f"not a step of a flow: {step!r}") from None
        result = answer(step)
        return self.perform(result) if type(result) is GeneratorType else result

    def _pipeline(self, step: Pipeline) -> list[Reply]:
        return self.store.run_together(step.commands)

    def _plain(self, step: Read | Write) -> list[Any]:
        return self.store.execute(step.calls, keep_errors=step.keep_errors)

    def _rehearse(self, step: Rehearse) -> list[ResponseError | None]:
        return self.store.rehearse(step.calls)

    def _now(self, _: Now) -> int:
        return self.timing.now()

    def _sleep(self, step: Sleep) -> None:
        self.timing.sleep(step.ms / 1000)

    def _wait(self, step: WaitForWakeup) -> Any:
        if self.events.notify is not None:
            for queue in step.queues:
                self.events.notify(WaitEvent(queue))
        keys = step.keys(self.keyspace)
        woken = self.timing.wait(self.store, list(keys), step)
        return (keys[woken[0]], woken[1]) if isinstance(woken, tuple) else woken

    def interrupt(self) -> None:
        """End every wait, in all threads and from now on. It takes no lock, so a signal handler may call it."""
        self.store.interrupted.ask()

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        self.store.connections.check_open()

    def close(self) -> None:
        """Close the connections. Waiting calls and all later calls raise `BrokerClosed`."""
        self.store.close()
        self.closed.ask()
