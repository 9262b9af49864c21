"""Actions: what the dry run says is what happens, once, and wrong values change nothing."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from rqttl import Broker, Message, Queue
from rqttl.dashboard import app
from tests.dashboard.filling import ask
from tests.waiting import Gate, until

Visiting = Callable[..., TestClient]


@pytest.fixture
def acting(broker: Broker, visiting: Visiting) -> TestClient:
    """Who may act: on messages in each state, on queues that are full, paused or topics, on dead letters."""
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue_many([Message(b"x", id=id) for id in ("leased", "delayed", "r1", "r2", "r3")])
    queue.receive_many(2, lease="1h")[1].nack("1h")
    queue.enqueue_many([Message(b"x", id=id, delay="1h") for id in ("s1", "s2")])
    for name, n in (("q", 2), ("gone", 1), ("tight", 2)):
        one = broker.queue("q") if name == "q" else broker.declare_queue(name, dead_letter="dead")
        one.enqueue_many([Message(b"y", id=f"{name}{i}") for i in range(n)])
        for i in range(n):
            one.dead_letter(f"{name}{i}", f"order {i} has no price")
    broker.queue("gone").delete()
    queue.update(rate="100/1m")
    broker.queue("tight").update(max_length=1, overflow="reject-publish")
    broker.declare_queue("full", max_length=0, overflow="reject-publish")
    broker.declare_topic("news").subscribe("all")
    broker.topic("news").enqueue(b"z")
    broker.declare_queue("shut", paused=True)
    broker.set_policy("open", "kept", {"paused": False}, operator=True)
    broker.declare_queue("kept")
    broker.set_policy("brief", "q", {"lease": "5s"})
    broker.stats()  # sweeps all queues, so that no look has to
    return visiting(act=True)


def contents(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


#: A form, a line of its dry run, and the outcome, unless that is the same line; for a job, what `/jobs` says.
QUIET = [
    ("/queue/pause?name=q", "paused: no -> yes", ""),
    ("/queue/pause?name=shut", "no option changes", ""),
    ("/queue/pause?name=news", "paused: no -> yes", ""),
    ("/queue/resume?name=shut", "paused: yes -> no", ""),
    ("/queue/update?name=q&max_length=1,000", "max_length: (none) -> 1,000", ""),
    ("/queue/update?name=q&rate=(none)", "rate: 100/1m -> (none)", ""),
    ("/queue/update?name=q&max_length=1", "2 messages would be pushed out by a limit (dead-lettered to dead)", ""),
    ("/queue/update?name=q&max_length=1&dead_letter_maxlen=(drop)", "2 messages would be pushed out by a limit", ""),
    ("/queue/purge?name=q", "3 messages would be removed", ""),
    ("/queue/purge?name=q&state=all", "5 messages would be removed", ""),
    ("/queue/purge?name=shut", "0 messages would be removed", ""),
    ("/queue/delete?name=q", "3 ready messages would be deleted with the queue", ""),
    ("/queue/delete?name=news", "1 ready message would be deleted with the queue", ""),
    ("/queue/send?name=q&body=hi", "2 B would be stored in q", "stored in q"),
    ("/queue/send?name=q&body=hi&ttl=5m&delay=1h", "expires after 5m: sent with a TTL of 5m", ", due "),
    ('/queue/send?name=news&body={"a": 1}&format=json&headers=a%3Db', "the message never expires", "in news"),
    *(
        (f"/message/{form}&queue=q&id={id}", f"1 message of q would be {done}", "")
        for form, done in [
            *(("move?to=shut", "moved"), ("delete?", "deleted"), ("expire?", "expired"), ("redeliver?", "redelivered")),
            *(("dead-letter?", "dead-lettered"), ("dead-letter?description=why", "dead-lettered")),
        ]
        for id in ("r1", "delayed", "s1")
    ),
    ("/message/cancel?queue=q&id=s1", "1 scheduled message of q would be cancelled", ""),
    ("/message/reschedule?queue=q&id=s1&delay=2h", "1 scheduled message of q would be rescheduled", ""),
    ("/dead/redrive?name=dead", "3 dead letters of dead would be put back", "3 dead letters put back, 0 left"),
    ("/dead/redrive?name=dead&filter=id%3Dq1", "1 dead letter of dead would be", "1 dead letter put back, 0 left"),
    ("/dead/redrive?name=dead&filter=source%3Dtight", "1 dead letter left alone: tight has no room (--max-length)", ""),
    ("/dead/redrive?name=dead&filter=source%3Dgone", "1 dead letter left alone: gone does not exist (see --to)", ""),
    ("/dead/redrive?name=dead", "q gives them to consumers by its rate, 100/1m", "done"),
    ("/dead/move?name=dead&to=shut", "5 dead letters of dead would be moved to shut", "5 dead letters moved to shut"),
    ("/dead/purge?name=dead", "5 dead letters of dead would be removed", "5 dead letters removed, 0 left"),
    (
        "/dead/purge?name=dead&filter=error%3Dorder *%26older-than%3D0",
        "5 dead letters of dead",
        "5 dead letters removed",
    ),
    ("/policy/set?name=p&pattern=q&max_length=1", "2 messages would be pushed out by a limit", ""),
    ("/policy/set?name=p&pattern=x&syntax=regex&lease=(none)", "0 queues would change", "0 queues changed"),
    ("/policy/delete?name=brief", "q: lease 5s -> 30s", ""),
    ("/policy/delete?name=open&operator=yes", "0 queues would change", "0 queues changed"),
]


@pytest.mark.parametrize("form, ahead, outcome", QUIET)
def test_what_the_dry_run_says_is_what_happens(
    acting: TestClient, client: Any, form: str, ahead: str, outcome: str
) -> None:
    before = contents(client)

    asked = ask(acting, form)

    assert asked.status == 200, asked.title
    assert ahead in "\n".join(asked.said)
    assert contents(client) == before

    done = asked.confirm(typed=form.partition("name=")[2].partition("&")[0])

    said = "\n".join(done.said)
    if done.status == 303:
        until(lambda: "runs" not in acting.get("/jobs").text)
        said = acting.get("/jobs").text
    assert (outcome or ahead.replace("would be ", "")) in said


#: Forms that are refused, with the status and the words of the product.
WRONG = [
    ("/queue/pause?queue=q", 400, "name: expected a value"),
    ("/queue/pause?name=nowhere", 404, "queue 'nowhere' does not exist"),
    ("/queue/pause?name=kept", 409, "operator policy open decides"),
    ("/queue/update?name=q", 400, "nothing to change"),
    ("/queue/update?name=q&max_length=many", 400, "max_length: expected a whole number from 0"),
    ("/queue/update?name=shut&burst=5", 400, "burst: 5 does nothing without rate"),
    ("/queue/update?name=news&forward_to=q", 400, "forward_to: 'news' is a topic"),
    ("/queue/purge?name=q&state=leased", 400, "state: expected one of ready, scheduled, all"),
    ("/queue/delete?name=nowhere", 404, "does not exist"),
    ("/queue/send?name=q&body={&format=json", 400, "body: not JSON"),
    (f"/queue/send?name=q&body={'[' * 60_000}&format=json", 400, "body: not JSON"),
    (f"/queue/send?name=q&body={'x' * 65_537}", 400, "body: expected at most 65,536 bytes"),
    ("/queue/send?name=q&ttl=5", 400, "ttl: expected a duration with a unit"),
    ("/queue/send?name=q&headers=a", 400, "expected KEY=VALUE"),
    ("/message/move?queue=q&id=r1&to=nowhere", 404, "queue 'nowhere' does not exist"),
    ("/message/move?queue=q&id=r1&to=q", 400, "to: expected another queue"),
    ("/message/move?queue=q&id=r1&to=full", 409, "queue 'full' is full"),
    ("/message/delete?queue=q&id=none", 404, "queue 'q' holds no message 'none'"),
    ("/message/delete?queue=q&id=leased", 409, "leased: leased, "),
    ("/message/cancel?queue=q&id=r1", 404, "holds no scheduled message 'r1'"),
    ("/message/reschedule?queue=q&id=s1&delay=2", 400, "delay: expected a duration with a unit"),
    ("/dead/redrive?name=dead&filter=reason%3Dbored", 400, "reason: no such reason 'bored'"),
    ("/dead/redrive?name=dead&filter=source%3Dnone", 404, "has no such dead letters"),
    ("/dead/redrive?name=dead&at=yesterday", 400, "at: expected"),
    ("/dead/move?name=dead&to=nowhere", 404, "queue 'nowhere' does not exist"),
    ("/dead/move?name=dead", 400, "to: expected a value"),
    ("/policy/set?name=p&pattern=(&syntax=regex&lease=1s", 400, "policy 'p': pattern"),
    ("/policy/set?name=p&pattern=%23&lease=1s&priority=high", 400, "priority: expected a whole number"),
    ("/policy/delete?name=p", 404, "policy 'p' does not exist"),
    ("/job/stop?number=7", 404, "knows no job '7'"),
]


@pytest.mark.parametrize("form, status, words", WRONG)
def test_a_wrong_value_is_told_in_the_products_words_and_changes_nothing(
    acting: TestClient, client: Any, form: str, status: int, words: str
) -> None:
    before = contents(client)

    asked = ask(acting, form)

    assert (asked.status, words in asked.title) == (status, True), asked.title
    assert contents(client) == before


@pytest.mark.parametrize("form", ["/queue/purge?name=q", "/queue/delete?name=q"])
def test_what_cannot_be_undone_wants_the_name_of_the_queue(acting: TestClient, client: Any, form: str) -> None:
    asked, before = ask(acting, form), contents(client)

    refused = asked.confirm(typed="Q")

    assert (refused.status, refused.said[0]) == (400, "typed: expected the name 'q', got 'Q': nothing was done")
    assert contents(client) == before
    assert refused.confirm(typed="q").status in (200, 303)


@pytest.mark.parametrize(
    "form, status",
    [
        ("/queue/purge?name=shut", 404),
        ("/message/move?queue=q&id=r1&to=shut", 404),
        *[(f"/queue/update?name=q&{option}", 404) for option in ("dead_letter=shut", "dead_letter_expired=a/{queue}")],
        ("/queue/update?name=q&dead_letter={queue}/dead", 200),
        ("/queue/update?name=q&dead_letter_maxlen=(drop)", 200),
        ("/policy/set?name=p&pattern=%23&lease=1s", 403),
        ("/dead/purge?name=q&filter=error%3Dorder*", 403),
        ("/message/delete?queue=q&id=r1", 200),
    ],
)
def test_a_dashboard_of_some_queues_without_bodies_acts_on_these_alone(
    visiting: Visiting, acting: TestClient, form: str, status: int
) -> None:
    asked = ask(visiting(act=True, queues="q*", bodies=False), form)

    assert (asked.status, "no price" in asked.text) == (status, False)


def test_a_dashboard_of_some_queues_puts_dead_letters_back_into_these_alone(
    visiting: Visiting, acting: TestClient, client: Any
) -> None:
    visitor, before = visiting(act=True, queues="[dq]*"), contents(client)

    asked, forged = ask(visitor, "/dead/redrive?name=dead"), ask(visitor, "/dead/redrive?name=dead&confirm=forged")
    until(lambda: "ended early" in visitor.get("/jobs").text)

    assert (asked.status, forged.status) == (404, 303)
    assert asked.title == "queue 'tight' does not exist: declare it first"
    assert contents(client) == before
    assert ask(visitor, "/dead/redrive?name=dead&filter=source%3Dq").status == 200


def test_two_clicks_at_the_same_time_are_one_action(
    acting: TestClient, broker: Broker, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, enqueue, queue = Gate(), Queue.enqueue, broker.queue("q")
    monkeypatch.setattr(Queue, "enqueue", lambda *args, **options: gate(None) or enqueue(*args, **options))  # type: ignore[func-returns-value]
    asked = ask(acting, "/queue/send?name=q", body='one\r\n"two" \x01“é<', headers="k=v")
    before = queue.stats().enqueued

    clicks = [pool.submit(asked.confirm) for _ in range(2)]
    gate.reached()
    gate.open()
    first, second = (click.result() for click in clicks)

    assert first.said == second.said == asked.confirm().said
    assert queue.stats().enqueued == before + 1
    assert queue.messages(first.said[0].split()[1])[0].body == 'one\n"two" \x01“é<'.encode()


def test_each_action_is_a_line_of_the_log(broker: Broker, acting: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rqttl.dashboard")
    dashboard = app(broker, may=lambda request: "act" if request.scope.setdefault("user", "ada\n\x1b[31m") else None)
    ada = TestClient(dashboard, "http://queues.test", headers={"Sec-Fetch-Site": "same-origin"})

    ask(ada, "/message/move?queue=q&id=r1&to=shut").confirm()
    ask(ada, "/dead/redrive?name=dead&filter=source%3Dq%26error%3Dorder *").confirm()
    until(lambda: len(caplog.records) == 3)

    who = r"ada\n\x1b[31m at testclient:"
    assert [record.getMessage() for record in caplog.records] == [
        f"{who} move q r1 shut: 1 message of q moved",
        f"{who} redrive dead --source q --error 'order *': job 1 began",
        f"{who} redrive dead --source q --error 'order *': job 1 done: 2 dead letters put back, 0 left",
    ]


@pytest.mark.parametrize(
    "form, command",
    [
        ("/queue/update?name=q&message_ttl=5m&paused=no&rate=(none)", "q --message-ttl 5m --no-paused --unset rate"),
        ("/message/cancel?queue=q&id=s1", "rqttl cancel q s1"),
        ("/dead/move?name=dead&to=shut&filter=error%3Dorder *", "rqttl dead redrive dead --error 'order *' --to shut"),
        ("/policy/set?name=p&pattern=%23&lease=1s", "rqttl policy set p '#' --lease 1s --priority 0"),
    ],
)
def test_a_page_says_the_command_that_does_the_same(acting: TestClient, form: str, command: str) -> None:
    assert command in ask(acting, form).text
