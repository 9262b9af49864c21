"""Flows that take messages out of a queue, and wait for them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from rqttl import checks, units
from rqttl.errors import PoolExhausted, QueueForwards
from rqttl.flows.steps import ABANDONED, ENDED, OUTDATED, Flow, GetConfig, Now, WaitForWakeup, dispatch, with_config
from rqttl.protocol import commands
from rqttl.protocol.commands import ABSENT, BATCH, Command, Presence, QueueConfig, Word
from rqttl.protocol.contract import Ok
from rqttl.types import Duration
from rqttl.units import MAX_DURATION

logger = logging.getLogger("rqttl.consumer")

#: The ms after which a blocked consumer looks at the queue again at the latest.
PERIOD = 240_000


class ReceiveResult(NamedTuple):
    """The result of one receive: entries `(sequence, header, body)`, and one lease token for all of them.

    `due` is the time of the next due work in ms. `more`: the call met expired messages only.
    """

    config: QueueConfig
    entries: Sequence[tuple[bytes, bytes, bytes]]
    token: bytes
    failures: dict[bytes, int]
    now: int
    due: int | None
    more: bool


class Batches(list[ReceiveResult]):
    """The results of a call for messages. The driver of asyncio gives them back if nobody waits for them."""

    def end_with(self, error: Exception) -> None:
        """Raise the error of a call, unless others brought messages: those of `auto_ack` are nowhere else."""
        if not self:
            raise error
        logger.warning("%s: %s; returning the messages that were taken", type(error).__name__, error)


def receive_once(
    queue: str,
    count: int,
    lease: int | None,
    *,
    auto_ack: bool = False,
    presence: Presence = ABSENT,
    finished: Sequence[Word] = (),
    replay: bool = False,
    now: Word = "",
    config: QueueConfig | None = None,
    answered: Callable[[Ok], None] | None = None,
) -> Flow[ReceiveResult]:
    """Make one receive call, with `config` or that of the cache. Repeat it while it meets expired messages only.

    The first one settles the deliveries `finished` as acked. With `replay` an earlier call may have done so.
    `answered` is told each answer.
    """
    used: QueueConfig

    def build(config: QueueConfig) -> Command:
        nonlocal used
        used = config
        ms = config.lease if lease is None else lease
        command = commands.receive(config, count, ms, auto_ack=auto_ack, presence=presence, finished=finished, now=now)
        return command.as_replay() if replay else command

    while True:
        try:
            values = yield from with_config(queue, build, config)
        except QueueForwards:  # options in the cache never suffice for it
            config = yield GetConfig(queue, fresh=True)
            if config.passes_on:
                if presence.ticket:  # what was handed to this consumer goes on
                    leaves = presence._replace(block=0)
                    yield from dispatch(commands.receive(config, 0, config.lease, presence=leaves), OUTDATED)
                raise
            continue
        if answered is not None:
            answered(values)
        if values.messages or not values.more or not count:
            failures, due, words = values.failures, values.due, values.messages
            return ReceiveResult(
                used,
                list(zip(words[::3], words[1::3], words[2::3], strict=True)),
                values.token,
                dict(zip(failures[::2], map(int, failures[1::2]), strict=True)) if failures else {},
                values.now,
                int(due) if due else None,
                bool(values.more),
            )
        finished, replay, config = (), False, used


def period(consumer: str) -> int:
    """The ms for which this consumer blocks at most, so that consumers that began together do not call together."""
    return PERIOD - crc32(consumer.encode()) % (PERIOD // 2)


#: Waits for a wake-up.
Listen = Callable[[WaitForWakeup], Flow[Any]]


def listen(step: WaitForWakeup) -> Flow[Any]:
    """Wait for a wake-up, and do nothing else."""
    return (yield step)


def receive(
    queue: str,
    claim: Callable[[int, Presence, QueueConfig | None], Flow[ReceiveResult]],
    count: int,
    wait: int,
    consumer: str,
    *,
    ttl: int = 0,
    room: int = 1,
    config: QueueConfig | None = None,
    listen: Listen = listen,
) -> Flow[ReceiveResult]:
    """Take up to `count` messages. Wait up to `wait` ms for the first one, and look at the queue after every time-out.

    `claim` makes each look, and `listen` each wait. For `room` see `Presence`.
    """
    if wait <= 0:
        return (yield from claim(count, Presence(consumer, 0, ttl), config))
    started: int = yield Now()
    ticket, now, longest = b"", started, period(consumer)
    exhausted: PoolExhausted | None = None
    while True:
        left = max(0, started + wait - now)
        block = min(left, longest)
        claimed = yield from claim(count, Presence(consumer, block, ttl, ticket, room), config)
        if exhausted and not claimed.entries:
            raise exhausted
        if claimed.entries or block == 0:
            return claimed
        config = claimed.config
        due = None if claimed.due is None else max(1, claimed.due - claimed.now)
        step = WaitForWakeup((queue,), block, left, due, exact=config.paced and due is not None)
        wakeup = yield from listen(step)
        wakeup = wakeup[1] if isinstance(wakeup, tuple) else wakeup
        exhausted = wakeup if isinstance(wakeup, PoolExhausted) else None
        ticket = wakeup if wakeup and not exhausted else b""
        if exhausted or ticket in (ENDED, ABANDONED):
            # one last look: it ends the presence among the waiters, and takes a message that was handed over meanwhile
            count = 0 if ticket == ABANDONED else count
            ticket, wait = b"", 0
        # a consumer whose wait has no end asks no clock when it is woken
        now = now if ticket and wait >= MAX_DURATION else (yield Now())


def receive_many(
    queue: str,
    count: int,
    wait: Duration | None,
    lease: int | None,
    *,
    auto_ack: bool,
    config: QueueConfig | None = None,
) -> Flow[Batches]:
    """Take up to `count` messages in batches, waiting for the first message up to `wait`. `lease` is in ms."""
    if type(count) is not int or count < 1:
        count = checks.whole(count, "count")
    patience = 0 if wait is None else int(units.duration(wait, "wait"))
    consumer = secrets.token_hex(8) if patience else ""
    batches = Batches()

    def claim(count: int, presence: Presence, config: QueueConfig | None) -> Flow[ReceiveResult]:
        return receive_once(queue, count, lease, auto_ack=auto_ack, presence=presence, config=config)

    while count:
        most = min(count, BATCH)
        waits = patience and not batches
        flow = receive(queue, claim, most, patience, consumer, config=config) if waits else claim(most, ABSENT, config)
        try:
            batch = yield from flow
        except Exception as error:  # noqa: BLE001  # raised, or logged and met again by the next call
            batches.end_with(error)
            break
        batches.append(batch)
        if len(batch.entries) < most:
            break
        count -= most
    return batches


def lease_ms(lease: Duration | None) -> int | None:
    """Check the length of a lease, and return it in ms."""
    return None if lease is None else int(units.duration(lease, "lease", least=1))
