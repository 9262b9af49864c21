"""Bulk reads from a real Redis: pages, groups of small ranges, lost connections and refusals."""

import itertools
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from spark_connectors.errors import RefusedByRedis
from spark_connectors.options.options import Options
from spark_connectors.ranges import FIRST, LAST
from spark_connectors.redis import bulk_reader
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.connect import socket_of
from spark_connectors.redis.pages import Page, take_bytes
from tests.servers import Server

LOG = "rqttl:{q}:log"


def options(url: str, **more: str) -> Options:
    said = {"url": url, "queues": "q", **more}
    return Options.parse("batch", said)


def fill(client: redis.Redis, count: int, *, size: int = 10, key: str = LOG) -> list[bytes]:
    sequences = [b"%013d-100000" % (1_700_000_000_000 + i) for i in range(count)]
    pipeline = client.pipeline(transaction=False)
    for sequence in sequences:
        pipeline.execute_command("XADD", key, sequence, "", "x" * size)
    pipeline.execute()
    return sequences


def sequences_of(page: Page) -> list[bytes]:
    return [page.sequence(row) for row in range(len(page))]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 2500])
def test_pages_hold_each_entry_once_in_order(client: redis.Redis, redis_url: str, count: int) -> None:
    sequences = fill(client, count)

    with BulkReader(options(redis_url)) as reader:
        pages = list(reader.pages(LOG, FIRST, LAST))

    assert [sequence for page in pages for sequence in sequences_of(page)] == sequences
    assert all(map(len, pages))
    assert max(map(len, pages), default=0) <= 1000


def test_pages_are_smaller_where_entries_are_large(client: redis.Redis, redis_url: str) -> None:
    fill(client, 400, size=100)
    pipeline = client.pipeline(transaction=False)
    for i in range(120):
        pipeline.execute_command("XADD", LOG, b"%013d-100000" % (1_800_000_000_000 + i), "", b"x" * 100_000)
    pipeline.execute()

    with BulkReader(options(redis_url, fetchBytes="200000", fetchEntries="100")) as reader:
        sizes = [len(page) for page in reader.pages(LOG, FIRST, LAST)]

    assert sum(sizes) == 520
    assert max(sizes) == 100
    # one page had been asked for before anybody knew
    assert max(sizes[6:]) <= 2


def test_small_ranges_come_in_few_round_trips(client: redis.Redis, redis_url: str) -> None:
    keys = [f"rqttl:{{q{i}}}:log" for i in range(200)]
    for key in keys:
        sequences = fill(client, 7, key=key)

    client.config_resetstat()
    with BulkReader(options(redis_url)) as reader:
        found: dict[int, list[bytes]] = {}
        groups = list(reader.page_groups([(key, FIRST, LAST, 7) for key in keys]))
        for group in groups:
            for index, page in group:
                found.setdefault(index, []).extend(sequences_of(page))

    assert found == dict.fromkeys(range(200), sequences)
    assert client.info("commandstats")["cmdstat_xrange"]["calls"] == 200
    assert len(groups) < 40


@pytest.mark.parametrize("claimed", [0, 1, 5, 5000])
def test_ranges_that_hold_more_or_less_than_they_say_are_read_whole(
    client: redis.Redis, redis_url: str, claimed: int
) -> None:
    for i in range(5):
        fill(client, 3000 if i % 2 else 3, key=f"rqttl:{{q{i}}}:log")

    counts = [0] * 5
    with BulkReader(options(redis_url)) as reader:
        for group in reader.page_groups([(f"rqttl:{{q{i}}}:log", FIRST, LAST, claimed) for i in range(5)]):
            for index, page in group:
                counts[index] += len(page)

    assert counts == [3, 3000, 3, 3000, 3]


@pytest.mark.parametrize("read", ["pages", "groups"])
def test_a_connection_that_is_lost_in_the_middle_leaves_no_gap_and_repeats_nothing(
    client: redis.Redis, redis_url: str, read: str
) -> None:
    sequences = fill(client, 5000)

    with BulkReader(options(redis_url, fetchEntries="200")) as reader:
        if read == "pages":
            pages = reader.pages(LOG, FIRST, LAST)
        else:
            half = sequences[2500].decode()
            wanted = [(LOG, FIRST, half, 2500), (LOG, half, LAST, 2500)]
            pages = (page for group in reader.page_groups(wanted) for _, page in group)
        found = []
        for i, page in enumerate(pages):
            found += sequences_of(page)
            if i % 4 == 1:
                client.client_kill_filter(_type="normal", skipme=True)

    assert sorted(found) == sequences
    assert read == "groups" or found == sequences


def test_a_server_that_comes_back_is_asked_again(start_server: Callable[..., Server]) -> None:
    # with `everysec` Redis may confirm writes that are not in its file yet
    server = start_server(appendonly="yes", appendfsync="no")
    with server.client() as client:
        sequences = fill(client, 3000)
    reader = BulkReader(options(server.url, fetchEntries="100", connectRetries="200"))

    pages = reader.pages(LOG, FIRST, LAST)
    found = sequences_of(next(pages))
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: [sequence for page in pages for sequence in sequences_of(page)])
        server.start()
        found += rest.result()
    reader.close()

    assert found == sequences


def test_after_a_refusal_in_a_round_trip_the_connection_is_in_step(client: redis.Redis, redis_url: str) -> None:
    client.set("text", "text")
    fill(client, 3)

    with BulkReader(options(redis_url)) as reader:
        with pytest.raises(RefusedByRedis):
            reader.execute_all([("XLEN", LOG), ("XLEN", "text"), ("XLEN", LOG)])
        assert reader.execute("XLEN", LOG) == 3


class Slowly:
    """A socket that gives few bytes at once."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._sizes = itertools.cycle([1, 7, 2, 400, 1, 33, 1000, 5])

    def recv_into(self, room: memoryview) -> int:
        return self._link.recv_into(room[: next(self._sizes)])


FORGED = b"*2\r\n$20\r\n1700000000000-100000\r\n*2\r\n$1\r\na\r\n$2\r\nxx\r\n"


@pytest.mark.parametrize("body", [b"x" * 10, b"", FORGED, FORGED * 9, FORGED[:-5], b"*2\r\n$20\r\n", b"\r\n" * 30])
def test_entries_with_any_bodies_are_found_in_any_pieces(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    sequences = [b"%013d-100000" % (1_700_000_000_000 + i) for i in range(120)]
    for sequence in sequences:
        client.execute_command("XADD", LOG, sequence, b"h", body)
    monkeypatch.setattr(bulk_reader, "socket_of", lambda connection: Slowly(socket_of(connection)))

    with BulkReader(options(redis_url)) as reader:
        pages = list(reader.pages(LOG, FIRST, LAST))
        groups = list(
            reader.page_groups([(LOG, FIRST, sequences[9].decode(), 10), (LOG, sequences[9].decode(), LAST, 110)])
        )

    for found in (pages, [page for group in groups for _, page in group]):
        assert [sequence for page in found for sequence in sequences_of(page)] == sequences
        bodies = [one for page in found for one in take_bytes(page.data, page.body_starts, page.body_stops).to_pylist()]
        assert bodies == [body] * 120


def test_a_refusal_in_place_of_a_page_is_told_with_its_command(client: redis.Redis, redis_url: str) -> None:
    client.set(LOG, "text")

    with BulkReader(options(redis_url)) as reader:
        with pytest.raises(RefusedByRedis, match=r"refused XRANGE rqttl:\{q\}:log: WRONGTYPE"):
            list(reader.pages(LOG, FIRST, LAST))
        client.delete(LOG)
        assert list(reader.pages(LOG, FIRST, LAST)) == []
