"""Facts that a server gives about itself. A refusal is recorded and never an error: managed services hide a lot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from redis.exceptions import ResponseError

from rqttl import flows
from rqttl.flows.steps import Flow
from rqttl.protocol import replies

#: The settings that checks read.
SETTINGS = (
    "appendfsync",
    "busy-reply-threshold",
    "dir",
    "lua-time-limit",
    "min-replicas-to-write",
    "port",
    "save",
    "stop-writes-on-bgsave-error",
    "tcp-keepalive",
    "timeout",
    "tls-port",
    "unixsocket",
    "unixsocketperm",
)


class ServerInfo:
    """Fields of INFO and settings of a server, as `read` has read them. A setting may be the refusal to show it."""

    def __init__(
        self,
        fields: Mapping[str, int | float | str],
        settings: Mapping[str, str | ResponseError | None],
        *,
        now: float | None = None,
        why_no_info: str = "",
    ) -> None:
        #: The clock of the server in seconds, when INFO was read; `None` if it is hidden.
        self.now = now
        self.why_no_info = why_no_info
        #: Names of settings that a check needed and that were hidden.
        self.hidden: list[str] = []
        self.why_hidden = ""
        self._fields = fields
        self._settings = settings

    def text(self, name: str) -> str:
        """A field of INFO; empty if it is missing."""
        return str(self._fields.get(name, ""))

    @property
    def mode(self) -> str:
        """`standalone`, `cluster` or `sentinel`; Valkey calls the field by another name. Empty if it is missing."""
        return self.text("redis_mode") or self.text("server_mode")

    def number(self, name: str) -> int | None:
        """A field of INFO that is a number."""
        value = self._fields.get(name)
        return int(value) if isinstance(value, (int, float)) else None

    def setting(self, name: str) -> str | None:
        """A setting of `SETTINGS`; `None` if the server has no such setting or hides it."""
        value = self._settings[name]
        if isinstance(value, ResponseError):
            self.hidden.append(name)
            self.why_hidden = str(value)
            return None
        return value

    def whole(self, name: str) -> int | None:
        """A setting that is a whole number."""
        value = self.setting(name)
        return int(value) if value is not None and value.lstrip("-").isdigit() else None


def read() -> Flow[ServerInfo]:
    """Read all that checks of the server need, in three round trips."""
    fields: Mapping[str, int | float | str] = {}
    now, why_no_info = None, ""
    try:
        fields = yield from flows.steps.execute(replies.info_fields, "INFO")
    except ResponseError as error:
        why_no_info = str(error)
    with suppress(ResponseError):  # the check of clocks tells it
        now = yield from moment()
    answers = yield flows.steps.Read([("CONFIG", "GET", name) for name in SETTINGS], keep_errors=True)
    settings = {name: _setting(name, answer) for name, answer in zip(SETTINGS, answers, strict=True)}
    return ServerInfo(fields, settings, now=now, why_no_info=why_no_info)


def moment() -> Flow[float]:
    """The clock of the server, in seconds."""
    seconds, micros = yield from flows.steps.execute(replies.moment, "TIME")
    return seconds + micros / 1e6


def _setting(name: str, answer: object) -> str | ResponseError | None:
    if isinstance(answer, ResponseError):
        return answer
    value = replies.shaped("CONFIG GET", replies.pairs, answer).get(name.encode())
    return None if value is None else str(value.decode("utf-8", "replace"))
