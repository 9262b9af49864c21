"""The application: its routes, what every answer carries, and the pages for what goes wrong."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rqttl import errors, outages, text
from rqttl.dashboard import actions, dead, operations, pages
from rqttl.dashboard.access import Trouble
from rqttl.dashboard.visit import ASSETS, STRANGER, Dashboard, Visit, asset

logger = logging.getLogger("rqttl.dashboard")

#: The longest body of a form, and the longest query, in bytes; and the seconds within which a form has to come.
LONGEST_FORM, LONGEST_QUERY, PATIENCE = 256 * 1024, 4 * 1024, 20.0
#: Requests that ask Redis at a time.
ASKING = 40
#: Headers of each answer. Only files of our own run, load and are styled; nobody frames a page.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # under `no-referrer` Chromium sends `Origin: null` with forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[Visit], Response]
#: The pages that are made from memory, and refresh themselves; then all others; then actions, which take a POST only.
LIVE: dict[str, Handler] = {
    "/": pages.overview,
    "/queues": pages.queues,
    "/dead": dead.dead,
    "/workers": pages.workers,
    "/jobs": actions.jobs,
}
LOOKS: dict[str, Handler] = {
    "/login": lambda visit: RedirectResponse(visit.link("/"), 303),  # `access` asks for a name there
    "/queue": pages.queue,
    "/message": pages.message,
    "/message/body": pages.message_body,
    "/dead/queue": dead.queue,
    "/policies": operations.policies,
    "/explain": operations.explain,
    "/doctor": operations.doctor,
    "/nodes": operations.nodes,
}
ACTS: dict[str, Handler] = actions.ACTS


def application(dashboard: Dashboard, base: str = "") -> ASGIApp:
    """The ASGI application of a dashboard. `base` is the path that a proxy has in front of its own."""
    routes = [Route(path, partial(_answer, dashboard, page, live=True)) for path, page in LIVE.items()]
    routes += [Route(path, partial(_answer, dashboard, page)) for path, page in LOOKS.items()]
    routes += [Route(path, partial(_answer, dashboard, act), methods=["POST"]) for path, act in ACTS.items()]
    # plain routes: a mount of files answers 404 behind a proxy that strips the base path
    routes += [Route(f"/static/{name}", partial(_file, name)) for name in ASSETS]
    routes += [Route("/livez", _alive), Route("/readyz", partial(_ready, dashboard))]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(dashboard.jobs.close)
        await run_in_threadpool(dashboard.sampler.stop)

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(_with_headers), Middleware(GZipMiddleware, minimum_size=1000)],
        exception_handlers={HTTPException: partial(_refusal, dashboard)},
    )
    app.router.redirect_slashes = False
    return _under(base, app) if base else app


def check_base(path: str) -> str:
    """The base path of a proxy, without a slash at its end. Raises `InvalidInput`."""
    base = path.rstrip("/")
    folders = {page.split("/")[1] for page in (*LIVE, *LOOKS, *ACTS, "/static/") if page.count("/") > 1}
    if base and (not re.fullmatch(r"(/[\w~-][\w.~-]*)+", base, re.ASCII) or base[1:] in folders):
        rule = "expected a path such as /queues, which is no folder of the dashboard itself"
        raise errors.InvalidInput(f"--base-path: {rule}, got {text.format_value(path)}")
    return base


def _under(base: str, app: ASGIApp) -> ASGIApp:
    """Takes requests of a proxy that strips the base path, and of one that does not."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path == base and path not in LIVE | LOOKS:
                path += "/"
            scope = {**scope, "root_path": base, "path": path if path.startswith(f"{base}/") else base + path}
        await app(scope, receive, send)

    return answer


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Adds our headers to each answer that has not set its own."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer


async def _answer(dashboard: Dashboard, handler: Handler, request: Request, *, live: bool = False) -> Response:
    """Let a handler answer, in a thread, and explain what it raises."""
    visitor, near, path = STRANGER, None, text.escape(request.scope["path"])
    try:
        visitor = await dashboard.access.visitor(request)
        if len(request.scope["query_string"]) > LONGEST_QUERY:
            raise Trouble(414, f"the address of a page has at most {LONGEST_QUERY:,} bytes after its question mark")
        if request.method == "POST" and not visitor.acts:
            raise Trouble(403, "you may look, and not act")
        fields = await _fields(request) if request.method == "POST" else {}
        await run_in_threadpool(dashboard.sampler.look)  # the first one waits
        # weak, as proxies that pack a page make it; the time tells processes that were forked apart
        mark = f'W/"{_BOOT}-{dashboard.sampler.sample.now}-{visitor.acts:d}"'
        visit = Visit(dashboard, request, visitor, fields)
        if live and request.headers.get("if-none-match") == mark:
            return Response(status_code=304, headers={"ETag": mark})
        response = await to_thread.run_sync(handler, visit, limiter=None if live else _asking())
        if live:
            response.headers["ETag"] = mark
        return response
    except ClientDisconnect:
        raise
    except (Trouble, errors.RqttlError, *outages.TEMPORARY) as error:
        if isinstance(error, errors.ContractError):
            logger.exception("page %s met a bug", path)
        status, message, headers = _explain(error)
        if isinstance(error, errors.QueueNotFound):
            near = dashboard.sampler.sample.nearest(error.queue)
    except Exception:
        number = secrets.token_hex(4)
        logger.exception("page %s failed, id %s", path, number)
        status, message, headers = 500, f"this page failed; the log has the reason under the id {number}", {}
    page = Visit(dashboard, request, visitor).page("error.html", title=message, status=status, near=near)
    page.headers.update(headers)
    return page


def _asking() -> CapacityLimiter:
    """The threads of what asks Redis. While it does not answer, pages from memory and other applications go on."""
    limiter = _LIMITER.get(None) or CapacityLimiter(ASKING)
    _LIMITER.set(limiter)
    return limiter


#: That of each event loop.
_LIMITER = RunVar[CapacityLimiter | None]("rqttl dashboard")
#: Tells the samples of this process from those of an earlier one.
_BOOT = secrets.token_hex(4)


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a form. Raises `Trouble`."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Trouble(415, "a form comes as application/x-www-form-urlencoded")
    body = b""
    try:
        with fail_after(PATIENCE):
            async for part in request.stream():
                body += part
                if len(body) > LONGEST_FORM:
                    raise Trouble(413, f"a form has at most {LONGEST_FORM:,} bytes")
    except TimeoutError:
        raise Trouble(408, f"this form did not come within {PATIENCE:g} s") from None
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=100))
    except ValueError as error:
        raise Trouble(400, f"this is no form: {error}") from error


#: The status and the words for an error; the first kind that it has counts.
STATUSES: tuple[tuple[tuple[type[Exception], ...], int, str], ...] = (
    ((errors.QueueNotFound, errors.PolicyNotFound), 404, "{}"),
    ((errors.ContractError,), 500, "bug: {}"),
    ((errors.InvalidInput,), 400, "{}"),
    ((errors.OutcomeUnknown,), 503, "{}"),
    ((errors.RqttlError,), 409, "{}"),
    ((Exception,), 503, "Redis did not answer, so nothing is known: {}"),
)


def _explain(error: Exception) -> tuple[int, str, Mapping[str, str]]:
    """The status, the words and the headers for an error."""
    if isinstance(error, Trouble):
        return error.status, str(error), error.headers
    status, words = next((status, words) for kinds, status, words in STATUSES if isinstance(error, kinds))
    if outages.is_denied(error):
        status, words = 403, "the Redis user of this dashboard lacks a right: {}"
    return status, words.format(text.without_secrets(str(error))), {}


async def _refusal(dashboard: Dashboard, request: Request, error: Exception) -> Response:
    """The page for an address that no route has, or that takes no such method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: "there is no such page", 405: "this address takes another method"}
    title = words.get(status, "this request was refused")
    return Visit(dashboard, request, STRANGER).page("error.html", title=title, status=status)


async def _file(name: str, request: Request) -> Response:
    content, version = asset(name)
    keep = "public, max-age=31536000, immutable" if request.query_params.get("v") == version else "no-cache"
    return Response(content, media_type=ASSETS[name], headers={"Cache-Control": keep})


async def _alive(_: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _ready(dashboard: Dashboard, _: Request) -> Response:
    away = dashboard.sampler.sample.trouble is not None
    return PlainTextResponse("Redis does not answer\n" if away else "ok\n", 503 if away else 200)
