"""Samples of the queues, taken by ticks of the test, whose clock stands still until it is moved."""

import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from math import isnan
from typing import Any

import pytest
import redis

from rqttl import Broker, QueuesAway
from rqttl.dashboard import sampler as module
from rqttl.dashboard.sampler import ATTENTION, IDLE, MINUTE, SORTS, SPANS, QueueRow, Sampler
from rqttl.inspector import queues as views
from rqttl.inspector.queues import LateWork, Snapshot, Trend, to_json
from tests.cluster.conftest import cluster as cluster  # noqa: PLC0414  # a fixture
from tests.cluster.conftest import nodes as nodes  # noqa: PLC0414  # a fixture
from tests.cluster_servers import ClusterServers
from tests.servers import Server
from tests.waiting import PATIENCE, Gate, until


class Clock:
    now = 6_000.0

    def __call__(self) -> float:
        return self.now

    def redis(self, _: object = None) -> datetime:
        return datetime.fromtimestamp(1_800_000_000 + self.now, timezone.utc)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the process, and of Redis."""
    clock = Clock()
    monkeypatch.setattr(Broker, "server_time", clock.redis)
    return clock


def row_of(sampler: Sampler, name: str) -> QueueRow:
    row = sampler.sample.row(name)
    assert row is not None
    return row


def names(sampler: Sampler, *arguments: Any, **options: Any) -> list[str]:
    return [row.name for row in sampler.sample.rows(*arguments, **options).rows]


def still(stats: Any) -> dict[str, Any]:
    """The statistics, as far as time does not change them."""
    return {**to_json(stats), "oldest_ready_age_ms": 0, "overdue_ms": 0}


def test_a_row_has_the_statistics_and_the_limits_of_its_queue(broker: Broker, clock: Clock) -> None:
    orders = broker.declare_queue("orders", max_length=3, dead_letter="{queue}/dead")
    orders.enqueue_many([b"x"] * 5)
    orders.receive()
    broker.declare_topic("news").pause()
    sampler = Sampler(broker, clock=clock)
    sampler.tick()

    for name, stats in broker.stats(sweep=False).items():
        assert still(row_of(sampler, name).stats) == still(stats)
    row = row_of(sampler, "orders")
    assert (row.max_length, *row.targets) == (3, *["orders/dead"] * 4)
    assert (row.kind, row_of(sampler, "news").kind) == (None, "topic")
    assert (names(sampler, "paused"), names(sampler, "unconsumed")) == (["news"], ["orders", "orders/dead"])
    assert names(sampler, "full") == []
    orders.enqueue(b"x")
    sampler.tick()
    assert names(sampler, "full") == ["orders"]


def test_rates_totals_and_late_work_are_those_of_the_inspector(
    broker: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "LATE", timedelta(0))
    queues = {name: broker.declare_queue(name, max_length=4) for name in ("a", "b")}
    sampler, snapshots = Sampler(broker, clock=clock), []
    for sent in (1, 3, 7):
        queues["a"].enqueue_many([b"x"] * sent)
        sampler.tick()
        snapshots.append(Snapshot(clock.redis(), broker.stats(sweep=False), 0))
        clock.now += 2.5
    trend = Trend(snapshots[0])
    for snapshot in snapshots[1:]:
        trend.add(snapshot)

    ours = [*map(sampler.sample.row, "ab"), sampler.sample.total]
    theirs = [*trend.rows(), trend.total("2 queues")]
    assert [row and (row.name, row.rates) for row in ours] == [(row.name, row.rates) for row in theirs]
    assert [row and still(row.stats) for row in ours] == [still(row.stats) for row in theirs]
    assert [*row_of(sampler, "a").depths] == [*trend.rows()[0].depths] == [1, 4, 4]
    assert names(sampler, "dying") == ["a"]
    assert sampler.sample.late == trend.late_work() == LateWork(timedelta(0), 0)


@pytest.mark.parametrize(
    "seconds, anew, rate, depths", [(0, False, None, [2]), (2, True, None, [0]), (2, False, 1.5, [1, 4])]
)
def test_a_clock_that_stands_still_forgets_nothing_and_a_new_queue_of_an_old_name_begins_anew(
    broker: Broker, clock: Clock, seconds: int, anew: bool, rate: float | None, depths: list[int]
) -> None:
    queue, sampler = broker.declare_queue("a"), Sampler(broker, clock=clock)
    queue.enqueue(b"x")
    sampler.tick()
    clock.now += seconds
    queue.enqueue_many([b"x"] * 3)
    if anew:
        queue.delete()
        broker.declare_queue("a")
    sampler.tick()

    row = row_of(sampler, "a")
    assert (row.rates and row.rates["in"], row.depths) == (rate, depths)

    broker.queue("a").delete()
    sampler.tick()
    assert (sampler.sample.row("a"), sampler.sample.history("a"), names(sampler)) == (None, None, [])


def test_a_history_has_ten_minutes_of_ticks_and_means_of_a_day(broker: Broker, clock: Clock) -> None:
    queue, sampler = broker.declare_queue("a"), Sampler(broker, clock=clock)
    for seconds in (0, 6, 700):
        clock.now += seconds
        queue.enqueue(b"x")
        sampler.tick()
    ticks, day = (sampler.sample.history("a", span) for span in SPANS)

    assert ticks
    assert day
    assert [n for n in ticks.series["depth"] if not isnan(n)] == [3]
    assert (day.series["depth"][-3], day.series["depth"][-1]) == (1.5, 3)
    assert day.series["in"][-1] == pytest.approx(1 / 700)
    assert sum(sys.getsizeof(ring._data) for ring in sampler._rings["a"].values()) < 10_000


def test_many_queues_are_read_in_turn_and_each_row_tells_its_age(broker: Broker, clock: Clock) -> None:
    for n in range(25):
        broker.declare_queue(f"q{n:02}").enqueue_many([b"x"] * (n + 1))
    sampler, known = Sampler(broker, clock=clock, most=10), []

    def go(ticks: int) -> None:
        for _ in range(ticks):
            sampler.tick()
            known.append((len(sampler.sample.queues), sampler.sample.total.stats.ready))
            clock.now += 2

    go(5)
    assert known == [(9, 45), (18, 171), (25, 325), (25, 325), (25, 325)]
    assert [row_of(sampler, name).age.total_seconds() for name in ("q00", "q10", "q24")] == [2, 0, 4]

    broker.declare_queue("q99")
    broker.queue("q00").delete()
    go(int(MINUTE / 2) + len(SORTS) + len(ATTENTION))
    assert names(sampler, "ready", size=3) == ["q24", "q23", "q22"]
    assert names(sampler) == [f"q{n:02}" for n in range(1, 25)] + ["q99"]


def test_rows_are_sorted_chosen_and_paged(broker: Broker, clock: Clock) -> None:
    for name, count in [("a.1", 0), ("a.2", 2), ("b.1", 2), ("b.2", 3), ("other", 9)]:
        broker.declare_queue(name).enqueue_many([b"x"] * count)
    sampler = Sampler(broker, "?.*", clock=clock)
    sampler.tick()

    assert names(sampler, "depth") == ["b.2", "a.2", "b.1", "a.1"]
    assert names(sampler, "name", ["b.*", "a.1"]) == ["a.1", "b.1", "b.2"]
    beyond = sampler.sample.rows("depth", page=9, size=3)
    assert (beyond.found, beyond.page, beyond.pages) == (4, 2, 2)


def calls(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if not name.startswith(("cmdstat_info", "cmdstat_config")))


def test_fifty_who_look_cost_redis_what_one_costs(
    broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 1e6)
    broker.declare_queue("a")
    Sampler(broker).tick()  # it connects
    found = []
    for viewers in (1, 50, 1):
        sampler = Sampler(broker)
        client.config_resetstat()
        for _ in range(viewers):
            sampler.look(PATIENCE)
            assert names(sampler, "depth") == ["a"]
        sampler.stop()
        found.append(calls(client))

    assert found == [found[0]] * 3


def test_it_runs_from_the_first_look_until_an_hour_after_the_last(
    broker: Broker, client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    client.config_resetstat()
    sampler = Sampler(broker, clock=clock)
    assert calls(client) == 0
    for _ in range(2):
        sampler.look()
        clock.now += IDLE - 1
        number, thread = sampler.sample.number, sampler._thread
        until(lambda: sampler.sample.number > number + 2)  # noqa: B023  # it is called here
        clock.now += 1
        assert thread
        thread.join()
    sampler.start()
    broker.close()
    until(lambda: not (sampler._thread and sampler._thread.is_alive()))


def test_a_tick_that_works_for_long_has_a_longer_pause(broker: Broker, clock: Clock, monkeypatch: Any) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise QueuesAway({}, {"a": TimeoutError()})

    sampler = Sampler(broker, clock=clock)
    assert sampler.tick() == 2

    monkeypatch.setattr(Broker, "workers", lambda _, **__: clock.__setattr__("now", clock.now + 0.3))
    assert sampler.tick() == pytest.approx(6)

    monkeypatch.setattr(Broker, "stats", away)
    assert sampler.tick() == 2


def test_redis_away_leaves_the_last_sample_with_its_age(start_server: Callable[..., Server], monkeypatch: Any) -> None:
    server, clock = start_server(), Clock()
    broker = Broker(server.client())
    broker.declare_queue("a").enqueue(b"x")
    sampler = Sampler(broker, clock=clock)
    sampler.tick()
    with server.down():
        for _ in range(2):
            clock.now += 30
            assert sampler.tick() == 2
        away = sampler.sample
        monkeypatch.setattr(Broker, "server_time", clock.redis)  # as if it went away in the midst of a tick
        sampler.tick()
        midst = sampler.sample
    monkeypatch.undo()
    sampler.tick()

    assert away.trouble
    assert (away.number, away.age) == (3, timedelta(minutes=1))
    for sample in (away, midst):
        assert [(row.name, row.stats.ready, row.age) for row in sample.rows().rows] == [("a", 1, timedelta(minutes=1))]
        assert (sample.total.stats.ready, bool(sample.troubles)) == (1, True)
    assert (sampler.sample.troubles, sampler.sample.age) == ([], timedelta(0))


def test_a_look_says_that_a_tick_waits_for_redis_and_how_old_the_figures_are(
    broker: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    sampler, gate = Sampler(broker, clock=clock), Gate()
    sampler.look()

    def hanging(_: Broker) -> None:
        gate(None)
        raise redis.TimeoutError("Timeout reading from socket")

    monkeypatch.setattr(Broker, "server_time", hanging)
    gate.reached()
    clock.now += 30
    sampler.look()
    waiting = sampler.sample
    gate.open()
    until(lambda: sampler.sample is not waiting)
    sampler.stop()

    assert waiting.trouble
    assert waiting.trouble.text == "no answer yet"
    assert waiting.age == sampler.sample.age == timedelta(seconds=30)


def test_a_broker_that_is_closed_leaves_the_last_sample_with_its_age(broker: Broker, clock: Clock) -> None:
    sampler = Sampler(broker, clock=clock)
    sampler.tick()
    broker.close()
    clock.now += 60
    for _ in range(2):
        sampler.look()

    assert sampler.sample.trouble
    assert sampler.sample.trouble.text.startswith("the broker is closed")
    assert sampler.sample.age == timedelta(minutes=1)


@pytest.mark.parametrize("rule, what", [("-hgetall", "roster"), ("-xlen", "stats"), ("-sscan", "names")])
def test_a_user_who_may_not_read_one_thing_sees_the_others(
    broker: Broker, restricted: Callable[..., redis.Redis], rule: str, what: str
) -> None:
    broker.declare_queue("a")
    sampler = Sampler(Broker(restricted(rule)))
    sampler.tick()

    assert [one.what for one in sampler.sample.troubles] == [what]
    assert (sampler.sample.workers is None, sampler.sample.reapers is None) == (what == "roster",) * 2
    assert names(sampler) == (["a"] if what == "roster" else [])


def test_a_node_that_is_away_does_not_stop_the_others(cluster: ClusterServers) -> None:
    broker, clock, shared = Broker(cluster.client()), Clock(), cluster.owner("rqttl:queues")
    queues = {broker.declare_queue(f"q{n}").name for n in range(12)}
    sampler = Sampler(broker, clock=clock)
    sampler.tick()
    for server in (next(one for one in cluster.primaries() if one is not shared), shared):
        lost = {name for name in queues if cluster.owner(f"rqttl:{{{name}}}:meta") is server}
        before = {name: row_of(sampler, name).at for name in queues}

        def unread() -> set[str]:
            return {queue for one in sampler.sample.troubles if one.what == "stats" for queue in one.queues}

        with server.hanging():
            until(lambda: sampler.tick() and unread() == lost)  # noqa: B023  # it is called here
        assert {name for name in queues if row_of(sampler, name).at == before[name]} <= lost
        assert (sampler.sample.workers is None, names(sampler)) == (server is shared, sorted(queues))
        until(cluster.agrees)
        until(lambda: sampler.tick() and not sampler.sample.troubles)
