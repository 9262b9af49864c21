"""The reaper of two nodes: clocks that differ, and a node that is away. Time passes only where the reaper waits."""

import logging
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import redis

from rqttl import SweepEvent
from rqttl.reaper import Reaper, loop
from tests.drivers import broker_on
from tests.servers import Server
from tests.two_nodes import TwoNodeDriver

pytestmark = pytest.mark.slow

START = 1_700_000_000_000


class World:
    """A reaper of two nodes. `ms` is the time; `swept` has it and the queue for each sweep that did something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *servers: Server) -> None:
        self.ms = 0
        self.servers = servers
        self.driver = TwoNodeDriver(servers[0], servers[1], clock=lambda: START + self.ms, socket_timeout=0.5)
        self.broker = broker_on(self.driver)
        self.swept: list[tuple[int, str]] = []
        self.sweeps: list[tuple[int, str]] = []
        self.broker.events.subscribe(self._note, SweepEvent)
        monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: self.ms / 1000, time=lambda: 1.0))
        monkeypatch.setattr("rqttl.store.exchanges.PAUSES", ())
        monkeypatch.setattr("rqttl.reaper.queues.STALE", 0.0)
        self.reaper = Reaper(self.broker, scan_period="1h")
        monkeypatch.setattr(self.reaper, "_read_inbox", self._wait)

    def _wait(self, patience: float) -> None:
        self.ms += math.ceil(patience * 1000)
        if self.ms >= self._end:
            self.reaper.stop()

    def _note(self, event: SweepEvent) -> None:
        hundredth = self.ms // 10 * 10  # a wait may be rounded up by a ms
        self.sweeps.append((hundredth, event.queue))
        if event.swept.expired:
            self.swept.append((hundredth, event.queue))

    def declare(self, *queues: str) -> None:
        for queue in queues:
            self.broker.declare_queue(queue)

    def send(self, queue: str, ttl: str) -> None:
        """Put a message into a queue, and look at the queue again."""
        self.broker.queue(queue).enqueue(b"x", ttl=ttl)
        self.reaper._urgent = True

    def run(self, seconds: float) -> list[tuple[int, str]]:
        """Let the reaper work for so long. Returns what it has swept meanwhile."""
        self._end = self.ms + int(seconds * 1000)
        self.reaper._stopped = False
        self.swept.clear()
        self.sweeps.clear()
        self.reaper._work()
        self.ms = self._end
        return self.swept


@pytest.fixture
def world(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[World]:
    caplog.set_level(logging.INFO, "rqttl.reaper")
    made = World(monkeypatch, *(start_server(appendonly="yes", appendfsync="always") for _ in range(2)))
    made.declare("a", "a2", "b", "b2")
    made.reaper._begin_pass(thorough=True)
    yield made
    made.broker.close()


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == event]


@pytest.mark.parametrize("ahead", [(0, 0), (0, 5_000), (5_000, 0), (-2_500, 2_500)])
def test_with_clocks_that_differ_nothing_is_swept_early_or_late(
    world: World, caplog: pytest.LogCaptureFixture, ahead: tuple[int, int]
) -> None:
    world.driver.ahead[:], world.reaper._hints.hearing = ahead, True
    for queue, ttl in (("a", "7s"), ("b", "8s"), ("b2", "20s"), ("a2", "21s")):
        world.send(queue, ttl)

    for _ in range(2):
        assert world.run(1) == []
        world.reaper._next_look = 0.0  # the second of these scans sweeps nothing

    assert world.run(60) == [(7_000, "a"), (8_000, "b"), (20_000, "b2"), (21_000, "a2")]
    world.reaper.report.tell(at_once=True)
    lags = [record.fields["lag_ms"] for record in caplog.records if getattr(record, "event", "") == "swept"]  # type: ignore[attr-defined]  # set by the reaper
    assert (len(lags), max(lags)) in ((4, 0), (4, 1))


@pytest.mark.parametrize(
    "ahead, swept",
    [(5_000, [(10_000, "b"), (15_000, "b2"), (19_000, "a")]), (-5_000, [(15_000, "b"), (19_000, "a"), (25_000, "b2")])],
)
def test_a_jump_of_the_clock_of_a_node_moves_only_its_queues(
    world: World, ahead: int, swept: list[tuple[int, str]]
) -> None:
    """A sweep shows the jump. No pass comes within an hour; after a jump back all queues are looked at."""
    world.reaper._hints.hearing = True
    for queue, ttl in (("a", "19s"), ("b", "10s"), ("b2", "20s")):
        world.send(queue, ttl)
    assert world.run(5) == []
    world.driver.ahead[1] = ahead

    assert world.run(60) == swept
    assert [ms for ms, queue in world.sweeps if queue == "a"] == [10_000] * (ahead < 0) + [19_000]


@pytest.mark.parametrize("victim", [0, 1], ids=["the node of the registry", "the other node"])
def test_while_a_node_is_away_the_queues_of_the_other_one_are_swept_on_time(
    world: World, caplog: pytest.LogCaptureFixture, victim: int
) -> None:
    """A name without a queue would leave the registry at once here, and no pass comes by itself within an hour."""
    world.reaper._hints.hearing = True
    gone, there = "ab"[victim], "ba"[victim]
    for queue, ttl in ((gone, "5s"), (there, "5s"), (f"{there}2", "40s"), (f"{gone}2", "90s")):
        world.send(queue, ttl)
    assert world.run(1) == []

    world.servers[victim].kill()
    assert world.run(19) == [(5_000, there)]
    world.reaper._urgent = True
    assert world.run(60) == [(40_000, f"{there}2")]
    address = world.driver.store.topology.nodes[victim].address.place
    assert (world.reaper.report.is_away, world.reaper.away()) == (False, [address])
    world.servers[victim].start()

    (_, first), *others = world.run(60)
    assert [first, *others] == [gone, (90_000, f"{gone}2")]
    assert world.broker.queues() == ["a", "a2", "b", "b2"]
    (unavailable,), recovered = logged(caplog, "redis_unavailable"), logged(caplog, "redis_recovered")
    assert (unavailable.startswith(f"{address} does not answer: "), recovered) == (True, [f"{address} answers again"])
    assert world.reaper.away() == []


@pytest.mark.parametrize("seconds", [0, 10], ids=["a short pass", "a pass that takes longer than the node rests"])
def test_one_pass_without_a_node_does_the_work_of_the_other_one_and_tells_the_error(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: int
) -> None:
    for queue in ("a", "b"):
        world.send(queue, "5s")
    world.ms = 10_000
    world.servers[1].kill()
    reaper = Reaper(world.broker)
    end_pass = reaper._end_pass

    def late() -> None:
        world.ms += seconds * 1000
        end_pass()

    monkeypatch.setattr(reaper, "_end_pass", late)
    with pytest.raises(redis.ConnectionError):
        reaper.run_once()

    assert (world.swept, logged(caplog, "redis_recovered")) == ([(10_000, "a")], [])
    assert world.driver.clients[0].smembers(world.driver.keyspace.registry) == {b"a", b"a2", b"b", b"b2"}
