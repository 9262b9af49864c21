"""Roles of a healthy application: sending, receiving, handling, looking after dead letters, looking; and the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

import rqttl
from rqttl.flows import moving
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from rqttl.worker.settings import WorkerOptions
from tests.chaos.actor import Actor, may_happen
from tests.chaos.cast import (
    CHAIN,
    DEAD,
    LEASED,
    PASSED_TO,
    POLICED,
    POLICY,
    QUEUES,
    RATED,
    RATES,
    SENT_TO,
    SLOW,
    body_of,
    copy_of,
)
from tests.chaos.witness import milliseconds

#: Queues that receivers, consumers and runners work on; others have a role of their own.
WORKED = (
    "plain",
    "aging",
    "window",
    "head",
    "full",
    "dlx",
    "drop",
    "rated",
    *(name for to in PASSED_TO.values() for name in to),
)
#: Queues to which some messages are sent with a delay, one for all messages of a call: they arrive in its order.
SCHEDULED = ("plain", "drop", *PASSED_TO)
#: Queues that an operator pauses now and then.
PAUSED = ("plain", "window", "head", *PASSED_TO)
#: A batch that takes several script calls in one round trip.
LARGE_BATCH = 600
HEADERS: dict[str, rqttl.Header] = {"region": "eu", "try": 1}


#: The parts of a queue whose keys `DEPTH` takes, in order.
DEPTH_PARTS = ("log", "detached", "leases", "delayed", "requeued", "meta")

#: A script: what is ready, and how many of its bytes; and the same without messages that came back.
DEPTH = """
local ready = redis.call('XLEN', KEYS[1]) + redis.call('HLEN', KEYS[2]) - redis.call('ZCARD', KEYS[3])
  - redis.call('ZCARD', KEYS[4])
local bytes, back = tonumber(redis.call('HGET', KEYS[6], 'ready_bytes')), redis.call('ZRANGE', KEYS[5], 0, -1)
local fresh = bytes
for _, id in ipairs(back) do
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  fresh = fresh - (entry and #entry[2][2] or 0)
end
return {ready, bytes, ready - #back, fresh}
"""


class HandlerError(Exception):
    """A handler failed on purpose."""


# Sending


def sender(me: Actor) -> None:
    """Send one, some, or now and then many messages; what was sent to `window` is sent again until it is certain."""
    doubtful: list[list[rqttl.Message]] = []
    while not me.stopping.is_set():
        if doubtful:
            me.attempt(lambda: _send_again(me, doubtful))
        me.attempt(lambda: _send(me, me.random.choice(SENT_TO), doubtful))
        me.rest(0.06)
    for _ in range(50):  # the faults are over
        if doubtful:
            me.attempt(lambda: _send_again(me, doubtful))


def _send(me: Actor, name: str, doubtful: list[list[rqttl.Message]]) -> None:
    many = LARGE_BATCH if name == "plain" and me.random.random() < 0.05 else me.random.randint(2, 12)
    single = me.random.random() < 0.4
    delay = me.random.choice((None, None, None, "20ms", "200ms")) if name in SCHEDULED else None
    messages = [_message(me, plain=many == LARGE_BATCH, delay=delay) for _ in range(1 if single else many)]
    if name == "window":
        doubtful.append(messages)
    if me.witness.send(me.broker.queue(name), messages, single=single) and name == "window":
        doubtful.remove(messages)


def _send_again(me: Actor, doubtful: list[list[rqttl.Message]]) -> None:
    if me.witness.send(me.broker.queue("window"), doubtful[0]):
        doubtful.pop(0)


def _message(me: Actor, *, plain: bool, delay: str | None) -> rqttl.Message:
    id = me.new_id()
    ttl = None if plain else me.random.choice((None, None, None, None, "0", "5ms", "60ms", "400ms", "10s"))
    if delay and ttl == "0":
        ttl = None  # it goes to a consumer that waits when it arrives, and that is after its due time
    headers = None if plain else me.random.choice((None, None, HEADERS))
    return rqttl.Message(body_of(id, me.random.choice((30, 60, 200))), ttl=ttl, headers=headers, id=id, delay=delay)


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


def worker(me: Actor) -> None:
    """Be a worker with a child process until SIGTERM. It begins only if one of its queues can be read.

    Once it has claimed, no fault may end it.
    """
    while not me.stopping.is_set():
        options: WorkerOptions = {"call": f"{__name__}:handler", "processes": 1, "retry_delay": "50ms"}
        working = rqttl.Worker(me.broker, ("aging", "head", "drop"), **options)
        me.on_stop = working.stop
        if me.asked:
            return
        try:
            working.run()
            return
        except Exception as error:  # noqa: BLE001  # judged right here
            may_end = may_happen(error) or isinstance(error, rqttl.QueuesAway)
            if working.counters.last_claim is not None or not may_end:
                me.unexplained(error, "the worker ended")
            me.rest(0.1)


def handler(value: object) -> None:
    """The handler of a worker, in its child process: it sometimes fails, sometimes rejects, and sometimes is slow."""
    dice = random.random()
    if dice < 0.05:
        raise HandlerError(value)
    if dice < 0.10:
        raise rqttl.Reject("no")
    if dice < 0.11:
        time.sleep(1)


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
    """Return a listener that notes the calls that were answered, until there is one. Any node tells the time."""

    def listen(event: rqttl.CommandEvent) -> None:
        if event.outcome == "ok" and event.name != "TIME" and not answers:
            answers.append(event.name)

    return listen


# Looking after dead letters, and looking


def redriver(me: Actor) -> None:
    """Put dead letters back where they died, and delete some for good."""
    names = sorted(DEAD)

    def work() -> None:
        dead = me.broker.queue(me.random.choice(names))
        with suppress(rqttl.QueueNotFound):  # no message has died yet
            # what a redrive leaves is counted as refused there, and is no death: the sum would not be exact
            if me.random.random() < 0.7 and dead.name != "dlx.dead":
                dead.redrive(limit=me.random.randint(1, 30), reason=me.random.choice((None, "expired", "rejected")))
            else:
                dead.ack_many(dead.receive_many(10, lease="500ms"))

    while not me.stopping.is_set():
        me.attempt(work)
        me.rest(0.3)


def mover(me: Actor) -> None:
    """Move messages into a queue that is often full, and where consumers wait."""
    source = me.broker.queue("full/source")

    def work() -> None:
        for one in source.peek(5):
            me.journal.write("move", id=one.id, to="full")
            with suppress(rqttl.QueueFull):
                me.journal.count("moves", source.move(one.sequence, "full"))

    while not me.stopping.is_set():
        me.attempt(work)
        me.rest(0.1)


def operator(me: Actor) -> None:
    """Pause a queue for a moment, change a policy and rates. The next operator ends a pause that stays."""
    while not me.stopping.is_set():
        me.attempt(lambda: _change_policy(me))
        if me.random.random() < 0.3:
            me.attempt(lambda: change_rate(me, me.random.choice(RATES)))
        queue = me.broker.queue(me.random.choice(PAUSED))
        if me.attempt(queue.pause):
            me.rest(0.2)
        while not me.attempt(queue.resume) and not me.stopping.is_set():
            me.rest(0.1)
        me.rest(0.2)


def _change_policy(me: Actor) -> None:
    value = me.random.randint(10**6, 2 * 10**6)
    me.journal.write("policy", value=value)
    me.broker.set_policy(POLICY, "#", {POLICED: value})
    me.journal.write("policy set", value=value)
    me.journal.count("policy changes")


def change_rate(me: Actor, rate: str | None) -> None:
    """Give a queue a rate, its own or by a policy, which replaces the policy of all queues there."""
    by_policy = rate is not None and me.random.random() < 0.5
    me.journal.write("rate")
    me.broker.queue(RATED).update(rate=None if by_policy else rate)
    if by_policy:
        me.broker.set_policy(RATED, RATED, {"rate": rate}, priority=1)
    else:
        with suppress(rqttl.PolicyNotFound):
            me.broker.delete_policy(RATED)
    me.journal.write("rate", set=rate)
    me.journal.count("rate changes")


def observer(me: Actor) -> None:
    """Look at depths and numbers all the time, and write down those that must keep a rule."""
    while not me.stopping.is_set():
        for queue in QUEUES:
            me.attempt(lambda queue=queue: look(me, queue.name))  # type: ignore[misc]  # bound at once
            if "max_length" in queue.options:
                me.attempt(lambda queue=queue: _measure(me, queue.name))  # type: ignore[misc]  # bound at once
        me.rest(0.05)


def look(me: Actor, name: str, **more: Any) -> int:
    """Write down the numbers of a queue. Returns how many messages are in it."""
    stats = me.broker.queue(name).stats()
    numbers = {
        field: getattr(stats, field)
        for field in ("ready", "leased", "delayed", "enqueued", "acked", "refused", "purged", "redriven")
    }
    if name == "drop" and stats.leased > LEASED:
        me.unexplained(AssertionError(f"{stats.leased} messages of {name} are out, {LEASED} may be"))
    me.journal.write("stats", q=name, numbers={**numbers, "deaths": sum(stats.deaths.values())}, **more)
    if name == "head":  # what comes back may exceed the limit of a queue that refuses
        me.journal.write("depth", q=name, by="stats()", ready=stats.ready, bytes=stats.ready_bytes)
    return stats.ready + stats.leased + stats.delayed


def _measure(me: Actor, name: str) -> None:
    """Look at the keys themselves, between two scripts, if Redis lets us."""
    driver: Any = driver_of(me.broker)
    keys = [driver.keyspace.key(name, part) for part in DEPTH_PARTS]
    client = driver.store.topology.node_of(keys[0])._client
    with suppress(RedisError):
        _, _, fresh, size = client.eval(DEPTH, len(keys), *keys)  # with its text, which Redis cannot have forgotten
        me.journal.write("depth", q=name, by="the queue without what came back", ready=fresh, bytes=size)


# The end


def drainer(me: Actor) -> None:
    """Empty all judged queues and their dead-letter queues when all others have ended."""
    names = list(dict.fromkeys([*(queue.name for queue in QUEUES), *(queue.dead for queue in QUEUES if queue.dead)]))
    passing = (*PASSED_TO, *CHAIN[1:-1])
    sound = {*passing, *names}
    for name in PAUSED:  # its operator was killed
        me.attempt(me.broker.queue(name).resume)
    for rate in (SLOW, RATES[-1]):  # a message that has left at the lowest one holds up no other
        me.attempt(lambda rate=rate: change_rate(me, rate))  # type: ignore[misc]  # bound at once
        _drain_one(me, RATED, sound)
    empty = 0
    for _ in range(4000):
        # a queue before its dead letters; an error ends the work on one, and the others are judged for what they hold
        left = [_drain_one(me, name, sound) for name in (*passing, *names) if name in sound]
        empty = 0 if any(left) or _are_on_the_way(me, names) else empty + 1
        if empty > 1:  # after the first time a letter may have come to a queue behind the drainer's back
            break
        me.stopping.wait(0.02)
    for name in names:
        with suppress(rqttl.QueueNotFound):
            look(me, name, drained=True)
    me.attempt(lambda: change_rate(me, None))
    Reaper(me.broker).run_once()  # a failover may undo a policy, or what it did to a queue
    stored = [policy.definition[POLICED] for policy in me.broker.policies()]
    in_force = {name: options[POLICED] for name, options in me.broker.options().items()}
    me.journal.write("policies", stored=stored[0] if stored else None, queues=in_force)


def _are_on_the_way(me: Actor, names: list[str]) -> bool:
    """Return True if letters are between two slots."""
    driver = driver_of(me.broker)
    return any(any(one.values()) for one in driver.perform(moving.outgoing(driver.keyspace, names)))


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
    goes_on = queue.name in PASSED_TO or queue.name in CHAIN[:-1]  # the call for statistics passes on
    batch = [] if goes_on else queue.receive_many(250, lease="30s")  # that of the queue may end before the acks
    for one in batch:
        death = one.deaths[0] if one.deaths else None
        if death is not None and queue.name in DEAD:
            me.journal.write(
                "letter",
                q=queue.name,
                id=copy_of(one.id, queue.name),
                reason=death.reason,
                origin=death.queue,
                count=death.delivery_count,
                died=milliseconds(death.last_at),
                deadline=milliseconds(death.expires_at),
            )
    queue.ack_many(batch)
    stats = queue.stats()
    return len(batch) + stats.ready + stats.leased + stats.delayed + stats.scheduled
