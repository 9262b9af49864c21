"""Offsets of a stream as Spark keeps them, the ranges between two of them, and what counts as lost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connectors.errors import InvalidOffset
from spark_connectors.ranges import sequence_text
from spark_connectors.read.positions import QueuePosition
from spark_connectors.stream.offsets import Offset

BORN = 1_600_000_000_000


def at(n: int) -> str:
    """The n-th sequence of these tests."""
    return f"{1_700_000_000_000 + n}-100000"


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
