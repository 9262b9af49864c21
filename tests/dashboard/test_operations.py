"""Pages for operators, and each of them and of those of dead letters where something is missing."""

import json
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient

import rqttl
from rqttl import Broker
from rqttl.dashboard import operations
from rqttl.dashboard.visit import Kept
from rqttl.doctor.findings import ok
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414  # a fixture, as those below
from tests.cluster.conftest import cluster as cluster  # noqa: PLC0414
from tests.cluster.conftest import nodes as nodes  # noqa: PLC0414
from tests.cluster_servers import ClusterServers
from tests.dashboard.test_dead import LETTERS, Visiting, links, rows
from tests.doctor.test_roles import As
from tests.doctor.test_roles import role as role  # noqa: PLC0414
from tests.sentinel.conftest import service as service  # noqa: PLC0414
from tests.sentinel.conftest import shared_service as shared_service  # noqa: PLC0414
from tests.servers import SentinelSet, Server

EXPLAIN = "/explain?name=orders&ttl=5s"
PAGES = ["/dead", LETTERS, "/policies", "/policies?name=p", EXPLAIN, "/doctor?run=1", "/nodes"]


def visits(client: TestClient) -> dict[str, int]:
    return {page: client.get(page).status_code for page in PAGES}


def filled(broker: Broker, visiting: Visiting, **options: Any) -> TestClient:
    """A client that has seen all pages of a broker with a dead letter in `orders/dead`, and policies."""
    broker.declare_queue("orders/dead")
    orders = broker.declare_queue("orders", dead_letter="orders/dead", message_ttl="10m", max_length=7)
    orders.enqueue(b"")
    orders.receive_many(1)[0].reject("ValueError: 17")
    broker.set_policy("p", "orders", {"message_ttl": "5m", "max_length": 9})
    broker.set_policy("cap", "#", {"max_length": 5}, operator=True)
    client = visiting(broker, **options)
    assert set(visits(client).values()) == {200}
    return client


def test_pages_without_queues_say_what_to_do(pages: TestClient) -> None:
    assert "rqttl queue declare orders --dead-letter orders/dead" in pages.get("/dead").text
    assert "rqttl operator-policy set NAME PATTERN" in pages.get("/policies").text
    assert visits(pages) == dict.fromkeys(PAGES, 200) | {"/policies?name=p": 404, LETTERS: 404}
    assert "ttl: expected" in unescape(pages.get("/explain?name=orders&ttl=x").text)


def test_many_queues_are_counted_and_not_all_listed(broker: Broker, visiting: Visiting) -> None:
    for n in range(1_000):
        broker.declare_queue(f"many.{n}", dead_letter="orders/dead")
    client = filled(broker, visiting, act=True)
    assert [row[4] for row in rows(client.get("/policies").text)[:2]] == ["1", "1,002"]
    assert len(links(client.get("/policies?name=cap&operator=1").text, "/explain")) == operations.LISTED
    assert rows(client.get("/nodes").text)[0][3] == "1,002"


def test_without_redis_what_is_in_memory_stays(start_server: Callable[..., Server], visiting: Visiting) -> None:
    server = start_server()
    with rqttl.connect(server.url, patience="0s") as broker:
        client = filled(broker, visiting)
        server.kill()
        assert visits(client) == dict.fromkeys(PAGES, 503) | dict.fromkeys(["/dead", "/nodes", "/doctor?run=1"], 200)
        assert "does not answer" in rows(client.get("/nodes").text)[0][1]


@pytest.mark.parametrize("name, status", [("reader", 403), ("viewer", 200)])
def test_a_reader_sees_no_messages(broker: Broker, role: As, visiting: Visiting, name: str, status: int) -> None:
    filled(broker, visiting)
    client = visiting(role(name))
    assert visits(client) == dict.fromkeys(PAGES, 200) | {LETTERS: status}
    assert ("rqttl acl generate --role viewer" in unescape(client.get(LETTERS).text)) == (status == 403)


@pytest.mark.parametrize("away, lost", [(0, {LETTERS, "/policies", "/policies?name=p", EXPLAIN}), (2, set())])
def test_with_a_node_away_others_go_on(cluster: ClusterServers, visiting: Visiting, away: int, lost: set[str]) -> None:
    """Node 0 has registry, policies and `orders/dead`, node 2 has `q`."""
    with rqttl.connect(cluster.url()) as broker:
        broker.declare_queue("q")
        client = filled(broker, visiting)
        assert [row[3] for row in rows(client.get("/nodes").text)] == ["2", "-", "1"]
        with cluster.servers[away].hanging():
            seen, told = visits(client), rows(client.get("/nodes").text)
        cluster.settle()
    assert seen == dict.fromkeys(PAGES, 200) | dict.fromkeys(lost, 503)
    assert [n for n, row in enumerate(told) if "does not answer" in row[1]] == [away]


def test_a_sentinel_group_has_a_primary_and_replicas(service: SentinelSet, visiting: Visiting) -> None:
    with rqttl.connect(service.url()) as broker:
        told = rows(filled(broker, visiting).get("/nodes").text)
    assert [(row[1], row[3]) for row in told] == [("primary", "2"), ("replica", "-"), ("replica", "-")]


def test_the_numbers_are_those_of_the_commands(broker: Broker, visiting: Visiting, run: Run) -> None:
    def ask(*words: str) -> Any:
        return json.loads(run(*words, "--json").stdout)

    client = filled(broker, visiting)
    listed = [(one["name"], str(one["queues"])) for one in ask("policy", "ls") + ask("operator-policy", "ls")]
    assert [(row[0], row[4]) for row in rows(client.get("/policies").text)] == listed

    options, shown = ask("explain", "orders")["options"], rows(client.get("/explain?name=orders").text)
    for row, option in zip(shown, ("message_ttl_ms", "max_length"), strict=False):
        lost = [f"{one['source']}, {one['reason']}" for one in options[option]["lost"]]
        assert (row[2], [one for one in lost if one not in row[3]]) == (options[option]["source"], [])
    assert [row[1] for row in shown[:2]] == ["5m", "5"]

    told = [(one["level"], one["check"], one["result"], one["advice"] or "") for one in ask("doctor")["findings"]]
    found = [(row[0], row[1], row[3], row[4]) for row in rows(client.get("/doctor").text)]
    assert sorted(one[:2] for one in found) == sorted(one[:2] for one in told)
    assert {one[1] for one in {*found} ^ {*told}} <= {"clock", "memory", "persistence"}  # these vary


def test_an_examination_is_for_all_and_one_at_a_time(visiting: Visiting, monkeypatch: pytest.MonkeyPatch) -> None:
    examined = []

    def examine(*_: object) -> Iterator[Any]:
        examined.append("look again" in client.get("/doctor?run=1").text)
        yield ok("check", "fine")

    monkeypatch.setattr(operations, "examine", examine)
    client = visiting()
    assert ["fine" in client.get(f"/doctor{query}").text for query in ("", "?run=1", "", "?run=1")] == [0, 1, 1, 1]
    assert examined == [True]


def test_what_is_kept_is_made_anew_when_its_time_is_over() -> None:
    times, made = iter([0, 59, 60, 60, 60]), iter("ab")
    kept = Kept[str](60, lambda: next(times))
    for _ in range(3):
        kept.make(lambda: next(made))
    assert [one for _, one in filter(None, [kept.get()])] == ["b"]
