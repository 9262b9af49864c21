"""No value of a caller and no key of a stranger gets more than a typed error that names it."""

import logging

import pytest
import redis

from rqttl import Broker, CommandEvent, DataDamaged, InvalidInput, QueueNotFound, QueuesAway, RqttlError
from rqttl.doctor import examine
from rqttl.flows import roster
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked
from tests.hostile import CALLS, VALUES, Call, attempt, set_stage
from tests.lua.states import everything


def fault_of(call: Call, error: RqttlError) -> str | None:
    """The reason why an error is no good answer to a hostile value."""
    if isinstance(error, QueueNotFound):
        # a valid name, of a queue that is not there
        return None if call.label in ("redrive(to)", "move(to)") else "no such queue"
    if not isinstance(error, InvalidInput):
        return "not of the family InvalidInput"
    names = tuple(f"{name}: " if name else "" for name in call.names)
    return None if str(error).startswith(names) else "names another argument"


@pytest.mark.parametrize("call", CALLS, ids=[call.label for call in CALLS])
def test_a_hostile_value_is_taken_or_refused_by_name(
    call: Call, broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQTTL_URL", "unix:///none")
    sent, faults = [], []
    broker.events.subscribe(lambda event: sent.append(event.name), CommandEvent)
    stage = set_stage(broker)
    before = everything(client)
    for value in VALUES:
        sent.clear()
        error = None
        try:
            error = attempt(call, stage, value)
        except Exception as fault:  # noqa: BLE001  # every other error is what the test looks for
            faults.append(f"{value}: {type(fault).__name__}: {str(fault)[:200]}")
        if error is not None and (why := fault_of(call, error)):
            faults.append(f"{value}: {why}: {type(error).__name__}: {error}")
        if error is not None and sent and everything(client) != before:
            faults.append(f"{value}: changed Redis, and was refused: {error}")
        if sent:
            client.flushall()
            stage = set_stage(broker)
            before = everything(client)
    assert faults == []
    assert everything(client) == before


STRANGERS = [b"\xff\xfe", b"", b"two words", b"x" * 129, "ü".encode(), b"a\nb", b"{}", b"\xed\xa0\x80"]


@pytest.fixture
def strange(broker: Broker, client: redis.Redis) -> Broker:
    """A broker with two queues, in a registry with strangers."""
    broker.declare_queue("a", message_ttl="1h").enqueue(b"x", ttl="1ms")
    broker.declare_queue("b")
    client.sadd("rqttl:queues{rqttl}", *STRANGERS)
    return broker


def test_strangers_in_the_registry_are_skipped_by_all_who_read_it(strange: Broker, client: redis.Redis) -> None:
    assert strange.queues() == ["a", "b"]
    assert sorted(strange.stats()) == sorted(strange.stats(sweep=False)) == sorted(strange.options()) == ["a", "b"]
    assert client.scard("rqttl:queues{rqttl}") == 2 + len(STRANGERS)


def test_a_reaper_takes_strangers_out_with_a_warning_and_goes_on(
    strange: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="rqttl.reaper"):
        Reaper(strange).run_once()

    assert client.smembers("rqttl:queues{rqttl}") == {b"a", b"b"}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(STRANGERS)
    assert r"registry: removed b'\xff\xfe', which is not a queue name" in told


def test_a_registry_of_another_type_is_a_typed_error(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("a")
    client.delete("rqttl:queues{rqttl}")
    client.set("rqttl:queues{rqttl}", "not a set")

    for call in (broker.queues, broker.stats, lambda: broker.declare_queue("b"), Reaper(broker).run_once):
        with pytest.raises(DataDamaged, match=r"^the key rqttl:queues{rqttl} has another type"):
            call()

    queue.enqueue(b"x")  # who knows a queue goes on
    assert queue.receive() is not None
    assert client.get("rqttl:queues{rqttl}") == b"not a set"
    assert not client.exists("rqttl:{b}:meta")


#: Texts that another program, or a newer version, may have put in the place of stored JSON.
NONSENSE = [b"", b"nonsense", b"[" * 100_000, b'{"beat":1e999}', b'{"message_ttl":1e999}', b'{"of":2}', b"[]", b"\xff"]


@pytest.mark.parametrize("text", NONSENSE)
def test_unreadable_options_of_one_queue_end_no_reaper_and_keep_no_other_from_its_policies(
    clocked: Clocked, client: redis.Redis, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    queue = clocked.declare_queue("a", message_ttl="1h")
    queue.enqueue(b"x", ttl="1ms")
    clocked.advance(1)
    clocked.declare_queue("b", message_ttl="1h").enqueue(b"x")
    client.hset("rqttl:{b}:meta", mapping={"options": text, "declared": text, "version": b"other"})

    with pytest.raises(DataDamaged, match="'b' cannot be read"):
        clocked.set_policy("p", "#", {"lease": "1m"})
    assert queue.options()["lease"] == 60_000
    with caplog.at_level(logging.WARNING, logger="rqttl.reaper"):
        Reaper(clocked).run_once()

    assert queue.stats(sweep=False).deaths["expired"] == 1
    assert client.hget("rqttl:{b}:meta", "options") == text
    assert "'b' cannot be read" in caplog.text
    with pytest.raises(DataDamaged, match="'b' cannot be read"):
        Broker(client).queue("b").receive()


#: Damages of one queue, each as a call of Redis.
DAMAGES = [
    ("HSET", "rqttl:{b}:outgoing", "c", "nonsense"),
    ("HSET", "rqttl:{b}:outgoing", b"\xff", b"\xff"),
    ("HSET", "rqttl:{b}:meta", "ready_bytes", "nonsense"),
    ("SET", "rqttl:{b}:log", "nonsense"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damaged_queue_keeps_no_other_from_being_looked_at(
    broker: Broker, client: redis.Redis, damage: tuple[bytes | str, ...]
) -> None:
    broker.declare_queue("a").enqueue(b"x")
    queue = broker.declare_queue("b")
    client.hset("rqttl:{b}:meta", "outgoing_at", "1")
    client.execute_command(*damage)

    for sweep in (True, False):
        with pytest.raises(QueuesAway, match=r"^queue .b. cannot be read now: ") as told:
            broker.stats(sweep=sweep)
        assert told.value.queues == ("b",)
        assert told.value.found["a"].ready == 1
        with pytest.raises(DataDamaged, match="queue 'b' cannot be read"):
            queue.stats(sweep=sweep)
    findings = list(examine(broker))
    assert {finding.queue for finding in findings if finding.level == "problem"} - {None} == {"b"}
    assert [finding.result for finding in findings if "sound queue" in finding.result] == [
        "1 sound queue, 1 message, 1 ready (1 B)"
    ]


@pytest.mark.parametrize("text", NONSENSE)
def test_an_unreadable_entry_among_the_workers_goes_with_the_next_worker_that_ends(
    broker: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    driver = driver_of(broker)
    client.hset("rqttl:workers{rqttl}", b"strange\xff", text)
    assert driver.perform(roster.workers(driver.keyspace)) == []

    driver.perform(roster.leave(driver.keyspace, "me"))

    assert not client.exists("rqttl:workers{rqttl}")
    assert caplog.messages == ["workers: removed the entry strange\\xff, which cannot be read"]
