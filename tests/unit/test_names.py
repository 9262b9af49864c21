"""Names of queues, and patterns that such names can match."""

from __future__ import annotations

import pytest

from rqttl.errors import InvalidName
from rqttl.names import check_name_or_pattern


@pytest.mark.parametrize("text", ["orders", "orders.*", "{billing}.*", "eu-[ab]?", "[!a]*", "*"])
def test_a_name_or_a_pattern_is_taken_as_it_is(text: str) -> None:
    assert check_name_or_pattern(text, "queues") == text


@pytest.mark.parametrize("text", ["", "two words", "two *", "\udcff*", 5, None, b"*"])
def test_a_pattern_that_no_name_can_match_is_refused(text: object) -> None:
    with pytest.raises(InvalidName, match=r"^queues: expected "):
        check_name_or_pattern(text, "queues")
