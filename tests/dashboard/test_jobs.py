"""Jobs: they tell how far they are, stop after a step, and leave each dead letter in exactly one place."""

import html
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from redis.exceptions import ConnectionError
from starlette.testclient import TestClient

from rqttl import Broker, Message, OutcomeUnknown, Queue
from rqttl.broker import wipe
from rqttl.inspector.dead_letters import pages
from tests.dashboard.filling import ask
from tests.ports import free_port
from tests.waiting import Gate, until

Visiting = Callable[..., TestClient]
SERVE = """import sys, uvicorn, rqttl, rqttl.dashboard
dashboard = rqttl.dashboard.app(rqttl.connect(sys.argv[1]), may=lambda _: "act")
uvicorn.run(dashboard, port=int(sys.argv[2]), log_level="warning")"""


def bury(broker: Broker, number: int) -> Callable[[], tuple[int, int]]:
    """Let messages expire. Returns a function that checks that each is in `q` or in `dead`, and counts both."""
    wipe(broker)
    queues = broker.declare_queue("q", dead_letter="dead"), broker.declare_queue("dead")
    for first in range(0, number, 5_000):
        queues[0].enqueue_many([Message(b"x", ttl=0, id=str(first + i)) for i in range(min(5_000, number - first))])

    def count() -> tuple[int, int]:
        ids = [[message.id for page in pages(queue) for message in page] for queue in queues]
        assert sorted(ids[0] + ids[1], key=int) == [str(i) for i in range(number)]
        return len(ids[0]), len(ids[1])

    return count


@pytest.mark.slow
@pytest.mark.parametrize("stops", [True, False])
def test_a_redrive_of_many_goes_on_until_its_end_or_until_it_is_stopped(
    broker: Broker, visiting: Visiting, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    client, count, gate, redrive = visiting(act=True), bury(broker, 50_000), Gate(), Queue.redrive_many
    monkeypatch.setattr(Queue, "redrive_many", lambda *args: gate(None) or redrive(*args))  # type: ignore[func-returns-value]
    asked = ask(client, "/dead/redrive?name=dead")
    assert asked.said[0].startswith("at least ")
    asked.confirm()

    gate.reached()
    assert "<td>runs" in client.get("/jobs").text
    if stops:
        assert ask(client, "/job/stop?number=1").status == 303
        assert "stops after this step" in client.get("/jobs").text
    gate.open()

    back, left = (250, 49_750) if stops else (50_000, 0)
    until(lambda: f"<td>{'stopped' if stops else 'done'}" in client.get("/jobs").text)
    assert f"{back:,} dead letters put back, {left:,} left" in client.get("/jobs").text
    assert count() == (back, left)


@pytest.mark.parametrize("error", [OutcomeUnknown("dead", "redrive"), ConnectionError("Redis is away")])
def test_a_job_that_meets_an_error_says_what_is_certain(
    broker: Broker, visiting: Visiting, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    client, calls, redrive = visiting(act=True), iter([None, None, error]), Queue.redrive_many
    bury(broker, 1_000)

    def failing(*args: Any) -> Any:
        if problem := next(calls):
            raise problem
        return redrive(*args)

    monkeypatch.setattr(Queue, "redrive_many", failing)
    ask(client, "/dead/redrive?name=dead").confirm()

    until(lambda: f"ended early, by an error: {error}; certain is" in html.unescape(client.get("/jobs").text))
    assert "500 dead letters put back, 500 left" in client.get("/jobs").text


def test_four_jobs_run_at_a_time(broker: Broker, visiting: Visiting, monkeypatch: pytest.MonkeyPatch) -> None:
    client, gate, purge = visiting(act=True), Gate(), Queue.purge
    monkeypatch.setattr(Queue, "purge", lambda *args: (gate(None), purge(*args))[1])  # type: ignore[func-returns-value]
    broker.declare_queue("q").enqueue(b"x")
    asked = [ask(client, "/queue/purge?name=q") for _ in range(5)]
    assert [one.confirm(typed="q").status for one in asked[:4]] == [303] * 4
    gate.reached(4)

    refused = asked[4].confirm(typed="q")
    gate.open()

    assert (refused.status, refused.title.partition(":")[0]) == (409, "four jobs run already")
    until(lambda: "<td>runs" not in client.get("/jobs").text)
    assert asked[4].confirm(typed="q").status == 303


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dashboard_that_ends_in_the_midst_leaves_each_dead_letter_in_one_place(
    broker: Broker, redis_url: str, number: signal.Signals
) -> None:
    back, left, many = 0, 0, 10_000
    while not left:  # on a busy machine all may be back before the signal comes: then it comes to more of them
        count, port, many = bury(broker, many), free_port(), many * 2
        client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers={"Sec-Fetch-Site": "same-origin"})
        with client, subprocess.Popen([sys.executable, "-c", SERVE, redis_url, str(port)]) as process:
            until(lambda: answers(client))  # noqa: B023  # called at once
            ask(client, "/dead/redrive?name=dead").confirm()
            until(lambda: broker.queue("q").stats(sweep=False).ready)
            process.send_signal(number)
        back, left = count()

    assert back
    assert number == signal.SIGKILL or back % 250 == 0


def answers(client: httpx2.Client) -> bool:
    try:
        return bool(client.get("/livez").is_success)
    except httpx2.TransportError:
        return False
