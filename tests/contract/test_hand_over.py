"""Dead letters whose target is in another slot: they arrive once and in order, as from a death in one slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import pytest

import rqttl
from rqttl import Broker, Message, Queue
from rqttl.errors import InvalidInput, QueueInUse
from rqttl.flows import moving, registry
from rqttl.flows.steps import Flow, HandleNotes, Now, Step, run
from rqttl.protocol import commands
from rqttl.protocol.keys import Keyspace
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from rqttl.testing import async_fake_broker, fake_broker
from rqttl.testing.fake import ClockedBroker
from tests.contract.clocked import START
from tests.contract.looks import bodies_in as bodies
from tests.contract.looks import one

#: The ms for which a mover holds a page at first.
HOLD = 2_000


@pytest.fixture
def slotted(client: Any) -> Iterator[ClockedBroker]:
    with ClockedBroker(client, start=START, slotted=True) as broker:
        yield broker


@contextmanager
def dying(broker: Broker, *kinds: bytes) -> Iterator[None]:
    """Within the block nobody follows notes of these kinds: the client has died after the call."""
    driver: Any = driver_of(broker)
    perform = driver.step

    def step(step: Step) -> Any:
        if not isinstance(step, HandleNotes):
            return perform(step)
        pairs = zip(step.notes[::2], step.notes[1::2], strict=True)
        return perform(HandleNotes([word for pair in pairs if pair[0] not in kinds for word in pair]))

    driver.step = step
    yield
    driver.step = perform


def advance(broker: ClockedBroker, ms: int) -> None:
    broker.clock.set(broker.clock.ms + ms)


def rejected(queue: Queue, *texts: bytes) -> None:
    queue.enqueue_many(texts)
    queue.reject_many(queue.receive_many(len(texts)), "no")


Source = Callable[..., Queue]


def expired(broker: ClockedBroker, source: Source, call: Callable[[Queue], object]) -> None:
    queue = source()
    queue.enqueue(Message(b"x", ttl="1s"))
    advance(broker, 1_000)
    call(queue)


def trimmed(broker: ClockedBroker, source: Source, call: Callable[[Queue], object]) -> None:
    """Dead letters have filled the queue, and nobody has swept it since."""
    queue = source(max_length=1)
    with dying(broker, b"sweep"):
        rejected(broker.declare_queue("s/up", dead_letter="s"), b"x", b"y")
    call(queue)


def failed(broker: ClockedBroker, source: Source, call: Callable[[Queue], object]) -> None:
    queue = source(max_deliveries=1, lease="1s")
    queue.enqueue(b"x")
    queue.receive()
    advance(broker, 1_000)
    call(queue)


def nacked(broker: ClockedBroker, source: Source, after: int, **options: Any) -> None:
    queue = source(**options)
    queue.enqueue(Message(b"x", ttl="1m"))
    deliveries = queue.receive_many(1, lease="1h")
    advance(broker, after)
    queue.nack_many(deliveries, description="no")


def settled(source: Source, call: Callable[[Queue], object], **options: Any) -> None:
    queue = source(**options)
    queue.enqueue(Message(b"x", id="m"))
    call(queue)


def redriven(broker: ClockedBroker, source: Source, **options: Any) -> None:
    queue = source(dead_letter_rejected="s/dead")
    rejected(queue, b"x")
    queue.update(**options)
    queue.enqueue(Message(b"x", ttl="1h"))
    broker.queue("s/dead").redrive()
    queue.purge()


def moved(broker: ClockedBroker, queue: Queue) -> None:
    broker.declare_queue("s/other").enqueue(Message(b"y", id="m"))
    broker.queue("s/other").move("m", "s")


def arrived(broker: ClockedBroker, queue: Queue) -> None:
    queue.enqueue(b"y", delay="1s")
    advance(broker, 1_000)
    queue.sweep()


#: What lets the one message `x` die: the script and the reason, and how. `s` declares its queue with further options.
DEATHS: dict[str, Callable[[ClockedBroker, Source], object]] = {
    **{
        f"{call.__name__} {reason}": partial(how, call=call)
        for call in (Queue.receive, Queue.stats, Queue.sweep)
        for reason, how in {"expired": expired, "maxlen": trimmed, "delivery_limit": failed}.items()
    },
    "enqueue expired": lambda b, s: s().enqueue(Message(b"x", ttl=0)),
    "enqueue maxlen": lambda b, s: s(max_length=1).enqueue_many([b"x", b"y"]),
    "nack expired": partial(nacked, after=60_000),
    "nack delivery_limit": partial(nacked, after=0, max_deliveries=1),
    "reject rejected": lambda b, s: rejected(s(), b"x"),
    "sweep maxlen by an arrival": lambda b, s: settled(s, lambda queue: arrived(b, queue), max_length=1),
    "intervene expired": lambda b, s: settled(s, lambda queue: queue.expire("m")),
    "intervene rejected": lambda b, s: settled(s, lambda queue: queue.dead_letter("m", "no")),
    "redrive expired": partial(redriven, default_ttl=0),
    "redrive maxlen": partial(redriven, max_length=1),
    "move maxlen": lambda b, s: settled(s, lambda queue: moved(b, queue), max_length=1),
}


def outcome(client: Any, death: str, dead: str, *, survives: bool) -> tuple[object, object]:
    """What is in Redis of the target and in the statistics of the source."""
    client.flushall()
    with ClockedBroker(client, start=START, slotted=True) as broker:
        with nullcontext() if survives else dying(broker, b"move"):
            DEATHS[death](broker, partial(broker.declare_queue, "s", dead_letter=dead))
        if not survives:
            assert dead not in broker.queues()
            due: Any = client.hget("rqttl:{s}:meta", "due_at")
            assert int(due) <= broker.clock.ms + HOLD
            advance(broker, HOLD)
            broker.queue("s").stats()  # any call that sweeps
        (view,) = broker.queue(dead).peek()
        assert (view.body, view.deaths[0].reason) == (b"x", death.split()[1])
        assert client.exists(f"rqttl:{{s}}:outbox>{dead}") == 0
        keys = driver_of(broker).keyspace
        record: Any = client.hgetall(keys.key(dead, "meta"))
        return (record, client.xrange(keys.key(dead, "log"))), broker.queue("s").stats()


@pytest.mark.parametrize("death", DEATHS)
def test_a_letter_arrives_as_from_a_death_in_one_slot_also_if_the_client_dies(client: Any, death: str) -> None:
    assert outcome(client, death, "t", survives=True) == outcome(client, death, "s/t", survives=True)
    outcome(client, death, "t", survives=False)


@pytest.mark.parametrize("target", ["t", "{queue}/t"])
@pytest.mark.parametrize("by_policy", [False, True])
def test_a_target_gets_its_letters_wherever_it_is(slotted: ClockedBroker, target: str, by_policy: bool) -> None:
    queue = slotted.declare_queue("s", dead_letter=None if by_policy else target)
    if by_policy:
        slotted.set_policy("far", "s", {"dead_letter": target})
    goes_to = target.replace("{queue}", "s")
    assert queue.options().target("rejected") == goes_to
    assert queue.explain()["dead_letter"].value == target
    queue.enqueue_many([b"a", b"b", b"c"])
    for delivery in queue.receive_many(2):
        delivery.reject("no")
    queue.update(message_ttl=0)

    assert bodies(slotted, goes_to) == [b"a", b"b", b"c"]
    assert [view.deaths[0].reason for view in slotted.queue(goes_to).peek(9)] == ["rejected", "rejected", "expired"]
    assert queue.stats().outgoing == {}
    assert slotted.queue(goes_to).redrive(to="s") == 3


@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("part", ["meta", "log"])
def test_letters_are_counted_until_they_have_arrived(
    slotted: ClockedBroker, client: Any, part: str, sweep: bool
) -> None:
    slotted.declare_queue("idle")
    client.set(Keyspace().key("t", part), "of another program")
    queue = slotted.declare_queue("s", dead_letter="t")
    rejected(queue, b"a", b"b", b"c")

    assert queue.stats(sweep=sweep).outgoing == {"t": 3}
    stats = slotted.stats(["s", "idle"], sweep=sweep)
    assert {name: one.outgoing for name, one in stats.items()} == {"s": {"t": 3}, "idle": {}}

    client.delete(Keyspace().key("t", part))
    advance(slotted, HOLD)
    queue.sweep()
    assert queue.stats(sweep=sweep).outgoing == slotted.stats(["s"], sweep=sweep)["s"].outgoing == {}
    assert bodies(slotted, "t") == [b"a", b"b", b"c"]


def test_a_call_moves_four_pages_and_sweeps_the_others(slotted: ClockedBroker) -> None:
    queue = slotted.declare_queue("s", dead_letter="t")
    texts = [b"%d" % n for n in range(1_301)]
    with dying(slotted, b"move"):
        for start in range(0, 1_300, 250):
            rejected(queue, *texts[start : min(start + 250, 1_300)])
    rejected(queue, texts[-1])
    assert bodies(slotted, "t") == texts[:1_000]

    queue.sweep()  # no page is under way, so it is due at once
    assert bodies(slotted, "t") == texts


def test_a_page_has_four_megabytes(slotted: ClockedBroker, client: Any) -> None:
    queue = slotted.declare_queue("s", dead_letter="t", dead_letter_expired="t")
    texts = [b"%d" % n * 1_500_000 for n in range(4)]
    with dying(slotted, b"move"):
        for text in texts:
            rejected(queue, text)
    rejected(queue, b"last")
    assert bodies(slotted, "t") == [*texts, b"last"]
    assert client.get("rqttl:{t}:sender>s").startswith(b"2 ")


def test_a_broken_target_keeps_no_other_waiting(
    slotted: ClockedBroker, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = slotted.declare_queue("s", dead_letter="t", dead_letter_expired="u")
    client.set("rqttl:{t}:log", "no stream")
    rejected(queue, b"1")
    queue.enqueue(Message(b"x", ttl=0))
    assert "queue s: could not move dead letters to t; a reaper will: " in caplog.text
    assert bodies(slotted, "u") == [b"x"]

    client.delete("rqttl:{t}:log")
    rejected(queue, b"2")  # the other mover still has the page
    driver_of(slotted).perform(moving.hand_over(Keyspace(slotted=True), "s", "t"))
    assert bodies(slotted, "t") == []
    advance(slotted, HOLD)
    queue.sweep()
    assert bodies(slotted, "t") == [b"1", b"2"]


def consumed(queue: Queue) -> list[bytes]:
    with queue.consume(wait=0) as deliveries:
        return [delivery.body for delivery in deliveries]


def handled(queue: Queue) -> list[bytes]:
    found = list[bytes]()
    queue.run(lambda delivery: found.append(delivery.body), wait=0)
    return found


#: Ways to take the messages of a queue.
TAKES: dict[str, Callable[[Queue], list[bytes]]] = {
    "receive": lambda queue: [one(queue).body for _ in range(2)],
    "receive_many": lambda queue: [delivery.body for delivery in queue.receive_many(9, auto_ack=True)],
    "consume": consumed,
    "run": handled,
}
LOST = [
    rqttl.OutcomeUnknown("o", "redrive_in"),
    rqttl.PoolExhausted(5),
    rqttl.BrokerClosed(),
    rqttl.ContractError("a reply to another call"),
]


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("error", LOST, ids=lambda error: error.code)
def test_letters_that_cannot_be_moved_now_end_no_call_that_takes_others(
    slotted: ClockedBroker,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    take: str,
) -> None:
    def fail(*_: object) -> Flow[Any]:
        yield Now()
        raise error

    rejected(slotted.declare_queue("o", dead_letter="s"), b"1", b"2", b"3")
    first = slotted.queue("s").peek()[0].sequence
    driver = driver_of(slotted)
    driver.step(next(moving.redrive(driver.keyspace, "s", "o", [first])))  # the client dies; its page is under way
    with monkeypatch.context() as patch, rqttl.Broker(client, slotted=True) as broker:
        patch.setattr(moving, "redrive", fail)
        assert TAKES[take](broker.queue("s")) == [b"2", b"3"]
    assert f"queue s: could not move dead letters to o; a reaper will: {error}" in caplog.messages

    advance(slotted, HOLD)
    slotted.queue("s").sweep()
    assert bodies(slotted, "o") == [b"1"]


def test_a_queue_that_letters_have_made_is_entered_by_the_next_mover_if_the_first_one_has_died(
    slotted: ClockedBroker,
) -> None:
    driver = driver_of(slotted)
    queue = slotted.declare_queue("s", dead_letter="t")
    with dying(slotted, b"move", b"created"):
        rejected(queue, b"1")
        call: Any = next(moving.hand_over(driver.keyspace, "s", "t"))
        page: Any = driver.perform(run(call))
        number, token = page.number, page.token
        driver.perform(run(commands.accept(driver.keyspace, "t", "s", page.letters, number=number, token=token)))
    assert registered(slotted) == ["s"]

    advance(slotted, HOLD)
    queue.sweep()

    assert (registered(slotted), bodies(slotted, "t")) == (["s", "t"], [b"1"])


@pytest.mark.parametrize("is_under_way", [False, True])
def test_an_outbox_that_redis_has_evicted_is_forgotten(slotted: ClockedBroker, client: Any, is_under_way: bool) -> None:
    driver = driver_of(slotted)
    queue = slotted.declare_queue("s", dead_letter="t")
    with dying(slotted, b"move"):
        rejected(queue, b"1")
    if is_under_way:
        driver.step(next(moving.hand_over(driver.keyspace, "s", "t")))
    client.delete("rqttl:{s}:outbox>t")
    advance(slotted, HOLD)
    queue.sweep()
    assert driver.perform(moving.outgoing(driver.keyspace, ["s"])) == [{"t": 0}]
    rejected(queue, b"2")
    assert bodies(slotted, "t") == [b"2"]


def test_a_call_that_is_repeated_after_lost_writes_makes_another_page(slotted: ClockedBroker, client: Any) -> None:
    driver = driver_of(slotted)
    queue = slotted.declare_queue("s", dead_letter="t")
    call: Any = next(moving.hand_over(driver.keyspace, "s", "t"))
    with dying(slotted, b"move"):
        rejected(queue, b"1")
        first = driver.perform(run(call))
        client.delete("rqttl:{s}:outgoing", "rqttl:{s}:outbox>t")  # a failover has lost the death
        rejected(queue, b"2")
    again = driver.perform(run(call))
    assert (again.number, again.letters[1::2]) == (first.number, [b"2"])
    assert again.token != first.token


@pytest.mark.parametrize("target", ["s/t", "t"])
@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 6}], ids=str)
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_after_letters_the_next_sweep_trims_their_queue_and_without_new_ones_none_does(
    slotted: ClockedBroker, client: Any, target: str, limit: dict[str, int], overflow: str
) -> None:
    queue, refuses = slotted.declare_queue("s", dead_letter=target), overflow != "drop-head"
    rejected(queue, *[b"%03d" % n for n in range(300)])
    trimmed, letters = slotted.queue(target).peek(300)[-2].sequence, slotted.queue(target)
    letters.pause()
    slotted.set_policy("all", "#", {"overflow": overflow, **limit})
    assert len(bodies(slotted, target)) == (300 if refuses else 2)  # a lower limit is no letter

    with dying(slotted, b"sweep"):
        rejected(queue, b"300")
    Reaper(slotted).run_once()
    assert bodies(slotted, target) == [b"299", b"300"]
    assert letters.stats().deaths["maxlen"] == 299
    assert client.hget(driver_of(slotted).keyspace.key(target, "meta"), "trimmed_upto") == trimmed.encode()

    letters.resume()
    held = letters.receive_many(2)
    rejected(queue, b"301", b"302")
    letters.nack_many(held)
    letters.sweep()
    assert bodies(slotted, target) == ([b"299", b"300"] if refuses else []) + [b"301", b"302"]
    rejected(queue, b"303")
    assert bodies(slotted, target) == [b"302", b"303"]


@pytest.mark.parametrize("sweeps", [0, 1, 2])
@pytest.mark.parametrize("on_expire", ["drop", "dead-letter", "keep", "delete"])
def test_letters_that_a_redrive_has_taken_out_are_messages_of_their_queue(
    slotted: ClockedBroker, on_expire: Any, sweeps: int
) -> None:
    """The end of the queue comes while a page is away; its letters find no room, and go back."""
    life: Any = {} if on_expire == "delete" else {"expires": "1s", "on_expire": on_expire, "dead_letter": "far"}
    letters = slotted.declare_queue("dead", **life)
    origin = slotted.declare_queue("s", dead_letter="dead", max_length=2, overflow="reject-publish")
    rejected(origin, b"1", b"2")
    origin.enqueue_many([b"3", b"4"])
    flow = moving.redrive(Keyspace(slotted=True), "dead", "s", [view.sequence for view in letters.peek()])
    step = flow.send(driver_of(slotted).step(next(flow)))  # the page is away

    if on_expire == "delete":
        with pytest.raises(QueueInUse, match="2 messages"):
            letters.delete(if_empty=True)
    for _ in range(sweeps):
        advance(slotted, 1_000)
        letters.sweep()
    advance(slotted, 999 if sweeps else 1_000)
    with suppress(StopIteration):
        while True:
            step = flow.send(driver_of(slotted).step(step))

    assert bodies(slotted, "dead") == [b"1", b"2"]


@pytest.mark.parametrize("ending", ["deleted", "expired"])
def test_letters_outlive_their_queue(slotted: ClockedBroker, client: Any, ending: str) -> None:
    expiring: Any = {"expires": "1h", "on_expire": "dead-letter"} if ending == "expired" else {}
    queue = slotted.declare_queue("s", dead_letter="t", **expiring)
    with dying(slotted, b"move"):
        rejected(queue, b"1")
        queue.enqueue(b"2")
        if ending == "deleted":
            queue.delete()
        else:
            advance(slotted, 3_600_000)
            queue.sweep()
        assert "s" in registered(slotted)  # the letters have not arrived
    Reaper(slotted).run_once()  # sends them on, although it keeps the name for a while
    assert bodies(slotted, "t") == [b"1", b"2"][: 1 + bool(expiring)]
    driver = driver_of(slotted)
    driver.perform(registry.unregister(driver.keyspace, "s"))
    assert registered(slotted) == ["t"]

    slotted.queue("t").delete()
    assert sorted(client.keys("*")) == sorted(
        [b"rqttl:dataset{rqttl}", b"rqttl:{s}:tombstone", b"rqttl:{t}:sender>s", b"rqttl:{t}:tombstone"]
    )
    week = 7 * 24 * 3_600_000
    assert week - 60_000 < client.pttl("rqttl:{t}:sender>s") <= week


def registered(broker: Broker) -> list[str]:
    driver = driver_of(broker)
    return driver.perform(registry.registered(driver.keyspace))


def test_letters_of_an_older_queue_of_this_name_arrive(slotted: ClockedBroker) -> None:
    with dying(slotted, b"move"):
        queue = slotted.declare_queue("s", dead_letter="t")
        rejected(queue, b"1")
        queue.delete()
        queue = slotted.declare_queue("s")
    queue.sweep()
    assert bodies(slotted, "t") == [b"1"]


@pytest.mark.parametrize("again", ["declared", "by a letter"])
def test_letters_of_a_deleted_queue_arrive(slotted: ClockedBroker, client: Any, again: str) -> None:
    client.set(Keyspace().key("t", "meta"), "of another program")
    queue = slotted.declare_queue("s", dead_letter="t")
    rejected(queue, b"a")
    queue.delete()
    assert slotted.queues() == []
    assert client.sismember(Keyspace().registry, "s")
    client.delete(Keyspace().key("t", "meta"))
    advance(slotted, HOLD)

    if again == "declared":
        slotted.declare_queue("s")
    else:
        slotted.declare_queue("other", dead_letter="s").enqueue(b"x", ttl=0)
    assert bodies(slotted, "t") == [b"a"]


def test_a_letter_goes_to_the_target_under_which_it_died(slotted: ClockedBroker) -> None:
    queue = slotted.declare_queue("s", dead_letter="t")
    with dying(slotted, b"move"):
        rejected(queue, b"1")
        queue.update(dead_letter="u")
    rejected(queue, b"2")
    assert (bodies(slotted, "t"), bodies(slotted, "u")) == ([], [b"2"])

    queue.sweep()
    assert bodies(slotted, "t") == [b"1"]


def test_a_sweep_moves_what_the_caller_of_another_one_could_not(slotted: ClockedBroker) -> None:
    queue = slotted.declare_queue("s", dead_letter="t")
    with dying(slotted, b"move"):
        rejected(queue, b"1")
        advance(slotted, HOLD)
        queue.stats()  # asks its caller
    queue.sweep()
    assert bodies(slotted, "t") == [b"1"]


@pytest.mark.parametrize("back", [3_600_000, 365 * 24 * 3_600_000])
@pytest.mark.parametrize("call", ["sweep", "redrive"])
def test_the_page_of_a_dead_mover_is_free_after_a_step_back_of_the_clock(
    slotted: ClockedBroker, back: int, call: str
) -> None:
    queue, driver = slotted.declare_queue("s", dead_letter="t"), driver_of(slotted)
    slotted.declare_queue("t")
    if call == "sweep":
        with dying(slotted, b"move"):
            rejected(queue, b"1", b"2")
        page = commands.relay(driver.keyspace, "s", "t", token="", verdict="", fresh="dead", more=True)
    else:
        queue.enqueue_many([b"1", b"2"])
        sequences = [message.sequence for message in queue.peek()]
        page = commands.redrive_out(driver.keyspace, "s", "t", sequences, fresh="dead")
    driver.step(page)  # and its mover dies

    advance(slotted, -back)
    Reaper(slotted).run_once()

    assert bodies(slotted, "t") == [b"1", b"2"]


def test_single_messages_do_not_move_to_a_far_queue(slotted: ClockedBroker) -> None:
    queue = slotted.declare_queue("s")
    slotted.declare_queue("other")
    queue.enqueue(b"a", id="a")
    with pytest.raises(InvalidInput, match="another slot"):
        queue.move("a", "other")
    assert queue.stats().ready == 1


@pytest.mark.parametrize(
    "is_slotted, a, b, far",
    [(True, "s", "s/t", False), (True, "{x}a", "{x}b", False), (True, "s", "t", True), (False, "s", "t", False)],
)
def test_queues_are_far_in_different_slots(is_slotted: bool, a: str, b: str, far: bool) -> None:
    assert Keyspace(slotted=is_slotted).in_another_slot(a, b) is far


def test_fake_brokers_can_be_slotted() -> None:
    async def settle() -> None:
        async with async_fake_broker(slotted=True) as broker:
            queue = await broker.connect_async().declare_queue("s", dead_letter="t")
            await queue.enqueue(b"a", ttl=0)
            assert (await broker.queue("t").stats()).ready == 1
            assert broker._driver.keyspace.in_another_slot("s", "t")

    broker = fake_broker(slotted=True).connect()
    rejected(broker.declare_queue("s", dead_letter="t"), b"a")
    assert bodies(broker, "t") == [b"a"]
    assert driver_of(broker).keyspace.in_another_slot("s", "t")
    asyncio.run(settle())
