"""Names: which are allowed, and the keys that follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqttl import InvalidName
from rqttl.names import check_namespace, check_queue_name
from rqttl.protocol.keys import PARTS, Keyspace

GOOD = ["a", "0", "orders.dead", "a/b:c_d-e", "x" * 128, "{billing}.orders", "{a}b", "A.1", "topic/name"]


@pytest.mark.parametrize("name", GOOD)
def test_a_name_of_letters_digits_and_some_signs_is_allowed(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize(
    "name",
    [*"é*{}-._: ", "", "x" * 129, "-a", ".a", "a b", "a{b}", "{a}", "{}a", "{a", "{a}{b}", "a*", "a\n", "a\0", None, 1],
)
def test_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidName, match=r"^queue name: expected 1 to 128 of ") as refused:
        check_queue_name(name)

    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("name", ["rqttl", "a", "x" * 64, "a.b-c_d"])
def test_a_namespace_is_a_short_plain_word(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a:b", "{a}", "a b", "é", None, 5])
def test_any_other_namespace_is_refused(name: object) -> None:
    with pytest.raises(InvalidName, match=r"^namespace: expected 1 to 64 of "):
        check_namespace(name)


def test_all_keys_of_a_queue_share_a_hash_tag() -> None:
    keys = Keyspace("ns")

    assert keys.key("orders", "log") == "ns:{orders}:log"
    assert keys.key("{billing}.orders", "log") == "ns:{billing}.orders:log"
    assert (keys.registry, keys.due_channel) == ("ns:queues", "ns:due")


@given(st.sampled_from(GOOD), st.sampled_from(GOOD), st.sampled_from(PARTS), st.sampled_from(PARTS))
def test_two_queues_never_share_a_key(one: str, other: str, part: str, another: str) -> None:
    keys = Keyspace()

    same = keys.key(one, part) == keys.key(other, another)
    assert same == ((one, part) == (other, another))
    assert keys.key(one, part) != keys.registry
