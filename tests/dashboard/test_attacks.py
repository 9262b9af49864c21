"""Attacks on the dashboard: none gets in, none becomes markup, and each leaves every key as it is, byte for byte.

The tables of routes drive them, so a new page or a new action is attacked, too.
"""

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from html.parser import HTMLParser
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from starlette.testclient import TestClient

from rqttl import Broker, Message, dashboard, text
from rqttl.dashboard import application, users
from rqttl.dashboard.access import ByUsers
from rqttl.dashboard.application import ACTS, HEADERS, LIVE, LOOKS
from rqttl.dashboard.sampler import Sampler
from rqttl.dashboard.users import read_users, user_line
from rqttl.dashboard.visit import Dashboard
from rqttl.errors import InvalidPolicy
from rqttl.store.driver import driver_of
from tests.cli.processes import command, environment
from tests.dashboard.test_access import basic
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once

PAGES = (*LIVE, *LOOKS)
OWN, ADA, BOB = ("sec-fetch-site", "same-origin"), basic("ada", "a:é"), basic("bob", "b")
URLENCODED = "application/x-www-form-urlencoded"
#: A value for whatever a page or an action needs.
ASKED = {"name": "orders", "queue": "orders", "id": "m1", "typed": "orders", "to": "orders", "delay": "1h", "body": "x"}
FORM = {**ASKED, "pattern": "#", "max_length": "1", "number": "1", "confirm": "forged"}
Visiting = Callable[..., TestClient]


def fill(broker: Broker) -> None:
    """A queue with a message in each state, and with dead letters."""
    orders = broker.declare_queue("orders", dead_letter="orders/dead")
    orders.enqueue_many([Message(b"secret", id=f"m{i}") for i in range(6)])
    orders.enqueue(b"later", id="later", delay="1h")
    for delivery in orders.receive_many(2, lease="1h")[1:]:
        delivery.reject("no stock")


@contextmanager
def unchanged(client: redis.Redis) -> Iterator[None]:
    before = {key: client.dump(key) for key in client.scan_iter()}
    assert before
    yield
    assert {key: client.dump(key) for key in client.scan_iter()} == before


def carries_all_headers(answer: Any) -> None:
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


@pytest.fixture
def guarded(broker: Broker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The dashboard of the command, where ada may act and bob may look. Nothing changes."""
    monkeypatch.setattr(users, "COST", (2, 1, 1))
    people = read_users("\n".join([user_line("ada", "a:é", acts=True), user_line("bob", "b", acts=False)]))
    access = ByUsers(listen="127.0.0.1", users=lambda: people, act=True, hosts=["queues.test"])
    access.header, access.networks, access.actors = "X-User", [ip_network("10.0.0.0/8")], {"eve"}
    fill(broker)
    app = application.application(Dashboard(broker, access, Sampler(broker)))
    with unchanged(client):
        visitor = TestClient(app, "http://127.0.0.1:9470", follow_redirects=False, client=("192.0.2.7", 5))
        visitor.event_hooks = {"response": [carries_all_headers]}
        yield visitor
        visitor.close()


@contextmanager
def serving(*given: str, first: str = "") -> Iterator[str]:
    """`rqttl dashboard` as a process; the address at which it listens."""
    words = command("dashboard", "--listen", "127.0.0.1:0", *given, first=first)
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            places = (re.search(r"http://([0-9.:]+)/", line) for line in process.stderr or ())
            yield next(place[1] for place in places if place)
        finally:
            process.terminate()


def asked(path: str, **more: object) -> str:
    return f"{path}?{urlencode({**ASKED, **more})}"


def knows_nothing(answer: Any, *statuses: int) -> None:
    """An answer is a refusal, and tells no fact."""
    assert answer.status_code in statuses
    assert not re.search(r"secret|no stock|later|m1|unix:|orders/dead", answer.text)


# Forms that are not of a page of ours, or of somebody who may not act


def test_the_form_that_is_forged_below_acts_when_it_is_not(visiting: Visiting, broker: Broker) -> None:
    fill(broker)

    assert visiting(act=True).post("/queue/pause", data=FORM).status_code == 200
    assert broker.queue("orders").stats().paused


SITES = (
    "sec-fetch-site=none  sec-fetch-site=cross-site  sec-fetch-site=same-site  sec-fetch-site=Same-Origin  "
    "sec-fetch-site=  sec-fetch-site=same-origin, x  sec-fetch-site=same-origin&sec-fetch-site=cross-site  "
    "sec-fetch-site=cross-site&origin=http://127.0.0.1:9470  origin=null  origin=  origin=http://  "
    "origin=127.0.0.1:9470  origin=ftp://127.0.0.1:9470  origin=http://a b  origin=http://evil.test  "
    "origin=http://127.0.0.1  origin=http://127.0.0.1:80  origin=http://127.0.0.1:9470.evil.test  "
    "origin=http://127.0.0.1:9470@evil.test  origin=http://evil.test/127.0.0.1:9470  origin=http://queues.test:1  "
    "origin=http://127.0.0.1:9470&origin=http://evil.test  referer=http://127.0.0.1:9470/  "
    "x-requested-with=XMLHttpRequest  x-http-method-override=GET"
)


@pytest.mark.parametrize("site", SITES.split("  "), ids=str)
def test_a_form_of_another_site_is_refused(guarded: TestClient, site: str) -> None:
    headers = [(name, value) for name, _, value in (one.partition("=") for one in site.split("&"))]
    for path in ACTS:
        knows_nothing(guarded.post(path, data=FORM, headers=[*headers, ("authorization", ADA)]), 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_links_to_pages_and_does_not_load_them(guarded: TestClient, site: str) -> None:
    headers = {"authorization": ADA, "sec-fetch-site": site}
    for path in PAGES:
        for kind in ("image", "empty", "iframe", ""):
            knows_nothing(guarded.get(asked(path), headers=headers | {"sec-fetch-dest": kind}), 403)
    assert guarded.get("/queues", headers=headers | {"sec-fetch-dest": "document"}).status_code == 200


def test_who_may_only_look_has_no_form(guarded: TestClient) -> None:
    for who, places in ((ADA, ["/queue", "/message", "/dead/queue"]), (BOB, [])):
        found = {path: guarded.get(asked(path, id="m2"), headers={"authorization": who}).text for path in PAGES}
        assert [path for path, page in found.items() if 'method="post"' in page] == places


@pytest.mark.parametrize("path", ACTS)
def test_an_action_takes_a_post_of_one_who_may_act(guarded: TestClient, path: str) -> None:
    for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        knows_nothing(guarded.request(method, asked(path), headers=[OWN, ("authorization", ADA)]), 405)
    assert guarded.post(path, data=FORM, headers=[OWN, ("authorization", BOB)]).status_code == 403
    knows_nothing(guarded.post(path, data=FORM, headers=[OWN]), 401)


# Strangers

HOSTS = ",evil.test,localhost.evil.test,127.0.0.1.evil.test,queues.test evil.test,[queues.test],a@b,::1,["


@pytest.mark.parametrize("host", HOSTS.split(","))
def test_a_foreign_host_is_refused_even_with_a_password(guarded: TestClient, host: str) -> None:
    for path in PAGES:
        knows_nothing(guarded.get(asked(path), headers={"host": host, "authorization": ADA}), 403)
    for path in ("/livez", "/readyz"):  # probes have any name, and learn nothing
        knows_nothing(guarded.get(path, headers={"host": host}), 200)


WRONG = [
    basic(*one.split("-")) for one in ("ada-b", "ada-", "eve-b", "-", "ADA-a:é", "ada\0-a:é", f"ada-a:é{' ' * 5000}")
]
WRONG += ["", "Basic", "Basic !", "Basic YWRh", "Basic //8=", f"{ADA}=", f"{ADA},{BOB}"]


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_password_shows_nothing(guarded: TestClient, word: str) -> None:
    for path in PAGES:
        answer = guarded.get(asked(path), headers={"authorization": word})
        knows_nothing(answer, 401, 429)
        assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)


def test_a_stranger_does_not_learn_which_redis_is_away() -> None:
    def may(request: Any) -> Any:
        return request.headers.get("x-right")

    with closing(Broker(redis.Redis(port=1))) as broker, TestClient(dashboard.app(broker, may=may)) as client:
        assert "Redis does not answer" in client.get("/", headers={"x-right": "look"}).text
        for path, status in (("/", 403), ("/nowhere", 404)):
            answer = client.get(path)
            assert (answer.status_code, "Redis" in answer.text, ":1" in answer.text) == (status, False, False)


@pytest.mark.parametrize("more", ["", "X-Forwarded-For", "X-Real-IP", "Forwarded"])
@pytest.mark.parametrize("name", ["X-User", "X_User", "X-Forwarded-User", "Remote-User"])
def test_a_name_from_elsewhere_than_the_proxy_is_dropped(guarded: TestClient, name: str, more: str) -> None:
    headers = [OWN, (name, "eve"), (more or name, "10.0.0.1")]
    knows_nothing(guarded.get("/", headers=headers), 401)
    knows_nothing(guarded.post("/queue/pause", data=FORM, headers=headers), 401)


# Addresses and forms

TRICKS = (
    "/static/../access.py /static/%2e%2e/access.py /static/..%5caccess.py /static/ /static/style.css/ //evil.test/ "
    "//evil.test/queues /queue%2fpurge /QUEUE /queue/ /queue;a=b /queue%00 /templates/base.html /.env /% /static%2f.env"
)


@pytest.mark.parametrize("path", TRICKS.split())
def test_a_trick_with_the_path_finds_nothing(guarded: TestClient, path: str) -> None:
    answer = guarded.get(f"http://127.0.0.1:9470{path}?name=orders", headers={"authorization": ADA})

    knows_nothing(answer, 404, 405)
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    "kind, body, status",
    [
        *[(kind, b"name=orders", 415) for kind in ("", "text/plain", "application/json", "multipart/form-data")],
        (URLENCODED, b"a=" + b"x" * 2**24, 413),
        *[(URLENCODED, body, 400) for body in (b"", b"a=%ff", b"\xff", b"a&" * 101, b"name=orders%00&confirm=1")],
        (URLENCODED, b"name=" + b"o" * 129 + b"&confirm=1", 400),
    ],
)
def test_what_is_no_form_does_nothing(guarded: TestClient, kind: str, body: bytes, status: int) -> None:
    for path in ACTS:
        answer = guarded.post(path, content=body, headers=[OWN, ("authorization", ADA), ("content-type", kind)])
        assert answer.status_code in ((status, 404) if status == 400 else (status,))


HALF = f"""POST /queue/pause HTTP/1.1\r\nHost: localhost\r\n{OWN[0]}: {OWN[1]}\r\nAuthorization: {ADA}\r
Content-Type: {URLENCODED}\r\nContent-Length: 99\r\n\r\nname="""


@pytest.mark.slow
@pytest.mark.parametrize(
    "start, end",
    [("", ""), ("GET / HTTP/1.1\r\nHost:", ""), ("GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET", "ok\n"), (HALF, "408")],
)
def test_a_connection_that_goes_on_too_slowly_ends(redis_url: str, tmp_path: Path, start: str, end: str) -> None:
    (tmp_path / "users").write_text(user_line("ada", "a:é", acts=True))
    given = ("--url", redis_url, "--users", str(tmp_path / "users"), "--act")
    first = "from rqttl.cli import dashboard as one; from rqttl.dashboard import application as two"
    with serving(*given, first=f"{first}; one.PATIENCE = two.PATIENCE = 0.2") as place:
        host, _, port = place.partition(":")
        with socket.create_connection((host, int(port)), PATIENCE) as slow:
            slow.sendall(start.encode())
            assert end in b"".join(iter(lambda: slow.recv(4096), b"")).decode()


STRANGE: list[dict[str, str]] = [
    *[{"page": one} for one in ("0", "-1", "1e9", "9" * 30, "\u0661", "<x-evil>")],
    *[{"name": one, "queue": one} for one in ("<x-evil>", "a\0", "../orders", "o" * 129, "\u202e", "o\r\nX-Evil: 1")],
    *[{"id": one} for one in ("<x-evil>", "i" * 300, "\0")],
    dict.fromkeys(("state", "sort", "span", "ttl", "q", "header", "reason", "older-than", "id-in"), "<x-evil>"),
    {"error": "<x-evil>" * 99},
]


@pytest.mark.parametrize("more", STRANGE)
def test_a_strange_address_is_answered_in_words(guarded: TestClient, more: dict[str, str]) -> None:
    for path in PAGES:
        answer = guarded.get(asked(path, **more), headers={"authorization": BOB})
        assert answer.status_code in (200, 303, 400, 404)
        Page(answer)
        assert guarded.get(asked(path, x="x" * 4096), headers={"authorization": BOB}).status_code == 414


# Texts of strangers


class Page(HTMLParser):
    """The words of a page. Raises for what no template has."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.words = ""
        if answer.headers.get("content-type", "").startswith("text/html"):
            self.feed(answer.text)
        elif answer.status_code != 303:
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["content-disposition"].startswith("attachment")

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        named = {name: value or "" for name, value in attrs}
        assert tag not in ("style", "iframe", "object", "embed", "base", "x-evil")
        assert not [one for one in named if one.startswith("on") or one in ("style", "srcdoc", "formaction", "x-evil")]
        assert tag != "script" or named.keys() == {"src", "defer"}
        assert all(re.match(r"(/(?!/)|#)", named[one]) for one in ("href", "src", "action") if one in named)
        self._judge("".join(value for value in named.values() if named.get("type") != "hidden"))

    def handle_data(self, data: str) -> None:
        self._judge(data)
        self.words += data.replace("\n", "\\n")

    def _judge(self, words: str) -> None:
        assert words.replace("\n", "").isprintable()


EVIL = (
    '<x-evil>  <script x-evil>alert(1)</script>  <svg/onload=alert(1) x-evil>  "><img x-evil src=x onerror=alert(1)>  '
    "' x-evil='  \" x-evil onfocus=alert(1) autofocus=\"  ` x-evil=`  </title><x-evil>  </textarea></pre><x-evil>  "
    "--><x-evil>  ]]><x-evil>  &lt;x-evil&gt;  &#60;x-evil>  \\u003cx-evil>  %3Cx-evil%3E  +ADw-x-evil+AD4-  "
    "{{ 7 * 7 }}<x-evil>  {% raw %}<x-evil>  javascript:alert(1)//<x-evil>  \uff1cx-evil\uff1e  "
    "\x1b[31m<x-evil>  a\0<x-evil>  "
    "\r\nX-Evil: 1\r\n\r\n<x-evil>  \x9b1m  \u2028<x-evil>  \u202e<x-evil>  \u2066a\u2069  \u200f  "
    "a\u200bb\ufeff  \U000e0041"
)


@pytest.mark.parametrize("evil", EVIL.split("  "))
def test_a_text_of_a_stranger_stays_a_text_on_each_page(
    broker: Broker, client: redis.Redis, visiting: Visiting, evil: str
) -> None:
    queue, id = broker.declare_queue("evil", dead_letter="dead"), evil if evil.isprintable() else ""
    queue.enqueue(Message({evil: evil}, id=f"2{id}", headers={f"h{evil}": f"v{evil}"}, subject=f"1{id}"))
    for delivery in queue.receive_many(1):
        delivery.reject(f"d{evil}")
    queue.enqueue(Message(f"b{evil}".encode(), id=f"1{id}", headers={f"h{evil}": f"v{evil}"}))
    with suppress(InvalidPolicy):
        broker.set_policy("p", evil, {"lease": "1m"}, syntax="regex")
    now = int(broker.server_time().timestamp() * 1000)
    entry: dict[str, Any] = dict.fromkeys(("role", "host", "program", "version"), f"r{evil}")
    entry |= dict.fromkeys(("pid", "slots", "handled", "failed", "rss", "prefetch"), 1)
    entry |= dict.fromkeys(("beat", "started", "last_claim"), now) | {"lives": 9**9, "queues": ["evil", evil]}
    entry |= {"running": [("evil", evil, now)], "held": {"evil": (1, now, now, {})}}
    client.hset(driver_of(broker).keyspace.workers, evil, json.dumps(entry))
    broker.declare_queue("broken")
    client.hset("rqttl:{broken}:meta", "max_length", evil)
    words, visitor = "", visiting(act=True)
    with unchanged(client):
        for path in PAGES:
            for name, number in (("evil", 1), ("dead", 2), ("broken", 1)):
                given = {"name": name, "queue": name, "id": f"{number}{id}"}
                for more in ({}, dict.fromkeys(("q", "error", "ttl", "state", "header"), evil)):
                    words += Page(visitor.get(asked(path, **given, **more))).words
    for place in "bhvdr":
        assert f"{place}{text.escape(evil)}" in words


@pytest.mark.parametrize(
    "large", [{"body": b"\xff" * 2**24}, {"headers": {f"{i:x}": i for i in range(8_000)}}, {"id": "i" * 255}]
)
def test_what_is_very_large_is_shown_in_part(
    broker: Broker, client: redis.Redis, visiting: Visiting, large: dict[str, Any]
) -> None:
    queue, visitor = broker.declare_queue("n" * 128, dead_letter="d" * 128), visiting(act=True)
    message = Message(**{"body": b"x", "id": "m1", **large})
    queue.enqueue_many([message, message])
    for delivery in queue.receive_many(1):
        delivery.reject("d" * 4096)
    with unchanged(client):
        for path in {*PAGES} - {"/message/body"}:
            for name in (queue.name, "d" * 128):
                answer = visitor.get(asked(path, name=name, queue=name, id=message.id))
                assert answer.status_code in (200, 404)
                assert len(answer.content) < 2**20
                Page(answer)


# What holds for all

TEMPLATES = sorted((Path(dashboard.__file__).parent / "templates").iterdir())


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_nothing_inline_and_escapes_all(path: Path) -> None:
    content = re.sub(r"""<script src="{{ asset\('[\w.]+'\) }}" defer></script>""", "", path.read_text(encoding="utf-8"))

    assert not re.search(r"\|\s*safe|autoescape|<script|<style|\sstyle=|\son\w+=|javascript:|https?://", content)
    environment = Dashboard(None, None, None).environment  # type: ignore[arg-type]
    assert (environment.autoescape, environment.from_string("{{ a }}").render(a="\u202e<")) == (True, "\\u202e&lt;")
