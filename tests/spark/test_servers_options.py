"""Options with several servers: their names, their credentials, their offsets and replicas."""

from __future__ import annotations

import pickle

import pytest

from spark_connectors.errors import InvalidOption
from spark_connectors.options.options import Options
from spark_connectors.options.table import Use

SECRET = "c4n4ry-p4ss"


def parse(use: Use = "batch", **options: str) -> Options:
    return Options.parse(use, {**({} if use == "write" else {"queues": "a"}), **options})


@pytest.mark.parametrize(
    "url, names",
    [
        ("redis://h", ["h:6379/0"]),
        ("redis://H:6380/3", ["h:6380/3"]),
        ("rediss://h", ["h:6379/0"]),
        ("redis://[::1]:7000/1", ["[::1]:7000/1"]),
        ("unix:///run/redis,1.sock?db=2", ["/run/redis,1.sock/2"]),
        (f"redis://user:{SECRET}@h/0", ["h:6379/0"]),
        ("redis://i,redis://h", ["h:6379/0", "i:6379/0"]),
        ("redis://i/0 , redis://h/0", ["h:6379/0", "i:6379/0"]),
        (f"redis://:{SECRET}@i,rediss://u:{SECRET}@h", ["h:6379/0", "i:6379/0"]),
        ("eu=redis://h", ["eu"]),
        ("us=redis://h,eu=redis://i,redis://j", ["eu", "j:6379/0", "us"]),
        ("h:6379/0=redis://new-host:7000", ["h:6379/0"]),
        ("redis://:a,b@h", ["h:6379/0"]),
    ],
)
def test_a_server_has_a_name_without_secrets_and_the_order_of_the_list_does_not_matter(
    url: str, names: list[str]
) -> None:
    options = parse(url=url)

    assert list(options.of_servers()) == names
    assert [one.server for one in options.of_servers().values()] == names
    assert options.is_composed == ("=" in url.replace("?db=", "") or len(names) > 1)
    assert options.has_servers == (len(names) > 1)
    assert SECRET not in repr(options) + str(options.of_servers())
    assert SECRET.encode() not in pickle.dumps(options)


def test_a_single_url_has_no_name_in_its_options() -> None:
    options = parse(url="redis://h")

    assert options.server == ""
    assert not options.is_composed


def test_credentials_are_those_of_the_url_or_else_of_the_options() -> None:
    url = f"eu=redis://alice:{SECRET}@h,us=redis://i,zz=redis://bob@j"
    of_servers = parse(url=url, username="carol", passwordEnv="REDIS_{server}").of_servers()

    assert [one["username"] for one in of_servers.values()] == ["alice", "carol", "bob"]
    assert [one["passwordEnv"] for one in of_servers.values()] == [None, "REDIS_us", "REDIS_zz"]
    password = of_servers["eu"].password()
    assert password is not None
    assert password.reveal() == SECRET
    assert parse(url=url).shows_password
    assert not parse(url="redis://h,redis://i", passwordFile="x").shows_password


@pytest.mark.parametrize("name", ["username", "passwordFile"])
def test_the_name_of_the_server_may_be_part_of_a_name_and_of_a_path(name: str) -> None:
    of_servers = parse("batch", **{"url": "eu=redis://h,us=redis://i", name: "/run/{server}/reader"}).of_servers()

    assert [one[name] for one in of_servers.values()] == ["/run/eu/reader", "/run/us/reader"]


def test_offsets_are_given_by_server() -> None:
    sequence = "1700000000000-100000"
    options = parse(url="eu=redis://h,us=redis://i", startingOffsets=f'{{"us": {{"a": "{sequence}"}}}}')

    eu, us = options.of_servers().values()
    assert eu.offsets("startingOffsets") == {}
    assert us.offsets("startingOffsets") == {"a": sequence}
    assert parse(url="redis://h,redis://i").of_servers()["h:6379/0"].offsets("endingOffsets") == "latest"


@pytest.mark.parametrize(
    "url, offsets, told",
    [
        (
            "eu=redis://h,us=redis://i",
            '{"a": "earliest"}',
            'with several servers, expected JSON such as {"eu": {"queue":',
        ),
        ("eu=redis://h,us=redis://i", '{"jp": {"a": "earliest"}}', "'jp' is not one of the servers of url"),
        ("eu=redis://h,us=redis://i", '{"eu": {"b": "earliest"}}', "'b' is not one of the queues to read"),
        ("eu=redis://h,us=redis://i", '{"eu": {"a": "latest"}}', "'latest' would read nothing in a batch"),
        ("eu=redis://h,us=redis://i", '{"eu": {"a": 5}}', "a: expected a value of the column sequence"),
        ("eu=redis://h,us=redis://i", '{"eu": {"a": "earliest"}, "a": "earliest"}', "'a' is not one of the servers"),
    ],
)
def test_offsets_of_unknown_servers_and_queues_are_refused(url: str, offsets: str, told: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse(url=url, startingOffsets=offsets)

    assert f"startingOffsets: {told}" in str(caught.value)


def test_each_server_may_have_a_replica_which_has_its_credentials_and_no_retries() -> None:
    options = parse(
        url=f"eu=redis://alice:{SECRET}@h,us=redis://i",
        readFrom="replica:eu=rediss://r:7000",
        username="carol",
        socketTimeout="1m",
        tlsCaFile="/ca.pem",
    )
    eu, us = options.of_servers().values()
    replica = eu.of_replica()

    assert us.of_replica() is None
    assert replica is not None
    assert str(replica.address) == "rediss://r:7000"
    assert replica["username"] == "alice"
    assert (replica.number("connectRetries"), replica.number("socketTimeout")) == (0, 5_000)
    password = replica.password()
    assert password is not None
    assert password.reveal() == SECRET


@pytest.mark.parametrize("url", ["redis://h", "eu=redis://h"])
def test_the_replica_of_a_single_server_needs_no_name(url: str) -> None:
    [options] = parse(url=url, readFrom="replica:redis://r").of_servers().values()

    replica = options.of_replica()
    assert replica is not None
    assert str(replica.address) == "redis://r:6379"
    assert parse(url=url).of_replica() is None


@pytest.mark.parametrize("text", ["redis://r", "eu=redis://r,redis://s"])
def test_the_replicas_of_several_servers_need_their_names(text: str) -> None:
    with pytest.raises(InvalidOption, match="with several servers, each replica needs the name of its server"):
        parse(url="eu=redis://h,us=redis://i", readFrom=f"replica:{text}")


@pytest.mark.parametrize("option", ["url", "readFrom"])
@pytest.mark.parametrize(
    "text",
    [
        "eu=redis://:{}@h,us=http://:{}@i",
        "eu=redis://:{}@h,us=redis:/:{}@i",
        "redis://:{}@h,redis://:{}@h:port",
        "eu=redis://:{}@h us=redis://i",
        "redis://:{}#@h,redis://i",
        "a=redis://:{}@h,a=redis://i",
    ],
)
def test_no_refusal_of_a_list_shows_a_password(option: str, text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse("batch", **{option: ("replica:" if option == "readFrom" else "") + text.replace("{}", SECRET)})

    assert SECRET not in f"{caught.value!s} {caught.value!r}"
