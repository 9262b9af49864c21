"""A dashboard: what is in the queues, what died and why, and the few actions that help.

`app` makes an ASGI application that FastAPI, Starlette or Django's ASGI mounts; `rqttl dashboard` serves it by itself.
It needs the extra `dashboard`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from rqttl.errors import RqttlError
from rqttl.text import install

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from rqttl.broker import Broker

__all__ = ["DashboardUnavailable", "app"]

#: What a visitor may do; `None` for nothing.
Right = Literal["look", "act"] | None


class DashboardUnavailable(RqttlError, ImportError):
    """A package that the dashboard needs is not installed."""

    code = "dashboard_unavailable"


def require(*packages: str) -> None:
    """Import packages. Raises `DashboardUnavailable` with the command that installs them."""
    for name in packages:
        try:
            import_module(name)
        except ImportError as error:
            raise DashboardUnavailable(f"the dashboard needs the package {name}: {install('dashboard')}") from error


def app(
    broker: Broker,
    *,
    may: Callable[[Request], Right | Awaitable[Right]] | None = None,
    queues: str = "*",
    bodies: bool = True,
    hosts: Sequence[str] = (),
) -> ASGIApp:
    """An ASGI application that shows the queues of a broker, to mount in another one.

    `may` tells what the sender of a request may do: nothing (`None`), `"look"` or `"act"`. Without it, and if it
    raises, the answer is 403. It may be a coroutine function. `queues` is a pattern of all that it reaches. Without
    `bodies` it hides bodies, headers and descriptions of messages. A form must come from a page of the same host as the
    request; `hosts` names further ones, such as that of a proxy.

    It reads nothing until somebody looks, and stops an hour after the last look. Raises `DashboardUnavailable`.
    """
    require("starlette", "jinja2")
    from rqttl.dashboard.access import ByHost
    from rqttl.dashboard.application import application
    from rqttl.dashboard.sampler import Sampler
    from rqttl.dashboard.visit import Dashboard

    return application(Dashboard(broker, ByHost(may, hosts), Sampler(broker, queues), queues, bodies))
