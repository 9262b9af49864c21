"""Consumers without Redis: their prefetch take plain values, and they go by the clock of their driver."""

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from redis.exceptions import ConnectionError

from rqttl import Delivery, InvalidInput, OutcomeUnknown, PoolExhausted, QueueNotFound, QueueOptions, Worker
from rqttl.consuming.base import Session, SharedSession, patiently
from rqttl.consuming.consumer import Consumer, Sender
from rqttl.consuming.prefetch import CONSUMER_TTL_MS, Prefetch, RenewalSchedule, missed
from rqttl.consuming.several import Queues, receive, take
from rqttl.delivery import LEFT, LOST, UNKNOWN, Settler
from rqttl.events import RenewalEvent
from rqttl.flows.receive import ReceiveResult
from rqttl.flows.steps import ABANDONED, ENDED, Flow, GetConfig, Now, WaitForWakeup, drive
from rqttl.outages import Outages
from rqttl.protocol.commands import ABSENT, BATCH, Command, Options, QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing, Wakeup
from rqttl.testing import fake_broker
from tests.unit.test_flows import OK, Canned, Drive, known, received
from tests.waiting import PATIENCE


def unused(*_: object) -> None:
    raise AssertionError("no delivery is settled here")


SETTLER = Settler(unused)


def config_of(queue: str) -> QueueConfig:
    return Options.plain(QueueOptions.read(queue, {"lease": "30s"})).config(Keyspace(), b"v1")


KNOWN = config_of("orders")


@pytest.mark.parametrize("patched", ["threading", "socket"])
@pytest.mark.parametrize(
    "name, run",
    [
        ("run", lambda broker: broker.queue("q").run(print)),
        ("worker", lambda broker: Worker(broker, "q", call=print, processes=0).run()),
    ],
)
def test_what_needs_threads_is_refused_under_gevent(
    name: str, run: Callable[[Any], object], patched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", cast("Any", SimpleNamespace(is_module_patched=patched.__eq__)))
    with fake_broker() as broker, pytest.raises(InvalidInput, match=f"^{name}: gevent has patched .* `rqttl worker`"):
        run(broker)


def delivery(number: int, lease: int | None = None, token: bytes = b"7") -> Delivery:
    return Delivery(SETTLER, KNOWN, (b"%d" % number, b"", b"x"), token, 0, lease)


@pytest.mark.parametrize("how", ["ack", "nack", "reject", LOST, UNKNOWN, LEFT])
def test_a_settled_delivery_is_neither_held_nor_renewed_nor_handed_out(how: str) -> None:
    prefetch = Prefetch[Delivery](2)
    settled, other = delivery(1), delivery(2)
    prefetch.add([settled, other])

    settled.settled = how

    assert prefetch.leases() == {30_000: [other]}
    assert (prefetch.hand_out(), prefetch.hand_out()) == (other, None)


def test_deliveries_that_nobody_has_seen_are_taken_and_put_back_in_order() -> None:
    prefetch = Prefetch[Delivery](3)
    seen, *unseen = three = [delivery(number) for number in range(3)]
    prefetch.add(three)
    assert prefetch.hand_out() is seen

    assert prefetch.take_unseen() == unseen
    assert (list(prefetch.fetched), prefetch.take_unseen()) == ([], [])
    prefetch.fetched.extend(unseen)
    assert prefetch.take_unseen() == unseen


def test_the_acks_of_a_failed_call_wait_again_in_their_order() -> None:
    prefetch = Prefetch[Delivery](BATCH)
    for number in range(2):
        prefetch.finish(delivery(number))
    assert prefetch.next_acks() == [b"0", b"7", b"1", b"7"]
    prefetch.finish(delivery(2))

    prefetch.put_back()

    assert prefetch.next_acks() == [b"0", b"7", b"1", b"7", b"2", b"7"]


class Contended(nullcontext[None]):
    """A lock for which another thread waits: it comes when the lock is free."""

    def __init__(self, other: Callable[[], object]) -> None:
        super().__init__()
        self._other = other

    def __exit__(self, *_: object) -> None:
        self._other()


def test_acks_of_a_fetch_without_a_reply_are_in_doubt_for_the_renewer_that_waited_for_its_turn() -> None:
    replays = list[bool]()

    class Lost(Canned):
        def step(self, step: Any) -> Any:
            if type(step) is not Command:
                return super().step(step)
            replays.append(step.is_replay)
            if len(replays) == 1:
                raise redis.ConnectionError("the reply is lost")
            return received()

    driver = Lost()
    session = Session[Delivery](driver.keyspace, "orders", 1, Interrupt(), unused)
    session.prefetch.finish(delivery(1))

    def renewer() -> None:
        if replays == [False]:
            Sender(driver).perform(session.report())

    with pytest.raises(redis.ConnectionError):
        Sender(driver, cast("threading.Lock", Contended(renewer))).fetch(session.fetch(1, None, 0, 1))

    assert replays == [False, True]


def test_an_ack_that_was_applied_is_not_sent_again_if_the_call_goes_on_and_fails() -> None:
    class Lost(Canned):
        def step(self, step: Any) -> Any:
            if self.asked:
                raise redis.ConnectionError("away")
            return super().step(step)

    driver = Lost(receive=[received(more=1)])
    session = Session[Delivery](driver.keyspace, "orders", 1, Interrupt(), unused)
    session.prefetch.finish(delivery(1))

    with pytest.raises(redis.ConnectionError):
        driver.perform(session.claim(None, 1, ABSENT))

    assert not session.prefetch.has_acks


def test_a_lease_is_renewed_for_as_long_as_a_handler_has_renewed_it() -> None:
    driver, hurried = Canned(renew=[[OK, b"", b"78", []]]), list[bool]()
    session = Session[Delivery](driver.keyspace, "orders", 1, Interrupt(), lambda: hurried.append(True))
    held = delivery(1)
    session.prefetch.add([held])
    session.follow_leases()

    driver.perform(session.settle("renew", [held], "600ms", None))

    assert (session.prefetch.leases(), session.schedule.renew_every, hurried) == ({600: [held]}, 200, [True])


def test_an_ack_during_a_renewal_that_misses_the_lease_counts_as_late() -> None:
    driver = Canned(receive=[received(lost=[b"1"])])
    session = Session[Delivery](driver.keyspace, "orders", 1, Interrupt(), unused)
    held = delivery(1)
    session.prefetch.add([held])
    renewal = session.renew()
    next(renewal)
    session.prefetch.finish(held)
    with pytest.raises(StopIteration):
        renewal.send([OK, b"", b"78", [b"1"]])

    driver.perform(session.report())

    assert (held.settled, session.prefetch.late.count) == (LOST, 1)


def test_of_two_acks_of_one_message_the_one_under_the_older_lease_was_missed() -> None:
    older, newer = delivery(1, token=b"7"), delivery(1, token=b"8")
    sent = [newer, older, delivery(2)]

    assert missed(sent, [b"1"]) == [older]
    assert missed(sent, [b"1", b"1"]) == [older, newer]
    older.settled = LOST
    assert missed(sent, [b"1"]) == [newer]


def test_a_consumer_that_waits_need_not_show_itself_until_the_wait_is_over() -> None:
    schedule = RenewalSchedule()
    schedule.begin_wait()
    schedule.contacted()
    assert not schedule.is_report_due(0)
    assert not schedule.is_report_due(10 * CONSUMER_TTL_MS)

    schedule.end_wait()

    assert not schedule.is_report_due(10 * CONSUMER_TTL_MS)
    assert schedule.is_report_due(11 * CONSUMER_TTL_MS)


class Moved(Timing):
    """A clock that pauses move, and that remembers them. `at_last` is called in the last of so many."""

    def __init__(self, pauses: int = 100) -> None:
        self.ms, self.pauses = 1_000_000, list[float]()
        self._count = pauses
        self.at_last: Callable[[], object] = lambda: pytest.fail("it goes on for ever")

    def now(self) -> int:
        return self.ms

    def pause(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        self.pauses.append(ms())
        self.ms += int(self.pauses[-1])
        if len(self.pauses) == self._count:
            self.at_last()


def test_a_consumer_tries_again_with_longer_and_longer_pauses_and_for_no_longer_than_its_wait() -> None:
    timing, tries = Moved(), 0

    def away() -> None:
        nonlocal tries
        tries += 1
        raise redis.ConnectionError("gone")

    with pytest.raises(redis.ConnectionError):
        patiently(away, "orders", 12_000, Interrupt(), timing, logging.getLogger("test"))

    assert timing.pauses == [500, 1_000, 2_000, 4_000, 5_000]
    assert tries == 6


def test_a_stop_ends_the_pause_and_the_attempts() -> None:
    timing, stop = Moved(), Interrupt()

    def away() -> None:
        stop.ask()
        raise redis.ConnectionError("gone")

    assert patiently(away, "orders", 12_000, stop, timing, logging.getLogger("test")) is None
    assert len(timing.pauses) == 1


def test_leases_are_renewed_at_thirds_of_their_length_by_the_clock_of_the_driver() -> None:
    renewals, timing = list[float](), Moved(pauses=21)
    driver = Canned(receive=[received() for _ in range(2)], renew=[[OK, b"", b"78", []], [OK, b"", b"79", []]])
    driver.timing = timing
    driver.events.subscribe(lambda _: renewals.append(timing.ms), RenewalEvent)
    consumer = Consumer(driver, "orders", 1)
    consumer._prefetch.add([delivery(1, lease=30_000)])
    consumer._session.schedule.follow([30_000])
    consumer._session.schedule.renewed(timing.now())
    renewer = consumer._renewer
    ended = threading.Event()

    def end() -> None:
        renewer.closed.ask()
        ended.set()

    timing.at_last = end

    renewer.start()
    assert ended.wait(PATIENCE)
    renewer.close()

    assert renewals == [1_010_000, 1_020_000]
    assert driver.beats == [1_001_000, *renewals]  # the roster has the leases of now
    assert driver.asked == ["receive", "renew", "renew"]


# Several queues


class OneByOne(Drive):
    """A `take` of the queues `a` and `b`, driven by a test. A claim is the step `(queue, count, block, ticket)`."""

    def __init__(self, wait: int) -> None:
        self.queues = Queues()
        self.queues.follow({"a": None, "b": None})
        super().__init__(take(self.queues, self._claim, 9, wait))
        self.answer(0)
        self.claims(9, True)

    @staticmethod
    def _claim(*words: Any) -> Flow[ReceiveResult | QueueNotFound]:
        entries: list[Any] = yield cast("Any", words)  # the test answers it
        return ReceiveResult(known(), entries, b"", {}, 1000, None, False)

    def claims(self, count: int, waits: bool, at: int = 0) -> None:
        """Both queues are asked for so many messages, to wait or not, and are empty."""
        for name in ("a", "b"):
            assert (self.step[:2], self.step[2] > 0) == ((name, count), waits)
            assert self.answer([]) == Now()
            self.answer(at)


@pytest.mark.parametrize(
    "answer, count", [(ENDED, 9), (ABANDONED, 0), (PoolExhausted(3, 2), 9)], ids=["ended", "abandoned", "no connection"]
)
def test_a_wait_that_is_ended_is_followed_by_one_last_look(answer: Any, count: int) -> None:
    drive = OneByOne(5_000)
    assert isinstance(drive.step, WaitForWakeup)
    assert (drive.step.queues, drive.step.ms, drive.step.left) == (["a", "b"], 5_000, 5_000)
    assert drive.answer(answer) == Now()
    drive.answer(100)
    with pytest.raises(PoolExhausted) if isinstance(answer, PoolExhausted) else nullcontext():
        drive.claims(count, False, at=100)
        assert drive.result is None
    assert not any(queue.is_awaited for queue in drive.queues.values())


def test_a_wait_that_ends_early_without_an_element_looks_at_all_queues_again() -> None:
    """The connection was lost, and Redis may have forgotten who waits."""
    drive = OneByOne(5_000)
    assert drive.answer(None) == Now()
    drive.answer(10)
    drive.answer(10)
    drive.claims(9, True, at=10)
    assert isinstance(drive.step, WaitForWakeup)
    assert drive.step.left == 4_990


def test_of_several_hints_all_but_the_first_are_passed_on() -> None:
    drive = OneByOne(5_000)
    assert drive.answer([("b", b""), ("a", b"")]) == ("a", 0, 0, b"")
    assert drive.answer([]) == Now()
    drive.answer(1)
    drive.claims(9, True, at=1)


def test_a_ticket_of_a_claim_that_failed_is_shown_once_more() -> None:
    drive = OneByOne(5_000)
    drive.answer(("b", b"ticket"))
    drive.answer(1)
    assert drive.step[0::3] == ("b", b"ticket")
    with pytest.raises(ConnectionError):
        drive.throw(ConnectionError())
    assert drive.queues["b"].ticket == b"ticket"
    assert drive.queues.candidates(1) == ["b"]


def test_only_queues_of_a_node_that_is_away_rest() -> None:
    outages = Outages(SimpleNamespace(nodes=["A", "B"], name_of=str), lambda: 0, logging.getLogger("test"))
    queues = Queues(SimpleNamespace(outages=outages, node_of=str.upper))
    queues.follow({"a": None, "b": None})

    def meet(name: str, error: Exception, cause: Exception | None = None) -> None:
        with queues.sparing(name):
            raise error from cause

    meet("a", redis.ConnectionError())
    assert queues.candidates(0) == ["b"]
    for error in (PoolExhausted(1), OutcomeUnknown("b", "renew"), QueueNotFound("b")):
        with pytest.raises(type(error)):
            meet("b", error, None if isinstance(error, OutcomeUnknown) else redis.ConnectionError())
    assert queues.candidates(0) == ["b"]
    meet("b", OutcomeUnknown("b", "renew"), redis.TimeoutError())
    assert queues.candidates(0) == []


@pytest.mark.parametrize("held, asked", [("abc", ["a1", "b"]), ("b", ["a1", "b"]), ("a2", ["a1", "b"])], ids=str)
def test_a_consumer_that_leaves_asks_a_node_that_is_away_once_and_all_others(held: str, asked: list[str]) -> None:
    outages = Outages(SimpleNamespace(nodes=["a", "b"], name_of=str), lambda: 0, logging.getLogger("test"))
    fast, seen = SimpleNamespace(keyspace=Keyspace(), outages=outages, node_of=lambda name: name[0]), list[str]()
    session = SharedSession[Delivery](fast, {"a1": None, "a2": None, "b": None}, 9, Interrupt(), unused)
    for name, part in session.parts.items():
        if held in ("abc", name):
            part.finish(delivery(1))

    def perform(step: Any) -> Any:
        if type(step) is GetConfig:
            return config_of(step.queue)
        seen.append(step.queue)
        if step.queue != "b":
            raise redis.ConnectionError("away")
        return received()

    with nullcontext() if held == "b" else pytest.raises(redis.ConnectionError):
        drive(session.leave(), perform)

    assert seen == asked
    assert [name for name, part in session.parts.items() if part.has_acks] == [
        name for name in ("a1", "a2") if held in ("abc", name)
    ]


def test_a_call_for_several_queues_asks_a_node_that_is_away_once() -> None:
    outages = Outages(SimpleNamespace(nodes=["a", "b"], name_of=str), lambda: 0, logging.getLogger("test"))
    fast, asked = SimpleNamespace(outages=outages, node_of=lambda name: name[0]), list[str]()

    def perform(step: Any) -> Any:
        if type(step) is Now:
            return 0
        asked.append(step.queue)
        if step.queue != "b":
            raise redis.TimeoutError
        return config_of(step.queue) if type(step) is GetConfig else received()

    drive(receive(fast, ["a1", "a2", "b"], 1, None, None, auto_ack=False), perform)

    assert set(asked) == {"a1", "b"}
    assert asked.count("a1") == 1


def test_a_claim_takes_the_share_of_its_queue_among_those_that_may_have_messages() -> None:
    queues = Queues()
    queues.follow({"a": 3, "b": 1})
    assert [queues.share("a", count, 0) for count in (1, 8, 100)] == [1, 6, 75]
    assert [queues.share("b", count, 0) for count in (0, 1, 8, 100)] == [0, 1, 2, 25]
    queues["b"].until = 10
    assert queues.share("a", 8, 0) == 8
