"""Checks of the server: each on a server that is as it should be, and on one that is not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker, flows
from rqttl.doctor import examine, memory, persistence
from rqttl.doctor import server as checks
from rqttl.doctor.server_info import ServerInfo
from rqttl.store.driver import RedisDriver, driver_of
from tests.doctor.looking import Told, of, only, server
from tests.drivers import broker_on
from tests.servers import Server
from tests.unit.test_flows import Drive
from tests.waiting import until

Configured = Callable[..., Broker]


def test_a_well_kept_server_has_no_problem(configured: Configured) -> None:
    broker = configured(appendonly="yes", maxmemory="1gb")
    broker.declare_queue("orders").enqueue(b"x")

    levels = {one.check: one.level for one in examine(broker)}

    levels.pop("server")  # the version of a distribution may be old
    assert set(levels.values()) == {"ok"}
    assert levels.keys() == {
        "role",
        "memory policy",
        "memory",
        "persistence",
        "disk",
        "replicas",
        "script time",
        "connections",
        "clock",
        "rights",
        "scripts",
        "reaper",
        "queues",
    }


@pytest.mark.parametrize(
    "info, level, told",
    [
        ({"redis_version": "7.0.15", "redis_mode": "standalone"}, "warning", "Redis 7.0.15, standalone; before 8.8"),
        ({"redis_version": "6.2.20", "redis_mode": "standalone"}, "ok", "Redis 6.2.20, standalone"),
        ({"redis_version": "6.2.19", "redis_mode": "standalone"}, "warning", "before 6.2.20"),
        ({"redis_version": "8.2", "redis_mode": "standalone"}, "warning", "before 8.2.6"),
        ({"redis_version": "8.8.0", "redis_mode": "standalone"}, "ok", "Redis 8.8.0, standalone"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2", "server_mode": "standalone"}, "ok", "Valkey 9.1.2, sta"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2", "server_mode": "cluster"}, "problem", "cluster"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.6", "redis_mode": "standalone"}, "ok", "Valkey 8.0.6"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1", "redis_mode": "standalone"}, "warning", "before 8.0.6"),
        ({"redis_version": "6.0.16", "redis_mode": "standalone"}, "problem", "Redis 6.0.16"),
        ({"redis_version": "7.0.15", "redis_mode": "cluster"}, "problem", "cluster"),
        ({"redis_version": "7.0.15", "redis_mode": "sentinel"}, "problem", "sentinel"),
        ({"redis_version": "8.8.0"}, "ok", "unknown mode"),
    ],
)
def test_the_kind_of_server(info: dict[str, str], level: str, told: str) -> None:
    found = only(checks.kind(Told(info)), "server")

    assert found[0] == level
    assert told in found[1]


PRIVATE = {"port": "0", "tls-port": "0", "unixsocket": "/run/private.sock", "unixsocketperm": "700"}


@pytest.mark.parametrize(
    "changed, level",
    [
        ({}, "ok"),
        ({"tls-port": None}, "ok"),
        ({"port": "6379"}, "warning"),
        ({"tls-port": "6380"}, "warning"),
        ({"unixsocket": ""}, "warning"),
        ({"unixsocketperm": "770"}, "warning"),
        ({"unixsocketperm": "0"}, "warning"),
        ({"port": None}, "warning"),
    ],
)
def test_a_hole_for_strangers_is_no_warning_where_none_can_connect(changed: dict[str, str | None], level: str) -> None:
    settings = {name: value for name, value in {**PRIVATE, **changed}.items() if value is not None}
    info = {"redis_version": "6.2.14", "redis_mode": "standalone"}

    found = only(checks.kind(Told(info, settings)), "server")

    assert found[0] == level
    assert "CVE-2025-49844" in found[1]
    assert ("here only the server's own user can connect" in found[1]) == (level == "ok")


def test_a_replica_is_not_the_server_to_write_to(configured: Configured) -> None:
    broker = configured()
    assert server(broker, "role") == ("ok", "primary", "")

    driver_of(broker).store.client.replicaof("127.0.0.1", "1")

    level, found, advice = server(broker, "role")
    assert (level, advice) == ("problem", "connect to its primary")
    assert "its link is down" in found


@pytest.mark.parametrize(
    "config, level, told",
    [
        ({}, "ok", "no replica"),
        ({"min_replicas_to_write": 1}, "problem", "0 in step, 1 needed: every write is refused"),
    ],
)
def test_replicas(configured: Configured, config: dict[str, Any], level: str, told: str) -> None:
    found = server(configured(**config), "replicas")

    assert found[0] == level
    assert told in found[1]


@pytest.mark.parametrize(
    "least, level, told", [("0", "warning", "2 replicas, but no write waits"), ("1", "ok", "2 replicas, 1 needed")]
)
def test_replicas_that_nobody_waits_for_may_miss_the_last_messages(least: str, level: str, told: str) -> None:
    info = {"connected_slaves": 2, "role": "master", "min_slaves_good_slaves": 2}

    found = only(checks.replicas(Told(info, {"min-replicas-to-write": least})), "replicas")

    assert found[0] == level
    assert told in found[1]


@pytest.mark.parametrize(
    "config, level, told",
    [
        ({"maxmemory": "1gb"}, "ok", "noeviction"),
        ({"maxmemory": "1gb", "maxmemory_policy": "allkeys-lru"}, "problem", "evicts keys of queues"),
        ({"maxmemory": "1gb", "maxmemory_policy": "volatile-ttl"}, "warning", "queues are safe"),
        ({"maxmemory_policy": "allkeys-random"}, "warning", "harmless only as long as maxmemory is 0"),
    ],
)
def test_the_memory_policy(configured: Configured, config: dict[str, Any], level: str, told: str) -> None:
    found = server(configured(**config), "memory policy")

    assert found[0] == level
    assert told in found[1]


def test_earlier_evictions_are_told(configured: Configured) -> None:
    broker = configured(maxmemory_policy="allkeys-lru")
    client = driver_of(broker).store.client
    client.set("x", "y" * 100)
    used: Any = client.info("memory")
    client.config_set("maxmemory", used["used_memory"] + 200_000)
    for i in range(2_000):
        client.set(f"x{i}", "y" * 1_000)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 0)

    level, found, _ = server(broker, "memory policy")

    assert level == "warning"
    assert "keys evicted since the start" in found


@pytest.mark.parametrize(
    "share, level, told", [(10.0, "ok", " used"), (1.05, "warning", "refused soon"), (0.5, "problem", "refused now")]
)
def test_the_check_of_memory_says_how_much_is_left(configured: Configured, share: float, level: str, told: str) -> None:
    broker = configured()
    driver_of(broker).store.client.set("ballast", b"x" * 20_000_000)
    used: Any = driver_of(broker).store.client.info("memory")
    driver_of(broker).store.client.config_set("maxmemory", int(used["used_memory"] * share))

    found = of(examine(broker), "memory")

    assert [one for one, text in found if told in text] == [level]


@pytest.mark.parametrize("used, level", [(59, "ok"), (60, "warning")])
def test_without_a_limit_the_machine_is_the_limit(used: int, level: str) -> None:
    info = {"used_memory": used * 10**9, "maxmemory": 0, "total_system_memory": 100 * 10**9}

    assert only(memory.left(Told(info)), "memory")[0] == level


@pytest.mark.parametrize(
    "config, level, told",
    [
        ({"appendonly": "yes", "appendfsync": "always"}, "ok", "loses nothing that was confirmed"),
        (
            {"appendonly": "yes", "appendfsync": "everysec"},
            "ok",
            "kill -9 of redis-server alone",
        ),
        ({"appendonly": "yes", "appendfsync": "no"}, "warning", "half a minute"),
        ({"save": "900 1"}, "warning", "snapshots only: a crash loses all since the last one, "),
        ({}, "problem", "loses every message"),
    ],
)
def test_the_check_of_persistence_says_what_a_crash_can_lose(
    configured: Configured, config: dict[str, Any], level: str, told: str
) -> None:
    found = server(configured(**config), "persistence")

    assert found[0] == level
    assert told in found[1]


def test_changes_since_the_last_snapshot_are_counted(configured: Configured) -> None:
    broker = configured(save="900 100000")
    driver_of(broker).store.client.save()
    for _ in range(7):
        driver_of(broker).store.client.incr("x")

    assert ", 7 changes now" in server(broker, "persistence")[1]


def test_a_slow_disk_is_mentioned() -> None:
    info = {"aof_enabled": 1, "aof_delayed_fsync": 3}

    found = only(persistence.durability(Told(info, {"appendfsync": "everysec"})), "persistence")

    assert found[1].endswith("the disk was too slow for it 3 times")


@pytest.mark.parametrize(
    "info, told", [({"aof_enabled": 1}, "appendfsync cannot be read"), ({"aof_enabled": 0}, "if any are made")]
)
def test_settings_that_are_hidden_leave_persistence_open(info: dict[str, Any], told: str) -> None:
    level, found, _ = only(persistence.durability(Told(info)), "persistence")

    assert level == "warning"
    assert told in found


@pytest.mark.parametrize(
    "settings, level",
    [
        ({"save": "900 1"}, "problem"),
        ({"save": "900 1", "stop-writes-on-bgsave-error": "no"}, "warning"),
        ({}, "warning"),
    ],
)
def test_a_failed_snapshot_stops_all_writes(
    start_server: Callable[..., Server], settings: dict[str, str], level: str
) -> None:
    place = start_server()
    with Broker(place.client()) as broker:
        for name, value in settings.items():
            driver_of(broker).store.client.config_set(name, value)
        assert server(broker, "disk") == ("ok", "the last writes went well", "")

        (place.path / "dump.rdb").mkdir()
        fail_to_save(driver_of(broker).store.client)

        assert server(broker, "disk")[0] == level


def fail_to_save(client: redis.Redis) -> None:
    client.bgsave()

    def has_failed() -> bool:
        info: Any = client.info("persistence")
        return not info["rdb_bgsave_in_progress"] and info["rdb_last_bgsave_status"] == "err"

    until(has_failed)


@pytest.mark.parametrize(
    "info, level, told",
    [
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "problem", "every write is refused"),
        ({"aof_enabled": 1, "aof_last_bgrewrite_status": "err"}, "warning", "it grows on"),
    ],
)
def test_a_disk_that_fails_the_append_only_file(info: dict[str, Any], level: str, told: str) -> None:
    found = only(persistence.writing(Told(info)), "disk")

    assert found[0] == level
    assert told in found[1]


def test_a_server_that_is_soon_busy_is_told(configured: Configured) -> None:
    found = server(configured(lua_time_limit=50), "script time")

    assert found[0] == "warning"
    assert "is 50 ms" in found[1]


@pytest.mark.parametrize(
    "config, levels",
    [
        ({}, ["ok"]),
        ({"timeout": 600}, ["ok"]),
        ({"timeout": 5}, ["warning"]),
        ({"tcp_keepalive": 0}, ["warning"]),
        ({"timeout": 5, "tcp_keepalive": 0}, ["warning", "warning"]),
    ],
)
def test_connections(configured: Configured, config: dict[str, Any], levels: list[str]) -> None:
    assert [level for level, _ in of(examine(configured(**config)), "connections")] == levels


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


def denied(place: Server, client: redis.Redis, *rules: str) -> Broker:
    client.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", "~*", "&*", "+@all", *rules)
    return Broker(place.client(username="half"))


def test_a_fact_that_a_managed_service_hides_is_named_and_is_no_failure(server: Server, client: redis.Redis) -> None:
    with denied(server, client, "-config") as broker:
        findings = list(examine(broker))

    level, found, advice = only(findings, "settings")
    assert (level, found.split(":")[0]) == ("warning", "cannot be read")
    assert "save" in advice
    assert "timeout" in advice
    assert of(findings, "queues")[0][0] == "ok"
    client.execute_command("ACL", "DELUSER", "half")


def test_without_info_the_rest_is_still_checked(server: Server, client: redis.Redis) -> None:
    with denied(server, client, "-info") as broker:
        findings = list(examine(broker))

    assert only(findings, "server")[0] == "warning"
    assert of(findings, "memory policy") == of(findings, "persistence") == []
    assert of(findings, "clock")[0][0] == of(findings, "scripts")[0][0] == "ok"
    client.execute_command("ACL", "DELUSER", "half")


def test_a_sentinel_is_asked_for_nothing_more(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerInfo, "text", lambda facts, name: {"redis_mode": "sentinel"}.get(name, "1"))

    assert of(examine(broker), "scripts") == []


@pytest.mark.parametrize(
    "text", ["ERR unknown command 'SCRIPT', with args", "ERR Could not find scripting engine 'lua'"]
)
def test_a_server_without_lua_is_a_problem(text: str, broker: Broker) -> None:
    class NoLua(RedisDriver):
        def step(self, step: flows.steps.Step) -> Any:
            if isinstance(step, flows.steps.Write) and step.calls[0][:2] == ("SCRIPT", "LOAD"):
                raise redis.ResponseError(text)
            return super().step(step)

    level, found, advice = only(examine(broker_on(NoLua(driver_of(broker).store.client, "rqttl"))), "scripts")

    assert (level, found) == ("problem", f"this server has no Lua: {text}")
    assert "Valkey" in advice
