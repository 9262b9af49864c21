"""The pages for looking: what they show, to whom, at what cost, and what they say while Redis is away."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Semaphore
from typing import Any

import pytest
import redis
from starlette.testclient import TestClient

import rqttl
from rqttl import Broker, Message, Queue
from rqttl.dashboard import sampler
from rqttl.dashboard.application import ASKING
from rqttl.inspector import queues as views
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import rules
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414  # a fixture
from tests.cli.conftest import run_clocked as run_clocked  # noqa: PLC0414  # a fixture
from tests.cluster_servers import ClusterServers
from tests.contract.clocked import Clocked
from tests.dashboard.reading import Page, look
from tests.drivers import enter_reaper
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.once

Visiting = Callable[..., TestClient]
STATES = ("ready", "leased", "delayed", "scheduled")
#: The pages that are made from memory, those of a queue, and those of a message.
MEMORY = ["/", "/?span=24h", "/queues", "/queues?sort=dead", "/queues?q=ord*", "/workers"]
QUEUE = [f"/queue?name=orders&state={state}" for state in STATES]
MESSAGE = ["/message?queue=orders&id=order-5", "/message/body?queue=orders&id=order-5"]


@pytest.fixture
def filled(broker: Broker) -> Broker:
    return fill(broker)


def fill(broker: Broker) -> Broker:
    """A queue `orders` with messages in each state, and with a death; a topic, a reaper."""
    orders = broker.declare_queue("orders", dead_letter="orders/dead", dead_letter_rejected="orders/dead", lease="1h")
    broker.declare_queue("orders/dead")
    broker.declare_topic("news").subscribe("europe", "orders.eu.#")
    broker.declare_queue("old", forward_to="orders")
    orders.enqueue_many([Message({"n": i}, id=f"order-{i}", headers={"to": "<b>"}) for i in range(60)])
    first, second, third, _ = orders.receive_many(4)
    first.reject("no such <b>item</b>")
    second.nack(delay="1h")
    third.ack()
    orders.enqueue(Message(b"later", id="later", delay="1h"))
    enter_reaper(broker)
    return broker


def test_without_queues_three_lines_make_one(pages: TestClient) -> None:
    for path in MEMORY:
        assert ("Nobody works now" if path == "/workers" else "rqttl queue declare orders") in look(pages, path).words
    for path in QUEUE + MESSAGE:
        assert "does not exist" in look(pages, path, 404).words


def test_a_thousand_queues_are_shown_by_pages(broker: Broker, pages: TestClient) -> None:
    for i in range(1_000):
        broker.declare_queue(f"q{i:04}")

    answer = pages.get("/queues?page=3")

    assert len(answer.content) <= 30_000
    assert [row[0] for row in Page(answer.text).rows if row][1:] == [f"q{i:04}" for i in range(100, 150)]
    assert "Page 3 of 20, 1,000 queues" in answer.text
    for path in [*MEMORY, "/queue?name=q0001"]:
        look(pages, path)


@pytest.mark.parametrize("role, sees_messages", [("viewer", True), ("reader", False)])
def test_users_with_few_rights_see_all_that_they_may(
    filled: Broker, restricted: Callable[..., redis.Redis], visiting: Visiting, role: str, sees_messages: bool
) -> None:
    rights, _ = rules([role], Keyspace())
    pages = visiting(Broker(restricted("reset", "on", "nopass", "resetchannels", *rights)))

    for path in MEMORY + QUEUE + MESSAGE:
        page = look(pages, path, 200 if path not in MESSAGE or sees_messages else 403)
        refused = "may not look at messages; one with the role `viewer` may" in page.words
        assert refused == (path not in MEMORY and not sees_messages)
        assert "cannot be read" not in page.words


@pytest.mark.parametrize("away", [Server.down, Server.hanging])
def test_while_redis_is_away_the_last_numbers_stay_and_a_call_that_changes_waits(
    start_server: Callable[..., Server], visiting: Visiting, away: Callable[[Server], AbstractContextManager[None]]
) -> None:
    server = start_server()
    with Broker(server.client()) as broker, visiting(fill(broker)) as pages, ThreadPoolExecutor(51) as visitors:
        look(pages, "/")
        with away(server):
            sent = visitors.submit(broker.queue("orders").enqueue, b"x", id="sent")
            waiting = [visitors.submit(look, pages, path, 503) for path in 25 * MESSAGE]
            for one in waiting:
                assert "Redis did not answer" in one.result(PATIENCE).words
            until(lambda: "Redis does not answer" in look(pages, "/").words)

            for path in [*MEMORY, QUEUE[2]]:
                page = look(pages, path)
                assert re.search("The figures are .*s old", page.words)
                assert page.fields.get(("", "delayed"), "1") == "1"
            assert away is Server.down or not sent.done()
        until(lambda: "Redis does not answer" not in look(pages, "/").words)
        assert away is Server.down or sent.result(PATIENCE).id == "sent"


def test_while_many_wait_for_redis_pages_from_memory_go_on(
    start_server: Callable[..., Server], visiting: Visiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, begun, messages = start_server(), Semaphore(0), Queue.messages
    monkeypatch.setattr(sampler, "LATE", PATIENCE)
    monkeypatch.setattr(Queue, "messages", lambda *args, **options: begun.release() or messages(*args, **options))  # type: ignore[func-returns-value]
    with Broker(server.client()) as broker, visiting(fill(broker)) as pages, ThreadPoolExecutor(50) as visitors:
        look(pages, "/")
        with server.hanging():
            waiting = [visitors.submit(look, pages, MESSAGE[0]) for _ in range(50)]
            for _ in range(ASKING):
                assert begun.acquire(timeout=PATIENCE)
            for path in [*MEMORY, "/jobs"]:
                look(pages, path)
            assert not any(one.done() for one in waiting)
        for one in waiting:
            assert "order-5" in one.result(PATIENCE).words


def test_while_a_node_is_away_the_queues_of_the_others_go_on(launch: Callable[..., Server], visiting: Visiting) -> None:
    nodes, names = ClusterServers(launch), [f"q{i}" for i in range(12)]
    try:
        with rqttl.connect(nodes.url()) as broker:
            for name in names:
                broker.declare_queue(name).enqueue_many([b"x"] * 3)
            pages, gone = visiting(broker), nodes.owner("rqttl:{q0}:meta")
            stays = next(name for name in names if nodes.owner(f"rqttl:{{{name}}}:meta") is not gone)
            assert "slot" in str(look(pages, f"/queue?name={stays}").facts)
            gone.kill()
            until(lambda: "Some queues cannot be read" in look(pages, "/").words)

            assert "are away" in look(pages, "/").words
            heads, *rows = look(pages, "/queues").rows
            assert {heads[-1], *(row[-1][-4:] for row in rows[:12])} == {"as of", " ago"}
            assert look(pages, "/queues").fields["q0", "ready"] == "3"
            assert "numbers are the last ones" in look(pages, "/queue?name=q0").words
            shown = look(pages, f"/queue?name={stays}").links
            assert len([link for link in shown if link.startswith("/message?")]) == 3
            assert "cannot be read" in look(pages, "/workers").words
    finally:
        nodes.remove()


def test_numbers_are_those_of_the_command_line(filled: Broker, pages: TestClient, run: Run) -> None:
    def told(*command: str) -> Any:
        return json.loads(run(*command, "--json").stdout)

    with filled.queue("orders").consume(prefetch=5) as deliveries:
        next(deliveries).ack()
        until(filled.queue("orders").consumers)
        stats, shown, workers = told("stats"), told("queue", "show", "orders"), told("worker", "ls")
        home, listed, page = (look(pages, path) for path in ("/", "/queues", "/queue?name=orders"))

    of_queues = [*stats["queues"], {"queue": "", **stats["totals"], "queues": len(stats["queues"]), "reapers": 1}]
    known = {(one["queue"], field): n for one in of_queues for field, n in {"workers": 0, **one}.items()}
    known |= {(one["queue"], "dead"): sum(one["deaths"].values()) for one in of_queues}
    assert listed.numbers() == {key: known[key] for key in listed.fields}
    assert home.numbers() == {key: known[key] for key in home.fields}
    assert (len(listed.fields), len(home.fields)) == (5 * len(of_queues), 8)
    assert page.numbers() == {("", state): shown[state] for state in STATES}
    [consumer] = shown["living_consumers"]
    assert [str(consumer[name]) for name in ("role", "program", "host", "pid")] in [row[:4] for row in page.rows]
    for reason, died in shown["deaths"].items():
        assert [reason, str(died), str(shown["dropped"][reason])] in [row[:3] for row in page.rows]
    assert {row[0] for row in page.rows if row[-1:] == ["declared"]} == {"lease", "dead-letter", "dead-letter-rejected"}
    known = {(one["name"], field): one[field] for one in workers for field in ("pid", "slots", "handled", "failed")}
    assert look(pages, "/workers").numbers() == {
        (consumer["name"], "pid"): consumer["pid"],
        (consumer["name"], "slots"): 5,
        **known,
    }


def test_words_are_those_of_the_command_line(clocked: Clocked, visiting: Visiting, run_clocked: Run) -> None:
    """Time stands still, so ages and due times are equal, too."""
    pages = visiting(fill(clocked))
    clocked.advance(90_000)
    [leased] = [one.sequence for one in clocked.queue("orders").peek(99) if one.state == "leased"]

    for queue, id in [("orders", ""), ("orders", "order-5"), ("orders", leased), ("orders/dead", "order-0")]:
        command = ("message", "show", queue, id) if id else ("queue", "show", queue)
        said = {" ".join(line.split()) for line in run_clocked(*command).stdout.splitlines()}
        page = look(pages, f"/message?queue={queue}&id={id}" if id else f"/queue?name={queue}")
        facts = {" ".join(" ".join(fact).split()) for fact in page.facts if fact and fact[0] != "deadline by"}
        assert facts <= said
        assert len(facts) >= 6
    assert ["1m 30s ago", "orders", "rejected", "1", "1", "no such <b>item</b>"] in page.rows


def test_what_needs_attention_is_said_with_the_command_that_mends_it(broker: Broker, visiting: Visiting) -> None:
    broker.declare_queue("full", max_length=2, overflow="reject-publish").enqueue_many([b"x"] * 2)
    broker.declare_queue("heavy", max_length_bytes=10).enqueue(b"x" * 10)
    broker.declare_queue("dead", max_length=2).enqueue_many([b"x"] * 2)
    broker.declare_queue("held", dead_letter="dead", dead_letter_rejected="heavy", paused=True).enqueue(b"x")
    for i in range(6):
        broker.declare_queue(f"lonely{i}").enqueue(b"x")

    page = look(visiting(), "/")

    for words in [
        "no reaper runs: what expires or comes back waits for a call on its queue: rqttl reaper",
        "dead is full, with 2 ready messages: rqttl queue update dead --max-length 4",
        "heavy is full, with 1 ready message: rqttl queue update heavy --max-length-bytes 2",
        "held is paused, and holds 1 message: rqttl queue resume held",
        "full has 2 ready messages, so it is full, and no consumer: rqttl worker full --call",
        "2 more queues like these (unconsumed)",
    ]:
        assert words in page.words
    assert not re.search("(dead|held) has", page.words)
    assert "The history begins with this process" in page.words
    assert {"/queue?name=held", "/queues?sort=unconsumed"} <= set(page.links)

    broker.declare_queue("late").enqueue(b"x", ttl="1ms")
    until(lambda: broker.queue("late").stats(sweep=False).overdue >= views.LATE)
    for path in ("/", "/queue?name=late"):
        assert "no reaper runs: oldest due work waits" in look(visiting(), path).words


def test_pages_say_where_messages_go_on_and_who_runs_another_version(
    filled: Broker, client: redis.Redis, pages: TestClient
) -> None:
    roster, [entry] = "rqttl:workers{rqttl}", map(json.loads, client.hvals("rqttl:workers{rqttl}"))
    for name, version in {"a": entry["version"], "b": "0.0.9"}.items():
        client.hset(roster, name, json.dumps({**entry, "version": version}))

    assert f"0.0.9, others run {entry['version']}" in look(pages, "/workers").words
    assert ["news/europe", "orders.eu.#"] in look(pages, "/queue?name=news").rows
    filled.declare_queue("brief", auto_delete_on_idle="1h")
    assert "use of the queue: it lives for another 1h" in look(pages, "/queue?name=brief").words
    filled.queue("brief").delete()
    assert "Did you mean brief" not in look(pages, "/queue?name=brief", 404).words
    assert ["forwards", "messages go on to orders"] in look(pages, "/queue?name=old").facts


def test_pages_cost_redis_little(filled: Broker, client: redis.Redis, visiting: Visiting, monkeypatch: Any) -> None:
    monkeypatch.setattr("rqttl.dashboard.sampler.PAUSE", 3_600)  # no tick but the first one
    pages, [message] = visiting(), filled.queue("orders").messages("order-5")
    listed = [*((path, 0) for path in MEMORY), *((path, 12 if "scheduled" in path else 8) for path in QUEUE)]
    listed += [(path.replace("order-5", message.sequence), 5) for path in MESSAGE]
    for path, _ in listed:  # connections are made
        look(pages, path)

    for path, most in listed:
        before = client.info("stats")["total_reads_processed"]
        pages.get(path)
        assert client.info("stats")["total_reads_processed"] - before - 1 <= most, path


def test_what_is_hidden_is_nowhere(filled: Broker, visiting: Visiting) -> None:
    pages = visiting(bodies=False, queues="orders*")

    filled.queue("news/europe").enqueue(b"x", id="europe-1")
    with filled.queue("news/europe").consume() as deliveries:
        next(deliveries)
        until(filled.queue("news/europe").consumers)
        for path in [*MEMORY, *QUEUE, MESSAGE[0], "/message?queue=orders/dead&id=order-0", "/queue?name=orders/dead"]:
            assert not re.search("no such|&lt;b|europe", pages.get(path).text), path
        assert "consumer" in look(pages, "/workers").words
    assert "hides the bodies" in look(pages, MESSAGE[1], 403).words
    assert "does not exist" in look(pages, "/queue?name=news", 404).words
    assert "/queue?name=orders" in look(pages, "/queue?name=ordrs", 404).links


def test_a_command_takes_no_text_of_a_stranger_for_an_option(queue: Queue, pages: TestClient) -> None:
    queue.enqueue(Message(b"x", id="--url=redis://evil.test"))

    assert (
        "rqttl message show q -- --url=redis://evil.test"
        in look(pages, "/message?queue=q&id=--url=redis://evil.test").words
    )
    assert "rqttl stats -- --url=a" in look(pages, "/queues?q=--url=a").words
    assert (
        "rqttl dead show q --reason expired -- --url=a"
        in look(pages, "/dead/queue?name=q&id=--url=a&reason=expired").words
    )


def test_several_messages_with_one_id_are_listed_and_wrong_values_explained(queue: Queue, pages: TestClient) -> None:
    queue.enqueue_many([Message(b"x\x00", id="same")] * 2)
    sequences = [one.sequence for one in queue.peek()]

    page = look(pages, "/message?queue=q&id=same")

    assert "2 messages have this id" in page.words
    assert {f"/message?queue=q&id={one}" for one in sequences} <= set(page.links)
    answer = pages.get(f"/message/body?queue=q&id={sequences[0]}")
    assert (answer.content, answer.headers["content-type"]) == (b"x\x00", "application/octet-stream")
    assert answer.headers["content-disposition"] == f'attachment; filename="{sequences[0]}"'
    for path in (
        "message?queue=q",
        "queue?name=q&state=lost",
        "queues?sort=colour",
        f"queues?q={21 * '*a*b+'}",
        "queue?name=a b",
    ):
        look(pages, f"/{path}", 400)
    look(pages, "/message/body?queue=q&id=same", 409)
    look(pages, "/message?queue=q&id=none", 404)
