"""URLs of all kinds, what each front takes from them, and what it says of a wrong one. Without a server."""

from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

import rqttl
from rqttl.store.addresses import Address, read_url
from rqttl.store.driver import driver_of
from rqttl.telemetry.tracing import server_of
from rqttl.text import without_secrets
from spark_connectors.errors import InvalidOption
from spark_connectors.options.options import Options

BROKERS: list[Any] = [rqttl.connect, rqttl.connect_async]
CANARY = "s3cret"
A, B = ("a", 6379), ("b", 6379)
USER = {"user": "u", "password": CANARY}
S = {"places": (("a", 26379),), "service": "main"}


def in_spark(url: Any) -> Options:
    return Options.parse("batch", {"queues": "q", "url": url})


@pytest.mark.parametrize(
    "url, shown, parts",
    [
        ("redis://", "redis://localhost:6379/0", {}),
        ("redis://A:7/3", "redis://a:7/3", {"places": (("a", 7),), "database": 3}),
        ("redis://[::1]:7/", "redis://::1:7/0", {"places": (("::1", 7),)}),
        ("redis://u:s3cret@/3", "redis://localhost:6379/3", {**USER, "database": 3}),
        ("redis://b%40b:s3%2Fw%3A%23@", "redis://localhost:6379/0", {"user": "b@b", "password": "s3/w:#"}),
        ("redis://?username=u&password=s3cret&db=3", "redis://localhost:6379/3", {**USER, "database": 3}),
        ("redis://?slotted=true", "redis://localhost:6379/0", {"slotted": True}),
        ("redis://?slotted=False", "redis://localhost:6379/0", {}),
        ("rediss://:s3,y@a/3/", "rediss://a:6379/3", {"places": (A,), "database": 3, "password": "s3,y"}),
        ("unix:///a%20b?db=3&slotted=TRUE", "unix:///a b", {"path": "/a b", "database": 3, "slotted": True}),
        ("unix://:s3cret@/a.sock", "unix:///a.sock", {"path": "/a.sock", "password": CANARY}),
        ("unix:///a@b?password=s3cret", "unix:///a@b", {"path": "/a@b", "password": CANARY}),
        ("redis+cluster://a", "redis+cluster://a:6379/0", {"places": (A,)}),
        ("redis+cluster://a:7,b", "redis+cluster://a:7/0", {"places": (("a", 7), B)}),
        ("rediss+cluster://u:s3cret@b,[::1]:5/0", "rediss+cluster://b:6379/0", {"places": (B, ("::1", 5)), **USER}),
        ("redis+cluster://:s3@c,s3@a,b/", "redis+cluster://a:6379/0", {"places": (A, B), "password": "s3@c,s3"}),
        ("redis+sentinel://a/main", "redis+sentinel://a:26379/main/0", S),
        ("redis+sentinel://a:1,b/main/", "redis+sentinel://a:1/main/0", {**S, "places": (("a", 1), ("b", 26379))}),
        ("rediss+sentinel://u:s3cret@a/main/3", "rediss+sentinel://a:26379/main/3", {**S, **USER, "database": 3}),
        ("redis+sentinel://a/m%2Fn?db=4", "redis+sentinel://a:26379/m/n/4", {**S, "service": "m/n", "database": 4}),
        (
            "redis+sentinel://a/main?sentinel_username=u&sentinel_password=s3cret",
            "redis+sentinel://a:26379/main/0",
            {**S, "sentinel_user": "u", "sentinel_password": CANARY},
        ),
    ],
)
def test_every_front_takes_the_same_from_a_url(url: str, shown: str, parts: dict[str, Any]) -> None:
    address = Address(url.partition(":")[0], **parts)
    assert (read_url(url), str(read_url(url))) == (address, shown)
    assert CANARY not in repr(address)
    for connect in BROKERS:
        broker = connect(url)
        told: dict[str, Any] = {"server.address": address.host, "server.port": address.port}
        driver = broker._driver
        if address.path or address.service:
            name = address.path or f"{address.service}@{address.host}"
            told = {"server.address": name} if address.path else {**told, "server.address": name}
        assert repr(broker) == f"<{type(broker).__name__} {shown} namespace 'rqttl'>"
        assert server_of(broker) == told
        assert driver.keyspace.slotted is (address.slotted or address.is_cluster)
        if address.is_cluster:
            assert tuple(driver.store.topology._places.values()) == address.places
    options, password = in_spark(url), address.password or address.sentinel_password
    secret = options.password() or options.password_of_sentinels()
    assert (options["username"], str(options.address)) == (address.user, shown)
    assert (secret and secret.reveal()) == password
    assert options.shows_password is (password is not None)
    assert options["connectRetries"] == (9 if "+" in address.scheme else 5)
    assert CANARY not in repr(options)


def settings_of(broker: Any) -> dict[str, Any]:
    """The settings of the connections of a broker, of threads or asyncio."""
    client = getattr(broker, "_client", None) or driver_of(broker).store.topology.nodes[0]._client
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    return settings


@pytest.mark.parametrize("connect", BROKERS)
def test_connections_have_what_the_url_says_time_outs_and_no_hidden_retries(connect: Any) -> None:
    settings = settings_of(connect("rediss://u:p%40q@a:7/3?socket_timeout=9&ssl_cert_reqs=none&client_name=x%20y"))

    expected = {"username": "u", "password": "p@q", "host": "a", "port": 7, "db": 3, "client_name": "x y"}
    assert expected.items() <= settings.items()
    assert (settings["socket_timeout"], settings["socket_connect_timeout"]) == (9.0, 5.0)
    assert (settings["ssl_cert_reqs"], settings["retry"].get_retries()) == ("none", 0)
    (own,) = settings_of(connect("redis+sentinel://a/main?sentinel_username=u&sentinel_password=p"))[
        "service"
    ].sentinels
    assert {"username": "u", "password": "p", "host": "a", "port": 26379, "has_tls": False}.items() <= own.items()


@pytest.mark.parametrize("url, path", [("", None), ("/a%20b/c%3Fd%23e%25", "/a b/c?d#e%"), ("/a:b@c", "/a:b@c")])
def test_the_path_of_an_embedded_server_is_decoded(url: str, path: str | None) -> None:
    assert read_url(f"embedded://{url}") == Address("embedded", path=path)


SCHEME = "expected redis://, "
SEVERAL = "expected redis+cluster://host:port,host:port"
SERVICE = "service: expected redis+sentinel://host:port,host:port/service[/database]"
PASSWORD = "user, password: special characters must be %-encoded"
DATABASE = "database: expected a number"
QUERY = "options: expected name=value after '?'"
FORM = "expected embedded:///absolute/path ("


@pytest.mark.parametrize("front", [*BROKERS, in_spark])
@pytest.mark.parametrize(
    "url, told",
    [
        (CANARY, SCHEME),
        (f"{CANARY}%://localhost", SCHEME),
        (
            "http://:s3cret@a",
            f"{SCHEME}rediss://, redis+sentinel://, redis+cluster://, unix:// or embedded://, got 'http'",
        ),
        ("redis:/a", SCHEME),
        ("unix+cluster://:s3cret@a", SCHEME),
        ("redis+clusters://:s3cret@a", SCHEME),
        ("redis://:s3cret/x@a:6379", PASSWORD),
        ("redis://:s3cret#x@a:6379/0", PASSWORD),
        ("redis://:x?s3cret@a", PASSWORD),
        ("redis://:1234/s3cret@a", PASSWORD),
        ("redis://:x@a?s3cret=@b", PASSWORD),
        ("redis+cluster://:s3/cret@a", PASSWORD),
        ("redis+sentinel://:x#s3cret@a/main", PASSWORD),
        ("redis://:s3cret@[::1", "host: only an IPv6 address is between [ and ]"),
        ("redis://[:s3cret@a", "host: only an IPv6 address is between [ and ]"),
        ("redis://:s3cret@a..b", "host: expected redis://host:port"),
        ("redis://:s3cret@a,b:7/0", "host: expected one; several need redis+cluster:// or redis+sentinel://"),
        ("redis+cluster://", f"host: {SEVERAL}"),
        ("redis+cluster://a,", f"host: {SEVERAL}"),
        ("redis+cluster://a,,b", f"host: {SEVERAL}"),
        ("redis+cluster://a,::1", ""),
        ("redis+sentinel:///main", "host: expected redis+sentinel://host:port,host:port/service"),
        ("redis://:s3cret@a:port/0", "port: expected a number up to 65535"),
        ("redis://:s3cret@a:99999999", "port: expected a number up to 65535"),
        ("redis+cluster://a,b:x", "port: expected a number up to 65535"),
        ("redis://a/s3cret", DATABASE),
        ("redis://a/0x", DATABASE),
        ("redis://a/0/1", DATABASE),
        ("redis://a/-1", DATABASE),
        ("redis://a?db=x", DATABASE),
        ("redis+cluster://a/main", DATABASE),
        ("redis+sentinel://a/main/1/2", DATABASE),
        ("redis+cluster://:s3cret@a/1", "a Redis Cluster has only database 0, got 1"),
        ("redis+cluster://:s3cret@a?db=2", "a Redis Cluster has only database 0, got 2"),
        ("redis+sentinel://a,b", SERVICE),
        ("redis+sentinel://a/", SERVICE),
        ("redis://a?s3cret", QUERY),
        ("redis://a?slotted=s3cret", "slotted: expected true or false"),
        ("unix://a/x.sock", "path: expected unix:///path, with three slashes"),
        ("unix://:s3cret@localhost/x.sock", "path: expected unix:///path, with three slashes"),
        ("redis://a\udcff/0", "expected text, and other bytes %-encoded"),
        ("embedded://./s3cret", FORM),
        ("embedded://me:s3cret@a/data", FORM),
        ("embedded:///data?password=s3cret", FORM),
        ("embedded:///data#s3cret", FORM),
    ],
)
def test_a_wrong_url_is_refused_by_its_part_in_one_line_without_its_password(
    front: Callable[[Any], object], url: str, told: str
) -> None:
    with pytest.raises((rqttl.InvalidInput, InvalidOption)) as refused:
        front(url)

    line = str(refused.value).removeprefix("[RQTTL_INVALID_OPTION] ")
    assert line.startswith(f"url: {told}")
    assert "\n" not in line
    assert without_secrets(line) == line  # so `rqttl` prints the whole form
    shown: BaseException | None = refused.value
    while shown is not None:
        assert "s3" not in f"{shown} {shown!r}"
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


@pytest.mark.parametrize("connect", BROKERS)
@pytest.mark.parametrize(
    "url, told",
    [
        (5, f"{SCHEME}.*, got int 5"),
        (b"redis://localhost", f"{SCHEME}.*, got bytes b'redis://localhost'"),
        ("redis-cluster://a:1", r"expected .*; did you mean redis\+cluster://\?"),
        ("redis-sentinel://a/main", r"expected .*; did you mean redis\+sentinel://\?"),
        ("localhost:6379", r"expected .*; did you mean redis://HOST:PORT\?"),
        ("localhost", r"expected .*; did you mean redis://HOST:PORT\?"),
        ("10.0.0.1:6379/2", r"expected .*; did you mean redis://HOST:PORT\?"),
        *(
            (f"redis://a?{name}={CANARY}", f"{name}: unknown option")
            for name in ("colour", "host", "retry", "protocol")
        ),
        ("redis+cluster://a?socket_timeout=s3cret", "socket_timeout: unknown option, or not a value that it takes"),
        ("redis+sentinel://a/main?sentinel_colour=s3cret", "sentinel_colour: unknown option"),
        ("redis+cluster://a?sentinel_username=s3cret", "sentinel_username: unknown option"),
        ("unix:///a.sock?colour=s3cret", "colour: unknown option"),
        ("rediss://a?ssl_cert_reqs=s3cret", "ssl_cert_reqs: unknown option, or not a value that it takes"),
        ("rediss://a/0?ssl_ca_certs=/nowhere/ca.crt", "ssl_ca_certs: cannot read the file '/nowhere/ca.crt'"),
    ],
)
def test_a_wrong_option_of_a_url_is_named_and_what_was_meant(connect: Any, url: Any, told: str) -> None:
    with pytest.raises(rqttl.InvalidInput, match=f"^url: {told}") as refused:
        connect(url)

    assert CANARY not in f"{refused.value} {refused.value.__cause__}"


@pytest.mark.parametrize("connect", BROKERS)
@pytest.mark.parametrize("patience", ["30", -1, 5])
def test_patience_has_a_unit(connect: Any, patience: Any) -> None:
    with pytest.raises(rqttl.InvalidDuration, match=r"^patience: "):
        connect("redis+sentinel://a/main", patience=patience)


def test_clients_for_replicas_are_refused() -> None:
    with pytest.raises(rqttl.InvalidInput, match="use master_for"):
        rqttl.Broker(redis.sentinel.Sentinel([("a", 1)]).slave_for("main"))
    with pytest.raises(rqttl.InvalidInput, match="use master_for"):
        rqttl.AsyncBroker(redis.asyncio.sentinel.Sentinel([("a", 1)]).slave_for("main"))
