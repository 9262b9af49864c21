"""Publishing without a server: what fits into one call, which queues are in reach, and what no call stores at once."""

import random

import pytest

from rqttl import InvalidInput, Message
from rqttl.flows.topics import COPIES, COPY_BYTES, LIMITED, QUEUES, fitting
from rqttl.options import QueueOptions
from rqttl.protocol.commands import BATCH_BYTES, READ_BYTES, Options
from rqttl.protocol.keys import Keyspace
from rqttl.testing import fake_broker

KB = 1_000


def test_the_calls_of_a_batch_are_all_messages_in_order_and_each_is_within_the_bounds() -> None:
    rng = random.Random(40)
    names = [f"q{i}" for i in range(150)]
    for _ in range(300):
        found = [rng.sample(names, rng.choice((0, 1, 3, 40, 101))) for _ in range(rng.randrange(1, 250))]
        sizes = [rng.choice((10, 50 * KB, 600 * KB, 5_000 * KB)) for _ in found]
        done = alone = 0
        while done < len(found):
            count = fitting(found[done:], sizes[done:])
            part = list(zip(found[done : done + (count or 1)], sizes[done : done + (count or 1)], strict=True))
            copies = sum(len(queues) for queues, _ in part)
            within = (
                len({queue for queues, _ in part for queue in queues}) <= QUEUES
                and copies <= COPIES
                and (copies <= 1 or sum(len(queues) * size for queues, size in part) <= COPY_BYTES)
                and (len(part) == 1 or sum(size for _, size in part) <= BATCH_BYTES)
            )
            assert within is (count > 0)
            alone, done = alone + (count == 0), done + len(part)
        assert done == len(found)


def test_a_copy_for_a_queue_with_a_limit_counts_as_several_since_it_may_push_one_out() -> None:
    options = [QueueOptions.read(name, arguments) for name, arguments in (("a", {"max_length": 1}), ("b", {}))]
    known = {one.queue: Options.plain(one).config(Keyspace(), "v") for one in options}

    assert [fitting([names] * COPIES, [1] * COPIES, known) for names in ("a", "b")] == [COPIES // LIMITED, COPIES]


@pytest.mark.parametrize("topic,tag", [("news", "news"), ("{t}.news", "t"), ("news/x", "news")])
@pytest.mark.spec("TE-14")
def test_a_queue_in_another_slot_is_refused_with_the_name_that_would_do(topic: str, tag: str) -> None:
    with fake_broker(slotted=True) as broker:
        news = broker.declare_topic(topic)
        for name in ("desk", f"{{{tag}}}.desk"):
            broker.declare_queue(name)

        with pytest.raises(InvalidInput, match=rf"in another slot than .*; a queue '\{{{tag}\}}\.desk'"):
            news.bind("desk")
        news.bind(f"{{{tag}}}.desk")
        eu = news.subscribe("eu")
        news.enqueue(b"x")

        assert eu.peek()[0].body == broker.queue(f"{{{tag}}}.desk").peek()[0].body == b"x"


@pytest.mark.parametrize("queues,size", [(101, 10), (12, 600 * KB)])
def test_a_message_that_one_call_does_not_store_waits_for_all_its_queues(queues: int, size: int) -> None:
    """More queues than a call has, and more bytes of copies."""
    with fake_broker() as broker:
        news = broker.declare_topic("news")
        bound = [news.subscribe(f"q{i}") for i in range(queues)]

        receipts = news.enqueue_many([bytes(size), b"last"])

        ids = [getattr(one, "id", "") for one in receipts]
        assert [[view.id for view in queue.peek()] for queue in bound] == [ids] * queues


def test_one_copy_may_be_as_large_as_the_topic_permits() -> None:
    with fake_broker() as broker:
        news = broker.declare_topic("news")
        eu = news.subscribe("eu")

        news.enqueue(bytes(READ_BYTES + 1))

        assert [len(view.body) for view in eu.peek()] == [READ_BYTES + 1]


def test_a_batch_of_many_copies_goes_in_several_calls_and_in_order() -> None:
    with fake_broker() as broker:
        news = broker.declare_topic("news")
        queues = [news.subscribe(f"q{i}", None if i else "a") for i in range(11)]

        news.enqueue_many([Message(b"%d" % i, subject="ab"[i % 2]) for i in range(200)])

        everything = [b"%d" % i for i in range(200)]
        assert [[view.body for view in queue.peek(300)] for queue in queues] == [everything[::2], *[everything] * 10]
        assert news.stats().copies == 2_100
