from __future__ import annotations

import pytest

from rqttl.reaper.hints import read_hint
from rqttl.reaper.timetable import Timetable


def turns(timetable: Timetable, now: int) -> list[str]:
    """Everybody whose turn it is, in order."""
    found = []
    while (turn := timetable.next(now)) is not None:
        found.append(turn[0])
    return found


def test_a_queue_has_its_turn_when_it_is_due_and_not_before() -> None:
    timetable = Timetable()
    timetable.schedule("a", 20)

    assert timetable.earliest() == 20
    assert timetable.next(19) is None
    assert timetable.next(20) == ("a", 20)
    assert timetable.next(20) is None


def test_queues_have_their_turns_in_order_of_their_due_times() -> None:
    timetable = Timetable()
    for queue, due in (("c", 3), ("a", 1), ("b", 2)):
        timetable.schedule(queue, due)

    assert turns(timetable, 10) == ["a", "b", "c"]


def test_a_later_time_replaces_the_expected_one() -> None:
    timetable = Timetable()
    timetable.schedule("a", 10)
    timetable.schedule("a", 30)
    timetable.schedule("b", 10)
    timetable.schedule("b", None)

    assert timetable.earliest() == 30
    assert turns(timetable, 29) == []


def test_a_hint_makes_a_queue_due_earlier_but_never_later() -> None:
    timetable = Timetable()
    timetable.schedule("a", 20)
    timetable.hint("a", 30)
    assert timetable.earliest() == 20

    timetable.hint("a", 10)
    assert timetable.earliest() == 10


def test_a_hint_for_a_queue_that_is_in_line_changes_nothing() -> None:
    timetable = Timetable()
    timetable.enqueue("a", 5)
    timetable.hint("a", 1)

    assert turns(timetable, 10) == ["a"]


def test_queues_with_endless_work_take_turns() -> None:
    timetable = Timetable()
    for queue in "abc":
        timetable.enqueue(queue, 1)
    served = []
    for _ in range(6):
        turn = timetable.next(1)
        assert turn is not None
        served.append(turn[0])
        timetable.enqueue(*turn)  # type: ignore[arg-type]  # the due time is known here

    assert served == ["a", "b", "c", "a", "b", "c"]


def test_a_queue_with_endless_work_does_not_hold_up_a_full_pass_nor_the_other_way_round() -> None:
    timetable = Timetable()
    timetable.begin_pass(["p", "q", "r"])
    timetable.enqueue("busy", 1)
    served = []
    while timetable.passing:
        turn = timetable.next(1)
        assert turn is not None
        served.append(turn[0])
        if turn[0] == "busy":
            timetable.enqueue("busy", 1)

    assert served == ["p", "busy", "q", "busy", "r"]


def test_a_queue_that_is_due_during_a_pass_is_swept_once_for_both() -> None:
    timetable = Timetable()
    timetable.begin_pass(["a", "b", "c"])
    timetable.schedule("c", 1)

    assert sorted(turns(timetable, 1)) == ["a", "b", "c"]
    assert not timetable.busy


def test_a_pass_tells_since_when_something_was_due() -> None:
    timetable = Timetable()
    timetable.hint("a", 7)
    timetable.begin_pass(["a"])

    assert timetable.next(10) == ("a", 7)


def test_many_changes_of_one_queue_take_no_memory() -> None:
    timetable = Timetable()
    for due in range(10_000, 0, -1):
        timetable.schedule("a", due)

    assert len(timetable._heap) < 100
    assert timetable.earliest() == 1


def test_names_that_a_pass_does_not_find_are_forgotten() -> None:
    timetable = Timetable()
    for i in range(50_000):
        timetable.schedule(f"q{i}", i + 1)

    timetable.keep({"q7", "other"})

    assert (len(timetable), len(timetable._heap), timetable.earliest()) == (1, 1, 8)


def test_a_hint_is_a_due_time_and_a_queue() -> None:
    assert read_hint(b"1700000000000 orders") == ("orders", 1_700_000_000_000)
    assert read_hint(b"0 {tag}.orders") == ("{tag}.orders", 0)


@pytest.mark.parametrize(
    "data", [b"", b"orders", b"1", b"x orders", b"1 a b", b"1 \xff", b"1 " + b"a" * 999, b" orders"]
)
def test_a_message_that_is_no_hint_is_ignored_since_anyone_can_publish(data: bytes) -> None:
    assert read_hint(data) is None
