"""URLs that name nodes of a cluster or Sentinels, and what brokers show of them. Without a server."""

from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

import rqttl
from rqttl.telemetry.tracing import server_of
from rqttl.text import without_secrets

CONNECTS = [rqttl.connect, rqttl.connect_async]
SENTINEL = "^url: "
FORM = "^url: expected redis\\+cluster://host:port,host:port, with user:password@.* %-encoded$"
OPTION = "^url: not a valid Redis URL, or one with an unknown option"
DATABASE = "^url: a Redis Cluster has only database 0$"
SCHEME = "^url: expected redis://.*, got none of them$"


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize(
    "url, shown, places",
    [
        ("redis+cluster://a", "redis+cluster://a:6379/0", [("a", 6379)]),
        ("redis+cluster://a:7,b", "redis+cluster://a:7/0", [("a", 7), ("b", 6379)]),
        ("redis+cluster://a,b:8/", "redis+cluster://a:6379/0", [("a", 6379), ("b", 8)]),
        ("redis+cluster://u:s3cret@a,b,c/0", "redis+cluster://a:6379/0", [(host, 6379) for host in "abc"]),
        ("rediss+cluster://:s3cret@a:7,b:8", "rediss+cluster://a:7/0", [("a", 7), ("b", 8)]),
        ("rediss+cluster://:s3cret@b,[::1]:5", "rediss+cluster://b:6379/0", [("b", 6379), ("::1", 5)]),
        ("redis+cluster://:s3@cret,s3@a,b", "redis+cluster://a:6379/0", [("a", 6379), ("b", 6379)]),
        ("redis+cluster://a?username=u&password=s3cret", "redis+cluster://a:6379/0", [("a", 6379)]),
    ],
)
def test_a_url_names_nodes_and_shows_the_first_one(
    connect: Any, url: str, shown: str, places: list[tuple[str, int]]
) -> None:
    broker = connect(url)

    assert list(broker._driver.store.topology._places.values()) == places
    assert repr(broker) == f"<{type(broker).__name__} {shown} namespace 'rqttl'>"
    assert server_of(broker) == {"server.address": places[0][0], "server.port": places[0][1]}


@pytest.mark.parametrize(
    "url, meant",
    [
        ("redis-cluster://a:1", r"redis\+cluster://"),
        ("redis-sentinel://a/main", r"redis\+sentinel://"),
        ("localhost:6379", "redis://HOST:PORT"),
        ("localhost", "redis://HOST:PORT"),
        ("10.0.0.1:6379/2", "redis://HOST:PORT"),
    ],
)
def test_a_url_of_another_form_is_answered_with_the_form(url: str, meant: str) -> None:
    with pytest.raises(rqttl.InvalidInput, match=rf"^url: expected redis://.*; did you mean {meant}\?$"):
        rqttl.connect(url)


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize(
    "url, host, port, rest",
    [
        ("redis+sentinel://a/main", "a", 26379, "main/0"),
        ("redis+sentinel://a:1,b:2/main/", "a", 1, "main/0"),
        ("redis+sentinel://u:s3cret@a,b/main/3", "a", 26379, "main/3"),
        ("rediss+sentinel://:s3cret@[::1]:5,b/main", "::1", 5, "main/0"),
        ("redis+sentinel://a/main/2?sentinel_username=u&sentinel_password=s3cret", "a", 26379, "main/2"),
        ("redis+sentinel://a/main?socket_timeout=3&db=4", "a", 26379, "main/4"),
    ],
)
def test_a_url_names_sentinels_a_service_and_a_database(
    connect: Any, url: str, host: str, port: int, rest: str
) -> None:
    broker = connect(url)

    scheme = url.partition(":")[0]
    assert repr(broker) == f"<{type(broker).__name__} {scheme}://{host}:{port}/{rest} namespace 'rqttl'>"
    assert server_of(broker) == {"server.address": f"main@{host}", "server.port": port}


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize(
    "url, text",
    [
        ("redis+cluster://", FORM),
        ("redis+cluster://a,", FORM),
        ("redis+cluster://,a", FORM),
        ("redis+cluster://a,,b", FORM),
        ("redis+cluster://a:x", FORM),
        ("redis+cluster://a,b:70000", FORM),
        ("redis+cluster://a,::1", FORM),
        ("redis+cluster://:s3/cret@a", FORM),
        ("redis+cluster://:s3#cret@a", FORM),
        ("redis+cluster://:s3?cret@a", FORM),
        ("redis+cluster://a/main", OPTION),
        ("redis+cluster://a?colour=s3cret", OPTION),
        ("redis+cluster://a?socket_timeout=s3cret", OPTION),
        ("redis+cluster://:s3cret@a/1", DATABASE),
        ("redis+cluster://:s3cret@a?db=2", DATABASE),
        ("redis+sentinel://", SENTINEL),
        ("redis+sentinel://a", SENTINEL),
        ("redis+sentinel://a/", SENTINEL),
        ("redis+sentinel:///main", SENTINEL),
        ("redis+sentinel://a,/main", SENTINEL),
        ("redis+sentinel://a:x/main", SENTINEL),
        ("redis+sentinel://a/main/x", SENTINEL),
        ("redis+sentinel://a/main/1/2", SENTINEL),
        ("redis+sentinel://:s3/cret@a/main", SENTINEL),
        ("redis+sentinel://:s3#cret@a/main", SENTINEL),
        ("redis+sentinel://a/main?colour=s3cret", SENTINEL),
        ("redis+sentinel://a/main?sentinel_colour=s3cret", SENTINEL),
        ("redis+sentinel://a/main?socket_timeout=s3cret", SENTINEL),
        ("unix+sentinel://a/main", SENTINEL),
        ("unix+cluster://:s3cret@a", SCHEME),
        ("redis+clusters://:s3cret@a", SCHEME),
    ],
)
def test_a_url_of_another_form_is_refused_in_one_line_without_its_password(connect: Any, url: str, text: str) -> None:
    with pytest.raises(rqttl.InvalidInput, match=text) as refused:
        connect(url)

    assert "s3" not in f"{refused.value} {refused.value!r} {refused.value.__cause__}"
    assert "\n" not in str(refused.value)
    assert without_secrets(str(refused.value)) == str(refused.value)  # so `rqttl` prints the whole form


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize("patience", ["30", -1, 5])
def test_patience_has_a_unit(connect: Any, patience: Any) -> None:
    with pytest.raises(rqttl.InvalidDuration, match=r"^patience: "):
        connect("redis+sentinel://a/main", patience=patience)


def test_clients_for_replicas_are_refused() -> None:
    with pytest.raises(rqttl.InvalidInput, match="use master_for"):
        rqttl.Broker(redis.sentinel.Sentinel([("a", 1)]).slave_for("main"))
    with pytest.raises(rqttl.InvalidInput, match="use master_for"):
        rqttl.AsyncBroker(redis.asyncio.sentinel.Sentinel([("a", 1)]).slave_for("main"))
