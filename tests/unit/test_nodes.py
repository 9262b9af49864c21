"""Calls to several nodes: which node gets which call, in which order, and what a node that is away leaves undone."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from rqttl.errors import OutcomeUnknown
from rqttl.events import Events
from rqttl.flows import policies, reading, registry, steps
from rqttl.flows.steps import Pipeline, Read, ReadEachNode
from rqttl.protocol import commands
from rqttl.protocol.codec import Envelope
from rqttl.protocol.keys import Keyspace
from rqttl.store.exchanges import PAUSES, Exchanges, NotSent
from rqttl.store.topology import OneServer, Topology, Trip
from tests.unit.test_flows import known

KEYSPACE = Keyspace()
GONE = ConnectionError("gone")
#: The times of the nodes, in ms.
CLOCKS = (("A", 7_000), ("B", 12_000))


def gone() -> NotSent:
    """What a lost connection is to a call that was not sent."""
    unsent = NotSent()
    unsent.__cause__ = GONE
    return unsent


class FakeNode:
    """A node that answers each call by its words, or is away for its first `away` round trips."""

    def __init__(self, name: str, ms: int = 0, away: float = 0, answers: Callable[[Any], Any] = lambda call: call):
        self.name, self.ms, self.away, self.answers = name, ms, away, answers
        self.loaded: set[str] = set()

    def __repr__(self) -> str:
        return self.name

    def leave(self) -> None: ...

    def replies(self, calls: Sequence[Any]) -> list[Any] | Exception:
        if self.away > 0:
            self.away -= 1
            return gone()
        return [[self.ms // 1000, self.ms % 1000 * 1000] if call == ("TIME",) else self.answers(call) for call in calls]


class TwoNodes(OneServer[FakeNode]):
    """Queues whose names begin with b are on the second node; all other keys are on the first."""

    def __init__(self, first: FakeNode, second: FakeNode) -> None:
        super().__init__(first)
        self.nodes = self.made = (first, second)

    def node_of(self, key: Any) -> FakeNode:
        return self.nodes[str(key).startswith("rqttl:{b")]


def drive(exchange: Any, note: Callable[[Any], object]) -> Any:
    """Carry out an exchange with fake nodes. `note` gets its trips and pauses."""
    answer: Any = None
    try:
        while True:
            step = exchange.throw(answer) if isinstance(answer, Exception) else exchange.send(answer)
            note(step)
            if isinstance(step, Trip):
                answer = step.node.replies(step.calls)
            else:
                answer = [trip.node.replies(trip.calls) for trip in step] if isinstance(step, list) else None
    except StopIteration as done:
        return done.value


class Log(list[Any]):
    """Carries exchanges out; has the nodes of each round trip, and the pauses."""

    def perform(self, topology: Topology[FakeNode], make: Callable[[Exchanges], Any]) -> Any:
        return drive(make(Exchanges(topology, KEYSPACE, Events(), lambda: 0.0)), self.note)

    def note(self, step: Any) -> None:
        names = [trip.node.name for trip in step] if isinstance(step, list) else step
        self.append(step.node.name if isinstance(step, Trip) else names)


def perform(nodes: TwoNodes, step: steps.Step) -> Any:
    """Carry out a step about several nodes."""
    if isinstance(step, ReadEachNode):
        return Log().perform(nodes, lambda x: x.read_each_node(step))
    assert isinstance(step, Read)
    return Log().perform(nodes, lambda x: x.read(step))


def get(queue: str) -> tuple[str, str]:
    return "GET", KEYSPACE.key(queue, "meta")


def test_calls_go_out_to_all_nodes_at_once_and_the_replies_keep_their_order() -> None:
    calls, log = [get("b1"), get("a"), get("b2"), ("INFO",)], Log()

    assert log.perform(TwoNodes(FakeNode("A"), FakeNode("B")), lambda x: x.read(Read(calls))) == calls
    assert log == [["B", "A"]]


def test_calls_of_one_node_are_one_round_trip_also_those_that_come_last() -> None:
    log = Log()
    step = Read([get("b1"), get("b2")], then=[get("b3")], timed=True)

    replies, times = log.perform(TwoNodes(FakeNode("A"), FakeNode("B", ms=7_005)), lambda x: x.read(step))
    assert (replies, times, log) == ([get("b1"), get("b2"), get("b3")], [7_005, 7_005], ["B"])


def test_what_comes_last_goes_out_when_all_other_replies_are_there() -> None:
    log = Log()
    step = Read([get("a"), get("b")], then=[("GET", KEYSPACE.policies)], timed=True)

    replies, times = log.perform(TwoNodes(FakeNode("A", ms=12_000), FakeNode("B", ms=7_000)), lambda x: x.read(step))
    assert (replies[2], times) == (("GET", KEYSPACE.policies), [12_000, 7_000])
    assert log == [["A", "B"], "A"]


def test_a_node_that_is_away_is_asked_again_and_delays_no_other() -> None:
    log = Log()

    replies = log.perform(TwoNodes(FakeNode("A", away=2), FakeNode("B")), lambda x: x.read(Read([get("a"), get("b")])))
    assert replies == [get("a"), get("b")]
    assert log == [["A", "B"], PAUSES[0], ["A"], PAUSES[1], ["A"]]


def test_the_error_of_a_node_that_stays_away_takes_the_place_of_its_replies() -> None:
    nodes = TwoNodes(FakeNode("A", ms=5_000), FakeNode("B", away=99))
    step = Read([get("b"), get("a")], keep_errors=True, timed=True)

    assert Log().perform(nodes, lambda x: x.read(step)) == ([GONE, get("a")], [None, 5_000])
    with pytest.raises(ConnectionError, match="gone"):
        Log().perform(nodes, lambda x: x.read(Read(step.calls)))


def test_one_server_that_is_away_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="gone"):
        Log().perform(OneServer(FakeNode("A", away=99)), lambda x: x.read(Read([get("a")], keep_errors=True)))


def test_each_node_answers_what_all_are_asked() -> None:
    def refuse(call: Any) -> Any:
        return NoPermissionError("INFO is not yours") if call == ("INFO",) else b"x"

    first, second = FakeNode("A"), FakeNode("B", answers=refuse)
    step = ReadEachNode([("INFO",), ("CONFIG", "GET", "save")], keep_errors=True)

    answers = Log().perform(TwoNodes(first, second), lambda x: x.read_each_node(step))
    assert answers[first] == step.calls
    assert [str(answer) for answer in answers[second]] == ["INFO is not yours", "b'x'"]
    with pytest.raises(ResponseError):
        Log().perform(TwoNodes(first, second), lambda x: x.read_each_node(ReadEachNode(step.calls)))


def test_a_call_without_a_key_goes_to_the_node_that_was_chosen() -> None:
    log, nodes = Log(), TwoNodes(FakeNode("A"), FakeNode("B"))

    log.perform(nodes, lambda x: x.read(Read([("SCAN", 5)], node=nodes.nodes[1])))
    assert log == ["B"]


def test_scripts_of_several_nodes_run_side_by_side_and_each_node_learns_its_scripts() -> None:
    def run(call: Any) -> Any:
        return [b"ok", b"", call[3]] if call[0] == "EVALSHA" else b"sha"

    first, second = FakeNode("A", answers=run), FakeNode("B", answers=run)
    calls, log = [commands.lookup(KEYSPACE, name) for name in ("b1", "a", "b2")], Log()

    replies = log.perform(TwoNodes(first, second), lambda x: x.run_together(Pipeline(calls)))
    assert [reply[2] for reply in replies] == [KEYSPACE.key(name, "meta") for name in ("b1", "a", "b2")]
    assert log == [["B", "A"]]
    assert first.loaded == second.loaded == {calls[0].script.sha}


def test_queues_live_by_the_clocks_of_their_nodes() -> None:
    """Both lifetimes end at 10 s. The clock of the first node is 5 s behind that of the second."""
    record = {"version": b"1", "expires": b"10000", "last_used_at": b"0", "options": b"{}"}
    nodes = TwoNodes(*[FakeNode(name, ms, answers=lambda call: list(map(record.get, call[2:]))) for name, ms in CLOCKS])

    answers = steps.drive(reading.read_options(KEYSPACE, ["a", "b"]), lambda step: perform(nodes, step))
    assert list(answers) == ["a"]


def test_the_version_of_policies_is_read_after_the_records_of_all_nodes() -> None:
    flow = policies.records(KEYSPACE, ["a", "b"])
    step: Any = next(flow)

    assert [call[1] for call in step.calls] == [KEYSPACE.key(name, "meta") for name in "ab"]
    assert [call[1] for call in step.then] == [KEYSPACE.policies]


def test_the_keys_of_all_nodes_are_scanned_page_by_page() -> None:
    pages = {"A": [[b"7", [b"a"]], [b"0", [b"b"]]], "B": [[b"0", [b"c"]]]}
    nodes = TwoNodes(*[FakeNode(name, answers=lambda _, name=name: pages[name].pop(0)) for name in "AB"])  # type: ignore[misc]
    seen: list[bytes] = []

    steps.drive(registry.scan(KEYSPACE, seen.extend), lambda step: perform(nodes, step))
    assert seen == [b"a", b"b", b"c"]


def test_a_lost_reply_of_one_node_leaves_the_outcome_of_its_commands_unknown() -> None:
    class Losing(FakeNode):
        def replies(self, calls: Sequence[Any]) -> list[Any] | Exception:
            return ConnectionError("the reply was lost")

    send = commands.enqueue(known(), [(Envelope(), b"x")])
    calls = [commands.lookup(KEYSPACE, "b"), send]

    with pytest.raises(OutcomeUnknown) as caught:
        Log().perform(
            TwoNodes(Losing("A"), FakeNode("B", answers=lambda _: [b"ok", b""])),
            lambda x: x.run_together(Pipeline(calls)),
        )
    assert caught.value.queue == send.queue
