"""A bounded memory keeps the values that were remembered last."""

from __future__ import annotations

from rqttl.runtime.recent import Recent


def test_fifty_thousand_names_take_no_more_room_than_the_limit() -> None:
    recent: Recent[int] = Recent(1_000)
    for i in range(50_000):
        recent.put(f"q{i}", i)
        assert len(recent) <= 1_000

    assert [recent.get(f"q{i}") for i in range(49_501, 50_000)] == list(range(49_501, 50_000))
    assert recent.get("q0") is None


def test_room_can_be_made_and_never_shrinks() -> None:
    recent: Recent[int] = Recent(10)
    recent.make_room(1_000)
    recent.make_room(10)
    for i in range(500):
        recent.put(f"q{i}", i)

    assert len(recent) == 500
