"""Checks of the server: each on a server that is as it should be, and on one that is not."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from rqttl import Broker
from rqttl.doctor import Finding, examine
from rqttl.doctor import server as checks
from rqttl.doctor.server import SETTINGS, ServerInfo
from rqttl.flows.steps import Step, Write
from rqttl.store.driver import RedisDriver, driver_of
from tests.doctor.looking import of, only, server
from tests.drivers import broker_on, redis_of
from tests.servers import Server
from tests.unit.test_flows import Drive
from tests.waiting import until


def test_a_well_kept_server_has_no_problem(start_server: Callable[..., Server]) -> None:
    with Broker(start_server(appendonly="yes", maxmemory="1gb").client()) as broker:
        redis_of(broker).config_set("save", "")
        broker.declare_queue("orders").enqueue(b"x")

        levels = {one.check: one.level for one in examine(broker)}

    levels.pop("server")  # the version of a distribution may be old
    assert set(levels.values()) == {"ok"}
    assert [*levels] == [
        "role",
        "memory policy",
        "memory",
        "persistence",
        "disk",
        "replicas",
        "connections",
        "clock",
        "rights",
        "scripts",
        "reaper",
        "queues",
    ]


def test_a_badly_kept_server_has_a_finding_for_each_fault(start_server: Callable[..., Server]) -> None:
    config = {"maxmemory_policy": "allkeys-lru", "timeout": 5, "tcp_keepalive": 0}
    place = start_server(**config)
    with Broker(place.client()) as broker:
        client = redis_of(broker)
        client.config_set("save", "900 100000")
        client.save()
        for _ in range(7):
            client.incr("x")
        assert ", 7 changes now" in server(broker, "persistence")[1]
        used: Any = client.info("memory")
        client.config_set("maxmemory", used["used_memory"] + 200_000)
        for i in range(2_000):
            client.set(f"x{i}", "y" * 1_000)
        (place.path / "dump.rdb").unlink()
        (place.path / "dump.rdb").mkdir()
        fail_to_save(client)

        found = list(examine(broker))

    level, policy, _ = only(found, "memory policy")
    assert (level, "evicts keys" in policy, "evicted since the start" in policy) == ("problem", True, True)
    assert only(found, "disk")[0] == "problem"
    assert [level for level, _ in of(found, "connections")] == ["warning", "warning"]


def fail_to_save(client: redis.Redis) -> None:
    client.bgsave()

    def has_failed() -> bool:
        info: Any = client.info("persistence")
        return not info["rdb_bgsave_in_progress"] and info["rdb_last_bgsave_status"] == "err"

    until(has_failed)


def test_a_replica_is_not_the_server_to_write_to(start_server: Callable[..., Server]) -> None:
    with Broker(start_server().client()) as broker:
        assert server(broker, "role") == ("ok", "primary", "")

        redis_of(broker).replicaof("127.0.0.1", "1")

        level, found, advice = server(broker, "role")
    assert (level, advice) == ("problem", "connect to its primary")
    assert "its link is down" in found


STANDALONE = {"redis_mode": "standalone"}
VALKEY = {"redis_version": "7.2.4", **STANDALONE}
PRIVATE = {"port": "0", "tls-port": "0", "unixsocket": "/run/private.sock", "unixsocketperm": "700"}
OLD = {"redis_version": "6.2.14", **STANDALONE}
LIMITED = {"maxmemory": 100, "evicted_keys": 0}
SOUND = {**LIMITED, "maxmemory_policy": "noeviction"}
UNLIMITED = {"maxmemory": 0, "total_system_memory": 100}
AOF, EVERYSEC, UNSAVED = {"aof_enabled": 1}, {"appendfsync": "everysec"}, {"rdb_last_bgsave_status": "err"}
UNUSED = {"connected_slaves": 2, "role": "master", "min_slaves_good_slaves": 2}
PAIR = {"connected_slaves": 1, "role": "master", "min_slaves_good_slaves": 1}

Case = tuple[Callable[[ServerInfo], Iterator[Finding]], dict[str, Any], dict[str, str], str, str]
CASES: list[Case] = [
    (checks.kind, {"redis_version": "7.0.15", **STANDALONE}, {}, "warning", "Redis 7.0.15, standalone; before 8.8"),
    (checks.kind, {"redis_version": "6.2.20", **STANDALONE}, {}, "ok", "Redis 6.2.20, standalone"),
    (checks.kind, {"redis_version": "6.2.19", **STANDALONE}, {}, "warning", "before 6.2.20"),
    (checks.kind, {"redis_version": "8.2", **STANDALONE}, {}, "warning", "before 8.2.6"),
    (checks.kind, {"redis_version": "8.8.0"}, {}, "ok", "Redis 8.8.0, unknown mode"),
    (checks.kind, {"redis_version": "6.0.16", **STANDALONE}, {}, "problem", "Redis 6.0.16"),
    (checks.kind, {"redis_version": "8.8.0", "redis_mode": "cluster"}, {}, "ok", "Redis 8.8.0, cluster"),
    (checks.kind, {"redis_version": "7.0.15", "redis_mode": "sentinel"}, {}, "problem", "sentinel"),
    (checks.kind, {**VALKEY, "valkey_version": "8.0.6"}, {}, "ok", "Valkey 8.0.6"),
    (checks.kind, {**VALKEY, "valkey_version": "8.0.1"}, {}, "warning", "before 8.0.6"),
    (checks.kind, {"valkey_version": "9.1.2", "server_mode": "standalone"}, {}, "ok", "Valkey 9.1.2, standalone"),
    (
        checks.coverage,
        {"redis_mode": "cluster"},
        {"cluster-require-full-coverage": "yes"},
        "warning",
        "all nodes refuse",
    ),
    (checks.kind, OLD, PRIVATE, "ok", "CVE-2025-49844"),
    (checks.kind, OLD, {**PRIVATE, "port": "6379"}, "warning", "CVE-2025-49844"),
    (checks.kind, OLD, {**PRIVATE, "tls-port": "6380"}, "warning", "CVE-2025-49844"),
    (checks.kind, OLD, {**PRIVATE, "unixsocket": ""}, "warning", "CVE-2025-49844"),
    (checks.kind, OLD, {**PRIVATE, "unixsocketperm": "770"}, "warning", "CVE-2025-49844"),
    (checks.replicas, {"connected_slaves": 0}, {}, "ok", "no replica"),
    (checks.replicas, UNUSED, {"min-replicas-to-write": "0"}, "warning", "2 replicas, but no write waits"),
    (checks.replicas, UNUSED, {"min-replicas-to-write": "1"}, "ok", "2 replicas, 1 needed"),
    (checks.replicas, UNUSED, {"min-replicas-to-write": "2"}, "warning", "after a failover one is missing"),
    (checks.replicas, PAIR, {"min-replicas-to-write": "0"}, "ok", "1 replica"),
    (checks.replicas, PAIR, {"min-replicas-to-write": "1"}, "warning", "1 needed for writes: after a failover"),
    (checks.replicas, UNUSED, {"min-replicas-to-write": "3"}, "problem", "2 in step, 3 needed: every write is refused"),
    (checks.connections, {}, {"timeout": "600", "tcp-keepalive": "300"}, "ok", "timeout is 600 s, tcp-keepalive 300 s"),
    (checks.eviction, SOUND, {}, "ok", "noeviction"),
    (checks.eviction, {**SOUND, "evicted_keys": 2}, {}, "warning", "2 keys evicted"),
    (checks.eviction, {**LIMITED, "maxmemory_policy": "allkeys-lru"}, {}, "problem", "evicts keys of queues"),
    (checks.eviction, {**LIMITED, "maxmemory_policy": "volatile-ttl"}, {}, "warning", "queues are safe"),
    (checks.eviction, {**UNLIMITED, "maxmemory_policy": "allkeys-random"}, {}, "warning", "as long as maxmemory is 0"),
    (checks.memory, {"used_memory": 10, "maxmemory": 100}, {}, "ok", " used"),
    (checks.memory, {"used_memory": 95, "maxmemory": 100}, {}, "warning", "refused soon"),
    (checks.memory, {"used_memory": 200, "maxmemory": 100}, {}, "problem", "refused now"),
    (checks.memory, {**UNLIMITED, "used_memory": 59}, {}, "ok", "no limit"),
    (checks.memory, {**UNLIMITED, "used_memory": 60}, {}, "warning", "on a machine with"),
    (checks.persistence, AOF, {"appendfsync": "always"}, "ok", "loses nothing that was confirmed"),
    (checks.persistence, AOF, EVERYSEC, "ok", "kill -9 of redis-server alone"),
    (checks.persistence, AOF, {"appendfsync": "no"}, "warning", "half a minute"),
    (checks.persistence, AOF, {}, "warning", "appendfsync cannot be read"),
    (checks.persistence, {**AOF, "aof_delayed_fsync": 3}, EVERYSEC, "ok", "the disk was too slow for it 3 times"),
    (checks.persistence, {"aof_enabled": 0}, {"save": "900 1"}, "warning", "a crash loses all since the last one, "),
    (checks.persistence, {"aof_enabled": 0}, {"save": ""}, "problem", "loses every message"),
    (checks.persistence, {"aof_enabled": 0}, {}, "warning", "if any are made"),
    (checks.disk, {"rdb_last_bgsave_status": "ok"}, {}, "ok", "the last writes went well"),
    (checks.disk, UNSAVED, {"save": "900 1"}, "problem", "every write is refused"),
    (checks.disk, UNSAVED, {"save": ""}, "warning", "the last snapshot failed"),
    (
        checks.disk,
        UNSAVED,
        {"save": "900 1", "stop-writes-on-bgsave-error": "no"},
        "warning",
        "the last snapshot failed",
    ),
    (checks.disk, {**AOF, "aof_last_write_status": "err"}, {}, "problem", "every write is refused"),
    (checks.disk, {**AOF, "aof_last_bgrewrite_status": "err"}, {}, "warning", "it grows on"),
]


@pytest.mark.parametrize("check, info, settings, level, told", CASES)
def test_what_a_server_tells_is_judged(
    check: Callable[[ServerInfo], Iterator[Finding]],
    info: dict[str, Any],
    settings: dict[str, str],
    level: str,
    told: str,
) -> None:
    hidden: Any = dict.fromkeys(SETTINGS, NoPermissionError("hidden"))

    [found] = check(ServerInfo(info, {**hidden, **settings}))

    assert (found.level, bool(found.advice)) == (level, level != "ok")
    assert told in found.result


@pytest.mark.parametrize(
    "ahead, level, told",
    [(0.5, "ok", "within"), (90.0, "warning", "90.0 s ahead of"), (-7200.0, "warning", "7,200.0 s behind")],
)
def test_the_clock(broker: Broker, ahead: float, level: str, told: str) -> None:
    found = only(driver_of(broker).perform(checks.clock(lambda: time.time() - ahead)), "clock")

    assert found[0] == level
    assert told in found[1]


@pytest.mark.parametrize("seconds, level", [(4, "ok"), (2, "warning")])
def test_a_slow_answer_is_no_wrong_clock(seconds: int, level: str) -> None:
    """Each answer comes in `seconds`, and the clock of the server is 2.5 s ahead of the middle of that time."""
    timer = itertools.count(0, seconds)
    drive = Drive(checks.clock(lambda: 1000.0, lambda: next(timer)))
    for _ in range(3):
        assert drive.step.calls == [("TIME",)]
        drive.answer([[b"%d" % (1002 + seconds // 2), b"500000"]])

    assert only(drive.result, "clock")[0] == level


@pytest.mark.parametrize("rule", ["-config", "-info"])
def test_what_a_managed_service_hides_is_named_and_the_rest_is_checked(
    restricted: Callable[..., redis.Redis], rule: str
) -> None:
    findings = list(examine(Broker(restricted(rule))))

    assert of(findings, "queues")[0][0] == of(findings, "clock")[0][0] == of(findings, "scripts")[0][0] == "ok"
    if rule == "-info":
        assert only(findings, "server")[0] == "warning"
        assert of(findings, "memory policy") == of(findings, "persistence") == []
    else:
        level, found, advice = only(findings, "settings")
        assert (level, found.split(":")[0]) == ("warning", "cannot be read")
        assert {"save", "timeout"} <= set(advice.replace(",", "").replace(";", "").split())


def test_a_sentinel_is_asked_for_nothing_more(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerInfo, "text", lambda facts, name: {"redis_mode": "sentinel"}.get(name, "1"))

    assert of(examine(broker), "scripts") == []


@pytest.mark.parametrize(
    "text", ["ERR unknown command 'SCRIPT', with args", "ERR Could not find scripting engine 'lua'"]
)
def test_a_server_without_lua_is_a_problem(text: str, broker: Broker) -> None:
    class NoLua(RedisDriver):
        def step(self, step: Step) -> Any:
            if isinstance(step, Write) and step.calls[0][:2] == ("SCRIPT", "LOAD"):
                raise redis.ResponseError(text)
            return super().step(step)

    level, found, advice = only(examine(broker_on(NoLua(redis_of(broker), "rqttl"))), "scripts")

    assert (level, found) == ("problem", f"this server has no Lua: {text}")
    assert "Valkey" in advice


PRIMARY, REPLICA = "{0} 127.0.0.1:{0}@1 master - 0 0 1 connected {0}-{0}\n", "{0} 127.0.0.1:{0}@1 {1} {2} 0 0 1 {3}\n"


@pytest.mark.parametrize(
    "replicas, expected",
    [
        ([("4", "slave", "1", "connected"), ("5", "myself,slave", "2", "connected")], []),
        ([("4", "slave", "1", "connected")], ["some primaries have 1 in step, others 0"]),
        ([("4", "slave,fail?", "1", "connected")], ["127.0.0.1:4 is away: one copy fewer, should the primary die"]),
        (
            [("4", "slave", "1", "disconnected"), ("3", "master,fail", "-", "connected")],
            ["127.0.0.1:3, 127.0.0.1:4 are away: one copy fewer, should the primary die"],
        ),
        ([], []),
    ],
)
def test_redundancy_is_read_from_what_a_node_of_a_cluster_says(
    replicas: list[tuple[str, ...]], expected: list[str]
) -> None:
    lines = [REPLICA.format(*one) for one in replicas] + [PRIMARY.format(name) for name in "12"]
    flow = Drive(checks.shards(None))

    flow.answer(["".join(lines).encode()])

    assert [(one.level, one.result) for one in flow.result] == [("warning", text) for text in expected]
