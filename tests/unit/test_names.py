"""Names of queues and namespaces, patterns that match them, and the keys that follow."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from rqttl import InvalidName
from rqttl.checks import check_name_or_pattern, check_namespace, check_queue_name
from rqttl.flows.steps import Recent
from rqttl.options import QueueOptions
from rqttl.protocol.keys import PARTS, Keyspace


@pytest.mark.parametrize("text", ["orders", "orders.*", "{billing}.*", "eu-[ab]?", "[!a]*", "*"])
def test_a_name_or_a_pattern_is_taken_as_it_is(text: str) -> None:
    assert check_name_or_pattern(text, "queues") == text


@pytest.mark.parametrize("text", ["", "two words", "two *", "\udcff*", 5, None, b"*"])
def test_a_pattern_that_no_name_can_match_is_refused(text: object) -> None:
    with pytest.raises(InvalidName, match=r"^queues: expected "):
        check_name_or_pattern(text, "queues")


GOOD = ["a", "a/b:c_d-e", "x" * 128, "{billing}.orders", "{a}b", "{a}b/c", "a/", "{a}:b"]


@pytest.mark.parametrize("name", GOOD)
def test_a_name_of_letters_digits_and_some_signs_is_allowed(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize(
    "name", [*"é*{}-._: ", "", "x" * 129, "a{b}", "{a}", "{a", "a*", "a\n", None, "/a", "{a}/b", "{a}/", "{a/b}c"]
)
def test_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidName, match=r"^queue name: expected 1 to 128 of ") as refused:
        check_queue_name(name)

    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", ["rqttl", "a", "x" * 64, "a.b-c_d"])
def test_a_namespace_is_a_short_plain_word(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a:b", "{a}", "a{", "a}", "a b", "é", None, 5])
def test_any_other_namespace_is_refused(name: object) -> None:
    with pytest.raises(InvalidName, match=r"^namespace: expected 1 to 64 of "):
        check_namespace(name)


@pytest.mark.parametrize(
    "name, tag",
    [("orders", "{orders}"), ("{billing}.orders", "{billing}.orders"), ("orders.eu/dead", "{orders.eu}/dead")],
)
def test_the_hash_tag_is_the_explicit_one_or_all_before_the_first_slash(name: str, tag: str) -> None:
    assert Keyspace("ns").key(name, "log") == f"ns:{tag}:log"


ANY_PART = st.sampled_from([*PARTS])
_SIGNS = st.sampled_from("aA0._:-")
_MORE = st.text(st.one_of(_SIGNS, st.just("/")), max_size=12)
_FIRST = st.sampled_from("aA0")
PLAIN = st.builds(str.__add__, _FIRST, _MORE)
TAGGED = st.builds("{{{}{}}}{}{}".format, _FIRST, st.text(_SIGNS, max_size=5), _SIGNS, _MORE)
NAMES = st.one_of(PLAIN, TAGGED)


@given(st.sampled_from(["rqttl", "a.b-c_d"]), NAMES, ANY_PART)
def test_a_key_names_its_queue_and_its_part(namespace: str, name: str, part: str) -> None:
    keys = Keyspace(check_namespace(namespace))

    assert keys.split(keys.key(check_queue_name(name), part).encode()) == (name, part)


@given(NAMES, ANY_PART, ANY_PART)
def test_a_queue_and_its_dead_letters_share_a_slot(name: str, part: str, another: str) -> None:
    keys = Keyspace()
    target = QueueOptions.read(name, {"dead_letter": "{queue}/dead"}).target("expired")

    slot = key_slot(keys.key(name, part).encode())
    assert slot == key_slot(keys.key(target, another).encode()) == key_slot(keys.key(f"{target}/dead", part).encode())


@given(st.sampled_from(["rqttl", "a.b-c_d"]), NAMES, ANY_PART)
@example("rqttl", "queues", "meta")
def test_the_shared_keys_of_a_namespace_share_a_slot_and_belong_to_no_queue(
    namespace: str, name: str, part: str
) -> None:
    keys = Keyspace(check_namespace(namespace))
    shared = [key.encode() for key in (keys.registry, keys.policies, keys.workers, keys.dataset, keys.routes)]

    assert {key_slot(key) for key in shared} == {key_slot(namespace.encode())}
    assert keys.key(name, part).encode() not in shared
    assert [keys.split(key) for key in shared] == [None] * 5


@given(NAMES, NAMES, ANY_PART, ANY_PART)
@example("a", "a/", "meta", "meta")
@example("{a}:log", "a", "meta", "log")
def test_two_queues_never_share_a_key(one: str, other: str, part: str, another: str) -> None:
    keys = Keyspace()

    same = keys.key(one, part) == keys.key(other, another)
    assert same == ((one, part) == (other, another))


@given(st.text(st.sampled_from("{}a:/."), max_size=9).map(lambda text: f"rqttl:{text}:log".encode()))
@example(b"rqttl:queues{rqttl}")
@example(b"rqttl:orders:log")
@example(b"other:{orders}:log")
@example(b"rqttl:{orders}")
@example(b"rqttl:\xff:log")
def test_a_key_of_another_form_belongs_to_no_queue(key: bytes) -> None:
    keys = Keyspace()

    belongs = keys.split(key)
    assert belongs is None or keys.key(*belongs).encode() == key


def test_fifty_thousand_names_take_no_more_room_than_the_limit() -> None:
    recent: Recent[int] = Recent(1_000)
    for i in range(50_000):
        recent.put(f"q{i}", i)
        assert len(recent) <= 1_000

    assert [recent.get(f"q{i}") for i in range(49_501, 50_000)] == list(range(49_501, 50_000))
    assert recent.get("q0") is None
