"""The reaper without Redis: its scans step by step, its timetable, and what it reports."""

import ast
import logging
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ReadOnlyError, ResponseError

from rqttl import SweepResult
from rqttl.flows.steps import Flow, GetConfig, GetPolicies, Read, Register, Write, drive
from rqttl.outages import Outages, is_away
from rqttl.policies import PolicySet
from rqttl.reaper import report as reaper_report
from rqttl.reaper.loop import read_hint
from rqttl.reaper.queues import FIELDS, PART, STALE, UNCHANGED_EVERY, Record, Registry, Timetable
from rqttl.reaper.report import DUTIES, PERIOD, Report, Totals
from tests.repository import ROOT
from tests.unit.test_flows import KEYSPACE, Drive, known

T = TypeVar("T")
THERE: Record = [b"v1", b"7", b"", b"", b"", b"", b"0"]
VERSION = Read([("HGET", KEYSPACE.policies, "version")])


def questions(*names: str, fields: tuple[str, ...] = FIELDS) -> Read:
    return Read([("HMGET", KEYSPACE.key(name, "meta"), *fields) for name in names], keep_errors=True)


def stored_options(name: str) -> tuple[str, ...]:
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
        self.steps = []
        return drive(flow, self._answer)

    def _answer(self, step: Any) -> Any:
        self.steps.append(step)
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
    assert drive.answer(1) == Read([stored_options("x")], then=VERSION.calls)
    assert drive.answer([[b"v1", b"{}", b"{}", b"0"], None]) == GetPolicies(None)
    drive.answer(PolicySet())
    assert drive.result == ["x"]


def test_a_refusal_is_logged_and_the_pass_goes_on_but_an_outage_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    flow = Registry(KEYSPACE).register_targets(["a", "b"])
    assert next(flow) == GetConfig("a")

    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        assert flow.throw(NoPermissionError("NOPERM")) == GetConfig("b")
    assert "options of queues cannot be read" in caplog.messages[0]

    with pytest.raises(ConnectionError):
        flow.throw(ConnectionError("gone"))


@pytest.mark.parametrize("error, is_noted", [(ResponseError("WRONGTYPE"), False), (ConnectionError("gone"), True)])
def test_a_record_that_cannot_be_read_is_a_queue_and_an_outage_is_noted(error: Exception, is_noted: bool) -> None:
    namespace, noted = Namespace("a"), []
    registry = Registry(KEYSPACE, note_outage=lambda *outage: noted.append(outage))
    namespace.perform(registry.begin(thorough=True))
    look = Drive(registry.look())
    step = look.answer([error])
    if not is_noted:
        assert step == VERSION
        step = look.answer([b"0"])

    assert (noted, registry.unread) == (([("a", error)], {"a"}) if is_noted else ([], set()))


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


def turns(timetable: Timetable, now: int) -> list[str]:
    """Everybody whose turn it is, in order."""
    found = []
    while (turn := timetable.next(now)) is not None:
        found.append(turn[0])
    return found


def test_a_later_time_replaces_the_expected_one() -> None:
    timetable = Timetable()
    timetable.schedule("a", 10)
    timetable.schedule("a", 30)
    timetable.schedule("b", 10)
    timetable.schedule("b", None)

    assert timetable.earliest() == 30
    assert turns(timetable, 29) == []


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


def test_a_hint_is_a_due_time_and_a_queue_and_other_messages_are_ignored_since_anyone_can_publish() -> None:
    assert read_hint(b"1700000000000 orders") == ("orders", 1_700_000_000_000)
    assert read_hint(b"0 {tag}.orders") == ("{tag}.orders", 0)
    for data in (b"", b"orders", b"1", b"x orders", b"1 a b", b"1 \xff", b"1 " + b"a" * 999, b" orders"):
        assert read_hint(data) is None


def swept(expired: int, *, now: int = 1_000) -> SweepResult:
    return SweepResult(now, None, False, 0, 0, expired, 0, 0)


def test_what_was_done_in_a_queue_is_one_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    report = Report(lambda: clock[0])
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        report.swept("a", swept(250, now=1_000), 990)
        report.swept("b", swept(1), None)
        report.swept("idle", swept(0), None)
        report.swept("a", swept(5, now=1_003), 1_000)
        assert report.seconds_left() == 0.0
        report.tell()
        assert caplog.messages == ["queue a: expired 255, lag 10 ms", "queue b: expired 1"]

        for _ in range(89):
            report.swept("a", swept(1), None)
            report.tell()
        assert (len(caplog.messages), report.seconds_left()) == (2, PERIOD)
        clock[0] += PERIOD
        report.tell()
        report.tell()

    assert caplog.messages[2:] == ["queue a: expired 89"]
    assert report.totals == Totals(sweeps=93, expired=345)


@pytest.mark.parametrize(
    "error, away",
    [
        (ConnectionError("gone"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("Error running script: READONLY You can't write against a read only replica."), True),
        (ResponseError("WRONGTYPE"), False),
        (ValueError("x"), False),
    ],
)
def test_an_outage_is_told_from_a_queue_that_is_broken(error: Exception, away: bool) -> None:
    assert is_away(error) is away


def test_a_node_that_is_away_rests_longer_after_each_try_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now, longest, error = 0.0, [100, 200, 400, 800, 1_600, 2_000, 2_000], ConnectionError("gone")
    outages = Outages(SimpleNamespace(nodes=("a", "b"), name_of=str.upper), lambda: now, logging.getLogger("rqttl"))
    news, rests = [], []
    for _ in longest:
        news += [outages.failed("a", error), outages.failed("a", error)]  # another thread has failed, too
        rests.append(outages.rests("a"))
        now += math.ceil(rests[-1])
    outages.failed("gone", error)

    assert [most / 2 <= rest <= most for rest, most in zip(rests, longest, strict=True)] == [True] * len(longest)
    assert (sum(news), news[0], outages["a"].since, outages.away()) == (1, True, 0.0, ["A"])
    assert (outages.answered("a"), outages.answered("a"), outages.rests("a")) == (True, False, 0.0)
    told = ["A does not answer: gone", "GONE does not answer: gone", "A answers again"]
    assert [line.partition(";")[0] for line in caplog.messages] == told


def logged() -> dict[str, tuple[int, set[str]]]:
    """The level and the fields of each event that the reaper logs, from its source."""
    events = {}
    for path in Path(reaper_report.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "log_event":
                level = call.args[0].body if isinstance(call.args[0], ast.IfExp) else call.args[0]
                event = ast.literal_eval(call.args[1])
                fields = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
                assert isinstance(level, ast.Attribute)
                events[event] = getattr(logging, level.attr), fields
    return events


def documented() -> dict[str, tuple[int, tuple[str, ...]]]:
    """The level and the fields of each event in the table of the guide."""
    text = (ROOT / "docs/guides/worker.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (info|warning|error) \|([^|]*)\| [^|]+ \|$", text, re.MULTILINE)
    return {
        event: (getattr(logging, level.upper()), tuple(re.findall(r"`(\w+)`", fields))) for event, level, fields in rows
    }


def test_the_table_of_log_events_names_each_event_with_its_level_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outages = Outages(SimpleNamespace(name_of=str), lambda: 0.0, logging.getLogger("rqttl"))
    outages.failed("a", ConnectionError())
    outages.answered("a")
    told = logged() | {record.event: (record.levelno, set(record.fields)) for record in caplog.records}  # type: ignore[attr-defined]  # set by the log
    table = documented()

    assert {event: level for event, (level, _) in table.items()} == {event: level for event, (level, _) in told.items()}
    assert table.pop("swept")[1] == ("queue", *DUTIES, "sweeps", "lag_ms")  # some of them are not always there
    assert {event: set(fields) for event, (_, fields) in table.items()} == {
        event: fields for event, (_, fields) in told.items() if event != "swept"
    }
