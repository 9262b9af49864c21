"""A bounded memory keeps the values that were used last."""

from __future__ import annotations

from rqttl.runtime.recent import Recent


def test_fifty_thousand_names_take_no_more_room_than_the_limit() -> None:
    recent: Recent[int] = Recent(1_000)
    for i in range(50_000):
        recent.put(f"q{i}", i)
        assert len(recent) <= 1_000

    assert [recent.get(f"q{i}") for i in range(49_501, 50_000)] == list(range(49_501, 50_000))
    assert recent.get("q0") is None


def test_a_name_that_is_used_again_and_again_stays() -> None:
    recent: Recent[int] = Recent(100)
    recent.put("busy", 7)
    for i in range(5_000):
        recent.put(f"q{i}", i)
        assert recent.get("busy") == 7


def test_a_name_is_forgotten_wherever_it_is() -> None:
    recent: Recent[int] = Recent(4)
    for name in "abc":
        recent.put(name, 1)

    for name in "abc":
        recent.forget(name)

    assert [recent.get(name) for name in "abc"] == [None] * 3


def test_room_can_be_made_and_never_shrinks() -> None:
    recent: Recent[int] = Recent(10)
    recent.make_room(1_000)
    recent.make_room(10)
    for i in range(500):
        recent.put(f"q{i}", i)

    assert len(recent) == 500
