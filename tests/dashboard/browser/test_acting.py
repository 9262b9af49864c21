"""People act, each on the real thing: from a page by its forms to what Redis has then."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rqttl import Broker
from tests.dashboard.browser.conftest import PHONE, PLAIN, Opened
from tests.waiting import until


def press(page: Page, name: str) -> None:
    """Go to a link or a button by the tabulator, and press it."""
    page.get_by_text(name, exact=True).locator("visible=true").first.wait_for()
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            break
    page.keyboard.press("Enter")


def click(page: Page, name: str) -> None:
    page.get_by_text(name, exact=True).locator("visible=true").first.click()


@pytest.mark.once
@pytest.mark.parametrize(
    "go, options", [(click, {}), (click, PLAIN), (press, {}), (click, PHONE)], ids=["mouse", "plain", "keys", "phone"]
)
def test_an_error_and_its_count_take_three_clicks_and_its_letters_alone_go_back(
    shop: Broker, opened: Opened, go: Any, options: dict[str, Any]
) -> None:
    page = opened("/", **options)

    go(page, "Dead letters")
    go(page, "orders/dead")
    expect(page.get_by_role("row").filter(has_text="ValueError: item … not found")).to_contain_text("12")
    go(page, "12")
    go(page, "Redrive these")
    expect(page.get_by_role("listitem").first).to_have_text("12 dead letters of orders/dead would be put back")
    go(page, "Redrive")

    expect(page.get_by_role("main")).to_contain_text("redrive orders/dead")
    until(lambda: shop.queue("orders/dead").stats().ready == 7)
    page.goto("/dead/queue?name=orders/dead")
    expect(page.get_by_role("row").filter(has_text="ValueError")).to_have_count(0)


@pytest.mark.browser
@pytest.mark.parametrize("options", [{}, PLAIN], ids=["script", "plain"])
def test_a_queue_is_paused_and_resumed(shop: Broker, opened: Opened, options: dict[str, Any]) -> None:
    page = opened("/queue?name=orders", **options)

    for verb, paused in (("Pause", True), ("Resume", False)):
        click(page, verb)
        assert shop.queue("orders").stats().paused is not paused  # a dry run changes nothing
        click(page, verb)
        click(page, "Back")
        expect(page.get_by_text("consumers get nothing")).to_have_count(int(paused))
        assert shop.queue("orders").stats().paused is paused


@pytest.mark.browser
def test_what_destroys_wants_the_name_of_the_queue(shop: Broker, opened: Opened) -> None:
    page = opened("/queue?name=mails", **PLAIN)
    click(page, "Delete")
    page.get_by_label("To go on").fill("mail")
    click(page, "Delete")
    expect(page.get_by_role("heading", level=1)).to_contain_text("nothing was done")
    assert "mails" in shop.queues()

    page.goto("/queue?name=mails")
    click(page, "Delete")
    page.get_by_label("To go on").fill("mails")
    click(page, "Delete")
    until(lambda: "mails" not in shop.queues())
    assert page.goto("/queue?name=mails").status == 404  # type: ignore[union-attr]  # it is a new page
    expect(page.get_by_role("link", name="to the queues")).to_be_visible()


@pytest.mark.browser
def test_a_message_is_sent_found_downloaded_and_moved(shop: Broker, opened: Opened) -> None:
    page = opened("/queue?name=mails", **PLAIN)
    click(page, "Send a message")
    page.get_by_label("body", exact=True).fill("<b>bold</b>")
    page.get_by_label("headers").fill("id=7")
    click(page, "Send")
    click(page, "Send")
    until(lambda: shop.queue("mails").stats().ready == 9)

    [*_, sent] = shop.queue("mails").peek(9)
    page.goto("/queue?name=mails")
    page.get_by_label("message, by its id").fill(sent.id)
    click(page, "Find")
    expect(page.get_by_role("region", name="Body")).to_have_text("<b>bold</b>")
    with page.expect_download() as file:
        click(page, "Download it")
    assert file.value.path().read_bytes() == b"<b>bold</b>"
    page.get_by_label("to", exact=True).fill("mails/bounced")
    click(page, "Move")
    click(page, "Move")
    until(lambda: shop.queue("mails/bounced").stats().ready == 1)


@pytest.mark.browser
def test_a_double_click_is_one_action(shop: Broker, opened: Opened) -> None:
    page = opened("/queue?name=mails")
    click(page, "Send a message")
    page.get_by_label("body", exact=True).fill("once")
    click(page, "Send")
    page.get_by_role("button", name="Send").dblclick()
    expect(page.get_by_role("link", name="Back")).to_be_visible()

    assert shop.queue("mails").stats().ready == 9
