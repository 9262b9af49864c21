"""One request: who made it, what it asks for, and the page that answers it."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as exactly
from starlette.responses import HTMLResponse, Response

from rqttl import outages, text
from rqttl.dashboard import charts
from rqttl.dashboard.access import Trouble, Visitor
from rqttl.dashboard.jobs import Jobs, Outcomes
from rqttl.errors import QueueNotFound
from rqttl.options import OPTIONS
from rqttl.units import as_size

if TYPE_CHECKING:
    from starlette.requests import Request

    from rqttl.broker import Broker
    from rqttl.dashboard.access import Access
    from rqttl.dashboard.sampler import Sampler
    from rqttl.doctor import Finding
    from rqttl.queue import Queue

T = TypeVar("T")
#: The files that pages load, with their media types.
ASSETS = {
    "style.css": "text/css",
    "script.js": "text/javascript",
    "idiomorph.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

#: Somebody who was not let in, or not asked.
STRANGER = Visitor("", "", acts=False)


@contextmanager
def looking_at_messages() -> Iterator[None]:
    """A context for reads that are scripts, which not every user may call. Raises `Trouble`."""
    try:
        yield
    except outages.TEMPORARY as error:
        if not outages.is_denied(error):
            raise
        role = "one with the role `viewer` may: `rqttl acl generate --role viewer` prints its rights"
        raise Trouble(403, f"the Redis user of this dashboard may not look at messages; {role}") from error


def quoted(*words: str) -> str:
    """Words of a shell that a command takes as they are, also those of a stranger that look like its options."""
    return shlex.join([*["--"] * any(word.startswith("-") for word in words), *words])


@cache
def asset(name: str) -> tuple[bytes, str]:
    """The content of a file that pages load, and its version."""
    content = (resources.files("rqttl.dashboard") / "static" / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


def shown(value: object) -> object:
    """A value as pages show it: control, invisible and bidirectional characters are escaped."""
    return text.escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rqttl.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": text.format_age,
        "number": lambda value: "-" if value is None else text.format_count(value),
        "plural": text.plural,
        "chart": charts.chart,
        "rate": text.format_rate,
        "size": lambda value: "-" if value is None else as_size(value),
        "flag": lambda name: name.replace("_", "-"),
        "setting": lambda value, name: OPTIONS[name].format(value),
        "spark": charts.spark,
        "time": lambda at: text.format_time(at, at, utc=True),
        # the value of a hidden field, which must come back as it is
        "hidden": exactly,
        # lines of a body, of which each is escaped alone
        "lines": lambda value: Markup("\n").join(text.escape(line) for line in value.split("\n")),
    }
    environment.globals["OPTIONS"] = OPTIONS
    return environment


class Kept(Generic[T]):
    """What one visitor lets make, and all see for some seconds. It is made by one at a time."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._lock = seconds, clock, Lock()
        self._made: tuple[float, T] | None = None

    def get(self) -> tuple[timedelta, T] | None:
        """What is kept, with its age; `None` without it."""
        made = self._made
        age = self._clock() - made[0] if made else 0
        return (timedelta(seconds=age), made[1]) if made and age < self._seconds else None

    def make(self, make: Callable[[], T]) -> None:
        """Make it, unless it is kept or somebody else makes it now."""
        if self._lock.acquire(blocking=False):
            try:
                if self.get() is None:
                    self._made = self._clock(), make()
            finally:
                self._lock.release()


@dataclass(frozen=True)
class Dashboard:
    """What all requests share. Without `bodies` pages hide bodies, headers and descriptions of messages."""

    broker: Broker
    access: Access
    sampler: Sampler
    queues: str = "*"
    bodies: bool = True
    jobs: Jobs = field(default_factory=Jobs)
    outcomes: Outcomes = field(default_factory=Outcomes)
    environment: Environment = field(default_factory=_environment)
    findings: Kept[list[Finding]] = field(default_factory=Kept)

    def shows(self, queue: str) -> bool:
        """True for a queue of those that this dashboard shows."""
        return fnmatchcase(queue, self.queues)

    def refuse_hidden(self, *queues: str) -> None:
        """Raise `QueueNotFound` for a queue that this dashboard hides, so that no action reaches it by another one."""
        for queue in queues:
            if not self.shows(queue):
                raise QueueNotFound(queue)


@dataclass(frozen=True)
class Visit:
    """One request. `fields` are those of its form."""

    dashboard: Dashboard
    request: Request
    visitor: Visitor
    fields: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str, default: str = "") -> str:
        """A value of the form, without spaces around it; of a page, the last one of this name in the query."""
        if self.request.method == "POST":
            return self.fields.get(name, "").strip() or default
        return str(self.request.query_params.get(name, default))

    def needed(self, name: str) -> str:
        """A value that must be there. Raises `Trouble`."""
        if not (value := self.text(name)):
            raise Trouble(400, f"{name}: expected a value")
        return value

    def queue(self, name: str = "name") -> Queue:
        """The queue that a value names. Raises `QueueNotFound` for one that this dashboard hides."""
        dashboard = self.dashboard
        broker = dashboard.broker if self.request.method == "POST" else dashboard.sampler.broker
        handle = broker.queue(self.needed(name))
        dashboard.refuse_hidden(handle.name)
        return handle

    def number(self, name: str) -> int:
        """A whole number of the query, 1 without it. Raises `Trouble`."""
        value = self.text(name, "1")
        if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value)):
            raise Trouble(400, f"{name}: expected a whole number from 1 on, got {text.format_value(value)}")
        return int(value)

    def link(self, path: str, **query: object) -> str:
        """The address of a page, under the path at which the dashboard is. Empty values are left out."""
        words = urlencode({name: value for name, value in query.items() if value not in ("", None)})
        return f"{self.request.scope.get('root_path', '')}{path}{'?' if words else ''}{words}"

    def shell(self, command: str) -> str:
        """A command as one enters it for the namespace of this dashboard."""
        namespace = self.dashboard.broker.namespace
        return command if namespace == "rqttl" else command.replace("rqttl ", f"rqttl --namespace {namespace} ", 1)

    def page(
        self, template: str, *, title: str, command: str = "", live: bool = False, status: int = 200, **values: Any
    ) -> Response:
        """An answer made of a template. `command` is the one that shows the same; a `live` page fetches itself anew."""
        environment, sample = self.dashboard.environment, self.dashboard.sampler.sample
        frame = {
            "visit": self,
            "ui": environment.get_template("macros.html").make_module({"link": self.link, "sample": sample}),
            "link": self.link,
            "shell": self.shell,
            "asset": lambda name: self.link(f"/static/{name}", v=asset(name)[1]),
            "path": self.request.scope["path"].removeprefix(self.request.scope.get("root_path", "")) or "/",
            "title": title,
            "command": command,
            "live": live,
            "now": datetime.now(timezone.utc),
            # troubles name servers
            "sample": replace(sample, troubles=()) if self.visitor is STRANGER else sample,
        }
        return HTMLResponse(environment.get_template(template).render(frame | values), status)
