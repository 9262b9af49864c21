"""Roles that misuse queues: signals that raise, bad input, raw access, damage."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import CodeType, FrameType
from typing import Any

from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError

import rqttl
from rqttl.flows.steps import GetConfig
from rqttl.protocol import commands
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests import hostile
from tests.chaos.actor import Actor
from tests.chaos.cast import ACCOUNTED, MEDDLED, QUEUES, SIDE, body_of
from tests.encoded import enqueue_encoded
from tests.in_force import differences

#: Calls that one interrupted process makes with one broker.
ROUND = 50


class Interrupted(BaseException):
    """Raised by the handler of a signal, in the middle of the work of the process."""


class Alarm:
    """Raises `Interrupted` once, some time after `during` began, but never into the handler that ends the process."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self.armed and not _is_in(Actor.stop.__code__, frame):
            self.armed = False
            raise Interrupted

    def during(self, call: Callable[[], object], seconds: float) -> bool:
        """Make a call that a signal may interrupt after some seconds. Returns True if it did."""
        try:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                call()
            finally:
                self.armed = False
        except Interrupted:
            return True
        finally:
            self.armed = False
        return False


def _is_in(code: CodeType, frame: FrameType | None) -> bool:
    """Return True if a frame belongs to a function, or to one that it called."""
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def interrupted(me: Actor) -> None:
    """Make calls that signals interrupt. The next call gets its own reply, and no connection is left in use."""
    alarm = Alarm()
    calls = (_send_one, _send_one, _receive_one, _names, _time, _options, _look)
    while not me.stopping.is_set():
        for _ in range(ROUND):
            call = me.random.choice(calls)
            # most of it hits connecting, the loading of scripts, sending and waiting for the reply
            moment = me.random.random() ** 2 * 0.0015
            hit = alarm.during(lambda call=call: me.attempt(lambda: call(me)), moment)  # type: ignore[misc]  # bound at once
            me.journal.count("interrupts", int(hit))
            me.attempt(lambda call=call: call(me))  # type: ignore[misc]  # bound at once
            if me.stopping.is_set():
                break
        _begin_anew(me)


def _begin_anew(me: Actor) -> None:
    """Close the broker, which gives all connections back, and write down those that it has lost. Connect again."""
    pool = driver_of(me.broker).store.client.connection_pool
    me.broker.close()
    gc.collect()  # an exception that nobody refers to any more may still refer to a connection
    if in_use := len(list(pool._in_use_connections)):
        me.journal.write("unexplained", text=f"{in_use} connections are in use, and no call is under way")
    me.broker = rqttl.connect(me.part.url)


def _send_one(me: Actor) -> None:
    id = me.new_id()
    me.witness.send(
        me.broker.queue(me.random.choice(("plain", "full"))), [rqttl.Message(body_of(id, 40), id=id)], single=True
    )


def _receive_one(me: Actor) -> None:
    delivery = me.broker.queue("plain").receive(lease="600ms")
    if delivery:
        with suppress(rqttl.LeaseLost):
            delivery.ack()


def _names(me: Actor) -> None:
    names = me.broker.queues()
    if not isinstance(names, list) or not {queue.name for queue in QUEUES} <= set(names):
        me.journal.write("wrong", text=f"queues() told {names!r:.200}")


def _time(me: Actor) -> None:
    told = me.broker.server_time()
    if not isinstance(told, datetime) or abs(told.timestamp() - time.time()) > 60:
        me.journal.write("wrong", text=f"time() told {told!r:.200}")


def _options(me: Actor) -> None:
    queue = me.random.choice(QUEUES)
    told = me.broker.queue(queue.name).options(declared=True)
    if told.dead_letter != queue.dead:
        me.journal.write("wrong", text=f"options() of {queue.name} told {told!r:.200}")


def _look(me: Actor) -> None:
    told = me.broker.stats(["plain", "window"], sweep=False)
    if set(told) != {"plain", "window"} or not all(isinstance(one, rqttl.QueueStats) for one in told.values()):
        me.journal.write("wrong", text=f"stats() told {told!r:.200}")


# Bad input


def vandal(me: Actor) -> None:
    """Call the public API with hostile values; a queue beside those of others bears it."""
    calls = [call for call in hostile.CALLS if _is_safe(call.label)]
    values = list(hostile.VALUES)
    stage = _stage(me)
    while not me.stopping.is_set():
        call, value = me.random.choice(calls), me.random.choice(values)
        stage = stage or _stage(me)
        if stage is None:
            return
        try:
            hostile.attempt(call, stage, value)
        except RedisError as error:
            me.report(error)
            stage = None
        except Exception as error:  # noqa: BLE001  # a value passed without a typed error
            me.unexplained(error, f"{call.label} with {value}")
        me.journal.count("bad inputs")
        if me.random.random() < 0.02:
            stage = None


def _is_safe(label: str) -> bool:
    """Return True for a call that needs no other server, and cannot wait."""
    return not any(word in label for word in ("wait", "connect", "Broker(", "Reaper", "fake_", "Clock", "run("))


def _stage(me: Actor) -> hostile.Stage | None:
    """A queue with two messages, one of which is leased; `None` while Redis cannot serve."""
    while not me.stopping.is_set():
        try:
            queue = me.broker.declare_queue("q")
        except rqttl.QueueMismatch:
            queue = me.broker.queue("q")
        except RedisError as error:
            me.report(error)
            me.rest(0.05)
            continue
        with suppress(RedisError, rqttl.RqttlError):
            queue.purge()
            queue.update(**dict.fromkeys(queue.options().as_arguments()))
            queue.enqueue_many([b"1", b"2"])
            if delivery := queue.receive(lease="10m"):
                return hostile.Stage(me.broker, queue, delivery)
    return None


#: What a client says of a message, as no client says it.
SAID = (
    b"x",
    b";",
    b";;",
    b";;;",
    b"5;;;",
    b";3;;",
    b";900;;ab",
    b";2;900;ab",
    b";2;4;abzzzz",
    b";-1;;a",
    b"+;",
    b"+9x;;",
    b"+-5",
    b"@",
    b"@x",
    b";1e3;;a",
    b"\xff\xfe",
    b";1;12;aplain expired",
    b";1;46;aplain expired 1 1 1 1 - 1 0 ",
    b"99999999999999999999;;;",
    b";;;\xc1",
    b";2;;ab\x92\xc0",
    b"+0;",
    b";0;0;",
    b" ",
    b"1700000000000;;;;;;;;;",
)


#: What an honest client says of a message with a TTL of a second.
HONEST = b"+1000;;"


def _meddled(command: commands.Command, said: list[bytes]) -> commands.Command:
    """The same call with other things said of its messages."""
    another = iter(said)
    return command._replace(words=tuple(next(another) if word == HONEST else word for word in command.words))


def meddler(me: Actor) -> None:
    """Call the scripts past the API, with headers that no client makes, beside good messages."""
    known: Any = None
    while not me.stopping.is_set():
        body = MEDDLED + b"%d" % me.random.randint(0, 9)
        said = [me.random.choice(SAID) for _ in range(me.random.randint(1, 5))]
        try:
            known = known or driver_of(me.broker).step(GetConfig("tainted"))
            driver_of(me.broker).store.run(_meddled(enqueue_encoded(known, [(HONEST, body)] * len(said)), said))
        except (ResponseError, rqttl.RqttlError) as error:
            me.journal.write("note", text=f"refused: {type(error).__name__}: {str(error)[:100]}")
            known = None
        except (ConnectionError, TimeoutError) as error:
            me.report(error)
        me.journal.count("bad inputs", len(said))
        me.rest(0.1)


# Damage


def wrecker(me: Actor) -> None:
    """Damage side queues and the registry by hand, and go on using them. Every call ends, if only with an error."""
    client = driver_of(me.broker).store.client
    while not me.stopping.is_set():
        name = me.random.choice(SIDE)
        me.attempt(lambda name=name: _wreck(me, client, name))  # type: ignore[misc]  # bound at once
        me.journal.count("damages")
        me.rest(0.1)


def _wreck(me: Actor, client: Any, name: str) -> None:
    try:
        queue = me.broker.declare_queue(name)
        queue.enqueue_many([b"x"] * 5)
        queue.receive(lease="1ms")
    except (rqttl.QueueMismatch, rqttl.DataDamaged, ResponseError):
        client.delete(*[driver_of(me.broker).keyspace.key(name, part) for part in ("meta", "log", "expiry", "leases")])
        return
    _damage(me, client, name)
    for act in (
        queue.sweep,
        queue.stats,
        queue.receive,
        queue.peek,
        queue.purge,
        queue.delete,
        lambda: queue.update(max_length=5),
        me.broker.queues,
        me.broker.stats,
    ):
        try:
            act()
        except rqttl.ContractError:
            raise
        except (rqttl.RqttlError, RedisError) as error:
            me.journal.write("note", text=f"{name}: {type(error).__name__}: {str(error)[:100]}")


def _damage(me: Actor, client: Any, name: str) -> None:
    keyspace, stale = driver_of(me.broker).keyspace, f"{1_600_000_000_000 + me.random.randint(0, 999)}-100000"
    part = me.random.choice(("expiry", "requeued", "leases", "delayed"))
    registry: Any = keyspace.registry
    act: Callable[[], object] = me.random.choice(
        (
            lambda: client.zadd(keyspace.key(name, part), {stale: 1}),
            lambda: client.zadd(keyspace.key(name, part), {b"\xff": 1}),
            lambda: client.sadd(registry, b"\xff\xfe", b"side.gone", b"a b"),
            lambda: client.publish(keyspace.due_channel, b"\xff nonsense"),
            lambda: client.hdel(keyspace.key(name, "meta"), "ready_bytes"),
            lambda: client.delete(keyspace.key(name, "log")),
            lambda: client.set(keyspace.key(name, "expiry"), "no zset"),
        )
    )
    with suppress(ResponseError):
        act()


#: Definitions that leave the judge its facts: which limits a queue has, which targets, which deadline a receipt names.
#: A policy only lowers limits that are declared, and the operators never touch declared targets and windows.
ANYWHERE: tuple[dict[str, Any], ...] = (
    {"expires": "9h", "on_expire": "keep"},
    {"auto_delete_on_idle": "8h"},
    {"lease": "650ms"},
    {"max_ttl": "4h"},
    {"redelivery_delay": "10ms"},
    {"redelivery_delay": "30ms", "redelivery_max_delay": "50ms"},
    {"default_ttl": "3h"},
    {"max_message_bytes": 100_000},
    {"lease": None},
    {"redelivery_delay": None},
)
LIMITED: tuple[dict[str, Any], ...] = ({"max_length": 15}, {"max_length": 30}, {"max_length": None})
#: `drop` declares no target. The queue of these letters is nobody's.
LETTERS: tuple[dict[str, Any], ...] = (
    {"dead_letter": "drop/late"},
    {"dead_letter_expired": "drop/{queue}"},
    {"dead_letter": None},
)
PLACES: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    ("#", ANYWHERE),
    ("*", ANYWHERE),
    ("plain", ANYWHERE),
    ("head", LIMITED),
    ("full", LIMITED),
    ("dlx", LIMITED),
    ("drop", LETTERS),
    ("window", ANYWHERE),
)


def operator(me: Actor) -> None:
    """Set, change and delete policies and operator policies."""
    while not me.stopping.is_set():
        if me.attempt(lambda: _change(me)):
            me.journal.count("policy changes")
        me.rest(0.2)


def _change(me: Actor) -> None:
    operator, name = me.random.choice((False, True)), me.random.choice("pqrs")
    if me.random.random() < 0.3:
        with suppress(rqttl.PolicyNotFound):
            me.broker.delete_policy(name, operator=operator)
        return
    pattern, definitions = me.random.choice(PLACES)
    me.broker.set_policy(
        name, pattern, me.random.choice(definitions), priority=me.random.choice((0, 0, 1)), operator=operator
    )


def auditor(me: Actor) -> None:
    """Let one pass of a reaper finish what faults have cut off; then compare options in force with the policies."""
    me.attempt(lambda: _audit(me))


def _audit(me: Actor) -> None:
    client: Any = driver_of(me.broker).store.client
    for name in SIDE:  # `reconcile` ends at a queue that it cannot read
        if left := client.keys(driver_of(me.broker).keyspace.key(name, "*")):
            client.delete(*left)
    Reaper(me.broker).run_once()
    found = differences(me.broker, sorted(ACCOUNTED))
    changed = {name for name in me.broker.reconcile().changed if name in ACCOUNTED}
    found += [f"{name}: reconcile had to change it" for name in sorted(changed)]
    me.journal.write("audit", problems=found)
