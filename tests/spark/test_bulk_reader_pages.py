"""Pages over a real connection, in any pieces, with any bodies, and what comes in their sequence."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable

import pytest
import redis

from spark_connectors.errors import MalformedEntry, RefusedByRedis
from spark_connectors.ranges import FIRST, LAST
from spark_connectors.redis import bulk_reader
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.connect import socket_of
from spark_connectors.redis.pages import take_bytes
from tests.spark.logs import LOG, fill, options, sequences_of


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


def test_messages_of_megabytes_are_read(client: redis.Redis, redis_url: str) -> None:
    bodies = [b"x" * 10_000_000, FORGED * 3, b"\r\n" * 5_000_001, b""]
    for i, body in enumerate(bodies):
        client.execute_command("XADD", LOG, f"1700000000000-10000{i}", b"h", body)

    with BulkReader(options(redis_url)) as reader:
        pages = list(reader.pages(LOG, FIRST, LAST))

    assert [
        body for page in pages for body in take_bytes(page.data, page.body_starts, page.body_stops).to_pylist()
    ] == bodies


def test_entries_of_another_program_are_named_with_their_queue(client: redis.Redis, redis_url: str) -> None:
    fill(client, 3)
    client.xadd(LOG, {"a": 1, "b": 2}, id="1800000000000-100000")

    with (
        BulkReader(options(redis_url)) as reader,
        pytest.raises(MalformedEntry, match=r"queue 'q', sequence 1800.* one field"),
    ):
        list(reader.pages(LOG, FIRST, LAST))


def test_a_refusal_in_place_of_a_page_is_told_with_its_command(client: redis.Redis, redis_url: str) -> None:
    client.set(LOG, "text")

    with BulkReader(options(redis_url)) as reader:
        with pytest.raises(RefusedByRedis, match=r"refused XRANGE rqttl:\{q\}:log: WRONGTYPE"):
            list(reader.pages(LOG, FIRST, LAST))
        client.delete(LOG)
        assert list(reader.pages(LOG, FIRST, LAST)) == []


def test_a_request_that_cannot_be_sent_is_sent_anew(
    client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = fill(client, 500)

    with BulkReader(options(redis_url, fetchEntries="100")) as reader:
        sent: Callable[[list[bytes]], None] = reader._connection.send_packed_command
        fails = iter([False, True, True, False, True])

        def send(command: list[bytes]) -> None:
            if next(fails, False):
                raise BrokenPipeError("cut")
            sent(command)

        monkeypatch.setattr(reader._connection, "send_packed_command", send)
        found = [sequence for page in reader.pages(LOG, FIRST, LAST) for sequence in sequences_of(page)]

    assert found == sequences
    assert next(fails, None) is None
