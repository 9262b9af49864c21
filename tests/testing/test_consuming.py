"""`consume` on a fake broker: its leases are renewed whenever the clock advances, as its thread does in real time."""

import asyncio
import threading

import pytest

from rqttl import AsyncDelivery, Decision, Delivery, QueueNotFound, Reject, Release, RenewalEvent
from rqttl.testing import FakeBroker, async_fake_broker
from tests.contract.clocked import at
from tests.waiting import PATIENCE


@pytest.mark.parametrize("time", ["1ms", "29s", "30s", "5m", "30d", "500w"])
def test_a_handler_may_take_as_long_as_it_likes(fake: FakeBroker, time: str) -> None:
    queue = fake.declare_queue("q", lease="30s", max_deliveries=1)
    queue.enqueue_many([b"x"] * 3)

    with queue.consume(prefetch=2, wait=0) as deliveries:
        for delivery in deliveries:
            with delivery:
                fake.clock.advance(time)
                fake.run_reaper()

    assert (deliveries.lost, queue.stats().acked) == ([], 3)


@pytest.mark.parametrize("renews", ["its thread", "the handler"])
def test_a_renewal_in_the_midst_of_a_leap_does_not_end_the_lease(fake: FakeBroker, renews: str) -> None:
    queue = fake.declare_queue("q", lease="1s", max_deliveries=1)
    queue.enqueue(b"x")
    turned = threading.Event()

    def listen(event: RenewalEvent) -> None:
        if threading.current_thread() is not threading.main_thread():
            turned.set()

    fake.events.subscribe(listen, RenewalEvent)

    with queue.consume(wait=0) as deliveries:
        delivery = next(deliveries)

        def renew(leap: int) -> None:
            """Renew between the preparation of a leap and the leap."""
            if leap and renews == "the handler":
                delivery.renew("2s")
            elif leap:
                assert turned.wait(PATIENCE)

        with fake.clock.leaps(renew):
            fake.clock.advance("1h")
        fake.run_reaper()
        delivery.ack()

    assert (deliveries.lost, queue.stats().acked) == ([], 1)


@pytest.mark.parametrize("own, ends", [(None, 330_000), ("2s", 302_000)], ids=["queue's", "own"])
def test_a_lease_is_as_long_as_it_was_when_the_clock_has_arrived(fake: FakeBroker, own: str | None, ends: int) -> None:
    queue = fake.declare_queue("q", lease="30s")
    queue.enqueue(b"x")

    with queue.consume(wait=0, lease=own) as deliveries:
        delivery = next(deliveries)
        fake.clock.advance("5m")

        assert delivery.leased_until == at(ends)


def test_a_loop_counts_as_a_consumer_however_long_its_handler_takes(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q", expires="10m")
    queue.enqueue(b"x")

    with queue.consume(wait=0) as deliveries:
        next(deliveries).ack()
        fake.clock.advance("1d")
        fake.run_reaper()
        assert queue.stats().consumers == 1

    fake.clock.advance("10m")
    assert fake.run_reaper().retired == 1


def test_a_queue_that_is_gone_is_told_by_the_loop_not_by_the_clock(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = fake.declare_queue("q")
    queue.enqueue(b"x")

    def work() -> None:
        with queue.consume() as deliveries:
            for _ in deliveries:
                queue.delete()
                fake.clock.advance("1d")

    with pytest.raises(QueueNotFound):
        work()
    assert "could not renew leases: QueueNotFound" in caplog.text


class BrokenHandlerError(Exception):
    """The error of a handler under test."""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_lets_the_error_of_a_handler_through_if_a_test_asks_for_it(fake: FakeBroker, threads: int) -> None:
    queue = fake.declare_queue("q")
    queue.enqueue(b"x")

    def broken(_: Delivery) -> None:
        raise BrokenHandlerError

    with pytest.raises(BrokenHandlerError):
        queue.run(broken, threads, wait="0s", raise_errors=True)

    assert queue.stats().delayed == 1


@pytest.mark.parametrize("decision", [Release, Reject])
def test_a_decision_is_no_error_that_a_run_lets_through(fake: FakeBroker, decision: type[Decision]) -> None:
    queue = fake.declare_queue("q")
    queue.enqueue(b"x")
    left = [decision, None]

    def decide(_: Delivery) -> None:
        if (error := left.pop(0)) is not None:
            raise error

    queue.run(decide, wait="0s", raise_errors=True)


def test_an_asyncio_run_lets_the_error_of_a_handler_through_if_a_test_asks_for_it() -> None:
    async def broken(_: AsyncDelivery) -> None:
        raise BrokenHandlerError

    async def work() -> None:
        async with async_fake_broker() as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"x")
            with pytest.raises(BrokenHandlerError):
                await queue.run(broken, wait="0s", raise_errors=True)
            assert (await queue.stats()).delayed == 1

    asyncio.run(work())
