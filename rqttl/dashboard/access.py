"""Who visits the dashboard, and what they may do.

An application that mounts it decides by a function of the request. The command decides by users, by a proxy, and by the
address at which it listens. There is no session, cookie or token: a form counts if the browser says that it comes from
a page of this host.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from rqttl import text
from rqttl.dashboard.users import NOBODY, User
from rqttl.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request

logger = logging.getLogger("rqttl.dashboard")

#: Seconds for which a right password is not computed again; failures of an address in so many seconds, then it waits.
REMEMBERED, FAILURES, WINDOW = 300.0, 10, 60.0
#: Passwords that are checked at a time, since each takes a core and 16 MB; and how many may wait for it.
AT_A_TIME, WAITING = 2, 16
#: What makes a browser ask for a name and a password.
CHALLENGE = {"WWW-Authenticate": 'Basic realm="rqttl", charset="UTF-8"'}

_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_PORTS = {"http": "80", "https": "443"}
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who made a request. `acts` tells whether they may act, or only look."""

    user: str
    address: str
    acts: bool


class Trouble(Exception):
    """A request that gets a page with the reason in place of its answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class Access:
    """What both ways to decide share. `hosts` are further names, with a port if need be, of the dashboard."""

    #: Whether somebody who looks may give a name and a password, to act.
    has_login = False
    hosts: Sequence[str] = ()

    async def visitor(self, request: Request) -> Visitor:
        """Who made the request. Raises `Trouble`."""
        if request.method not in ("GET", "HEAD") and not self._is_own_form(request):
            raise Trouble(403, "this form does not come from a page of this dashboard")
        if {"cross-site", "same-site"} & {*request.headers.getlist("sec-fetch-site")} and (
            request.headers.getlist("sec-fetch-dest") != ["document"]
        ):  # as a picture or a frame it would let Redis work for whoever lures a visitor
            raise Trouble(403, "a page of another site may link to this one, and not load it")
        address = request.client.host if request.client else ""
        user, acts = await self._who(request, address)
        return Visitor(user, address, acts)

    def _is_own_form(self, request: Request) -> bool:
        """Whether a browser says that a page of this host sent a request. Plain HTTP has no `Sec-Fetch-Site`."""
        if site := request.headers.getlist("sec-fetch-site"):
            return site == ["same-origin"]
        scheme, _, rest = ",".join(request.headers.getlist("origin")).partition("://")
        name, port = _place(rest)
        ours = map(_place, (request.headers.get("host", ""), *self.hosts))
        return scheme in _PORTS and name != "" and (name, "" if port == _PORTS[scheme] else port) in ours

    async def _who(self, request: Request, address: str) -> tuple[str, bool]:
        raise NotImplementedError


class ByHost(Access):
    """The application that mounts the dashboard decides, by `may`, and checks `Host` itself."""

    def __init__(self, may: Callable[[Request], object] | None, hosts: Sequence[str] = ()) -> None:
        self._may, self.hosts = may or (lambda _: None), hosts

    async def _who(self, request: Request, address: str) -> tuple[str, bool]:
        try:
            right = await run_in_threadpool(self._may, request)  # a thread, since it may ask a database
            right = await right if isinstance(right, Awaitable) else right
            if right not in (None, "look", "act"):
                raise InvalidInput(f"may: expected None, 'look' or 'act', got {text.format_value(right)}")
            user = request.scope.get("user", "")
            name = str(getattr(user, "display_name", user))
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody gets in by it
            logger.error("`may` of the dashboard failed for %s: %s", address, text.escape(_causes(error)))
            right = None
        if right is None:
            raise Trouble(403, "you may not look at these queues")
        return name, right == "act"


@dataclass(kw_only=True)
class ByUsers(Access):
    """The command decides: by the header of a proxy, by a password, and by the host `listen`.

    `users` gives the users of now by name. Without a name `anybody` looks. Nobody acts without `act`. A request from
    one of `networks` names its user in `header`; of those, `actors` may act.
    """

    listen: str
    users: Callable[[], Mapping[str, User]] | None = None
    act: bool = False
    anybody: bool = False
    header: str = ""
    networks: Sequence[Network] = ()
    actors: Collection[str] = ()
    hosts: Sequence[str] = ()
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.has_login = self.act and self.anybody and self.users is not None
        self._key = secrets.token_bytes(32)
        self._threads = ThreadPoolExecutor(AT_A_TIME, "rqttl-password")
        self._checks: dict[bytes, Future[bool]] = {}
        self._right: dict[str, tuple[float, bytes, bool]] = {}
        self._failures: list[tuple[float, str, bytes]] = []

    async def _who(self, request: Request, address: str) -> tuple[str, bool]:
        host = _place(request.headers.get("host", ""))[0]
        # the address at which the connection came is ours, too, if we listen at all of them
        ours = self.listen.lower(), (request.scope.get("server") or ("",))[0], *(_place(one)[0] for one in self.hosts)
        if not host or not (is_loopback(host) or host in ours):
            raise Trouble(403, f"{text.format_value(host)} is no name of this dashboard: `--host` gives it one")
        name = request.headers.getlist(self.header) if self.header and _is_in(address, self.networks) else []
        if len(name) == 1 and name[0]:
            return name[0], self.act and name[0] in self.actors
        if self.users and (given := _credentials(request)):
            acts = await self._proved(*given, address)
            return given[0], self.act and acts
        if self.anybody and request.method in ("GET", "HEAD") and not request.scope["path"].endswith("/login"):
            return "", False
        if self.users:
            raise Trouble(401, "this dashboard wants a name and a password", CHALLENGE)
        raise Trouble(403, "you may look, and not act" if self.anybody else "the proxy does not say who you are")

    async def _proved(self, name: str, password: str, address: str) -> bool:
        """Whether a user with a right password may act. Raises `Trouble`."""
        now, mark = self.now(), hmac.digest(self._key, f"{name}:{password}".encode(), "sha256")
        until, known, acts = self._right.get(name, (now, b"", False))
        if hmac.compare_digest(mark, known) and now < until:
            return acts
        if not (check := self._checks.get(mark)):  # requests for the parts of one page share it
            self._failures = [one for one in self._failures if one[0] > now - WINDOW]
            if len(times := [one[0] for one in self._failures if one[1] == address]) >= FAILURES:
                wait = int(times[0] + WINDOW - now) + 1
                raise Trouble(429, "too many wrong passwords: wait a minute", {"Retry-After": str(wait)})
            if len(self._checks) >= WAITING:
                raise Trouble(503, "too many passwords at a time: try again", {"Retry-After": "2"})
            self._failures.append((now, address, mark))  # before it is one, so that many at a time do not get around
            check = self._checks[mark] = self._threads.submit(self._check, name, password, mark, address)
            check.add_done_callback(lambda _: self._checks.pop(mark, None))
        if not await asyncio.shield(asyncio.wrap_future(check)):
            raise Trouble(401, "this name and this password do not fit", CHALLENGE)
        self._failures = [one for one in self._failures if one[2] != mark]
        return self._right[name][2]

    def _check(self, name: str, password: str, mark: bytes, address: str) -> bool:
        """Whether a password is right, in a thread."""
        try:
            user, trouble = self.users().get(name) if self.users else None, "wrong name or password"
        except (OSError, ValueError) as error:
            user, trouble = None, str(error)
        if (user or NOBODY).has(password) and user:
            self._right[name] = self.now() + REMEMBERED, mark, user.acts
            return True
        logger.warning("%s: %s from %s may not come in", trouble, text.escape(name, 64), address)
        return False


def is_loopback(host: str) -> bool:
    """Whether a host, as in a URL, is this machine for itself."""
    return host == "localhost" or _is_in(host, _LOOPBACK)


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        return any(ip_address(address) in network for network in networks)
    except ValueError:
        return False


def _place(words: str) -> tuple[str, str]:
    """The name, in small letters, and the port of `HOST:PORT`; two empty words if it is none."""
    match = _PLACE.fullmatch(words)
    return (match[1].lower().strip("[]").removesuffix("."), match[2] or "") if match else ("", "")


def _credentials(request: Request) -> tuple[str, str] | None:
    """The name and the password of a request."""
    scheme, _, word = request.headers.get("authorization", "").partition(" ")
    try:
        name, colon, password = base64.b64decode(word[:1024], validate=True).decode().partition(":")
    except ValueError:
        return None
    return (name, password) if colon and scheme.lower() == "basic" else None


def _causes(error: BaseException) -> str:
    """An error and what it came from, in one line."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{type(error).__name__}: {error}{f'; because of {_causes(cause)}' if cause else ''}"
