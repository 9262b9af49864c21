"""What all pages have in common: the script that refreshes them, and how they look to axe-core."""

import hashlib
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.browser.conftest import Opened
from tests.repository import ROOT

pytestmark = pytest.mark.browser

PATHS = [
    "/",
    "/nowhere",
    "/queue?name=orders",
    "/queue?name=orders&state=leased",
    "/message?queue=orders&id=tomorrow",
    "/dead",
    "/dead/queue?name=orders/dead&reason=rejected",
    "/policies",
    "/explain?name=orders&ttl=5m",
    "/doctor?run=1",
    "/nodes",
]


@cache
def axe() -> str:
    content = (ROOT / "build/axe.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
    return content.decode()


def violations(page: Page) -> list[str]:
    """What axe-core 4.14.1 has against a page, and what is wider than the window."""
    page.evaluate(axe())
    found: Any = page.evaluate("axe.run()")
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return [f"{one['id']}: {node['html']}" for one in found["violations"] for node in one["nodes"]] + ["wide"] * wide


def test_axe_finds_what_is_wrong(page: Page) -> None:
    page.locator("main").evaluate("main => main.innerHTML = '<img>' + 'x'.repeat(400)")

    assert {one.partition(":")[0] for one in violations(page)} >= {"image-alt", "wide"}


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("path", PATHS)
def test_nobody_is_left_out(opened: Opened, path: str) -> None:
    page = opened(path)

    for scheme in ("light", "dark"):
        for width in (1280, 360):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 720})
            assert violations(page) == [], (scheme, width)


HIDE = """hidden => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_tab_asks_nothing_until_it_is_seen_again(page: Page) -> None:
    asked: list[str] = []
    page.clock.install()
    page.reload()
    page.on("request", lambda request: asked.append(request.resource_type))
    page.evaluate(HIDE, True)
    page.clock.run_for(60_000)
    assert "fetch" not in asked

    with page.expect_request(page.url):
        page.evaluate(HIDE, False)
    with page.expect_request(page.url):  # and so it goes on
        page.clock.run_for(2_000)


def test_a_server_that_is_away_is_told_with_its_last_time_until_it_is_back(page: Page) -> None:
    page.clock.install(time="2030-01-02T03:04:05Z")
    page.reload()
    with page.expect_response(page.url):
        page.clock.run_for(2_000)
    page.route("**", lambda route: route.fulfill(status=502, body="no gateway"))
    for _ in range(3):
        expect(page.locator("#news")).to_be_empty()
        with page.expect_response(page.url) as answer:
            page.clock.run_for(2_000)
        answer.value.finished()
    expect(page.locator("#news")).to_contain_text("not answered since 03:04:07 UTC")

    page.unroute("**")
    page.clock.run_for(2_000)
    expect(page.locator("#news")).to_be_empty()
