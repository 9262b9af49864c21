"""The dashboard as people meet it: served by uvicorn, in the Chromium of this machine.

Without Chromium tests fail. No page may say anything on the console, or ask another server for anything: that fails
each test.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from rqttl import Broker, Message
from rqttl.dashboard import app
from tests.ports import free_port
from tests.waiting import PATIENCE, until

Opened = Callable[..., Page]
#: Windows without JavaScript, and of a telephone.
PLAIN: dict[str, Any] = {"java_script_enabled": False}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 720}, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module: while it is there, asyncio thinks that its loop runs in this thread."""
    path = shutil.which("chromium")
    assert path, "no chromium: make setup installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def served(broker: Broker, **options: Any) -> Iterator[str]:
    """A dashboard that a thread serves. Gives its address."""
    port = free_port()
    application = app(broker, **{"may": lambda _: "act", **options})
    config = uvicorn.Config(application, "127.0.0.1", port, loop="asyncio", http="h11", ws="none", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(PATIENCE)


def listen(page: Page, address: str, said: list[str]) -> None:
    """Note what a page says on the console, and what it asks of others."""

    def hear(message: ConsoleMessage) -> None:
        # Chromium tells each answer that is an error; a test looks at those of pages itself
        if not message.text.startswith("Failed to load resource") or "/static/" in message.location["url"]:
            said.append(message.text)

    def see(request: Request) -> None:
        if not request.url.startswith(address):
            said.append(request.url)

    page.on("console", hear)
    page.on("request", see)
    page.on("pageerror", lambda error: said.append(str(error)))


@pytest.fixture
def address(broker: Broker) -> Iterator[str]:
    with served(broker) as address:
        yield address


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Opened]:
    """`opened("/queues", java_script_enabled=False)`: a page of a new window, which takes options of playwright."""
    said: list[str] = []
    with ExitStack() as stack:

        def make(path: str = "/", **options: Any) -> Page:
            window = stack.enter_context(browser.new_context(base_url=address, **options))
            window.set_default_timeout(30_000)
            page = window.new_page()
            listen(page, address, said)
            page.goto(path)
            return page

        yield make
    assert said == []


@pytest.fixture
def page(opened: Opened) -> Page:
    return opened()


#: Errors of letters, and how many have each.
ERRORS = {
    "ValueError: item {} not found": 12,
    "TimeoutError: no answer of the bank within 30 s": 5,
    "no such address": 2,
}


@pytest.fixture
def shop(broker: Broker) -> Broker:
    """A small shop: orders that wait, are leased, delayed, scheduled and dead; mails that are paused."""
    orders = broker.declare_queue("orders", message_ttl="1h", max_length=200, dead_letter="{queue}/dead", lease="10m")
    orders.enqueue_many([Message({"item": n}, id=f"order-{n}") for n in range(19)])
    reasons = [text.format(n) for text, count in ERRORS.items() for n in range(count)]
    for delivery, reason in zip(orders.receive_many(19), reasons, strict=True):
        delivery.reject(reason)
    orders.enqueue_many([Message({"item": n, "size": "large"}, headers={"region": "eu"}) for n in range(60)])
    [late, _, _] = orders.receive_many(3)
    late.nack(delay="5m", description="the bank is closed")
    orders.enqueue({"item": 7}, delay="1h", id="tomorrow")
    broker.declare_queue("mails", paused=True).enqueue_many(["hello"] * 8)
    broker.declare_queue("mails/bounced")
    broker.set_policy("short", "mails", {"message-ttl": "2h"})
    return broker
