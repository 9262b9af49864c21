"""`rqttl dashboard`: the queues in a browser, served until it is stopped; and the file of its users."""

from __future__ import annotations

import logging
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rqttl.checks import check_name_or_pattern
from rqttl.cli.common import output, params, running
from rqttl.cli.common.settings import Settings, connecting
from rqttl.text import escape
from rqttl.worker.settings import address

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from rqttl.dashboard.access import ByUsers
    from rqttl.dashboard.users import User

#: Seconds within which a request has to come, and an answer to end when the command ends; connections at a time.
PATIENCE, GRACE, CONNECTIONS = 10.0, 5, 500

_SAFE = "give --users FILE, or --proxy-user-header with --proxy-from; or stay on 127.0.0.1"
_flags = params.with_options(
    click.option("--listen", default="127.0.0.1:9470", show_default=True, metavar="HOST:PORT", help="Serve it here."),
    click.option("--queues", default="*", metavar="PATTERN", help="Only these queues.  [default: all]"),
    click.option("--act", is_flag=True, help="Let those act who may; without it all only look."),
    click.option("--users", type=click.Path(), metavar="FILE", help="Ask for the names and passwords of this file."),
    click.option("--add-user", metavar="NAME", help="Add a user to --users, with --act one who may act, and end."),
    click.option("--hide-bodies", is_flag=True, help="Hide bodies, headers and descriptions of messages."),
    click.option("--host", multiple=True, metavar="NAME", help="Name at which browsers find it, such as a proxy's."),
    click.option("--base-path", default="", metavar="PATH", help="Path of it behind a proxy, such as /queues."),
    click.option("--proxy-user-header", default="", metavar="HEADER", help="Header in which a proxy names the user."),
    click.option("--proxy-from", type=ip_network, multiple=True, metavar="NETWORK", help="Its network: 10.0.0.0/8."),
    click.option("--actors", default="", metavar="NAMES", help="Users of a proxy who may act, such as ada,bob."),
)


@click.command(short_help="Show queues in a browser.", epilog="\b\nExample: rqttl dashboard --queues 'orders.*'")
@_flags
@running.logged
@connecting
def dashboard(settings: Settings, **given: Any) -> None:
    """Show queues, messages, dead letters and workers in a browser.

    Whoever uses this machine may look, and nobody may act. With --act the
    command prints a password for those who act. Another address to listen at
    needs --users, or a proxy that names its users. TLS is the proxy's.
    SIGTERM or Ctrl-C ends the command.
    """
    from rqttl.dashboard import require

    require("starlette", "jinja2", "uvicorn")
    if given["add_user"]:
        _add_user(given["add_user"], given["users"], acts=given["act"])
        return
    from rqttl.dashboard.application import application, check_base
    from rqttl.dashboard.sampler import Sampler
    from rqttl.dashboard.visit import Dashboard

    host, port = address(given["listen"], "listen")
    base, queues = check_base(given["base_path"]), check_name_or_pattern(given["queues"], "queues")
    access = _access(host, given)
    with settings.using() as broker:
        sampler = Sampler(broker, queues)
        sampler.start()
        page = Dashboard(broker, access, sampler, queues, not given["hide_bodies"])
        _serve(application(page, base), host, port, base)


def _access(host: str, given: dict[str, Any]) -> ByUsers:
    """Who may look and act. Raises `UsageError` for what would let in everybody, or nobody."""
    from rqttl.dashboard.access import ByUsers, is_loopback
    from rqttl.dashboard.users import read_users, user_line

    act, header, path = given["act"], given["proxy_user_header"], Path(given["users"] or "")
    actors = {name for name in given["actors"].split(",") if name}
    networks, known = given["proxy_from"], bool(header or given["users"])
    others = [one for one in (host, *given["host"]) if not is_loopback(one)]
    for wrong, words in (
        (others and not known, f"{' '.join(others)}: anybody could look: {_SAFE}"),
        (header and not networks, "--proxy-user-header: anybody could send it: name the proxies with --proxy-from"),
        (not header and (networks or actors), "--proxy-from, --actors: give --proxy-user-header with them"),
        (any(one.prefixlen == 0 for one in networks), "--proxy-from: this is everybody: name the proxies' network"),
        (act and header and not (actors or given["users"]), "--act: nobody could act: name users with --actors"),
        (actors and not act, "--actors: nobody could act: give --act, too"),
    ):
        if wrong:
            raise click.UsageError(words)
    users: Callable[[], dict[str, User]] | None = None
    if act and not known:
        password = secrets.token_urlsafe(12)
        users = partial(read_users, user_line("rqttl", password, acts=True))
        output.note(f"to act, log in as rqttl with the password {password}")
    elif given["users"]:
        users = partial(_users_of, path)
        if not path.is_file() or not users():
            raise click.UsageError(f"--users: {path} has no users: --add-user NAME makes one")
        if (mode := path.stat().st_mode & 0o777) & 0o077:
            output.note(f"others can read {path} (mode {mode:o}): `chmod 600 {path}`", "warning")
    proxy: dict[str, Any] = {"header": header, "networks": networks, "actors": actors}
    return ByUsers(listen=host, users=users, act=act, anybody=not known, hosts=given["host"], **proxy)


def _users_of(path: Path) -> dict[str, User]:
    """The users of a file as it is now."""
    from rqttl.dashboard.users import read_users

    return read_users(path.read_text(encoding="utf-8", errors="replace"))


def _add_user(name: str, file: str | None, *, acts: bool) -> None:
    """Write a user into a file, in the place of one with the same name."""
    from rqttl.dashboard.users import read_users, user_line

    if not file:
        raise click.UsageError("--add-user: name the file with --users FILE")
    path = Path(file)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    read_users("\n".join(lines))
    if sys.stdin.isatty():
        password = click.prompt(f"Password of {escape(name)}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    lines = [one for one in lines if not one.startswith(f"{name}:")] + [user_line(name, password, acts=acts)]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as new:  # of mode 600
        new.write("\n".join(lines) + "\n")
    Path(new.name).replace(path)
    output.note(f"{escape(name)} may {'act' if acts else 'look'}: {file} has the name and what proves the password")


def _serve(app: ASGIApp, host: str, port: int, base: str) -> None:
    """Serve until a signal comes."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from rqttl.runtime.stop_signals import StopSignals

    class Impatient(H11Protocol):
        """Ends a connection on which no request has come in time, or on which one goes on after its answer."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(PATIENCE, self._look, None)

        def _look(self, before: object) -> None:
            if self.scope is before and (self.cycle is None or self.cycle.response_complete):
                self.transport.close()
            elif not self.transport.is_closing():
                self.loop.call_later(PATIENCE, self._look, self.scope)

    try:
        sock = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise click.BadParameter(f"cannot listen on {host}:{port}: {error}", param_hint="'--listen'") from error
    log = logging.getLogger("uvicorn")
    log.setLevel(logging.ERROR)
    log.handlers = logging.getLogger("rqttl").handlers
    off: dict[str, Any] = dict.fromkeys(("access_log", "proxy_headers", "server_header"), False)
    limits: dict[str, Any] = {"limit_concurrency": CONNECTIONS, "timeout_graceful_shutdown": GRACE}
    config = uvicorn.Config(app, http=Impatient, ws="none", loop="asyncio", log_config=None, **off, **limits)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]  # signals are those of all commands
    with StopSignals(lambda: setattr(server, "should_exit", True), ends_process=True), sock:
        place = f"[{host}]" if ":" in host else host
        output.note(f"the dashboard is at http://{place}:{sock.getsockname()[1]}{base}/; Ctrl-C ends it")
        server.run([sock])
