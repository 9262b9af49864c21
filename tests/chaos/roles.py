"""The roles: a healthy application; calls that signals interrupt; operators who change policies; the end."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import CodeType, FrameType
from typing import Any

import rqttl
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.chaos.actor import Actor, may_happen
from tests.chaos.cast import ACCOUNTED, QUEUES, body_of
from tests.chaos.witness import milliseconds
from tests.depth import DEPTH, DEPTH_PARTS
from tests.in_force import differences

#: Queues that receivers, consumers and runners work on; others have a role of their own.
WORKED = ("plain", "aging", "window", "head", "full", "dlx", "drop")
#: A batch that takes several script calls in one round trip.
LARGE_BATCH = 600
HEADERS: dict[str, rqttl.Header] = {"region": "eu", "try": 1}


class HandlerError(Exception):
    """A handler failed on purpose."""


# Sending


def sender(me: Actor) -> None:
    """Send one, some, or now and then many messages; what was sent to `window` is sent again until it is certain."""
    doubtful: list[list[rqttl.Message]] = []
    while not me.stopping.is_set():
        if doubtful:
            me.attempt(lambda: _send_again(me, doubtful))
        me.attempt(lambda: _send(me, me.random.choice(QUEUES).name, doubtful))
        me.rest(0.06)
    for _ in range(50):  # the faults are over
        if doubtful:
            me.attempt(lambda: _send_again(me, doubtful))


def _send(me: Actor, name: str, doubtful: list[list[rqttl.Message]]) -> None:
    many = LARGE_BATCH if name == "plain" and me.random.random() < 0.05 else me.random.randint(2, 12)
    single = me.random.random() < 0.4
    messages = [_message(me, plain=many == LARGE_BATCH) for _ in range(1 if single else many)]
    if name == "window":
        doubtful.append(messages)
    if me.witness.send(me.broker.queue(name), messages, single=single) and name == "window":
        doubtful.remove(messages)


def _send_again(me: Actor, doubtful: list[list[rqttl.Message]]) -> None:
    if me.witness.send(me.broker.queue("window"), doubtful[0]):
        doubtful.pop(0)


def _message(me: Actor, *, plain: bool) -> rqttl.Message:
    id = me.new_id()
    ttl = None if plain else me.random.choice((None, None, None, None, "0", "5ms", "60ms", "400ms", "10s"))
    headers = None if plain else me.random.choice((None, None, HEADERS))
    return rqttl.Message(body_of(id, me.random.choice((30, 60, 200))), ttl=ttl, headers=headers, id=id)


# Receiving


def receiver(me: Actor) -> None:
    """Take some, also by waiting for them, and settle each in one way or another, or not at all."""
    while not me.stopping.is_set():
        queue = me.broker.queue(me.random.choice(WORKED))
        me.attempt(lambda queue=queue: _receive(me, queue))  # type: ignore[misc]  # bound at once


def _receive(me: Actor, queue: rqttl.Queue) -> None:
    wait = me.random.choice((None, None, "30ms", "200ms"))
    batch = queue.receive_many(me.random.randint(1, 8), wait=wait, lease=me.random.choice((None, "150ms", "700ms")))
    if not batch:
        me.rest(0.05)
    elif me.random.random() < 0.3:
        queue.ack_many(batch)
    else:
        for one in batch:
            with suppress(rqttl.LeaseLost):
                _settle(me, one)


def _settle(me: Actor, one: rqttl.Delivery) -> None:
    how = me.random.choice(("ack", "ack", "ack", "ack", "nack", "later", "reject", "renew", "slow", "lapse", "raise"))
    if how == "ack":
        one.ack()
    elif how == "nack":
        one.nack()
    elif how == "later":
        one.nack(delay="50ms", description="later")
    elif how == "reject":
        one.reject("no")
    elif how == "renew":
        one.renew("600ms")
        one.ack()
    elif how == "slow":
        me.rest(0.3)
        one.ack()
    elif how == "raise":
        with suppress(HandlerError), one:
            raise HandlerError(one.id)


def hoarder(me: Actor) -> None:
    """Take many messages of a queue with a limit, and let all their leases end at once."""
    queue = me.broker.queue("head")
    while not me.stopping.is_set():
        for _ in range(8):
            me.attempt(lambda: queue.receive_many(200, lease="400ms"))
            me.rest(0.1)
        me.stopping.wait(0.6)


def taker(me: Actor) -> None:
    """Take messages at most once."""
    queue = me.broker.queue("once")

    def take() -> None:
        number, count = me.journal.number(), me.random.randint(1, 5)
        me.journal.write("taking", n=number, q=queue.name, count=count)
        queue.receive_many(count, wait=me.random.choice((None, "50ms")), auto_ack=True)
        me.journal.write("took", n=number)

    while not me.stopping.is_set():
        me.attempt(take)
        me.rest(0.03)


# Loops of rqttl. No fault may end one, so an error that leaves it is a finding.


def consumer(me: Actor) -> None:
    """Iterate over `consume`, on one queue after another; some handlers fail, some are slow."""
    while not me.stopping.is_set():
        queue = me.broker.queue(me.random.choice(WORKED))
        me.attempt(lambda queue=queue: _consume(me, queue))  # type: ignore[misc]  # bound at once


def _consume(me: Actor, queue: rqttl.Queue) -> None:
    consuming = queue.consume(prefetch=me.random.choice((1, 8, 30)), lease=me.random.choice((None, "600ms")))
    # the queue may fall silent, so that a number of messages alone would not end this
    ending = threading.Timer(2 + 3 * me.random.random(), consuming.stop)
    me.on_stop = consuming.stop
    if me.asked:
        consuming.stop()
    ending.start()
    try:
        with consuming as deliveries:
            while (delivery := _next(me, deliveries)) is not None:
                me.attempt(lambda delivery=delivery: _handle_one(me, delivery))  # type: ignore[misc]  # bound at once
    finally:
        ending.cancel()
        me.on_stop = lambda: None


def _next(me: Actor, deliveries: rqttl.Consumer) -> rqttl.Delivery | None:
    """Return the next delivery, `None` at the end. No fault may end the iteration with an error."""
    try:
        return next(deliveries, None)
    except Exception as error:  # noqa: BLE001  # every error is a finding here
        me.unexplained(error, "consume ended")
        return None


def _handle_one(me: Actor, delivery: rqttl.Delivery) -> None:
    with suppress(HandlerError), delivery:
        _handle(me, delivery)


def _handle(me: Actor, delivery: rqttl.Delivery) -> None:
    dice = me.random.random()
    if dice < 0.05:
        raise HandlerError(delivery.id)
    if dice < 0.10:
        delivery.reject("no")
    elif dice < 0.11:
        me.rest(1.5)


def runner(me: Actor) -> None:
    """Let `run` handle messages in threads until SIGTERM, for which it has a handler of its own."""
    queue = me.broker.queue(me.random.choice(("plain", "window")))
    while not me.stopping.is_set():
        try:
            queue.run(lambda delivery: _handle(me, delivery), threads=2, stop=me.stopping)
            return
        except Exception as error:  # noqa: BLE001  # every error is a finding here
            me.unexplained(error, "run ended")
            me.rest(0.1)


def reaper(me: Actor) -> None:
    """Be a reaper. Until Redis has answered once, a reaper does not wait for it; from then on no fault may end it."""
    while not me.stopping.is_set():
        answers: list[str] = []
        listener = _hearing(answers)
        me.broker.events.subscribe(listener, rqttl.CommandEvent)
        reaping = Reaper(me.broker, scan_period="2s")
        me.on_stop = reaping.stop
        if me.asked:
            return
        try:
            reaping.run()
        except Exception as error:  # noqa: BLE001  # judged right here
            if answers or not may_happen(error):
                me.unexplained(error, "the reaper ended")
            me.rest(0.1)
        me.broker.events.unsubscribe(listener)


def _hearing(answers: list[str]) -> Callable[[rqttl.CommandEvent], None]:
    """Return a listener that notes the calls that were answered, until there is one."""

    def listen(event: rqttl.CommandEvent) -> None:
        if event.outcome == "ok" and not answers:
            answers.append(event.name)

    return listen


# Looking after dead letters, and looking


def redriver(me: Actor) -> None:
    """Put dead letters back where they died, and delete some for good."""
    names = [queue.dead for queue in QUEUES if queue.dead]

    def work() -> None:
        dead = me.broker.queue(me.random.choice(names))
        with suppress(rqttl.QueueNotFound):  # no message has died yet
            # what a redrive leaves is counted as refused there, and is no death: the sum would not be exact
            if me.random.random() < 0.7 and dead.name != "dlx/dead":
                dead.redrive(limit=me.random.randint(1, 30), reason=me.random.choice((None, "expired", "rejected")))
            else:
                dead.ack_many(dead.receive_many(10, lease="500ms"))

    while not me.stopping.is_set():
        me.attempt(work)
        me.rest(0.3)


def observer(me: Actor) -> None:
    """Look at depths and numbers all the time, and write down those that must keep a rule."""
    client = driver_of(me.broker).store.client
    while not me.stopping.is_set():
        for queue in QUEUES:
            me.attempt(lambda queue=queue: look(me, queue.name))  # type: ignore[misc]  # bound at once
            if "max_length" in queue.options:
                me.attempt(lambda queue=queue: _measure(me, queue.name, client))  # type: ignore[misc]  # bound at once
        me.rest(0.05)


def look(me: Actor, name: str, **more: Any) -> int:
    """Write down the numbers of a queue. Returns how many messages are in it."""
    stats = me.broker.queue(name).stats()
    numbers = {
        field: getattr(stats, field)
        for field in ("ready", "leased", "delayed", "enqueued", "acked", "refused", "purged", "redriven")
    }
    me.journal.write("stats", q=name, numbers={**numbers, "deaths": sum(stats.deaths.values())}, **more)
    if name == "head":  # what comes back may exceed the limit of a queue that refuses
        me.journal.write("depth", q=name, by="stats()", ready=stats.ready, bytes=stats.ready_bytes)
    return stats.ready + stats.leased + stats.delayed


def _measure(me: Actor, name: str, client: Any) -> None:
    """Look at the keys themselves, between two scripts."""
    keyspace = driver_of(me.broker).keyspace
    keys = [keyspace.key(name, part) for part in DEPTH_PARTS]
    _, _, fresh, size = client.eval(DEPTH, len(keys), *keys)  # with its text, which Redis cannot have forgotten
    me.journal.write("depth", q=name, by="the queue without what came back", ready=fresh, bytes=size)


# Calls that signals interrupt


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


# Policies


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
#: `drop` declares no target. The queue of these dead letters is nobody's.
DEAD_LETTERS: tuple[dict[str, Any], ...] = (
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
    ("drop", DEAD_LETTERS),
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


# The end


def drainer(me: Actor) -> None:
    """Empty all judged queues and their dead-letter queues when all others have ended."""
    names = [name for queue in QUEUES for name in (queue.name, queue.dead) if name]
    sound = set(names)
    for _ in range(4000):
        # a queue before its dead letters; an error ends the work on one, and the others are judged for what they hold
        left = [_drain_one(me, name, sound) for name in names if name in sound]
        if not any(left):
            break
        me.stopping.wait(0.02)
    for name in names:
        with suppress(rqttl.QueueNotFound):
            look(me, name, drained=True)


def _drain_one(me: Actor, name: str, sound: set[str]) -> bool:
    """Take the ready messages of a queue. Returns True while more may come."""
    try:
        return _drain(me, me.broker.queue(name)) > 0
    except rqttl.QueueNotFound:
        return False
    except Exception as error:  # noqa: BLE001  # no fault is under way, so each error is a finding
        me.unexplained(error, f"the end of {name}")
        sound.discard(name)
        return True


def _drain(me: Actor, queue: rqttl.Queue) -> int:
    """Ack all that is ready. Returns how many messages are still in the queue, or were."""
    batch = queue.receive_many(250, lease="30s")  # that of the queue may end before the acks
    for one in batch:
        death = one.deaths[0] if one.deaths else None
        if death is not None and queue.name.endswith("/dead"):
            deadline = None if death.expires_at is None else milliseconds(death.expires_at)
            me.journal.write(
                "letter",
                q=queue.name,
                id=one.id,
                reason=death.reason,
                origin=death.queue,
                count=death.delivery_count,
                died=milliseconds(death.last_at),
                deadline=deadline,
            )
    queue.ack_many(batch)
    stats = queue.stats()
    return len(batch) + stats.ready + stats.leased + stats.delayed


def auditor(me: Actor) -> None:
    """Let one pass of a reaper finish what faults have cut off; then compare options in force with the policies."""
    me.attempt(lambda: _audit(me))


def _audit(me: Actor) -> None:
    Reaper(me.broker).run_once()
    found = differences(me.broker, sorted(ACCOUNTED))
    changed = {name for name in me.broker.reconcile().changed if name in ACCOUNTED}
    found += [f"{name}: reconcile had to change it" for name in sorted(changed)]
    me.journal.write("audit", problems=found)
