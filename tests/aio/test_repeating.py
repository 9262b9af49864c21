"""Calls of the asyncio interface whose reply was lost."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import rqttl
from rqttl.protocol.commands import Command
from tests.aio.conftest import Run


@pytest.mark.parametrize("how", ["ack", "reject"])
def test_a_lost_reply_and_other_options_after_it_make_no_success_a_failure(
    run: Run, redis_url: str, broker: rqttl.Broker, how: str
) -> None:
    """Redis carries out a call, its reply is lost, and Redis refuses the repeated call: the options are other ones."""
    lost: list[str] = []

    async def work() -> None:
        async with rqttl.connect_async(redis_url) as own:
            own.events.subscribe(lambda _: None)  # now each script goes through the store
            queue = await own.declare_queue("q", dead_letter="dead")
            await queue.enqueue(b"x")
            store = own._driver.store
            send = store._send_one

            async def lose_one_reply(command: Command, reply: Any) -> Any:
                answer = await send(command, reply)
                if command.script.name == {"ack": "receive", "reject": "reject"}[how] and not lost:
                    lost.append(command.script.name)
                    broker.set_policy("p", "q", {"lease": "1m"})
                    raise redis.ConnectionError("the reply was lost")
                return answer

            async with queue.consume(wait=0) as deliveries:
                async for delivery in deliveries:
                    store._send_one = lose_one_reply  # type: ignore[method-assign]  # the place of a lost reply
                    await getattr(delivery, how)()
                missed = deliveries.lost, deliveries.unknown
            assert (missed, delivery.settled) == (([], []), how)
            assert (await queue.stats()).acked == (how == "ack")

    run(work())
    assert lost


def test_a_redrive_whose_reply_was_lost_moves_each_letter_once_and_counts_it(
    run: Run, redis_url: str, broker: rqttl.Broker
) -> None:
    """Redis moves the letters, the reply is lost, and the repeated call has the mark of a replay."""
    sent: list[bool] = []

    async def work() -> None:
        async with rqttl.connect_async(redis_url) as own:
            own.events.subscribe(lambda _: None)  # now each script goes through the store
            queue = await own.declare_queue("q", dead_letter="dead")
            await queue.enqueue_many([b"1", b"2"])
            await queue.reject_many(await queue.receive_many(2))
            dead, store = own.queue("dead"), own._driver.store
            send = store._send_one

            async def lose_one_reply(command: Command, reply: Any) -> Any:
                answer = await send(command, reply)
                if command.script.name == "redrive":
                    sent.append(command.is_replay)
                    if len(sent) == 1:
                        broker.set_policy("p", "q", {"lease": "1m"})  # the replay is refused as outdated at first
                        raise redis.ConnectionError("the reply was lost")
                return answer

            store._send_one = lose_one_reply  # type: ignore[method-assign]  # the place of a lost reply
            letters = [(letter.sequence, "q") for letter in await dead.peek()]
            told = await dead.redrive_many(letters)

            assert [one.outcome for one in told] == ["moved", "moved"]
            assert [message.body for message in await queue.peek()] == [b"1", b"2"]
            assert (await dead.stats()).redriven == 2

    run(work())
    assert sent[:2] == [False, True]
    assert all(sent[1:])
