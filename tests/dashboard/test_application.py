"""What every answer of the dashboard has in common."""

import hashlib
import re
import threading
from collections.abc import Callable
from typing import Any

import click
import pytest
import redis
from starlette.testclient import TestClient

from rqttl import Broker
from rqttl.cli import cli
from rqttl.dashboard import app
from rqttl.dashboard.visit import asset
from tests.cli.tree import children, does_work


def test_a_page_may_load_nothing_from_elsewhere(pages: TestClient) -> None:
    answer = pages.get("/")

    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/nowhere", "/static/../app.py"])
def test_an_address_without_a_page_is_told_kindly(pages: TestClient, path: str) -> None:
    answer = pages.get(path)

    assert answer.status_code == 404
    assert "there is no such page" in answer.text


def test_an_unchanged_page_is_not_made_again_unless_one_who_may_do_more_or_less_looks(broker: Broker) -> None:
    def may(request: Any) -> Any:
        return request.headers["x-right"]

    before = {*threading.enumerate()}
    with TestClient(app(broker, may=may), headers={"x-right": "look"}) as client:
        mark = client.get("/").headers["etag"]

        assert mark.startswith('W/"')  # a proxy that packs the page makes it so
        assert client.get("/", headers={"If-None-Match": mark}).status_code == 304
        assert client.get("/", headers={"If-None-Match": mark, "x-right": "act"}).status_code == 200
    assert "rqttl-dashboard" not in {thread.name for thread in {*threading.enumerate()} - before}


def test_the_script_of_others_is_the_release_that_was_read() -> None:
    """idiomorph 0.8.0 as its package has it (0BSD)."""
    content, _ = asset("idiomorph.min.js")

    assert hashlib.sha256(content).hexdigest() == "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96"


def test_each_command_names_the_namespace_of_the_dashboard(
    client: redis.Redis, visiting: Callable[..., TestClient]
) -> None:
    with Broker(client, "other") as broker:
        empty = re.findall(r"rqttl [^<\n]*", visiting(broker).get("/queues").text)
        broker.declare_topic("news")
        broker.declare_queue("q", paused=True).enqueue(b"x", id="m")
        pages = visiting(broker)
        texts = [
            pages.get(path).text
            for path in ("/", "/queue?name=news", "/message?queue=q&id=m", "/workers", "/dead", "/policies")
        ]
        commands = re.findall(r"<code>(rqttl [^<]*)", "".join(texts))

    assert "rqttl --namespace other queue declare orders" in empty
    assert "rqttl --namespace other queue resume q" in commands
    assert [one for one in commands if not one.startswith("rqttl --namespace other ")] == []
    for shown in (*empty, *commands):
        command: click.Command = cli
        for word in shown.split()[3:]:
            if does_work(command):
                break
            command = children(command)[word]  # it exists
