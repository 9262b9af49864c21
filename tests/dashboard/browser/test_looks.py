"""How pages look: to axe-core, on paper, by keys, on a telephone, and in the pictures of the guide."""

import math
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import redis
from playwright.sync_api import Page, expect

from rqttl import Broker
from rqttl.dashboard import sampler
from rqttl.testing.fake import ClockedBroker
from tests.chromium import axe
from tests.dashboard.browser.conftest import ERRORS, PHONE, Opened
from tests.repository import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("shop")]
PATHS = [
    "/",
    "/nowhere",
    "/queues",
    "/queue?name=orders&state=leased",
    "/message?queue=orders/dead&id=order-3",
    "/dead",
]
PATHS += ["/message?queue=orders&id=tomorrow", "/dead/queue?name=orders/dead&reason=rejected", "/workers", "/jobs"]
PATHS += ["/policies", "/explain?name=orders&ttl=5m", "/doctor?run=1", "/nodes"]
#: What axe-core has against a page, and whether it is wider than the window.
VIOLATIONS = """axe.run().then(({ violations }) => [
    ...violations.flatMap(one => one.nodes.map(node => `${one.id}: ${node.html}`)),
    ...document.documentElement.scrollWidth > innerWidth ? ["wide"] : []])"""


def violations(page: Page) -> list[str]:
    """What is wrong with a page, in both colours and widths."""
    found = []
    page.evaluate(axe())
    for scheme, width in [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)]:
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its words
        page.set_viewport_size({"width": width, "height": 720})
        found += page.evaluate(VIOLATIONS)
    return found


def test_axe_finds_what_is_wrong(opened: Opened) -> None:
    page = opened()
    page.locator("main").evaluate("main => main.innerHTML = '<img>' + 'x'.repeat(900)")
    assert {one.partition(":")[0] for one in violations(page)} >= {"image-alt", "wide"}


@pytest.mark.parametrize("path", PATHS)
def test_nobody_is_left_out(opened: Opened, path: str) -> None:
    page = opened(path)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert violations(page) == []


def test_paper_keys_and_telephones(opened: Opened) -> None:
    page = opened("/queues")
    for _ in range(20):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.reload()
    for key in ("Tab", "Enter", "Tab"):  # past the menu
        page.keyboard.press(key)
    expect(page.get_by_label("names or patterns")).to_be_focused()
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("header, form").locator("visible=true")).to_have_count(0)
    assert page.evaluate("getComputedStyle(document.querySelector('td')).color") == "rgb(27, 28, 33)"  # dark on white
    page = opened("/jobs", **PHONE)
    assert page.locator("header").evaluate("header => header.offsetHeight") < 50  # one row
    expect(page.get_by_role("link", name="Jobs")).to_be_in_viewport()


def test_the_guide_has_pictures(
    shop: Broker, client: redis.Redis, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`RQTTL_TEST_PICTURES=docs/guides/dashboard make test-dashboard` makes them anew."""
    orders, begin = shop.queue("orders"), datetime.now(timezone.utc) - timedelta(seconds=590)
    past = ClockedBroker(client, start=int(begin.timestamp() * 1000) - 36_000_000)
    for hour in range(10):  # of deaths
        for n, error in enumerate(ERRORS):
            past.queue("orders").enqueue_many(["x"] * (9 + hour * (4 - n)))
            for delivery in past.queue("orders").receive_many(250):
                delivery.reject(error.format(n))
        past.clock.set(past.clock.ms + 3_600_000)

    def look(one: sampler.Sampler) -> None:
        """Take the samples of ten minutes."""
        for n in range(300 if not one.sample.number else 0):
            monkeypatch.setattr(Broker, "server_time", lambda _, n=n: begin + timedelta(seconds=2 * n))
            monkeypatch.setattr(one, "_clock", lambda n=n: 2 * n)
            orders.enqueue_many(["x"] * int(9 + 5 * math.sin(n / 25)))
            for delivery in orders.receive_many(int(9 + 5 * math.sin((n - 12) / 25))):
                delivery.reject("no such address") if n % 50 > 44 else delivery.ack()
            one.tick()

    monkeypatch.setattr(sampler.Sampler, "look", look)
    for name, path in {"overview": "/", "dead": "/dead/queue?name=orders/dead"}.items():
        page = opened(path, viewport={"width": 1120, "height": 700})
        picture = Path(os.environ.get("RQTTL_TEST_PICTURES", tmp_path)) / f"{name}.png"
        assert len(page.screenshot(path=picture)) < 150_000
        assert (ROOT / "docs/guides/dashboard" / picture.name).exists()
