"""The ten tests in a browser that `make test` runs: an operator's main way, and pages that refresh themselves."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Route, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from rqttl import Broker
from rqttl.dashboard import app
from tests.dashboard.browser.conftest import Opened, served
from tests.dashboard.browser.test_walks import WAYS, Walk, has, take
from tests.servers import Server

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("shop")]
FIND = "Dead letters → orders/dead → ?12ValueError: item … not found → ValueError: item … not found → Redrive these"
ACT = "?12 dead letters of orders/dead would be put back → Redrive → ?redrive orders/dead"
READY = "[data-queue={}] [data-field=ready]"
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange")); }"""


@pytest.mark.parametrize("way", WAYS)
def test_an_error_and_its_count_are_found_and_its_letters_alone_go_back(shop: Broker, opened: Opened, way: str) -> None:
    take(Walk("/", f"{FIND} → {ACT}", has("orders/dead", ready=7)), way, shop, opened)


def test_a_hidden_tab_asks_nothing_until_it_is_seen_again(opened: Opened) -> None:
    asked: list[str] = []
    page = opened()
    page.clock.install()
    page.reload()
    page.on("request", lambda request: asked.append(request.resource_type))
    page.evaluate(HIDE, True)
    page.clock.run_for(60_000)
    assert "fetch" not in asked
    with page.expect_request(page.url):
        page.evaluate(HIDE, False)
    with page.expect_request(page.url):  # and so it goes on
        page.clock.resume()


def test_a_server_that_is_away_is_told_with_its_last_time_until_it_is_back(opened: Opened) -> None:
    page, asked = opened(), []
    page.wait_for_load_state("networkidle")  # the icon is there, too

    def fail(route: Route) -> None:
        asked.append(page.locator("#news").text_content())
        route.fulfill(status=502, body="no gateway")

    page.route("**", fail)
    expect(page.locator("#news")).to_have_text(re.compile(r"not answered since \d\d:\d\d:\d\d UTC"))
    assert asked[:3] == [""] * 3
    page.unroute("**")
    expect(page.locator("#news")).to_be_empty()


def test_what_is_opened_focused_typed_and_scrolled_to_survives_a_refresh(shop: Broker, opened: Opened) -> None:
    page = opened("/queues", viewport={"width": 360, "height": 300})
    page.get_by_label("names or patterns").fill("ord")
    page.get_by_role("link", name="orders", exact=True).focus()
    page.evaluate("scrollTo(0, 120); document.querySelector('.scroll').scrollLeft = 90")
    shop.queue("mails").enqueue("new")
    expect(page.locator(READY.format("mails"))).to_have_text("9")
    expect(page.get_by_label("names or patterns")).to_have_value("ord")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_focused()
    assert page.evaluate("[scrollY, document.querySelector('.scroll').scrollLeft]") == [120, 90]
    page.goto("/")
    page.locator("summary").first.click()
    shop.queue("mails").enqueue("new")
    expect(page.locator("[data-field=ready]").first).to_have_text("86")
    expect(page.locator("details").first).to_have_attribute("open", "")


def test_a_list_of_messages_stays_and_says_how_many_are_new(shop: Broker, opened: Opened) -> None:
    page = opened("/queue?name=mails")
    rows = page.get_by_role("region", name="Messages").get_by_role("row")
    shop.queue("mails").enqueue_many(["new"] * 3)
    expect(page.get_by_text("3 new, reload")).to_be_visible()
    expect(rows).to_have_count(1 + 8)
    page.get_by_role("link", name="reload").click()
    expect(rows).to_have_count(1 + 11)


def test_redis_goes_away_and_comes_back(start_server: Callable[..., Server], browser: Browser) -> None:
    server = start_server()
    with Broker(server.client()) as broker, served(app(broker, may=lambda _: "look")) as address:
        broker.declare_queue("orders").enqueue("x")
        page = browser.new_page(base_url=address)
        page.goto("/queues")
        with server.down():
            expect(page.get_by_role("alert").first).to_contain_text("Redis does not answer")
            expect(page.locator(READY.format("orders"))).to_have_text("1")  # the last one that it gave
        expect(page.get_by_role("alert")).to_have_count(0)


def test_below_a_path_links_and_refresh_lead_back_and_who_looks_has_no_form(shop: Broker, browser: Browser) -> None:
    mounted = Starlette(routes=[Mount("/a/b", app(shop, may=lambda _: "look"))])
    with served(mounted) as address, browser.new_page(base_url=address) as page:
        page.goto("/a/b/")
        with page.expect_response(f"{address}/a/b/") as answer:
            assert answer.value.request.resource_type == "fetch"
        for name in ("Queues", "orders"):
            page.get_by_role("link", name=name, exact=True).click()
        expect(page).to_have_url(f"{address}/a/b/queue?name=orders")
        expect(page.locator("form[method=post]")).to_have_count(0)
