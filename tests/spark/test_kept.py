"""The letters that the driver has read for a limit go to the tasks: Redis sends each once, and none that has left."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.errors import DataLoss
from spark_connectors.options.options import Options
from spark_connectors.ranges import Range, sequence_number, sequence_text
from spark_connectors.read.kept import LogVersion, PageKeeper, size
from spark_connectors.read.watch import WatchedRange
from spark_connectors.redis.pages import Page
from spark_connectors.stream.reader import RqttlStreamReader
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.letters import bury

DEAD, SHARES = "q0/dead", ("time", "equal")
#: A letter: its queue, its sequence and its body.
Letter = tuple[str, str, bytes]


class Query:
    """A stream over all dead-letter queues, without Spark: pickled partitions, and offsets as a checkpoint has them."""

    def __init__(self, url: str, **options: object) -> None:
        texts = {"url": url, "queuePattern": "#/dead", **{name: str(value) for name, value in options.items()}}
        self._reader: Any = RqttlStreamReader(Options.parse("stream", texts), ("queue", "sequence", "body"))
        self.at = self._reader.initialOffset()
        self.partitions: list[bytes] = []

    def plan(self) -> bool:
        """Plan a batch. Returns False if nothing is left."""
        end = self._reader.latestOffset(self.at, self._reader.getDefaultReadLimit())
        if end == self.at:
            return False
        self.partitions = [pickle.dumps(task) for task in self._reader.partitions(self.at, end)]
        self.at = end
        return True

    def read(self) -> list[Letter]:
        """Read the planned batch."""
        return [
            tuple(row.values())
            for task in self.partitions
            for batch in self._reader.read(pickle.loads(task))  # noqa: S301  # as Spark does it
            for row in batch.to_pylist()
        ]

    def drain(self, before: Callable[[], object] = int) -> list[list[Letter]]:
        """Read all batches. Before each read, do something."""
        batches = []
        while self.plan():
            before()
            batches.append(self.read())
        return batches


def letters_in(client: redis.Redis, *queues: str) -> list[Letter]:
    """The letters of queues, read by redis-py, in the order of their sequences."""
    anything: Any = client
    found = [
        (queue, entry.decode(), body)
        for queue in queues
        for entry, pair in anything.xrange(Keyspace().key(queue, LOG))
        for body in pair.values()
    ]
    return sorted(found, key=lambda letter: (letter[1], letter[0]))


def bytes_sent(client: redis.Redis) -> int:
    info: Any = client.info("stats")
    return int(info["total_net_output_bytes"])


def bury_in_turn(clocked: Clocked, queues: int, rounds: int, count: int) -> list[str]:
    """Have letters die in each queue, in turn."""
    for i in range(rounds):
        for queue in range(queues):
            bury(clocked, count, into=f"q{queue}/dead", source=f"q{queue}", first=i * count)
            clocked.advance(3)
    return [f"q{queue}/dead" for queue in range(queues)]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("queues, rounds", [(1, 50), (25, 2)])
def test_redis_sends_each_letter_once_under_a_small_limit(
    queues: int, rounds: int, share: str, clocked: Clocked, client: redis.Redis, server: Server
) -> None:
    names = bury_in_turn(clocked, queues, rounds, 60)
    expected = letters_in(client, *names)
    before = bytes_sent(client)
    assert [sorted(batch) for batch in Query(server.url).drain()] == [sorted(expected)]
    whole = bytes_sent(client) - before

    before = bytes_sent(client)
    batches = Query(server.url, maxEntriesPerTrigger=500, shareLimit=share).drain()

    assert bytes_sent(client) - before <= 1.15 * whole
    assert [len(batch) for batch in batches] == [500] * 6
    assert sorted(letter for batch in batches for letter in batch) == sorted(expected)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("limit", [{"maxEntriesPerTrigger": 70}, {"maxBytesPerTrigger": "9k"}])
def test_a_task_has_the_letters_of_each_queue_in_order(
    limit: dict[str, object], share: str, clocked: Clocked, client: redis.Redis, server: Server
) -> None:
    names = bury_in_turn(clocked, 3, 4, 40)

    batches = Query(server.url, **limit, shareLimit=share).drain()

    assert len(batches) > 6
    assert all(batch == sorted(batch) for batch in batches)
    assert sorted(letter for batch in batches for letter in batch) == sorted(letters_in(client, *names))


def test_a_task_has_the_letters_in_order_also_if_only_some_ranges_fit_into_it(
    clocked: Clocked, client: redis.Redis, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = bury_in_turn(clocked, 30, 2, 4)
    bury_in_turn(clocked, 1, 1, 40)
    small = partial(PageKeeper, most_of_task=6_000)
    monkeypatch.setattr("spark_connectors.stream.batch_limiter.PageKeeper", small)

    # a request has 10 letters at most: some ranges are large ones
    batches = Query(server.url, maxEntriesPerTrigger=150, fetchEntries=10, numPartitions=1).drain()

    assert [len(batch) for batch in batches] == [150, 130]
    assert all(batch == sorted(batch) for batch in batches)
    assert sorted(letter for batch in batches for letter in batch) == sorted(letters_in(client, *names))


def test_a_letter_that_leaves_its_queue_before_its_batch_is_planned_is_not_in_the_batch(
    clocked: Clocked, client: redis.Redis, server: Server
) -> None:
    names = bury_in_turn(clocked, 4, 3, 50)
    query = Query(server.url, maxEntriesPerTrigger=60)
    assert query.plan()
    first = query.read()
    # the driver has read them ahead of this batch
    chosen = [letter for letter in letters_in(client, *names) if letter not in first][:80]
    for name in names:
        clocked.queue(name).purge_many([sequence for queue, sequence, _ in chosen if queue == name])

    later = query.drain()

    left = letters_in(client, *names)
    assert sorted(letter for batch in later for letter in batch) == sorted(
        letter for letter in left if letter not in first
    )
    assert len(first) == 60


def test_letters_that_are_kept_are_in_their_batch_if_redis_loses_them_before_the_task(
    clocked: Clocked, client: redis.Redis, server: Server
) -> None:
    bury_in_turn(clocked, 1, 1, 30)
    expected = letters_in(client, DEAD)[:10]
    query = Query(server.url, maxEntriesPerTrigger=10)
    assert query.plan()
    clocked.queue(DEAD).purge()

    assert query.read() == expected
    with pytest.raises(DataLoss, match=r"queue 'q0/dead': messages after \S+, the highest of them"):
        query.plan()


def test_large_letters_are_read_by_the_tasks(clocked: Clocked, client: redis.Redis, server: Server) -> None:
    body = b"x" * 500_000
    bury(clocked, 4, into=DEAD, source="q0", make=lambda i: body + bytes([i]))
    query = Query(server.url, maxEntriesPerTrigger=3)

    assert query.plan()

    assert sum(map(len, query.partitions)) < 800_000
    assert [letter[2][-1] for letter in query.read()] == [0, 1, 2]


# ------------------------------------------------------------------------------------------------- the keeper alone


def number(i: int) -> int:
    return 1_700_000_000_000_100_000 + i * 1_000_000


def text(i: int) -> str:
    return sequence_text(number(i))


def page_of(indices: list[int]) -> Page:
    return Page.from_entries("q", [[text(i).encode(), [b";;;", b"body %d" % i]] for i in indices])


def keep(keeper: PageKeeper, after: int, upto: int) -> None:
    """Keep the messages after one index up to another."""
    indices = list(range(after + 1, upto + 1))
    numbers: Any = [number(i) for i in indices]
    keeper.add("q", number(after), number(upto), numbers, page_of(indices))


def watched(after: int, upto: int, *, detached: bool = False) -> WatchedRange:
    return WatchedRange(Range("q", text(after), text(upto), max(1, upto - after), detached), 1, "", 1)


def indices_of(pieces: list[WatchedRange]) -> list[tuple[int, bool]]:
    """The messages of pieces, as a task reads them, each with the answer to whether it was kept."""
    found: list[tuple[int, bool]] = []
    for piece in pieces:
        begin, end = ((sequence_number(at) - number(0)) // 1_000_000 for at in (piece.range.after, piece.range.upto))
        if piece.kept is None:
            found += [(i, False) for i in range(begin + 1, end + 1)]
            continue
        kept = [sequence_number(page.sequence(row)) for page in piece.kept for row in range(len(page))]
        assert kept == [number(i) for i in range(begin + 1, end + 1)]
        assert piece.range.rows == len(kept)
        found += [((one - number(0)) // 1_000_000, True) for one in kept]
    return found


@given(
    pages=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6),
    task=st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True).map(sorted),
    room=st.sampled_from([0, 150, 700, 100_000]),
)
def test_the_pieces_of_a_task_have_each_message_of_its_ranges_once(
    pages: list[tuple[int, int]], task: list[int], room: int
) -> None:
    keeper = PageKeeper(most_of_task=room)
    for after, count in pages:
        keep(keeper, after, after + count)

    pieces = keeper.pieces([watched(after, upto) for after, upto in zip([0, *task], task, strict=False)])

    assert [i for i, _ in indices_of(pieces)] == list(range(1, task[-1] + 1))
    assert sum(size(page) for piece in pieces for page in piece.kept or ()) <= room
    if room == 100_000:
        kept = {i for after, count in pages for i in range(after + 1, after + count + 1)}
        assert {i for i, was_kept in indices_of(pieces) if was_kept} == kept & set(range(1, task[-1] + 1))


def test_messages_that_may_lie_outside_the_log_are_left_to_the_task() -> None:
    keeper = PageKeeper()
    keep(keeper, 0, 5)

    assert keeper.pieces([watched(0, 5, detached=True)]) == [watched(0, 5, detached=True)]


def test_a_keeper_keeps_no_more_than_its_bytes() -> None:
    keeper = PageKeeper(most=size(page_of([1, 2, 3])))
    keep(keeper, 0, 3)
    keep(keeper, 3, 4)

    assert indices_of(keeper.pieces([watched(0, 4)])) == [(1, True), (2, True), (3, True), (4, False)]

    keeper.begin({"q": (number(3), LogVersion(1, 4, 0))})
    keep(keeper, 3, 4)

    assert indices_of(keeper.pieces([watched(3, 4)])) == [(4, True)]


@pytest.mark.parametrize(
    "later, kept",
    [
        (LogVersion(1, 10, 2), True),
        (LogVersion(1, 14, 2), True),
        # messages that arrived while the log was counted
        (LogVersion(1, 14, 1), True),
        # a message has left
        (LogVersion(1, 14, 3), False),
        # the state before some of the arrivals
        (LogVersion(1, 9, 1), False),
        # another queue of the name
        (LogVersion(2, 14, 2), False),
    ],
)
def test_a_page_serves_later_batches_as_long_as_no_message_has_left_its_queue(later: LogVersion, kept: bool) -> None:
    keeper = PageKeeper()
    keeper.begin({"q": (number(0), LogVersion(1, 10, 2))})
    keep(keeper, 0, 5)

    keeper.begin({"q": (number(2), later)})

    assert indices_of(keeper.pieces([watched(2, 5)])) == [(3, kept), (4, kept), (5, kept)]
