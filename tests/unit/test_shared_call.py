from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rqttl.metrics.collecting import SharedCall


def test_callers_at_the_same_time_share_one_call() -> None:
    calls: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def call() -> int:
        calls.append(1)
        begun.set()
        go_on.wait()
        return len(calls)

    shared, results = SharedCall(call, "call"), []
    caller = threading.Thread(target=lambda: results.append(shared.result(60)))
    caller.start()
    begun.wait()
    assert (shared.result(0), shared.result(0)) == (None, None)
    go_on.set()
    caller.join()

    assert (results, calls) == ([1], [1])
    assert shared.result(60) == 2


def test_an_exception_reaches_the_caller_and_the_next_call_begins_anew() -> None:
    outcomes: Iterator[object] = iter([ValueError("first"), "second"])

    def call() -> object:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    shared = SharedCall(call, "call")
    with pytest.raises(ValueError, match="first"):
        shared.result(60)

    assert shared.result(60) == "second"


def test_a_caller_waits_for_its_patience_from_the_last_move_on() -> None:
    end, waits, now = threading.Event(), [], [100.0]

    def wait(_: object, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) < 3:
            now[0] += 5
            shared.moved()
        else:
            now[0] += 6

    shared = SharedCall(end.wait, "call", clock=lambda: now[0], wait=wait)

    assert shared.result(8) is None
    assert waits == [8, 8, 8, 2]
    end.set()
