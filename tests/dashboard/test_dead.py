"""Pages of dead letters."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from html import unescape

import pytest
from starlette.testclient import TestClient

from rqttl import Broker, Message
from rqttl.dashboard import dead
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414  # a fixture

Visiting = Callable[..., TestClient]
LETTERS = "/dead/queue?name=orders/dead"
ERRORS = ["ValueError: no order 17", "ValueError: no order 18", "KeyError: 'a'", None]


@pytest.fixture(autouse=True)
def letters(broker: Broker) -> None:
    """`orders/dead` holds four dead letters of `orders` and two of `mail`, and a message that never died."""
    broker.declare_queue("orders/dead").enqueue(b"alive")
    for name, errors in (("orders", ERRORS), ("mail", ERRORS[:1] * 2)):
        queue = broker.declare_queue(name, dead_letter="orders/dead")
        queue.enqueue_many([Message(b"", headers={"n": n}) for n in range(len(errors))])
        for delivery, error in zip(queue.receive_many(9), errors, strict=True):
            delivery.reject(error)


def rows(page: str) -> list[list[str]]:
    """The cells of all rows with data, as text."""
    found = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in found if "<td" in row]
    return [[" ".join(unescape(re.sub(r"<[^>]*>", "", cell)).split()) for cell in row] for row in cells]


def links(page: str, path: str) -> list[str]:
    """The addresses on a page that lead to a path."""
    return [unescape(one) for one in re.findall(rf'href="({re.escape(path)}(?:\?[^"]*)?)"', page)]


def test_an_error_and_its_count_are_three_clicks_away(pages: TestClient) -> None:
    page = pages.get(links(pages.get("/").text, "/dead")[0]).text
    assert [row[::3] for row in rows(page)] == [["orders/dead", "orders: 4 rejected mail: 2 rejected"]]
    page = pages.get(links(page, "/dead/queue")[0]).text
    groups = [("ValueError: no order …", "mail"), ("ValueError: no order …", "orders")]
    groups += [("(none)", "orders"), ("KeyError: …", "orders")]
    assert [(row[1], row[2]) for row in rows(page)[:-1]] == groups
    assert "1 message never died" in page
    for way, count in zip(links(page, "/dead/queue"), "2211", strict=True):
        alone = pages.get(way).text
        assert [row[0] for row in rows(alone)[:-1]] == [count]
        assert pages.get(links(alone, "/message")[0]).status_code == 200
    assert links(pages.get("/dead/queue?name=orders").text, "/dead/queue") == ["/dead/queue?name=orders%2Fdead"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--source", "orders"],
        ["--error", "ValueError*"],
        ["--error", ""],
        ["--reason", "expired"],
        ["--header", "n=0"],
        ["--older-than", "1h"],
        ["--source", "mail", "--source", "orders", "--newer-than", "1h"],
    ],
)
def test_the_numbers_are_those_of_the_command(pages: TestClient, run: Run, words: list[str]) -> None:
    query = [(word[2:], value) if value else ("no-error", "1") for word, value in zip(*[iter(words)] * 2, strict=True)]
    page = pages.get("/dead/queue", params=[("name", "orders/dead"), *query]).text

    command = ["dead", "report", "orders/dead", "--by", "error", *words]
    document = json.loads(run(*command, "--json", "--by", "hour").stdout)
    hours, errors = len(document["by"]["hour"]), Counter[str]()
    for count, error, *_ in rows(page)[: -hours or None]:
        errors["" if error == "(none)" else error] += int(count)
    assert errors == {one["error"]: one["count"] for one in document["by"]["error"]}
    assert [int(n) for _, n in rows(page)[-hours:] if hours] == [one["count"] for one in document["by"]["hour"]]
    assert f"<dd>{document['count']}</dd>" in page
    assert f"<code>rqttl {shlex.join(command)}</code>" in unescape(page)


def test_a_wrong_filter_is_answered_in_the_words_of_the_command(pages: TestClient) -> None:
    for query, line in {
        "reason=expird": "reason: no such reason 'expird'; did you mean expired?",
        "older-than=soon": "older-than: expected an age such as 7d, or a time",
        "source=a b": "source: ",
    }.items():
        answer = pages.get(f"{LETTERS}&{query}")
        assert (answer.status_code, line in unescape(answer.text)) == (400, True)


def test_a_large_queue_is_read_in_part(pages: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MOST", 3)
    page = pages.get(LETTERS).text
    assert "Read 3 of 7 messages" in page
    assert sum(int(row[0].removeprefix("at least ")) for row in rows(page)[:-1]) == 2
    assert [pages.get(way).status_code for way in links(page, "/dead/queue") if "newer-than" in way] == [200]


def test_a_dashboard_that_hides_bodies_tells_nothing_of_descriptions(visiting: Visiting) -> None:
    hiding = visiting(bodies=False)
    page = hiding.get(LETTERS).text
    assert [row[:3] for row in rows(page)[:2]] == [["4", "orders, rejected", "orders"], ["2", "mail, rejected", "mail"]]
    assert "Error" not in page
    for probe in ("error=V*", "no-error=1", "header=n%3D0"):
        assert hiding.get(f"{LETTERS}&{probe}").status_code == 403


def test_an_error_is_text_and_its_link_selects_it(broker: Broker, pages: TestClient) -> None:
    queue = broker.declare_queue("q", dead_letter="d")
    queue.enqueue(b"")
    queue.receive_many(1)[0].reject("<script>alert(1)</script> \u202e & a=b;c %41 \x1b[2J")
    page = pages.get("/dead/queue?name=d").text
    assert not {"\u202e", "\x1b"} & {*page}
    assert "<script>alert" not in page

    page = pages.get(links(page, "/dead/queue")[0]).text
    [typed] = re.findall(r'name="error" value="([^"]*)"', page)
    again = pages.get("/dead/queue", params={"name": "d", "error": unescape(typed)}).text
    assert [[row[0] for row in rows(one)[:-1]] for one in (page, again)] == [["1"], ["1"]]
