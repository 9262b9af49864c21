"""Scans of the reaper, step by step, without Redis: what they read and write, in which order, and whom they sweep."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from rqttl import DataDamaged, Policy
from rqttl.flows.steps import Flow, GetConfig, GetPolicies, Read, Register, Write
from rqttl.policies import PolicySet
from rqttl.reaper.registry import FIELDS, PAGE, PART, STALE, UNCHANGED_EVERY, Record, Registry
from tests.unit.test_flows import KEYSPACE, OK, Drive, known

T = TypeVar("T")
THERE: Record = [b"v1", b"7", b"", b"", b"", b"", b"0"]
VERSION = Read([("HGET", KEYSPACE.policies, "version")])


def questions(*names: str, fields: tuple[str, ...] = FIELDS) -> Read:
    return Read([("HMGET", KEYSPACE.key(name, "meta"), *fields) for name in names], keep_errors=True)


def stored(name: str) -> tuple[str, ...]:
    return ("HMGET", KEYSPACE.key(name, "meta"), "version", "options", "declared", "policies")


class Namespace:
    """A registry of queues without Redis. `steps` are the steps of its last flow, and `away` makes looks fail."""

    def __init__(self, *names: str) -> None:
        self.clock = 0.0
        self.registry = Registry(KEYSPACE, lambda: self.clock)
        self.records = {KEYSPACE.key(name, "meta"): THERE for name in names}
        self.listed = set(names)
        self.steps: list[Any] = []
        self.away = False

    def perform(self, flow: Flow[T]) -> T:
        self.steps, answer = [], None
        try:
            while True:
                self.steps.append(flow.send(answer))
                answer = self._answer(self.steps[-1])
        except StopIteration as done:
            result: T = done.value
            return result

    def _answer(self, step: Any) -> Any:
        if isinstance(step, GetPolicies):
            return PolicySet()
        if isinstance(step, Register):
            self.listed.add(step.queue)
            return 1
        (name, *words), *_ = step.calls
        if name == "HMGET" and self.away:
            raise ConnectionError
        if name == "HMGET":
            return [self.records.get(key, [None] * len(fields))[: len(fields)] for _, key, *fields in step.calls]
        if name == "SREM":
            self.listed -= {word if isinstance(word, str) else word.decode() for word in words[1:]}
            return [1]
        return [[b"0", [queue.encode() for queue in self.listed]]] if name == "SSCAN" else [None]

    def scan(self, *, thorough: bool = True) -> list[str]:
        """The queues that one scan sweeps."""
        self.perform(self.registry.begin(thorough=thorough))
        swept: list[str] = []
        while self.registry.running:
            swept += self.perform(self.registry.look())[1]
        return swept


def test_a_scan_reads_the_names_then_the_records_and_tells_due_times() -> None:
    namespace = Namespace("b", "a")

    namespace.perform(namespace.registry.begin(thorough=True))
    assert namespace.steps == [Read([("SSCAN", KEYSPACE.registry, 0, "COUNT", 1000)])]
    assert namespace.perform(namespace.registry.look()) == ({"a": 7, "b": 7}, ["a", "b"])
    assert namespace.steps == [questions("a", "b"), VERSION, GetPolicies(None)]


def test_a_member_that_is_no_name_is_taken_out_before_anything_is_read() -> None:
    namespace = Namespace("a")
    namespace.listed.add("no name")

    assert namespace.scan() == ["a"]
    assert namespace.listed == {"a"}


def test_a_name_without_a_queue_is_looked_at_again_and_then_taken_out() -> None:
    namespace = Namespace()
    namespace.listed.add("ghost")
    for moment in (0.0, STALE - 1):
        namespace.clock = moment
        namespace.scan()
        assert namespace.steps == [questions("ghost")]

    namespace.clock = STALE
    namespace.scan()
    again = questions("ghost", fields=("version",))
    assert namespace.steps == [questions("ghost"), again, Write([("SREM", KEYSPACE.registry, "ghost")])]


def test_a_queue_that_is_made_while_a_scan_goes_on_stays_in_the_registry() -> None:
    namespace = Namespace()
    namespace.listed.add("late")
    namespace.scan()
    namespace.clock = STALE
    namespace.perform(namespace.registry.begin(thorough=True))
    flow = namespace.registry.look()
    assert next(flow) == questions("late")
    assert flow.send([[None] * len(FIELDS)]) == questions("late", fields=("version",))

    with pytest.raises(StopIteration):
        flow.send([[b"v1"]])


@pytest.mark.parametrize("remover", ["the reaper", "another client"])
def test_a_queue_that_was_made_while_its_name_was_taken_out_is_registered_again(remover: str) -> None:
    namespace = Namespace()
    namespace.listed.add("late")
    namespace.scan()
    if remover == "the reaper":
        namespace.clock = STALE
        namespace.scan()
        assert namespace.listed == set()
    namespace.listed.clear()
    namespace.records[KEYSPACE.key("late", "meta")] = THERE

    assert namespace.scan() == ["late"]
    assert Register("late") in namespace.steps


def test_targets_that_exist_and_are_not_listed_are_registered_in_order() -> None:
    drive = Drive(Registry(KEYSPACE).register_targets(["orders", "b"]))

    assert drive.step == GetConfig("b")
    assert drive.answer(known(dead_letter="b")) == GetConfig("orders")
    assert drive.answer(known(dead_letter="x", dead_letter_expired="y")) == questions("x", "y", fields=("version",))
    assert drive.answer([[b"v1"], [None]]) == Register("x")
    assert drive.answer(1) == Read([stored("x"), *VERSION.calls])
    assert drive.answer([[b"v1", b"{}", b"{}", b"0"], None]) == GetPolicies(None)
    drive.answer(PolicySet())
    assert drive.result == ["x"]


def look_at(*records: Record) -> Drive:
    """A look at the queues `a`, `b` and so on, with the answer that these are their records."""
    registry, names = Registry(KEYSPACE), "abc"[: len(records)]
    Drive(registry.begin(thorough=True)).answer([[b"0", [name.encode() for name in names]]])
    drive = Drive(registry.look())
    drive.answer(list(records))
    return drive


def test_a_look_reconciles_the_queues_of_another_version_of_the_policies(caplog: pytest.LogCaptureFixture) -> None:
    drive = look_at([*THERE[:-1], b"4"], [*THERE[:-1], b"5"])
    assert drive.step == VERSION

    policies = PolicySet(5, (Policy.read("p", "#", {"max_deliveries": 3}),))
    assert drive.answer([b"5"]) == GetPolicies(b"5")
    assert drive.answer(policies) == Read([stored("a"), *VERSION.calls])
    assert drive.answer([[b"v1", b"{}", b"{}", b"4"], b"5"]) == GetPolicies(b"5")
    command = drive.answer(policies).commands[0]
    assert (command.script.name, command.word("was"), command.word("policies")) == ("update", 4, 5)
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        while drive.step is not None:
            drive.answer([[OK, b"", 1]])

    assert caplog.messages == ["queue a: its policies give it other options: max_deliveries"]


def test_damaged_policies_are_logged_and_the_look_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    drive = look_at(THERE)

    assert drive.answer([b"many"]) == GetPolicies(b"many")
    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        drive.throw(DataDamaged(None, "damage"))

    assert caplog.messages[0].startswith("options in force do not follow the policies: ")


def test_a_refusal_is_logged_and_the_pass_goes_on_but_an_outage_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    flow = Registry(KEYSPACE).register_targets(["a", "b"])
    assert next(flow) == GetConfig("a")

    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        assert flow.throw(NoPermissionError("NOPERM")) == GetConfig("b")
    assert "options of queues cannot be read" in caplog.messages[0]

    with pytest.raises(ConnectionError):
        flow.throw(ConnectionError("gone"))


@pytest.mark.parametrize("error, raised", [(ResponseError("WRONGTYPE"), False), (ConnectionError("gone"), True)])
def test_a_record_that_cannot_be_read_is_a_queue_and_an_outage_is_none(error: Exception, raised: bool) -> None:
    drive = Drive(Registry(KEYSPACE).ask(["a"]))

    if raised:
        with pytest.raises(ConnectionError):
            drive.answer([error])
    else:
        drive.answer([error])
        assert drive.result == ["a"]


def test_a_thorough_scan_looks_at_a_page_at_a_time_and_sweeps_all() -> None:
    namespace = Namespace(*(f"q{i}" for i in range(PAGE + 1)))
    namespace.perform(namespace.registry.begin(thorough=True))

    assert [len(namespace.perform(namespace.registry.look())[1]) for _ in range(2)] == [PAGE, 1]
    assert not namespace.registry.running
    assert namespace.registry.queues == namespace.listed


@pytest.mark.spec("A-056")
def test_a_scan_that_takes_its_time_spreads_its_parts_over_the_period() -> None:
    namespace = Namespace(*(f"q{i}" for i in range(10 * PART)))
    namespace.perform(namespace.registry.begin(thorough=False))

    assert len(namespace.perform(namespace.registry.look())[0]) == PART
    assert namespace.registry.gap(300.0) == 30.0


def test_idle_queues_are_looked_at_and_not_swept_but_in_turn() -> None:
    namespace = Namespace(*(f"q{i}" for i in range(200)))
    namespace.scan()

    turns = [namespace.scan(thorough=False) for _ in range(UNCHANGED_EVERY)]

    assert all(len(swept) < 40 for swept in turns)
    assert sorted(queue for swept in turns for queue in swept) == sorted(namespace.listed)


@pytest.mark.parametrize("field", ["version", "due_at", "acked"])
def test_a_queue_that_has_changed_is_swept(field: str) -> None:
    namespace = Namespace("q")
    namespace.scan()
    idle = [queue for _ in range(UNCHANGED_EVERY) for queue in namespace.scan(thorough=False)]

    place = FIELDS.index(field)
    namespace.records[KEYSPACE.key("q", "meta")] = [*THERE[:place], b"9", *THERE[place + 1 :]]

    assert idle == ["q"]
    assert namespace.scan(thorough=False) == ["q"]


def test_a_part_that_could_not_be_looked_at_is_looked_at_again() -> None:
    namespace = Namespace("q")
    namespace.perform(namespace.registry.begin(thorough=False))
    namespace.away = True
    with pytest.raises(ConnectionError):
        namespace.perform(namespace.registry.look())
    namespace.away = False

    assert namespace.perform(namespace.registry.look())[0] == {"q": 7}
