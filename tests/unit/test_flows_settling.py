"""A flow divides many deliveries into several settling calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rqttl.consuming import settling
from rqttl.flows.steps import Flow
from rqttl.protocol import scripts
from rqttl.protocol.commands import Ok, Refused, Word


def cut(sizes: Sequence[int], count: int = 0) -> list[int]:
    """Return the number of deliveries that each call settles."""
    calls: list[int] = []

    def run(words: Sequence[Word]) -> Flow[Ok]:
        calls.append(len(words) // 2)
        yield from ()
        values = scripts.load("ack").read([b"ok", b"", [], [words[0]]])
        assert type(values) is not Refused
        return values

    pairs = [(b"%d" % i, b"token") for i in range(len(sizes) or count)]
    with pytest.raises(StopIteration) as done:
        next(settling.settle_in_batches(pairs, run, sizes))
    assert len(done.value.value.lost) == len(calls)
    return calls


def test_messages_that_a_script_reads_are_settled_4_mb_at_a_time() -> None:
    assert cut([2**20] * 10) == [4, 4, 2]
    assert cut([2**22, 1, 2**22 - 1, 2**24, 2**24]) == [1, 2, 1, 1]


def test_small_messages_are_settled_250_at_a_time() -> None:
    assert cut([20] * 600) == [250, 250, 100]


def test_messages_that_no_script_reads_are_cut_by_their_number_only() -> None:
    assert cut([], 600) == [250, 250, 100]
    assert cut([]) == []
