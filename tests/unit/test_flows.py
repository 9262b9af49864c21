"""Flows, driven by hand: every step is seen, every answer is sent, and there is no Redis."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from redis.exceptions import ClusterDownError, ConnectionError, NoPermissionError, ResponseError

from rqttl import ContractError, PoolExhausted, Queue, QueueOptions
from rqttl.doctor import guarded, server
from rqttl.events import Events
from rqttl.flows import messages as message_flows
from rqttl.flows import queues, reading, receive, registry, steps
from rqttl.flows.steps import ENDED, Flow, GetConfig, HandleNotes, Now, Read, Recent, Step, WaitForWakeup, Write
from rqttl.protocol.commands import Command, Options, Presence, QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.units import MAX_DURATION

KEYSPACE = Keyspace()
PLACE = b"1700000000000-100000"
REFUSED, OK = b"refused", b"ok"


def known(version: bytes = b"v1", **options: object) -> QueueConfig:
    return Options.plain(QueueOptions.read_stored("orders", options)).config(KEYSPACE, version)


class Drive:
    """A flow in the hands of a test. `step` is its current step; after its end `result` is its return value."""

    def __init__(self, flow: steps.Flow[Any]) -> None:
        self._flow = flow
        self.step: Any = next(flow)
        self.result: Any = None

    def answer(self, value: Any) -> Any:
        return self._go_on(self._flow.send, value)

    def throw(self, error: Exception) -> Any:
        return self._go_on(self._flow.throw, error)

    def _go_on(self, how: Callable[[Any], Any], value: Any) -> Any:
        try:
            self.step = how(value)
        except StopIteration as done:
            self.step, self.result = None, done.value
        return self.step

    @property
    def script(self) -> str:
        assert type(self.step) is Command
        return self.step.script.name


def stored(*results: bytes) -> list[Any]:
    return [OK, b"", list(results)]


def received(*messages: Any, more: int = 0, due: Any = b"", lost: Any = (), now: int = 1000) -> list[Any]:
    return [OK, b"", now, due, more, b"77" if messages else b"", list(lost), list(messages), [], []]


def test_a_message_takes_one_step_with_known_options_and_its_reply_is_treated_like_any_other() -> None:
    drive = Drive(message_flows.enqueue_one("orders", b"x", known(b"v1")))
    assert drive.script == "enqueue"
    drive.answer(stored(PLACE))
    assert (drive.step, drive.result.id) == (None, PLACE.decode())

    drive = Drive(message_flows.enqueue_one("orders", b"x", known(b"v1")))
    first = drive.step
    assert drive.answer([REFUSED, b"retry"]) == first
    assert drive.answer([REFUSED, b"stale"]) == GetConfig("orders", fresh=True)
    assert b"v2" in drive.answer(known(b"v2", message_ttl="1h")).words
    assert drive.answer([OK, [b"a note"], [PLACE]]) == HandleNotes([b"a note"])
    drive.answer(None)
    assert (drive.step, drive.result.expires_at is None) == (None, False)


def test_a_refusal_that_nobody_expects_is_a_bug() -> None:
    drive = Drive(reading.swept_stats(KEYSPACE, "orders"))
    drive.answer(known())

    with pytest.raises(ContractError, match="script stats: unexpected refusal 'surprise'"):
        drive.answer([REFUSED, b"surprise"])


def wait_loop(wait: int) -> Drive:
    def claim(count: int, presence: Presence, config: QueueConfig | None) -> Flow[receive.ReceiveResult]:
        return receive.receive_once("orders", count, None, presence=presence, config=config)

    drive = Drive(receive.receive("orders", claim, 1, wait, "me"))
    assert drive.step == Now()
    drive.answer(100)
    assert drive.step == GetConfig("orders")
    drive.answer(known())
    return drive


def blocks(step: Any) -> int:
    """The ms for which a wait for a message in `orders` blocks."""
    assert isinstance(step, WaitForWakeup)
    assert step.queues == ("orders",)
    return step.ms


def again(drive: Drive, clock: int) -> None:
    """The next look takes the options of the look before, without a step."""
    assert drive.step == Now()
    assert isinstance(drive.answer(clock), Command)


def test_a_wait_listens_looks_again_and_ends_when_its_time_is_over() -> None:
    drive = wait_loop(700)

    assert "700" in drive.step.words
    assert blocks(drive.answer(received())) == 700
    drive.answer(None)
    again(drive, 500)
    assert "300" in drive.step.words
    assert blocks(drive.answer(received())) == 300
    drive.answer(None)
    again(drive, 801)
    assert drive.answer(received()) is None
    assert drive.result.entries == []


def test_a_wait_without_an_end_asks_no_clock_when_it_is_woken() -> None:
    drive = wait_loop(MAX_DURATION)
    block = str(receive.period("me"))

    for _ in range(3):
        assert block in drive.step.words
        step = drive.answer(received())
        assert isinstance(step, WaitForWakeup)
        assert step.left == MAX_DURATION
        assert isinstance(drive.answer(("orders", b"ticket")), Command)
    drive.answer(received())
    assert drive.answer(None) == Now()
    drive.answer(150)
    step = drive.answer(received())
    assert isinstance(step, WaitForWakeup)
    assert step.left == MAX_DURATION - 50
    assert drive.answer(ENDED) == Now()
    drive.answer(150)
    assert drive.step.words[-4:] == ("me", "0", "0", b""), "it waits no longer"
    assert drive.answer(received()) is None
    assert drive.result.entries == []


@pytest.mark.parametrize("there", [0, 1])
def test_a_wait_without_a_connection_looks_once_more_and_fails_only_without_a_message(there: int) -> None:
    drive = wait_loop(3_600_000)
    drive.answer(received())
    exhausted = PoolExhausted(3, 2)

    assert drive.answer(exhausted) == Now()
    drive.answer(200)
    assert drive.step.words[-4:] == ("me", "0", "0", b""), "it waits no longer"
    if there:
        assert drive.answer(received(b"1", b"", b"x")) is None
        assert len(drive.result.entries) == 1
    else:
        with pytest.raises(PoolExhausted, match="max_connections=3"):
            drive.answer(received())


T = TypeVar("T")


class Canned:
    """A driver that answers scripts by name, and remembers which ones were asked for."""

    def __init__(self, **replies: list[Any]) -> None:
        self.keyspace = Keyspace()
        self.events = Events()
        self.closed = Interrupt()
        self.configs: Recent[QueueConfig] = Recent(1)
        self.timing = Timing()
        self.asked: list[str] = []
        self.beats: list[float] = []
        self._replies = replies

    def failing_fast(self) -> "Canned":
        return self

    def perform(self, flow: Flow[T]) -> T:
        return steps.drive(flow, self.step)

    def step(self, step: steps.Step) -> Any:
        if type(step) is GetConfig:
            return known()
        if type(step) is Now:
            return self.timing.now()
        if isinstance(step, Read):  # of the roster
            self.beats += [self.timing.now() for call in step.calls if call[0] == "HSET"]
            return [{"TIME": [1, 0], "HGETALL": []}.get(str(call[0]), 1) for call in step.calls]
        assert type(step) is Command
        self.asked.append(step.script.name)
        return self._replies[step.script.name].pop(0)

    def node_of(self, queue: str) -> None: ...

    def check_open(self) -> None: ...


def test_a_queue_works_on_a_driver_without_redis() -> None:
    driver = Canned(enqueue=[stored(PLACE)], receive=[received(PLACE, b"", b"x")], ack=[[OK, b"", [], []]])
    queue = Queue(driver, "orders")

    assert queue.enqueue(b"x").id == PLACE.decode()
    (delivery,) = queue.receive_many(1)
    delivery.ack()

    assert (delivery.body, delivery.settled) == (b"x", "ack")
    assert driver.asked == ["enqueue", "receive", "ack"]


@pytest.mark.parametrize("reply", [[b"0"], b"x"])
def test_a_registry_that_gives_no_page_is_an_error(reply: object) -> None:
    with pytest.raises(ContractError):
        Drive(registry.members(KEYSPACE)).answer([reply])


@pytest.mark.parametrize(
    "flow,call,answer,wrong,result", [(steps.server_time, ("TIME",), [[b"7", b"9999"]], [7], 7009)]
)
def test_a_question_to_servers_is_one_plain_command(
    flow: Callable[[], Flow[int]], call: tuple[str, ...], answer: Any, wrong: Any, result: int
) -> None:
    drive = Drive(flow())
    assert drive.step.calls == [call]
    drive.answer(answer)
    assert drive.result == result

    with pytest.raises(ContractError, match="unexpected reply"):
        Drive(flow()).answer(wrong)


DENIED = NoPermissionError("this user has no permissions")


@pytest.mark.parametrize("error, level", [(DENIED, "warning"), (ResponseError("ERR broken"), "problem")])
def test_a_check_that_redis_refuses_is_a_finding(error: Exception, level: str) -> None:
    drive = Drive(guarded("clock", server.clock()))
    drive.throw(error)

    [found] = drive.result
    assert (found.check, found.level, found.result) == ("clock", level, f"cannot be checked: {error}")


def test_an_outage_is_no_finding() -> None:
    with pytest.raises(ConnectionError):
        Drive(guarded("clock", server.clock())).throw(ConnectionError("gone"))


def facts(step: Step) -> Any:
    """Answers of a server that shows no setting but `save`."""
    assert isinstance(step, Read | Write)
    answers: dict[Any, Any] = {"INFO": b"role:master\r\n", "TIME": [b"7", b"500000"]}
    return [answers.get(call[0]) or ([b"save", b"900 1"] if call[2] == "save" else DENIED) for call in step.calls]


def test_the_server_is_asked_once_and_hidden_settings_are_told_when_they_are_needed() -> None:
    info = steps.drive(server.read(), facts)

    assert (info.text("role"), info.now, info.setting("save"), info.hidden) == ("master", 7.5, "900 1", [])
    assert info.setting("timeout") is None
    assert (info.hidden, info.why_hidden) == (["timeout"], str(DENIED))


def test_a_declaration_is_patient_where_no_node_has_the_registry_yet() -> None:
    drive = Drive(queues.declare(Keyspace(slotted=True), QueueOptions("q", {})))
    first: Read = drive.step
    assert (first.fails_fast, drive.throw(ClusterDownError("down"))) == (True, replace(first, fails_fast=False))
