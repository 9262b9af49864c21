"""Offsets of a stream as Spark keeps them, the ranges between two of them, and what counts as lost."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connectors.errors import DataLoss, InvalidOffset
from spark_connectors.ranges import FIRST, Range, sequence_text
from spark_connectors.read.loss import TOMBSTONE_LIFETIME, LossReporter, detect_loss
from spark_connectors.read.positions import QueuePosition, QueueState, position_after
from spark_connectors.stream.offsets import Offset, batch_ranges

BORN = 1_600_000_000_000


def at(n: int) -> str:
    """The n-th sequence of these tests."""
    return f"{1_700_000_000_000 + n}-100000"


def state(last: int = 100, *, trimmed: int | None = None, enqueued: int = 100, born: int = BORN) -> QueueState:
    return QueueState(born, at(last), FIRST if trimmed is None else at(trimmed), enqueued)


sequences = st.integers(0, 10**13 - 1).map(lambda ms: sequence_text(ms * 1_000_000 + 100_000))
positions = st.dictionaries(
    st.sampled_from(["a", "b/dead", "{c}.d"]),
    st.builds(
        QueuePosition,
        sequences,
        st.integers(0, 2**50),
        st.integers(0, 2**50),
        st.one_of(st.just(""), sequences),
        st.integers(0, 1000),
    ),
)
offsets = st.builds(
    Offset,
    positions,
    st.one_of(st.none(), positions),
    st.booleans(),
    st.frozensets(st.sampled_from(["gone", "d"])),
    st.sampled_from(["", "9f86d081884c7d65"]),
    st.dictionaries(st.sampled_from(["a", "b/dead"]), sequences),
)


@given(offsets)
def test_an_offset_survives_the_checkpoint_and_equal_ones_are_the_same_text(offset: Offset) -> None:
    turned = replace(offset, positions=dict(reversed(list(offset.positions.items()))))

    assert Offset.parse(json.loads(json.dumps(offset.dump()))) == offset
    assert turned.text == offset.text == Offset.parse(json.loads(offset.text)).text


def test_the_text_of_an_offset_is_short_and_in_order() -> None:
    offset = Offset({"b": QueuePosition(at(2), BORN, 20), "a": QueuePosition(at(1), BORN, 10, at(5), 7)})

    assert offset.text == (
        '{"queues":{"a":["1700000000001-100000",1600000000000,10,"1700000000005-100000",7],'
        '"b":["1700000000002-100000",1600000000000,20]},"v":2}'
    )


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": 1, "queues": {}},
        {"v": 2},
        {"v": 2, "queues": []},
        {"v": 2, "queues": {"a": ["nowhere", 1, 2]}},
        {"v": 2, "queues": {"a": [at(1), 1, 2, "", 0, 9]}},
        {"v": 2, "queues": {}, "gone": "ab"},
        {"v": 2, "queues": {}, "began": {"a": [7]}},
    ],
)
def test_an_invalid_offset_is_refused_by_name(found: dict[str, object]) -> None:
    with pytest.raises(InvalidOffset, match=r"^\[RQTTL_INVALID_OFFSET\] offset in the checkpoint: "):
        Offset.parse(found)


def test_a_batch_reads_what_lies_between_two_offsets_in_the_order_of_names() -> None:
    same, born_again = QueuePosition(at(9), BORN, 90), QueuePosition(at(20), BORN + 1, 3)
    start = Offset({"b": QueuePosition(at(1), BORN, 10), "same": same, "again": QueuePosition(at(50), BORN, 10)})
    end = Offset({"same": same, "b": QueuePosition(at(2), BORN, 14), "a": QueuePosition(at(3), BORN, 5)})

    assert batch_ranges(start, end) == [Range("a", FIRST, at(3), 5), Range("b", at(1), at(2), 4)]
    assert batch_ranges(start, Offset({"again": born_again})) == [Range("again", FIRST, at(20), 3)]
    assert batch_ranges(start, Offset({"same": QueuePosition(at(3), BORN)})) == []
    assert start.advanced(start.positions) is start


def test_the_first_batch_begins_where_it_did_however_often_spark_asks_for_the_initial_offset() -> None:
    first = Offset({"a": QueuePosition(at(5), BORN, 5)}, initial=True)
    end = first.advanced({"a": QueuePosition(at(9), BORN, 9)})
    asked_again = Offset({"a": QueuePosition(at(30), BORN, 30)}, initial=True)
    restored = Offset.parse(json.loads(end.text))

    assert batch_ranges(asked_again, restored) == batch_ranges(first, end) == [Range("a", at(5), at(9), 4)]
    assert restored.advanced({"a": QueuePosition(at(30), BORN, 30)}).began is None


def test_marks_count_what_was_read_exactly_at_the_end_and_at_least_before() -> None:
    there = state(100, enqueued=1_000)
    cut = position_after(there, at(10)).advanced(at(40), 30, there)

    assert (cut.received, cut.ahead) == (30, 970)
    assert cut.advanced(at(100), 5, there) == QueuePosition(at(100), BORN, 1_000)
    assert position_after(there, at(200)) == QueuePosition(at(100), BORN, 1_000)


def test_a_reporter_raises_or_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    certain, unsure = (
        detect_loss("q", QueuePosition(at(1), BORN), state(trimmed=2)),
        detect_loss("q", QueuePosition(at(1), BORN), None, unchecked_for=TOMBSTONE_LIFETIME + 1),
    )
    caplog.set_level(logging.WARNING, "spark_connectors")

    with pytest.raises(DataLoss, match=r"^\[RQTTL_DATA_LOSS\] queue 'q': .*failOnDataLoss=false"):
        LossReporter(fail=True).report(certain)
    assert not caplog.records

    for fail in (False, True):
        losses = LossReporter(fail=fail)
        for loss in (None, unsure, unsure, None if fail else certain, None if fail else certain):
            losses.report(loss)

    assert [record.getMessage()[:38] for record in caplog.records] == [
        "[RQTTL_DATA_LOSS] queue 'q' was delete",
        "[RQTTL_DATA_LOSS] queue 'q': messages ",
        "[RQTTL_DATA_LOSS] queue 'q' was delete",
    ]
