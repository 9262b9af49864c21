"""The dashboard as people meet it: served by uvicorn, in the Chromium of this machine."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from rqttl import Broker, Message
from rqttl.dashboard import app
from tests.chromium import chromium
from tests.ports import free_port
from tests.waiting import PATIENCE, until

Opened = Callable[..., Page]
PLAIN: dict[str, Any] = {"java_script_enabled": False}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 720}, "has_touch": True}
ERRORS = {"ValueError: item {} not found": 12, "TimeoutError: no answer within 30 s": 5, "no such address": 2}
expect.set_options(timeout=60_000)  # a test waits for what it expects


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def served(application: Any) -> Iterator[str]:
    """An application that a thread serves. Gives its address."""
    port = free_port()
    config = uvicorn.Config(application, port=port, loop="asyncio", http="h11", ws="none", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(PATIENCE)


@pytest.fixture
def opened(browser: Browser, broker: Broker) -> Iterator[Opened]:
    """`opened("/queues", **PLAIN)`: a page of a new window. None may say anything on the console, or ask others."""
    said: list[str] = []
    with ExitStack() as stack:
        address = stack.enter_context(served(app(broker, may=lambda _: "act")))

        def hear(message: ConsoleMessage) -> None:  # Chromium tells each answer that is an error; tests look at pages
            if "Failed to load" not in message.text or "/static/" in message.location["url"]:
                said.append(message.text)

        def make(path: str = "/", **options: Any) -> Page:
            page = stack.enter_context(browser.new_context(base_url=address, **options)).new_page()
            page.on("console", hear)
            page.on("request", lambda one: said.extend([one.url] if not one.url.startswith(address) else []))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(path)
            return page

        yield make
    assert said == []


@pytest.fixture
def shop(broker: Broker) -> Broker:
    """A small shop: orders that wait, are leased, delayed, scheduled and dead; mails that are paused."""
    orders = broker.declare_queue("orders", message_ttl="1h", max_length=200, dead_letter="{queue}/dead", lease="10m")
    orders.enqueue_many([Message({"item": n}, id=f"order-{n}") for n in range(19)])
    reasons = [text.format(n) for text, count in ERRORS.items() for n in range(count)]
    for delivery, reason in zip(orders.receive_many(19), reasons, strict=True):
        delivery.reject(reason)
    orders.enqueue_many([Message({"item": n, "size": "large"}, headers={"region": "eu"}) for n in range(60)])
    orders.receive_many(3)[0].nack(delay="5m", description="the bank is closed")
    orders.enqueue({"item": 7}, delay="1h", id="tomorrow")
    broker.declare_queue("mails", paused=True).enqueue_many(["hello"] * 8)
    broker.declare_queue("bounced")
    broker.set_policy("short", "mails", {"message-ttl": "2h"})
    return broker
