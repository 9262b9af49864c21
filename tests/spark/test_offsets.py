"""Offsets of a stream as Spark keeps them, the ranges between two of them, and what counts as lost."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connectors.errors import DataLoss, InvalidOffset
from spark_connectors.ranges import FIRST, Range, sequence
from spark_connectors.read.loss import KEPT, Alarm, Trace, judge
from spark_connectors.read.marks import Mark, State, beginning, placed
from spark_connectors.stream.offsets import Offset, ranges

BORN = 1_600_000_000_000


def at(n: int) -> str:
    """The n-th sequence of these tests."""
    return f"{1_700_000_000_000 + n}-100000"


def state(last: int = 100, *, trimmed: int | None = None, enqueued: int = 100, born: int = BORN) -> State:
    return State(born, at(last), FIRST if trimmed is None else at(trimmed), enqueued)


places = st.integers(0, 10**13 - 1).map(lambda ms: sequence(ms * 1_000_000 + 100_000))
marks = st.dictionaries(
    st.sampled_from(["a", "b.dead", "{c}.d"]),
    st.builds(Mark, places, st.integers(0, 2**50), st.integers(0, 2**50), st.one_of(st.just(""), places),
              st.integers(0, 1000)),
)  # fmt: skip
offsets = st.builds(Offset, marks, st.sampled_from(["", "a"]), st.one_of(st.none(), marks), st.booleans())


@given(offsets)
def test_an_offset_survives_the_checkpoint(offset: Offset) -> None:
    assert Offset.parse(json.loads(json.dumps(offset.dump()))) == offset


@given(offsets)
def test_equal_offsets_are_the_same_text(offset: Offset) -> None:
    turned = Offset(dict(reversed(list(offset.marks.items()))), offset.turn, offset.began, offset.initial)

    assert turned.text == offset.text == Offset.parse(json.loads(offset.text)).text


def test_the_text_of_an_offset_is_short_and_in_order() -> None:
    offset = Offset({"b": Mark(at(2), BORN, 20), "a": Mark(at(1), BORN, 10, at(5), 7)}, turn="b")

    assert offset.text == (
        '{"queues":{"a":["1700000000001-100000",1600000000000,10,"1700000000005-100000",7],'
        '"b":["1700000000002-100000",1600000000000,20]},"turn":"b","v":1}'
    )


@pytest.mark.parametrize("found", [
    {}, {"v": 2, "queues": {}}, {"v": 1}, {"v": 1, "queues": []}, {"v": 1, "queues": {"a": []}},
    {"v": 1, "queues": {"a": ["nowhere", 1, 2]}}, {"v": 1, "queues": {"a": [at(1), 1, 2, "", 0, 9]}},
    {"v": 1, "queues": {"a": 5}}, {"v": 1, "queues": {}, "began": {"a": [7]}},
])  # fmt: skip
def test_what_is_no_offset_is_refused_by_name(found: dict[str, object]) -> None:
    with pytest.raises(InvalidOffset, match=r"^\[RQTTL_INVALID_OFFSET\] offset in the checkpoint: "):
        Offset.parse(found)


def test_the_record_of_a_queue_that_never_held_anything_is_at_the_first_place() -> None:
    found = State.of([b"v1", b"1600000000000", b"0-0", b"0-0", b"0"])

    assert found == State(BORN, FIRST, FIRST, 0)
    assert State.of([None] * 5) is None
    assert beginning(found).at_end(found) == beginning(found)


def test_a_batch_reads_what_lies_between_two_offsets_in_the_order_of_names() -> None:
    start = Offset({"b": Mark(at(1), BORN, 10), "same": Mark(at(9), BORN, 90)})
    end = Offset({"same": Mark(at(9), BORN, 90), "b": Mark(at(2), BORN, 14), "a": Mark(at(3), BORN, 5)})

    assert ranges(start, end) == [Range("a", FIRST, at(3), 5), Range("b", at(1), at(2), 4)]


def test_a_queue_that_was_made_again_is_read_from_its_beginning() -> None:
    start, end = Offset({"a": Mark(at(50), BORN, 10)}), Offset({"a": Mark(at(20), BORN + 1, 3)})

    assert ranges(start, end) == [Range("a", FIRST, at(20), 3)]


def test_a_start_beyond_the_end_is_an_empty_batch() -> None:
    assert ranges(Offset({"a": Mark(at(5), BORN)}), Offset({"a": Mark(at(3), BORN)})) == []


def test_the_first_batch_begins_where_it_did_however_often_spark_asks_for_the_initial_offset() -> None:
    first = Offset({"a": Mark(at(5), BORN, 5)}, initial=True)
    end = first.followed({"a": Mark(at(9), BORN, 9)})
    asked_again = Offset({"a": Mark(at(30), BORN, 30)}, initial=True)
    restored = Offset.parse(json.loads(end.text))

    assert ranges(asked_again, restored) == ranges(first, end) == [Range("a", at(5), at(9), 4)]
    assert restored.followed({"a": Mark(at(30), BORN, 30)}).began is None


def test_a_batch_of_nothing_ends_with_the_very_offset_it_began_with() -> None:
    start = Offset({"a": Mark(at(5), BORN, 5)}, turn="x", initial=True)

    assert start.followed({"a": Mark(at(5), BORN, 5)}, turn="a") is start


def test_marks_count_what_was_read_exactly_at_the_end_and_at_least_before() -> None:
    there = state(100, enqueued=1_000)
    cut = placed(there, at(10)).moved(at(40), 30, there)

    assert (cut.ordinal, cut.ahead) == (30, 970)
    assert cut.moved(at(100), 5, there) == Mark(at(100), BORN, 1_000)
    assert placed(there, at(200)) == Mark(at(100), BORN, 1_000)


# ------------------------------------------------------------------------------------------------ loss


@pytest.mark.parametrize("mark, there", [
    (Mark(at(50), BORN), state()),
    (Mark(at(50), BORN), state(trimmed=50)),
    (Mark(at(50), BORN, 0, at(70)), state(trimmed=70)),
    (beginning(state(trimmed=70)), state(trimmed=70)),
    (beginning(state(trimmed=70)).moved(at(10), 1, state(trimmed=70)), state(trimmed=70)),
])  # fmt: skip
def test_nothing_is_lost_of_what_was_read_or_was_gone_before_anybody_looked(mark: Mark, there: State) -> None:
    assert judge("q", mark, there) is None


@pytest.mark.parametrize("mark, there", [
    (Mark(at(50), BORN), state(trimmed=51)),
    (Mark(at(50), BORN, 0, at(70)), state(trimmed=71)),
    (beginning(state()), state(trimmed=1)),
])  # fmt: skip
def test_what_was_trimmed_beyond_the_mark_is_lost(mark: Mark, there: State) -> None:
    loss = judge("q", mark, there)

    assert loss is not None
    assert loss.certain
    assert f"'q': messages after {mark.after}, the highest of them {there.trimmed}," in loss.text


def trace(held: int = 0, *, trimmed: int = 0, born: int = BORN) -> Trace:
    """What a deleted queue left; a place of 0 says that there was none."""
    return Trace(born, at(held) if held else "0-0", at(trimmed) if trimmed else "0-0")


GONE = pytest.mark.parametrize("there, what", [(None, "deleted"), (state(born=BORN + 5), "deleted and made again")])


@GONE
@pytest.mark.parametrize("mark, left, highest", [
    (Mark(at(50), BORN), trace(51), 51),
    (Mark(at(50), BORN), trace(51, trimmed=70), 70),
    (Mark(at(50), BORN), trace(49, trimmed=51), 51),
    (Mark(at(50), BORN), trace(trimmed=51), 51),
    # what had been told lies beyond, but it had left the queue already
    (Mark(at(50), BORN, 0, at(70)), trace(51, trimmed=70), 70),
    (Mark(at(50), BORN, 0, at(70)), trace(trimmed=71), 71),
    (Mark(FIRST, BORN), trace(1), 1),
    # of a queue that was made and deleted meanwhile nothing had been read
    (Mark(at(50), BORN), trace(7, born=BORN + 1), 7),
])  # fmt: skip
def test_what_was_deleted_beyond_the_mark_is_lost(
    there: State | None, what: str, mark: Mark, left: Trace, highest: int
) -> None:
    loss = judge("q", mark, there, left)

    assert loss is not None
    assert loss.certain
    assert loss.text == (
        f"queue 'q' was {what}, and messages after {mark.after} that had not been read were lost, "
        f"the highest of them {at(highest)}"
    )


@GONE
@pytest.mark.parametrize("mark, left", [
    (Mark(at(50), BORN), trace(50)),
    (Mark(at(50), BORN), trace(trimmed=50)),
    (Mark(at(50), BORN, 0, at(70)), trace(50, trimmed=70)),
    (Mark(at(50), BORN, 0, "", 7), trace(50)),
])  # fmt: skip
def test_what_was_deleted_and_had_been_read_is_no_loss(there: State | None, what: str, mark: Mark, left: Trace) -> None:
    assert judge("q", mark, there, left, unseen=KEPT + 1) is None


@GONE
@pytest.mark.parametrize("left", [None, trace(70, born=BORN - 1)])
def test_without_a_trace_nothing_was_lost_or_nobody_can_know_after_a_week(
    there: State | None, what: str, left: Trace | None
) -> None:
    read, unread = Mark(at(5), BORN, 5), Mark(at(5), BORN, 5, "", 7)

    for mark, unseen in ((read, 0), (read, KEPT + 1), (unread, 0), (unread, KEPT)):
        loss = judge("q", mark, there, left, unseen=unseen)
        assert loss is not None
        assert not loss.certain
        assert loss.text.startswith(f"queue 'q' was {what}. It had been read up to {at(5)}, and nothing is remembered")
    loss = judge("q", unread, there, left, unseen=KEPT + 1)
    assert loss is not None
    assert loss.certain
    assert f"messages after {at(5)} that had not been read, 7 at most, cannot be known any more: " in loss.text


def test_a_trace_is_as_redis_keeps_it() -> None:
    assert Trace.of([None, None, None]) is None
    assert Trace.of([b"%d" % BORN, at(5).encode(), b"0-0"]) == trace(5)


def test_a_queue_was_there_when_its_last_message_that_was_read_came_or_when_it_was_made() -> None:
    assert Mark(at(7), BORN).seen == 1_700_000_000_007
    assert Mark(FIRST, BORN).seen == BORN


def test_an_alarm_raises_or_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    certain, unsure = judge("q", Mark(at(1), BORN), state(trimmed=2)), judge("q", Mark(at(1), BORN), None)
    caplog.set_level(logging.WARNING, "spark_connectors")

    with pytest.raises(DataLoss, match=r"^\[RQTTL_DATA_LOSS\] queue 'q': .*failOnDataLoss=false"):
        Alarm(fail=True).tell(certain)
    assert not caplog.records

    for fail in (False, True):
        alarm = Alarm(fail=fail)
        for loss in (None, unsure, unsure, None if fail else certain, None if fail else certain):
            alarm.tell(loss)

    assert [record.getMessage()[:38] for record in caplog.records] == [
        "[RQTTL_DATA_LOSS] queue 'q' was delete", "[RQTTL_DATA_LOSS] queue 'q': messages ",
        "[RQTTL_DATA_LOSS] queue 'q' was delete",
    ]  # fmt: skip
