"""Walks of operators from page to page, on the real thing: with scripts and without, by keys, and on a telephone."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Page, expect

from rqttl import Broker
from tests.dashboard.browser.conftest import PHONE, PLAIN, Opened
from tests.waiting import until

pytestmark = pytest.mark.browser
#: Text that would run if a page forgot to escape it. It is typed, sent, listed and shown.
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"


class Walk(NamedTuple):
    """From `path` by `steps` to what the shop has then; `first` happens while the first page is open.

    A step is the words of what is clicked, `field = text` for what is typed, or `?words` that the page has to show.
    """

    path: str
    steps: str
    then: Callable[[Broker], object] = Broker.queues
    first: Callable[[Broker], object] = Broker.queues


def has(queue: str, **numbers: int) -> Callable[[Broker], bool]:
    return lambda shop: {name: getattr(shop.queue(queue).stats(), name) for name in numbers} == numbers


def send_evil(shop: Broker) -> None:
    shop.queue("mails").enqueue(f"{EVIL}\u202etxt".encode(), id=EVIL, headers={"a": EVIL})


MAILS, ORDERS, DELETE = "/queue?name=mails", "/queue?name=orders", "Delete → To go on"
WALKS = {
    "pause": Walk(ORDERS, "Pause → Pause → Back → ?consumers get nothing", has("orders", paused=True)),
    "resume": Walk(MAILS, "Resume → Resume → ?paused: yes -> no", has("mails", paused=False)),
    "purge": Walk(MAILS, "Purge → To go on = mails → Purge → ?purge mails", has("mails", ready=0)),
    "delete": Walk(MAILS, f"{DELETE} = mails → Delete → ?delete mails", lambda shop: "mails" not in shop.queues()),
    "mistype": Walk(MAILS, f"{DELETE} = mail → Delete → ?nothing was done → Leave it as it is", has("mails", ready=8)),
    "send": Walk(MAILS, f"Send a message → body = {EVIL} → Send → Send → ?1", has("mails", ready=9)),
    "limit": Walk(MAILS, "Change options → max-length = 5 → Change → ?3 → Update", has("mails", ready=5)),
    "find": Walk(ORDERS, "message, by its id = tomorrow → Find → Cancel → Cancel", has("orders", scheduled=0)),
    "move": Walk("/message?queue=orders/dead&id=order-3", "to = bounced → Move → Move", has("bounced", ready=1)),
    "search": Walk("/queues", "ready → ?by ready → names or patterns = ordres → Show → orders → ?1 queue"),
    "policy": Walk("/policies", "short → Delete → Delete → ?1 queue", lambda shop: not shop.policies()),
    "doctor": Walk("/doctor", "Examine → ?no reaper"),
    "explain": Walk(ORDERS, "Which policy decides what, and why → sent with a TTL of = 5m → Explain → ?5m"),
    "states": Walk(ORDERS, "Further messages → delayed 1 → ?the bank is closed"),
    "gone": Walk("/queues", "mails → to the queues → orders → ?57", first=lambda shop: shop.queue("mails").delete()),
    "numbers": Walk("/", "Numbers → ?from"),
    "strangers": Walk("/", f"Queues → mails → {EVIL} → ?{EVIL}\\u202etxt", first=send_evil),
}


def named(page: Page, words: str) -> Any:
    """What can be clicked and has exactly these words."""
    whole = re.compile(rf"^\s*{re.escape(words)}\s*$")
    return page.locator("a, button, summary").filter(has_text=whole).locator("visible=true").first


def press(page: Page, words: str) -> None:
    named(page, words).wait_for()
    while page.evaluate("document.activeElement.textContent.trim()") != words:
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")


WAYS: dict[str, dict[str, Any]] = {"mouse": {}, "plain": PLAIN, "keys": {}, "phone": PHONE}


def take(walk: Walk, way: str, shop: Broker, opened: Opened) -> None:
    page = opened(walk.path, **WAYS[way])
    walk.first(shop)
    for step in walk.steps.split(" → "):
        field, equals, text = step.partition(" = ")
        if step.startswith("?"):
            expect(page.get_by_role("main")).to_contain_text(step[1:])
        elif equals:
            page.get_by_label(re.compile(f"^{field}")).locator("visible=true").first.fill(text)
        elif way == "keys":
            press(page, step)
        else:
            named(page, step).click()
    until(lambda: walk.then(shop))
    assert page.locator("img[src=x], main script").count() == 0


@pytest.mark.parametrize("way", ["mouse", "plain"])
@pytest.mark.parametrize("name", WALKS)
def test_a_walk_ends_as_it_should(shop: Broker, opened: Opened, name: str, way: str) -> None:
    take(WALKS[name], way, shop, opened)
