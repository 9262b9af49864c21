"""Any driver that answers the steps of flows can perform them: a queue works on one without Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from redis.exceptions import ResponseError

from rqttl import Consumer, ContractError, LeaseLost, Queue, flows
from rqttl.events import Events
from rqttl.flows.steps import Driver, Flow, GetConfig, Now
from rqttl.protocol.commands import Command, QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.recent import Recent
from rqttl.runtime.timing import RealTiming, Timing
from rqttl.store.driver import RedisDriver
from tests.unit.test_flows import KEYSPACE, OK, PLACE, Drive, known, received, stored

T = TypeVar("T")


class Canned:
    """A driver that answers scripts by name, and remembers which ones were asked for."""

    def __init__(self, **replies: list[Any]) -> None:
        self.keyspace = Keyspace()
        self.events = Events()
        self.closed = Interrupt()
        self.configs: Recent[QueueConfig] = Recent(1)
        self.timing: Timing = RealTiming()
        self.asked: list[str] = []
        self._replies = replies

    def perform(self, flow: Flow[T]) -> T:
        return flows.steps.drive(flow, self.step)

    def step(self, step: flows.steps.Step) -> Any:
        if type(step) is GetConfig:
            return known()
        if type(step) is Now:
            return self.timing.now()
        assert type(step) is Command
        self.asked.append(step.script.name)
        return self._replies[step.script.name].pop(0)

    def check_open(self) -> None: ...


def queue_on(driver: Driver) -> Queue:
    return Queue(driver, "orders")


def is_a_driver(driver: RedisDriver) -> Driver:
    """Nothing but the type checker reads this."""
    return driver


def test_a_queue_works_on_a_driver_without_redis() -> None:
    driver = Canned(enqueue=[stored(PLACE)], receive=[received(PLACE, b"", b"x")], ack=[[OK, b"", [], []]])
    queue = queue_on(driver)

    assert queue.enqueue(b"x").id == PLACE.decode()
    (delivery,) = queue.receive_many(1)
    delivery.ack()

    assert (delivery.body, delivery.settled) == (b"x", "ack")
    assert driver.asked == ["enqueue", "receive", "ack"]


def test_a_settle_on_a_driver_without_redis_tells_lost_leases() -> None:
    driver = Canned(receive=[received(PLACE, b"", b"x")], ack=[[OK, b"", [], [PLACE]]])
    (delivery,) = queue_on(driver).receive_many(1)

    with pytest.raises(LeaseLost):
        delivery.ack()
    assert delivery.settled == "lease lost"


def test_a_consumer_works_on_a_driver_without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqttl.consuming.prefetch.LONGEST_REST", 3_600_000)  # no turn of the renewer takes an answer
    answers = [received(PLACE, b"", b"x"), received(), received()]
    driver = Canned(receive=answers)

    with Consumer(driver, "orders", lease="30s", wait="0s") as deliveries:
        for delivery in deliveries:
            delivery.ack()

    assert (delivery.body, delivery.settled, deliveries.lost) == (b"x", "ack", [])
    assert driver.asked == ["receive", "receive", "receive"]  # the second takes the ack along, the last one leaves


@pytest.mark.parametrize("reply", [[b"0"], b"x"])
def test_a_registry_that_gives_no_page_is_an_error(reply: object) -> None:
    with pytest.raises(ContractError):
        Drive(flows.registry.members(KEYSPACE)).answer([reply])


def test_strangers_are_struck_out_of_the_registry_in_pages_and_errors_stay_in_their_places() -> None:
    drive = Drive(flows.registry.remove_members(KEYSPACE, [b"%d" % i for i in range(1001)]))
    error = ResponseError("NOPERM")

    assert drive.step.keep_errors
    assert len(drive.step.calls) == 1000
    drive.answer([1] * 1000)
    drive.answer([error])
    assert drive.result == [*[1] * 1000, error]


@pytest.mark.parametrize(
    "flow,call,reply,result",
    [
        (flows.steps.server_time, ("TIME",), [b"7", b"9999"], 7009),
        (lambda: flows.steps.reaper_count(KEYSPACE), ("PUBSUB", "NUMSUB", "rqttl:due"), [b"rqttl:due", 2], 2),
    ],
)
def test_a_question_to_the_server_is_one_plain_command(
    flow: Callable[[], Flow[int]], call: tuple[str, ...], reply: Any, result: int
) -> None:
    drive = Drive(flow())
    assert drive.step.calls == [call]
    drive.answer([reply])
    assert drive.result == result

    with pytest.raises(ContractError, match="unexpected reply"):
        Drive(flow()).answer([7])
