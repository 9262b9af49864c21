"""The set of leases: a large batch costs each message no more than a small one."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl.protocol import commands
from rqttl.protocol.commands import Word
from tests.lua.states import NOW, Lab

LEASES = "rqttl:{orders}:leases"


def grant(lab: Lab, count: int) -> tuple[list[bytes], bytes]:
    """Store messages, and lease all of them in one call. Returns their sequences and the token."""
    lab.seed("orders", {})
    known = lab.known("orders")
    lab.run(commands.enqueue(known, [commands.pack(b"x")] * count, now=NOW))
    reply: Any = lab.run(commands.receive(known, count, 60_000, now=NOW))
    return reply[7][::3], reply[5]


def ack(lab: Lab, seqs: list[bytes], token: bytes) -> list[object]:
    """Settle messages of one token. Returns the unknown and the lost ones."""
    words: list[Word] = [word for seq in seqs for word in (seq, token)]
    return list(lab.run(commands.ack(lab.keyspace, "orders", words, now=NOW)))[2:]


@pytest.mark.parametrize("count, is_fast", [(100, True), (10, False)])
def test_a_large_batch_of_leases_is_a_skip_list_from_the_start(
    lab: Lab, client: redis.Redis, count: int, is_fast: bool
) -> None:
    grant(lab, count)

    encoding = client.object("encoding", LEASES)
    assert (encoding == b"skiplist") is is_fast


@pytest.mark.parametrize("count", [100, 10])
def test_the_set_of_leases_holds_the_messages_and_nothing_else(lab: Lab, client: redis.Redis, count: int) -> None:
    seqs, _ = grant(lab, count)

    assert len(seqs) == count
    assert client.zrange(LEASES, 0, -1) == seqs


def test_an_ack_of_a_batch_in_order_asks_for_no_score(lab: Lab, client: redis.Redis) -> None:
    seqs, token = grant(lab, 100)
    client.config_resetstat()

    assert ack(lab, seqs[:50], token) == [b"", b""]
    assert ack(lab, seqs[50:], token) == [b"", b""]

    stats: Any = client.info("commandstats")
    assert "cmdstat_zmscore" not in stats
    assert (client.zcard(LEASES), client.xlen("rqttl:{orders}:log")) == (0, 0)


def test_an_ack_of_a_batch_in_any_order_settles_all(lab: Lab, client: redis.Redis) -> None:
    seqs, token = grant(lab, 100)

    assert ack(lab, seqs[::-1], token) == [b"", b""]
    assert (client.zcard(LEASES), client.xlen("rqttl:{orders}:log")) == (0, 0)


def test_an_ack_that_skips_messages_leaves_them(lab: Lab, client: redis.Redis) -> None:
    seqs, token = grant(lab, 100)

    assert ack(lab, seqs[::2], token) == [b"", b""]
    assert client.zrange(LEASES, 0, -1) == seqs[1::2]


@pytest.mark.parametrize("place", [0, 50, 99])
def test_an_ack_of_a_batch_reports_the_one_that_is_settled_already(lab: Lab, place: int) -> None:
    seqs, token = grant(lab, 100)
    ack(lab, [seqs[place]], token)

    assert ack(lab, seqs, token) == [b"", [seqs[place]]]


def test_an_ack_of_a_batch_with_the_token_of_another_changes_nothing(lab: Lab, client: redis.Redis) -> None:
    seqs, token = grant(lab, 100)

    assert ack(lab, seqs, b"%d" % (int(token) + 1)) == [b"", seqs]
    assert client.zrange(LEASES, 0, -1) == seqs
