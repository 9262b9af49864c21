"""Who visits the dashboard, and what they may do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who made a request. `acts` tells whether they may act, or only look."""

    user: str
    address: str
    acts: bool


class Denied(Exception):
    """A request that is not answered, with the status, the words and the headers of the answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


class Access(Protocol):
    """Decides who may visit."""

    async def visitor(self, request: Request) -> Visitor:
        """Who made the request. Raises `Denied`."""


class ByHost:
    """The application that mounts the dashboard decides, by a function of the request."""

    def __init__(self, may: Callable[[Request], object] | None, hosts: Sequence[str] = ()) -> None:
        self._may, self._hosts = may, hosts

    async def visitor(self, request: Request) -> Visitor:
        """Who made the request. Raises `Denied`."""
        right = self._may(request) if self._may else None
        if inspect.isawaitable(right):
            right = await right
        if right not in ("look", "act"):
            raise Denied(403, "you may not look at these queues")
        return Visitor("", request.client.host if request.client else "", right == "act")
