"""The dashboard within other applications, and behind proxies: each link, form and asset of its pages leads on."""

import html
import re
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from rqttl import Broker
from rqttl.dashboard import app
from rqttl.dashboard.application import LIVE, LOOKS
from rqttl.dashboard.users import user_line
from tests.dashboard.filling import ask
from tests.dashboard.test_attacks import fill, serving

pytestmark = pytest.mark.once


#: Pages to come, which the menu has already.
LATER = {"/policies", "/explain", "/doctor", "/nodes"} - {*LIVE, *LOOKS}


def walk(client: Any, base: str) -> set[str]:
    """Follow the links of all pages, one for each page and set of names in its query. Returns the paths."""
    seen: set[tuple[str, ...]] = set()
    todo = [f"{base}/"]
    while todo:
        address = todo.pop()
        path, _, query = address.partition("?")
        if (kind := (path, *sorted(name for name, _ in parse_qsl(query)))) in seen:
            continue
        seen.add(kind)
        answer = client.get(address)
        assert answer.status_code == 200 or path.removeprefix(base) in LATER, address
        for tag, attributes in re.findall(
            r"<(\w+)([^>]*)>", answer.text if "html" in answer.headers["content-type"] else ""
        ):
            for place in re.findall(r' (?:href|src|action|data-from)="([^"#]*)"', attributes):
                assert place.startswith(f"{base}/"), place
                todo += [] if "post" in attributes or tag == "form" else [html.unescape(place)]
    return {path for path, *_ in seen}


# Within other applications


def in_starlette(dashboard: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount("/queues", dashboard)])


def in_fastapi(dashboard: ASGIApp) -> ASGIApp:
    site = FastAPI()
    site.mount("/queues", dashboard)
    return site


def in_django(dashboard: ASGIApp) -> ASGIApp:
    """As in an `asgi.py`: its application, and the dashboard beside it."""
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if not settings.configured:
        settings.configure(ROOT_URLCONF=(), ALLOWED_HOSTS=["*"], SECRET_KEY="any")
    return Starlette(routes=[Mount("/queues", dashboard), Mount("/", get_asgi_application())])


def may(request: Request) -> Any:
    return request.headers.get("x-right")


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, in_django])
def test_all_links_lead_on_within_another_application(broker: Broker, mount: Callable[[ASGIApp], ASGIApp]) -> None:
    fill(broker)
    site = mount(app(broker, may=may))
    with TestClient(site, "http://shop.test", headers={"x-right": "act", "sec-fetch-site": "same-origin"}) as client:
        paths = walk(client, "/queues")
        assert {"/queues/", "/queues/queue", "/queues/message", "/queues/static/script.js"} <= paths
        assert ask(client, "/queues/queue/pause?name=orders").confirm().status == 200
        assert [client.get("/queues/", headers={"x-right": right}).status_code for right in ("look", "", "x")] == [
            200,
            403,
            403,
        ]
        assert client.get("/elsewhere").status_code == 404
    assert broker.queue("orders").stats().paused


# Behind proxies


@pytest.fixture
def proxy() -> Iterator[Callable[..., ThreadingHTTPServer]]:
    """A proxy of the path /a/b, which may strip it, and may give the server a `Host` of its own."""
    servers = []

    def start(*, strips: bool, renames: bool) -> ThreadingHTTPServer:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = dict(self.headers) | ({"Host": self.server.to} if renames else {})  # type: ignore[attr-defined]  # below
                path = self.path.removeprefix("/a/b") if strips else self.path
                connection = HTTPConnection(self.server.to)  # type: ignore[attr-defined]  # below
                connection.request(self.command, path, body, headers)
                answer = connection.getresponse()
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.read())
                connection.close()

            do_POST = do_GET  # noqa: N815  # the name that http.server calls

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever).start()
        return servers[-1]

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("strips, renames", [(True, False), (False, False), (True, True), (False, True)])
def test_all_links_lead_on_behind_a_proxy(
    broker: Broker, redis_url: str, tmp_path: Path, proxy: Any, strips: bool, renames: bool
) -> None:
    fill(broker)
    (tmp_path / "users").write_text(user_line("ada", "a", acts=True))
    server = proxy(strips=strips, renames=renames)
    place = f"127.0.0.1:{server.server_address[1]}"
    given = ("--base-path", "/a/b/", "--act", "--users", str(tmp_path / "users"), "--url", redis_url)
    with (
        serving(*given, *("--host", place) * renames) as server.to,
        httpx2.Client(base_url=f"http://{place}", auth=("ada", "a"), headers={"origin": f"http://{place}"}) as client,
    ):
        paths = walk(client, "/a/b")
        assert {"/a/b/", "/a/b/queue", "/a/b/message", "/a/b/static/script.js"} <= paths
        assert client.get("/a/b/login").headers["location"] == "/a/b/"
        assert ask(client, "/a/b/queue/pause?name=orders").confirm().status == 200
        evil = {"origin": "http://evil.test"}
        assert client.post("/a/b/queue/resume", data={"name": "orders"}, headers=evil).status_code == 403
    assert broker.queue("orders").stats().paused
