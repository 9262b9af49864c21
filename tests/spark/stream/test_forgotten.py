"""A server that has forgotten data: killed and back empty, restored from an older state, or a replica that lagged."""

import logging
from collections.abc import Callable, Iterator

import pytest

from rqttl import Broker
from spark_connectors.errors import DataLoss
from tests.servers import Server
from tests.spark.following import again, letters, planners, read_all, rows
from tests.spark.reading import loader


@pytest.fixture
def own(start_server: Callable[..., Server]) -> Server:
    """A server of this test that keeps nothing."""
    return start_server()


@pytest.fixture
def broker(own: Server) -> Iterator[Broker]:
    with own.client() as client:
        broker = Broker(client)
        yield broker
        broker.close()


def test_offsets_have_the_name_of_the_data_also_of_a_query_that_began_before_them(broker: Broker, own: Server) -> None:
    follow = planners(own.url)
    start = follow(queuePattern="#").initial()
    assert start.dataset == ""
    letters(broker.declare_queue("a"), 3)
    end = follow(queuePattern="#").latest(again(start), None)

    with own.client() as client:
        assert end.dataset.encode() == client.hget("rqttl:dataset{rqttl}", "name")
    assert again(end).dataset == end.dataset


@pytest.mark.parametrize("again_used", [False, True])
def test_a_stream_of_a_server_that_came_back_empty_fails_or_goes_back(
    own: Server, broker: Broker, again_used: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    follow = planners(own.url)
    start = again(follow(queuePattern="#").initial())
    letters(broker.declare_queue("a"), 5)
    read = read_all(follow, queuePattern="#")
    letters(broker.queue("a"), 400)
    own.kill()
    own.start()
    if again_used:
        letters(broker.declare_queue("a"), 2)

    with pytest.raises(DataLoss, match=rf"Redis has forgotten the data that this query has read: .* {read.dataset},"):
        follow(queuePattern="#").latest(read, None)
    with pytest.raises(DataLoss, match="Redis has forgotten the data"):
        follow(queuePattern="#").watched_ranges(start, read)
    lenient = follow(queuePattern="#", failOnDataLoss="false")
    end = lenient.latest(read, None)

    assert "reads all queues again from the first message on" in caplog.text
    with own.client() as client:
        assert rows(client, lenient, read, end) == ({"a": 2} if again_used else {})
    assert follow(queuePattern="#").latest(again(end), None).positions == end.positions
    if again_used:
        # the loss is over
        letters(broker.queue("a"), 1)
        assert follow(queuePattern="#").latest(again(end), None).dataset == end.dataset != read.dataset


@pytest.mark.parametrize("again_used", [False, True])
def test_a_batch_fails_if_the_server_comes_back_empty_in_the_middle_of_it(
    own: Server, broker: Broker, again_used: bool
) -> None:
    broker.declare_queue("a").enqueue_many([b"x"] * 6_000)
    load = loader(own.url)
    jobs = [load(queues="a", fetchEntries=100, failOnDataLoss=fail) for fail in ("true", "false")]
    running = [job.batches(0, rows=1) for job in jobs]
    first = [next(batches).num_rows for batches in running]
    own.kill()
    own.start()
    if again_used:
        broker.declare_queue("a").enqueue_many([b"x"] * 6_000)

    with pytest.raises(DataLoss, match="Redis has forgotten the data"):
        list(running[0])
    rest = sum(batch.num_rows for batch in running[1])
    assert 0 < first[1] + rest < (12_000 if again_used else 6_000)


def test_a_queue_that_is_gone_without_a_record_of_its_deletion_is_a_loss(own: Server, broker: Broker) -> None:
    follow = planners(own.url)
    for name in "ab":
        letters(broker.declare_queue(name), 5)
    read = read_all(follow, queuePattern="#")
    with own.client() as client:
        client.delete("rqttl:{a}:meta", "rqttl:{a}:log")

    with pytest.raises(DataLoss, match="queue 'a' is gone, and Redis has no record of its deletion"):
        follow(queuePattern="#").latest(read, None)


def test_a_stream_of_a_server_with_an_older_state_fails_or_reads_the_queue_again(
    start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    own = start_server(dbfilename="dump.rdb")
    follow = planners(own.url)
    with own.client() as client, Broker(client) as broker:
        letters(broker.declare_queue("a"), 5)
        letters(broker.declare_queue("b"), 5)
        client.save()
        letters(broker.queue("a"), 4)
        read = read_all(follow, queuePattern="#")
        own.kill()
        own.start()
        new = letters(broker.queue("a"), 2)

        with pytest.raises(DataLoss, match=r"queue 'a' is in an older state .* received 9 messages .* now received 7"):
            follow(queuePattern="#").latest(read, None)
        lenient = follow(queuePattern="#", failOnDataLoss="false")
        end = lenient.latest(read, None)
        assert "reads the queue again from the first message on" in caplog.text
        assert end.positions["a"].after == new[-1]
        assert rows(client, lenient, read, end) == {"a": 7}
        # a repeated batch has the same messages, and the loss is over
        assert rows(client, follow(queuePattern="#"), again(read), again(end)) == {"a": 7}
        assert follow(queuePattern="#").latest(again(end), None).positions == end.positions
