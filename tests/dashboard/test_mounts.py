"""The dashboard within other applications, and behind proxies: each link, form and asset of its pages leads on."""

import html
import re
import runpy
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.test import Client
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import ASGIApp

import rqttl
from rqttl import Broker
from rqttl.dashboard import app
from rqttl.dashboard.users import user_line
from tests.dashboard.filling import ask
from tests.dashboard.test_attacks import fill, serving
from tests.repository import ROOT

pytestmark = pytest.mark.once


def walk(client: Any, base: str) -> None:
    """Follow the links of all pages, one for each page and set of names in its query."""
    seen: set[tuple[str, ...]] = set()
    todo = [f"{base}/"]
    while todo:
        path, _, query = (address := todo.pop()).partition("?")
        if (kind := (path, *sorted(name for name, _ in parse_qsl(query)))) in seen:
            continue
        seen.add(kind)
        answer = client.get(address)
        assert answer.status_code == 200, address
        content = answer.text if "html" in answer.headers["content-type"] else ""
        for tag, place in re.findall(r'<(\w+)(?:[^>]* )(?:href|src|action|data-from)="([^"#]*)"', content):
            assert place.startswith(f"{base}/"), place
            todo += [html.unescape(place)] if tag != "form" else []
    paths = {path.removeprefix(base) for path, *_ in seen}
    assert paths >= {"/", "/queue", "/message", "/dead/queue", "/static/script.js"}


def may(request: Request) -> Any:
    return request.headers.get("x-right")


def in_fastapi(dashboard: ASGIApp) -> ASGIApp:
    site = FastAPI()
    site.mount("/queues", dashboard)
    return site


def in_starlette(dashboard: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount("/queues", dashboard)])


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette])
def test_all_links_lead_on_within_another_application(broker: Broker, mount: Callable[[ASGIApp], ASGIApp]) -> None:
    fill(broker)
    headers = {"x-right": "act", "sec-fetch-site": "same-origin"}
    with TestClient(mount(app(broker, may=may)), "http://shop.test", headers=headers) as client:
        walk(client, "/queues")
        assert ask(client, "/queues/queue/pause?name=orders").confirm().status == 200
        assert client.get("/elsewhere").status_code == 404
        got = [client.get("/queues/", headers={"x-right": right}).status_code for right in ("look", "", "x")]
    assert (got, broker.queue("orders").stats().paused) == ([200, 403, 403], True)


def test_the_guide_of_django_mounts_it_for_users_of_the_site(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:users?mode=memory&cache=shared"}
    apps = [f"django.contrib.{name}" for name in ("auth", "contenttypes", "sessions")]
    settings.configure(
        ROOT_URLCONF=(), ALLOWED_HOSTS=["*"], SECRET_KEY="any", INSTALLED_APPS=apps, DATABASES={"default": users}
    )
    inner = {"application": get_asgi_application()}
    from django.contrib.auth.models import User

    call_command("migrate", verbosity=0)
    monkeypatch.setattr(rqttl, "connect", lambda: broker)
    guide = (ROOT / "docs/guides/django.md").read_text(encoding="utf-8")
    file = tmp_path / "asgi.py"
    file.write_text(guide.partition("# mysite/asgi.py\n")[2].partition("```")[0], encoding="utf-8")
    site = runpy.run_path(str(file), inner)["application"]
    fill(broker)

    def come(**rights: bool) -> TestClient:
        visitor = Client()
        visitor.force_login(User.objects.create(username=str(rights), **rights))
        cookies, headers = {"sessionid": visitor.cookies["sessionid"].value}, {"sec-fetch-site": "same-origin"}
        return TestClient(site, "http://shop.test", cookies=cookies, headers=headers)

    with come(is_superuser=True) as client, come(is_staff=True) as staff, come() as other:
        walk(client, "/queues")
        assert client.get("/elsewhere").status_code == 404
        assert [who.get("/queues/").status_code for who in (staff, other)] == [200, 403]
        assert "/queue/pause" not in staff.get("/queues/queue?name=orders").text
        assert ask(client, "/queues/queue/pause?name=orders").confirm().status == 200
    assert broker.queue("orders").stats().paused


class Proxy(BaseHTTPRequestHandler):
    """Passes /a/b on to a server. It may strip that path, and give the server a `Host` of its own."""

    to, strips, renames = "", False, False

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with closing(HTTPConnection(self.to)) as connection:
            path = self.path.removeprefix("/a/b") if self.strips else self.path
            connection.request(
                self.command, path, body, dict(self.headers) | ({"Host": self.to} if self.renames else {})
            )
            answer = connection.getresponse()
            self.send_response_only(answer.status)
            for header in answer.getheaders():
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(answer.read())

    do_POST = do_GET  # noqa: N815  # the name that http.server calls

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("strips, renames", [(True, False), (False, False), (True, True), (False, True)])
def test_all_links_lead_on_behind_a_proxy(
    broker: Broker, redis_url: str, tmp_path: Path, strips: bool, renames: bool
) -> None:
    fill(broker)
    (tmp_path / "users").write_text(user_line("ada", "a", acts=True))
    given = ("--base-path", "/a/b/", "--act", "--users", str(tmp_path / "users"), "--url", redis_url)
    handler: Any = type("Own", (Proxy,), {"strips": strips, "renames": renames})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        place = f"127.0.0.1:{server.server_port}"
        own, evil = {"origin": f"http://{place}"}, {"origin": "http://evil.test"}
        Thread(target=server.serve_forever).start()
        try:
            with (
                serving(*given, *("--host", place) * renames) as handler.to,
                httpx2.Client(base_url=f"http://{place}", auth=("ada", "a"), headers=own) as client,
            ):
                walk(client, "/a/b")
                assert client.get("/a/b/login").headers["location"] == "/a/b/"
                assert ask(client, "/a/b/queue/pause?name=orders").confirm().status == 200
                assert client.post("/a/b/queue/resume", data={"name": "orders"}, headers=evil).status_code == 403
        finally:
            server.shutdown()
    assert broker.queue("orders").stats().paused
