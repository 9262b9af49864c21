"""Batch reads of real queues without Spark: what is planned, read, counted, refused, and lost; nothing is repeated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from pyspark.sql.datasource import InputPartition

from rqttl import Broker, Message, Queue
from rqttl.units import as_datetime
from spark_connectors.errors import DataLoss, InvalidOption, MalformedEntry, NoPermission, NoSuchQueue
from spark_connectors.read import plan
from spark_connectors.read.batch import BatchPartition
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.connect import READ_COMMANDS, Command
from tests.contract.clocked import START, Clocked
from tests.servers import Server
from tests.spark.following import TRIMS, letters
from tests.spark.letters import bury
from tests.spark.reading import Load, hourly, numbers


@pytest.mark.parametrize("partitions", [1, 2, 3, 16])
def test_every_letter_is_read_once_by_any_number_of_tasks(broker: Broker, load: Load, partitions: int) -> None:
    bury(broker, 2_345)

    job = load(queues="orders/dead", numPartitions=partitions)

    assert job.ids() == numbers(2_345)
    assert len(job.partitions) == partitions
    assert max(len(job.task(i)) for i in range(partitions)) <= 2.5 * 2_345 / partitions


@pytest.mark.parametrize("rows, tasks", [(1_000, 1), (250, 4), (10, 64)])
def test_rows_for_each_task_decide_how_many_there_are(
    rows: int, tasks: int, broker: Broker, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(broker, 1_000)
    monkeypatch.setattr(plan, "_TASK_ROWS", rows)

    assert len(load(queues="orders/dead").partitions) == tasks


def test_many_small_queues_share_few_tasks(client: redis.Redis, broker: Broker, load: Load) -> None:
    for i in range(300):
        broker.declare_queue(f"EXP.q{i}").enqueue_many([Message(b"x", id=f"m-{i}-{n}") for n in range(i % 7)])

    job = load(queuePattern="EXP.#", numPartitions=3)

    expected = sorted(f"m-{i}-{n}" for i in range(300) for n in range(i % 7))
    assert job.ids() == expected
    assert len(job.partitions) == 3
    assert {row["queue"] for row in job.rows()} == {f"EXP.q{i}" for i in range(300) if i % 7}


def test_a_job_is_a_snapshot(broker: Broker, load: Load) -> None:
    bury(broker, 100)
    job = load(queues="orders/dead")

    bury(broker, 50, first=100)

    assert job.ids() == numbers(100)
    assert load(queues="orders/dead").ids() == numbers(150)


def test_reading_changes_nothing(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 100)
    before = client.info("persistence")["rdb_changes_since_last_save"]

    load(queues="orders/dead").rows()

    assert client.info("persistence")["rdb_changes_since_last_save"] == before


def test_scheduled_messages_are_read_once_they_have_arrived(clocked: Clocked, load: Load) -> None:
    queue = clocked.declare_queue("orders")
    queue.enqueue_many([Message(b"x", id="m-1", delay="1h"), Message(b"x", id="m-0")])
    assert load(queues="orders").ids() == numbers(1)

    clocked.advance(3_600_000)
    queue.sweep()

    assert load(queues="orders").ids() == numbers(2)


def test_leased_and_returned_letters_are_read_and_settled_ones_are_not(broker: Broker, load: Load) -> None:
    dead = bury(broker, 30)
    out = dead.receive_many(20)
    dead.ack_many(out[:5])
    dead.nack_many(out[5:10])

    assert load(queues="orders/dead").ids() == numbers(25, 5)


def test_what_holds_nothing_has_no_rows(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 5)
    broker.declare_queue("empty")
    # a name in the registry without a queue
    client.sadd("rqttl:queues{rqttl}", "gone/dead")
    empty, of_spark = load(queues="empty"), load(queues="orders/dead")
    # what Spark makes of no partition
    of_spark.partitions = [InputPartition(None)]

    assert len(empty.partitions) == 1
    assert empty.rows() == load(queuePattern="none.#").rows() == of_spark.task(0) == []
    assert load(queuePattern="#/dead").ids() == numbers(5)


def test_a_namespace_has_its_own_queues_and_a_hash_tag_in_a_name_is_kept(client: redis.Redis, load: Load) -> None:
    with Broker(client, "shop") as broker:
        broker.declare_queue("{shop}.orders").enqueue(b"x", id="a")

    assert load(queues="{shop}.orders", namespace="shop").ids() == ["a"]
    with pytest.raises(NoSuchQueue, match="in namespace 'rqttl'"):
        load(queues="{shop}.orders")


# Detached messages


def mixed(clocked: Clocked) -> Queue:
    """The queue `plain` with 8,000 messages, of which one in twenty lives long."""
    queue = clocked.declare_queue("plain")
    queue.enqueue_many(
        [Message(b"%d" % i, id=f"m-{i}", ttl="10d" if i % 20 == 0 else "1s", headers={"n": i}) for i in range(8_000)]
    )
    return queue


def compact(clocked: Clocked, queue: Queue) -> None:
    """Let the others expire, and most of those that stay move aside."""
    clocked.advance(2_000)
    queue.sweep()
    queue.sweep()  # the first call has buried messages, and leaves the compaction to the next one


@pytest.fixture
def compacted(clocked: Clocked) -> list[str]:
    """The ids of the messages in queue `plain`: the long-lived ones of 8,000, most of them moved to `detached`."""
    queue = mixed(clocked)
    compact(clocked, queue)
    queue.enqueue_many([Message(b"late", id=f"late-{i}") for i in range(10)])
    return sorted([f"m-{i}" for i in range(0, 8_000, 20)] + [f"late-{i}" for i in range(10)])


@pytest.mark.parametrize("partitions", [1, 4])
def test_messages_that_compaction_detached_are_read_too(
    client: redis.Redis, load: Load, compacted: list[str], partitions: int
) -> None:
    assert client.hlen("rqttl:{plain}:detached") > 0

    job = load(queues="plain", numPartitions=partitions, columns=("message_id", "sequence", "body", "headers"))

    assert job.ids() == compacted
    assert {row["message_id"]: row["headers"] for row in job.rows()}["m-40"] == [("n", "40")]


def test_messages_that_are_detached_during_the_read_are_read_once(
    clocked: Clocked, client: redis.Redis, load: Load
) -> None:
    queue = mixed(clocked)
    job = load(queues="plain", fetchEntries=100, numPartitions=1, failOnDataLoss="false")
    partition = job.partitions[0]
    assert isinstance(partition, BatchPartition)

    found: list[str] = []
    batches = job.batches(0, rows=200)
    for i, batch in enumerate(batches):
        found += batch.column("message_id").to_pylist()
        if i == 2:
            compact(clocked, queue)
            assert client.hlen("rqttl:{plain}:detached") > 0

    assert len(found) == len(set(found))
    assert set(found) >= {f"m-{i}" for i in range(0, 8_000, 20)}


def test_ranges_hold_for_detached_messages(client: redis.Redis, load: Load, compacted: list[str]) -> None:
    everything = {row["sequence"]: row["message_id"] for row in load(queues="plain").rows()}
    sequences = sorted(everything)
    after, upto = sequences[20], sequences[100]

    job = load(
        queues="plain",
        startingOffsets=json.dumps({"plain": after}),
        endingOffsets=json.dumps({"plain": upto}),
        failOnDataLoss="false",
    )

    assert sorted(row["sequence"] for row in job.rows()) == sequences[21:101]


def test_a_damaged_detached_entry_is_named(client: redis.Redis, load: Load, compacted: list[str]) -> None:
    sequence = load(queues="plain").rows()[-1]["sequence"]
    assert client.hset("rqttl:{plain}:detached", sequence, "99:short") == 0

    with pytest.raises(MalformedEntry, match=f"queue 'plain', sequence {sequence}: "):
        load(queues="plain").rows()


# From where to where


@pytest.mark.parametrize(
    "bounds, first, last",
    [
        ({"startingOffsets": 2}, 3, 10),
        ({"endingOffsets": 6}, 0, 7),
        ({"startingOffsets": 2, "endingOffsets": 6}, 3, 7),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, 10),
        ({"endingOffsets": "9999999999999-999999"}, 0, 10),
    ],
)
def test_offsets_begin_behind_a_sequence_and_end_with_one(
    bounds: dict[str, int | str], first: int, last: int, clocked: Clocked, load: Load
) -> None:
    hours = hourly(clocked)
    said = {name: hours[at][0] if isinstance(at, int) else at for name, at in bounds.items()}
    job = load(queues="orders/dead", **{name: json.dumps({"orders/dead": at}) for name, at in said.items()})

    assert job.ids() == numbers(last - first, first)
    assert job.ranges[0][0].upto == hours[last - 1][0]


def test_timestamps_hold_their_start_and_not_their_end_and_win(clocked: Clocked, load: Load) -> None:
    hours = hourly(clocked)
    window = {"startingTimestamp": hours[3][1], "endingTimestamp": as_datetime(hours[5][1]).isoformat()}
    offsets = json.dumps({"orders/dead": hours[9][0]})

    assert load(queues="orders/dead", **window, startingOffsets=offsets).ids() == numbers(2, 3)
    assert load(queues="orders/dead", startingTimestamp=hours[3][1] + 1).ids() == numbers(6, 4)
    assert load(queues="orders/dead", startingTimestamp=hours[9][1] + 1).rows() == []


@pytest.mark.parametrize("end", ["endingOffsets", "endingTimestamp"])
@pytest.mark.parametrize("start", ["startingOffsets", "startingTimestamp"])
def test_a_range_that_ends_before_it_starts_is_refused(start: str, end: str, clocked: Clocked, load: Load) -> None:
    hours = hourly(clocked, 6)

    def bounds(begins: int, ends: int) -> dict[str, object]:
        pairs = ((start, hours[begins]), (end, hours[ends]))
        return {name: at if "Time" in name else json.dumps({"orders/dead": sequence}) for name, (sequence, at) in pairs}

    # an offset is before the start and in the end, a time is in the start and behind the end
    first, last = 3 + (start == "startingOffsets"), 4 - (end == "endingTimestamp")
    assert load(queues="orders/dead", **bounds(3, 4)).ids() == numbers(last - first + 1, first)
    with pytest.raises(InvalidOption, match=rf"{end}: queue 'orders/dead': the range ends at .*, before it starts at"):
        load(queues="orders/dead", **bounds(4, 2))


def test_a_part_of_a_large_queue_is_split_by_how_much_is_in_it(client: redis.Redis, load: Load) -> None:
    stored(client, [1_700_000_000_000 + i for i in range(20_000)])

    job = load(queues="q", startingTimestamp=1_700_000_015_000, numPartitions=5)

    assert len(job.partitions) == 5
    assert len(job.rows()) == 5_000
    assert max(len(job.task(i)) for i in range(5)) < 1_500


def test_nothing_is_asked_for_that_makes_redis_walk_through_the_log(
    client: redis.Redis, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [1_700_000_000_000 + i for i in range(12_000)]
    stored(client, times)
    asked: list[Command] = []
    execute_all = BulkReader.execute_all

    def noting(reader: BulkReader, calls: Sequence[Command]) -> list[Any]:
        asked.extend(calls)
        return execute_all(reader, calls)

    monkeypatch.setattr(BulkReader, "execute_all", noting)

    load(queues="q", numPartitions=8)
    load(queues="q", startingTimestamp=times[6_000], numPartitions=8)
    load(queues="q", endingTimestamp=times[0] - 1)

    # a look backwards from before the first entry begins at the last one
    backwards = [words for words in asked if words[0] == "XREVRANGE"]
    assert len(backwards) > 10
    assert [words for words in backwards if words[2].strip("(") <= f"{times[0]}-100000" and words[2] != "+"] == []
    assert all(words[-2] == "COUNT" for words in asked if words[0] in ("XRANGE", "XREVRANGE"))


def stored(client: redis.Redis, times: list[int]) -> None:
    """A queue `q` with a letter from each of these times, which rise."""
    pipeline = client.pipeline(transaction=False)
    sequence, serial, before = "", 0, 0
    for ms in times:
        serial = serial + 1 if ms == before else 100_000
        sequence, before = f"{ms}-{serial}", ms
        pipeline.execute_command("XADD", "rqttl:{q}:log", sequence, "", "x")
    pipeline.hset(
        "rqttl:{q}:meta",
        mapping={"version": "1", "created_at": 1, "last_id": sequence, "trimmed_upto": "0-0", "holds_dead_letters": 1},
    )
    pipeline.sadd("rqttl:queues{rqttl}", "q")
    pipeline.execute()


ONLY_QUEUE = ("queue",)


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["queue"] for row in rows)


def test_whole_dead_letter_queues_are_counted_without_a_page(load: Load, broker: Broker, client: redis.Redis) -> None:
    letters = bury(broker, 25_000)
    bury(broker, 7, into="mails/dead", source="mails")
    job = load(ONLY_QUEUE, queuePattern="#/dead", numPartitions=4)
    client.config_resetstat()

    assert counted(job.rows()) == {"orders/dead": 25_000, "mails/dead": 7}
    assert "cmdstat_xrange" not in client.info("commandstats")
    # neither letters that arrive after the plan count, nor those that leave
    bury(broker, 50, first=25_000)
    letters.ack_many(letters.receive_many(30))
    assert counted(job.rows()) == {"orders/dead": 24_970, "mails/dead": 7}


def test_a_part_of_a_queue_and_a_queue_without_dead_letters_are_read(load: Load, broker: Broker) -> None:
    sequence = bury(broker, 100).peek(40)[-1].sequence
    plain = broker.declare_queue("plain")
    plain.enqueue_many([b"x"] * 20)

    part = load(ONLY_QUEUE, queues="orders/dead", startingOffsets=f'{{"orders/dead": "{sequence}"}}')

    assert counted(part.rows()) == {"orders/dead": 60}
    assert counted(load(ONLY_QUEUE, queues="plain").rows()) == {"plain": 20}


# Stretches of time


def bury_by_hours(clocked: Clocked, hours: int, each: int) -> None:
    """Have letters die at the full hour."""
    for hour in range(hours):
        bury(clocked, each, first=hour * each)
        clocked.advance(3_600_000)


def hours(first: int, last: int) -> dict[str, str]:
    """The options of these hours, the last one not included."""
    names = ("startingTimestamp", "endingTimestamp")
    return {name: str(START + hour * 3_600_000) for name, hour in zip(names, (first, last), strict=True)}


@pytest.mark.parametrize("first, last", [(0, 9), (1, 12), (3, 20), (2, 13)])
def test_letters_of_some_hours_are_counted_from_the_ends_of_the_stretch(
    first: int, last: int, load: Load, clocked: Clocked, client: redis.Redis
) -> None:
    bury_by_hours(clocked, 12, 3_000)
    letters = clocked.queue("orders/dead")
    letters.ack_many(letters.receive_many(1_000))
    job = load(ONLY_QUEUE, queues="orders/dead", **hours(first, last))
    client.config_resetstat()

    found = counted(job.rows())

    sent = int(client.info("stats")["total_net_output_bytes"])
    expected = (min(last, 12) - first) * 3_000 - (1_000 if first == 0 else 0)
    assert found == {"orders/dead": expected}
    assert sent < 0.25 * expected * 300


@pytest.mark.parametrize("change", ["in the middle", "no index", "another type", "an arrival that died at once"])
def test_a_stretch_of_time_is_read_where_arrivals_do_not_tell_the_number(
    change: str, load: Load, clocked: Clocked, client: redis.Redis
) -> None:
    bury_by_hours(clocked, 4, 3_000)
    letters, expected = clocked.queue("orders/dead"), 9_000
    if change == "in the middle":
        chosen = [(letter.sequence, "orders") for letter in letters.peek(8_000)[7_900:]]
        letters.redrive_many(chosen)
        expected -= len(chosen)
    elif change == "an arrival that died at once":
        letters.enqueue(b"x", ttl=0)
    else:
        client.delete("rqttl:{orders}/dead:arrivals")
    if change == "another type":
        client.set("rqttl:{orders}/dead:arrivals", "x")

    assert counted(load(ONLY_QUEUE, queues="orders/dead", **hours(1, 4)).rows()) == {"orders/dead": expected}


def test_letters_that_a_limit_removes_before_the_count_of_a_stretch_are_a_loss(load: Load, clocked: Clocked) -> None:
    bury_by_hours(clocked, 5, 3_000)
    job = load(ONLY_QUEUE, queues="orders/dead", **hours(1, 5))
    clocked.queue("orders/dead").update(max_length=10_000)
    clocked.queue("orders/dead").sweep()

    with pytest.raises(DataLoss):
        job.rows()


def test_a_queue_that_does_not_exist_is_told_with_the_nearest_there_is(broker: Broker, load: Load) -> None:
    bury(broker, 1)

    with pytest.raises(NoSuchQueue) as caught:
        load(queues="orders/dead,orders.daed")

    told = "queues: there is no queue 'orders.daed' in namespace 'rqttl'; did you mean orders/dead?"
    assert str(caught.value) == f"[RQTTL_QUEUE_NOT_FOUND] {told}"


def test_a_queue_for_letters_that_has_none_yet_is_told_how_it_is_made(client: redis.Redis, load: Load) -> None:
    with pytest.raises(NoSuchQueue, match=r"'x/dead' .* \(nor 1 more of this option\); the first dead letter creates"):
        load(queues="x/dead,y/dead")


@pytest.fixture
def user(client: redis.Redis) -> Any:
    """Gives a user these rights; `load(**user("+xlen"))`."""

    def give(*rights: str, keys: str = "~rqttl:*") -> dict[str, str]:
        client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">c4n4ry", keys, *rights)
        return {"username": "reader", "password": "c4n4ry"}

    yield give
    client.acl_deluser("reader")


def test_rights_to_read_suffice(server: Server, broker: Broker, load: Load, user: Any) -> None:
    bury(broker, 3_000)
    keys = "%R~rqttl:*" if server.version >= (7,) else "~rqttl:*"
    rights = user(*(f"+{command}" for command in READ_COMMANDS), keys=keys)

    assert load(queues="orders/dead", numPartitions=2, **rights).ids() == numbers(3_000)
    assert load(queuePattern="#/dead", **rights).ids() == numbers(3_000)
    assert load(queues="orders", **rights).rows() == []
    with pytest.raises(NoPermission, match=r"Reading needs the keys rqttl:\* and the commands hmget"):
        load(queues="orders/dead", **user("+@all", keys="~other:*"))


# without the right to read the index of arrivals a job reads more
@pytest.mark.parametrize("command", [command for command in READ_COMMANDS if command != "zrange"])
def test_a_right_that_is_missing_is_told_when_the_job_is_planned(
    broker: Broker, load: Load, user: Any, command: str
) -> None:
    bury(broker, 10)
    rights = user(*(f"+{other}" for other in READ_COMMANDS if other != command))

    with pytest.raises(NoPermission, match=rf"user 'reader' may not run {command.upper()} rqttl:\S+: ") as caught:
        load(queuePattern="#", **rights)

    assert "c4n4ry" not in str(caught.value)


def test_a_message_that_rqttl_did_not_store_is_named(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 3)
    client.xadd("rqttl:{orders}/dead:log", {"field": "value", "other": "value"}, id="1999999999999-100000")
    client.hset("rqttl:{orders}/dead:meta", "last_id", "1999999999999-100000")

    with pytest.raises(MalformedEntry, match=r"queue 'orders/dead', sequence 1999999999999-100000: .* one field"):
        load(queues="orders/dead").rows()


def test_a_start_behind_which_messages_were_removed_fails_if_it_is_to(clocked: Clocked, load: Load) -> None:
    dead = bury(clocked, 10)
    sequences = [letter.sequence for letter in dead.peek(10)]
    dead.purge_many(sequences[:5], unread=True)
    start = json.dumps({"orders/dead": sequences[2]})

    with pytest.raises(
        DataLoss, match=f"queue 'orders/dead': messages after {sequences[2]}, the highest of them {sequences[4]}"
    ):
        load(queues="orders/dead", startingOffsets=start)
    assert load(queues="orders/dead", startingOffsets=start, failOnDataLoss="false").ids() == numbers(5, 5)
    assert load(queues="orders/dead", startingOffsets=json.dumps({"orders/dead": sequences[4]})).ids() == numbers(5, 5)
    assert load(queues="orders/dead").ids() == numbers(5, 5)


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_fails_if_its_queue_was_deleted_with_what_was_to_be_read(
    clocked: Clocked, load: Load, again: bool
) -> None:
    dead = bury(clocked, 10)
    strict, lenient = load(queues="orders/dead"), load(queues="orders/dead", failOnDataLoss="false")
    dead.delete()
    clocked.advance(1)
    if again:
        bury(clocked, 3)

    with pytest.raises(DataLoss, match=r"queue 'orders/dead' was deleted.*, and unread messages .* were lost"):
        strict.rows()
    assert lenient.rows() == []


def test_a_batch_whose_letters_were_handled_before_the_queue_went_is_what_was_left_of_it(
    broker: Broker, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    dead = bury(broker, 10)
    job = load(queues="orders/dead")
    assert dead.redrive() == 10
    dead.delete()

    assert job.rows() == []
    assert caplog.text == ""


def test_a_batch_that_was_read_to_its_end_before_the_queue_went_is_whole(broker: Broker, load: Load) -> None:
    bury(broker, 10)
    bury(broker, 2_000, into="mails/dead", source="mails")
    job = load(queues="orders/dead,mails/dead", numPartitions=1)
    # small queues are read first
    batches = job.batches(0, rows=1)
    first = next(batches).to_pylist()
    broker.queue("orders/dead").delete()

    found = first + [row for batch in batches for row in batch.to_pylist()]

    assert len(found) == 2_010


@pytest.mark.parametrize("handled", [False, True])
def test_detached_messages_that_went_before_the_read_fail_the_batch(
    clocked: Clocked, client: redis.Redis, load: Load, handled: bool
) -> None:
    queue = mixed(clocked)
    compact(clocked, queue)
    queue.enqueue_many([b"x"] * 50)
    beside = client.hlen("rqttl:{plain}:detached")
    assert beside >= 100
    batches = load(queues="plain").batches(0, rows=1)
    logged = 0
    while logged < 450 - beside:
        logged += next(batches).num_rows
    assert logged + beside == 450
    if handled:
        queue.ack_many(queue.receive_many(450))
    queue.delete()

    if handled:
        assert list(batches) == []
    else:
        with pytest.raises(
            DataLoss, match="queue 'plain' was deleted, and unread messages after 0000000000000-000000 were"
        ):
            list(batches)


@pytest.mark.parametrize("how", TRIMS)
def test_a_batch_whose_messages_were_trimmed_before_the_read_fails(how: str, clocked: Clocked, load: Load) -> None:
    sequences = letters(clocked.declare_queue("a"), 15)
    strict, lenient = load(queues="a"), load(queues="a", failOnDataLoss="false")
    TRIMS[how](clocked)
    lost = sequences[11 if how == "limit" else 14]

    with pytest.raises(
        DataLoss, match=f"queue 'a': messages after 0000000000000-000000, the highest of them {lost}, were removed"
    ):
        strict.rows()
    assert len(lenient.rows()) == (3 if how == "limit" else 0)


def test_a_batch_fails_in_the_middle_of_a_range_and_tells_the_unread_rest(clocked: Clocked, load: Load) -> None:
    sequences = letters(clocked.declare_queue("a"), 400)
    batches = load(queues="a", fetchEntries=100).batches(0, rows=1)
    first = next(batches).num_rows
    TRIMS["limit"](clocked)

    with pytest.raises(DataLoss, match=f"queue 'a': messages after .*, the highest of them {sequences[396]}"):
        list(batches)
    assert 0 < first < 396


def test_messages_that_were_handled_between_plan_and_read_are_no_loss(clocked: Clocked, load: Load) -> None:
    queue = clocked.declare_queue("a")
    sequences = letters(queue, 10)
    job = load(queues="a")
    queue.ack_many(queue.receive_many(3))
    queue.purge_many(sequences[3:6])

    assert len(job.rows()) == 4
